//! When a file has changed, by looking at it again and again.

use std::future::pending;
use std::hash::{DefaultHasher, Hasher};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use spur_sdk::fs::{Fingerprint, fingerprint, read_text};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, sleep};

use super::{CALM, MAX_FILE, Reading};

/// How often a file is looked at that has not changed.
const INTERVAL: Duration = Duration::from_millis(500);

/// After this long, a file that goes on changing has changed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longer than the longest tick of a file system's clock, FAT's 2 s.
const TICK: Duration = Duration::from_secs(3);

/// Longer than [`TICK`] and the difference between the clocks of this machine and of a file server.
const FRESH: Duration = Duration::from_mins(1);

/// A file as the last reading found it.
#[derive(Debug, Clone)]
pub(super) struct Base {
    fingerprint: Fingerprint,
    /// The hash of its content, if an edit in the same tick may have followed.
    content: Option<u64>,
}

impl Base {
    pub(super) fn of(reading: &Reading) -> Self {
        let fresh = reading.before.touched().is_some_and(|touched| is_fresh(touched, SystemTime::now()));
        let text = reading.text.as_ref().ok().filter(|_| fresh && reading.is_steady());
        Self { fingerprint: reading.before.clone(), content: text.map(|text| hash(text)) }
    }
}

/// Whether what was touched at a file server's time may be touched in the same tick again.
fn is_fresh(touched: SystemTime, now: SystemTime) -> bool {
    // One in the future is by a clock that is ahead.
    now.duration_since(touched).map_or(true, |age| age < FRESH)
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// What a look at a file found.
struct Look {
    /// The hash of the content, if it was asked for and can be read.
    content: Option<u64>,
    /// Taken after the content, so that one that is written just now is not told from the last by its content.
    fingerprint: Fingerprint,
}

impl Look {
    fn at(path: &Path, with_content: bool) -> Self {
        let text = with_content.then(|| read_text(path, MAX_FILE).ok()).flatten();
        Self { content: text.map(|text| hash(&text)), fingerprint: fingerprint(path) }
    }
}

/// A file that is not as the last reading found it.
#[derive(Debug, Clone)]
struct Difference {
    since: Instant,
    last: Fingerprint,
}

#[derive(Debug, Clone, Default)]
struct State {
    /// `None` before the first reading and the first look.
    base: Option<Fingerprint>,
    /// The content to compare, and since when.
    unsure: Option<(u64, Instant)>,
    difference: Option<Difference>,
    looked: Option<Instant>,
    changed: bool,
}

impl State {
    fn set_read(&mut self, base: Base, now: Instant) {
        *self = Self {
            base: Some(base.fingerprint),
            unsure: base.content.map(|content| (content, now)),
            looked: self.looked,
            ..Self::default()
        };
    }

    /// How long to wait before the next look.
    fn wait(&self, now: Instant) -> Duration {
        let interval = if self.difference.is_some() { CALM } else { INTERVAL };
        self.looked.map_or(Duration::ZERO, |looked| interval.saturating_sub(now.duration_since(looked)))
    }

    /// Whether the next look is to compare the content.
    fn wants_content(&self, now: Instant) -> bool {
        self.unsure.is_some_and(|(_, since)| now.duration_since(since) >= TICK)
    }

    /// Takes in what a look found that ended at `now`; looks are at least [`CALM`] apart.
    fn judge(&mut self, look: Look, now: Instant) {
        self.looked = Some(now);
        let found = look.fingerprint;
        match (&self.base, &mut self.difference) {
            (None, _) => self.base = Some(found),
            (Some(base), _) if *base == found => {
                self.difference = None;
                match (look.content, self.unsure) {
                    (Some(content), Some((read, _))) if content == read => self.unsure = None,
                    // It is compared again until it is read.
                    (Some(_), Some(_)) => self.changed = true,
                    _ => {}
                }
            }
            (Some(_), None) => self.difference = Some(Difference { since: now, last: found }),
            (Some(_), Some(difference)) => {
                self.changed |= difference.last == found || now.duration_since(difference.since) >= PATIENCE;
                difference.last = found;
            }
        }
    }

    /// Whether the file has changed. Until it is read, that is found again, after as long as the first time.
    fn take_changed(&mut self) -> bool {
        let changed = std::mem::take(&mut self.changed);
        if changed {
            self.difference = None;
        }
        changed
    }
}

/// Watches a file. What one look finds stays for the next, also when nobody waits for it any more.
#[derive(Debug)]
pub(super) struct Watch {
    state: Arc<Mutex<State>>,
    /// Held while a thread touches the file, which takes for ever on a file server that hangs.
    turn: Arc<Semaphore>,
}

impl Default for Watch {
    fn default() -> Self {
        Self { state: Arc::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

/// With what has been found so far, and from then on by itself.
impl Clone for Watch {
    fn clone(&self) -> Self {
        let state = lock(&self.state).clone();
        Self { state: Arc::new(Mutex::new(state)), turn: Arc::clone(&self.turn) }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// From now on, what differs from this is a change.
    pub(super) fn set_read(&self, base: Base) {
        lock(&self.state).set_read(base, Instant::now());
    }

    /// Ends when the file has changed since the last [`set_read`](Self::set_read).
    pub(super) async fn changed(&self, path: &Path) {
        if Handle::try_current().is_err() {
            return pending().await;
        }
        loop {
            if lock(&self.state).take_changed() {
                return;
            }
            let wait = lock(&self.state).wait(Instant::now());
            if !wait.is_zero() {
                sleep(wait).await;
            } else if self.look(path).await.is_err() {
                // The runtime is about to end, and takes no more work.
                return pending().await;
            }
        }
    }

    async fn look(&self, path: &Path) -> Result<(), JoinError> {
        let (state, path) = (Arc::clone(&self.state), path.to_owned());
        let look = move || {
            let (wait, with_content) = {
                let (state, now) = (lock(&state), Instant::now());
                (state.wait(now), state.wants_content(now))
            };
            // Another may have looked while this one waited for its turn.
            if wait.is_zero() {
                let look = Look::at(&path, with_content);
                lock(&state).judge(look, Instant::now());
            }
        };
        self.blocking(look).await
    }

    /// Runs what may block on a thread for that, one at a time. Dropped, it goes on to its end.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        // An error would say that the semaphore was closed, which nobody does.
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        let work = spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        work.await.map_err(|error| match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(stopped) => stopped,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAME: u64 = 1;
    const OTHER: u64 = 2;

    /// Fingerprints that differ.
    fn fingerprints<const N: usize>() -> [Fingerprint; N] {
        let folder = tempfile::tempdir().unwrap();
        std::array::from_fn(|number| {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, "").unwrap();
            fingerprint(&path)
        })
    }

    /// A state, and a clock that begins at its reading.
    struct Watched {
        state: State,
        read: Instant,
        now: Instant,
    }

    impl Watched {
        fn new(base: &Fingerprint, content: Option<u64>) -> Self {
            let (mut state, now) = (State::default(), Instant::now());
            state.set_read(Base { fingerprint: base.clone(), content }, now);
            Self { state, read: now, now }
        }

        /// Looks as soon as it is time; whether the file has changed then.
        fn looks(&mut self, found: &Fingerprint, content: u64) -> bool {
            self.now = self.now.checked_add(self.state.wait(self.now)).unwrap();
            let content = self.state.wants_content(self.now).then_some(content);
            self.state.judge(Look { content, fingerprint: found.clone() }, self.now);
            self.state.take_changed()
        }

        fn elapsed(&self) -> Duration {
            self.now.duration_since(self.read)
        }
    }

    #[test]
    fn a_change_is_told_when_it_has_lasted_and_again_until_it_is_read() {
        let [first, second] = fingerprints();
        let mut watched = Watched::new(&first, None);
        assert!(!watched.looks(&first, SAME), "the first look is at once");
        assert!(!watched.looks(&second, SAME));
        assert!(watched.looks(&second, SAME));
        assert_eq!(watched.elapsed(), INTERVAL + CALM);
        assert!(!watched.looks(&second, SAME));
        assert!(watched.looks(&second, SAME));
        assert_eq!(watched.elapsed(), INTERVAL + CALM + INTERVAL + CALM);
        watched.state.set_read(Base { fingerprint: second.clone(), content: None }, watched.now);
        assert!(!watched.looks(&second, SAME) && !watched.looks(&second, SAME));
    }

    #[test]
    fn a_file_that_is_being_written_has_not_changed_until_it_is_calm_or_the_patience_ends() {
        let [first, rest @ ..] = fingerprints::<60>();
        let mut watched = Watched::new(&first, None);
        assert!(rest.iter().take(20).all(|found| !watched.looks(found, SAME)));
        assert!(watched.looks(&rest[19], SAME), "calm");

        let mut watched = Watched::new(&first, None);
        assert!(rest.iter().any(|found| watched.looks(found, SAME)), "never calm");
        assert_eq!(watched.elapsed(), PATIENCE);
    }

    #[test]
    fn what_was_another_for_a_moment_only_has_not_changed() {
        let [first, second] = fingerprints();
        let mut watched = Watched::new(&first, None);
        for _ in 0..3 {
            assert!(!watched.looks(&second, SAME) && !watched.looks(&first, SAME));
        }
    }

    #[test]
    fn an_edit_in_the_tick_of_the_reading_is_found_by_its_content() {
        let [first] = fingerprints();
        let mut watched = Watched::new(&first, Some(SAME));
        while watched.elapsed() < TICK {
            assert!(!watched.looks(&first, SAME));
        }
        assert_eq!(watched.state.unsure, None, "compared once");

        let mut watched = Watched::new(&first, Some(SAME));
        while !watched.looks(&first, OTHER) {}
        assert_eq!(watched.elapsed(), TICK);
        assert!(watched.looks(&first, OTHER), "not read yet");
        assert!(!watched.looks(&first, SAME), "put back");
    }

    #[test]
    fn before_the_first_reading_changes_count_from_the_first_look() {
        let [first, second] = fingerprints();
        let now = Instant::now();
        let mut watched = Watched { state: State::default(), read: now, now };
        assert!(!watched.looks(&first, SAME) && !watched.looks(&first, SAME));
        assert!(!watched.looks(&second, SAME));
        assert!(watched.looks(&second, SAME));
    }

    #[test]
    fn only_a_file_that_was_just_touched_is_compared_by_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("accounts.toml");
        assert_eq!(Base::of(&Reading::of(&path)).content, None, "missing");
        std::fs::write(&path, "a").unwrap();
        assert_eq!(Base::of(&Reading::of(&path)).content, Some(hash("a")));
        assert_eq!(Base::of(&Reading::of("/proc/self/exe".as_ref())).content, None, "no text");
        assert_eq!(Base::of(&Reading::of("/dev/null".as_ref())).content, None, "no file");
        let now = SystemTime::now();
        assert!(is_fresh(now, now));
        assert!(is_fresh(now.checked_add(FRESH).unwrap(), now));
        assert!(!is_fresh(now.checked_sub(FRESH).unwrap(), now));
    }

    #[tokio::test]
    async fn while_a_look_hangs_no_other_is_begun_and_its_result_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("accounts.toml");
        let watch = Watch::default();
        watch.set_read(Base { fingerprint: fingerprint(&path), content: None });
        std::fs::write(&path, "").unwrap();
        let (go_on, hangs) = std::sync::mpsc::channel::<()>();
        let (begin, has_begun) = tokio::sync::oneshot::channel();
        let other = watch.clone();
        let hanging = tokio::spawn(async move {
            let work = move || {
                begin.send(()).unwrap();
                hangs.recv()
            };
            other.blocking(work).await
        });
        has_begun.await.unwrap();
        let patient = Duration::from_secs(2);
        for _ in 0..3 {
            assert!(tokio::time::timeout(patient / 4, watch.changed(&path)).await.is_err());
            assert!(lock(&watch.state).looked.is_none());
        }
        drop(go_on);
        assert!(hanging.await.unwrap().unwrap().is_err());
        tokio::time::timeout(patient * 15, watch.changed(&path)).await.unwrap();
    }

    #[tokio::test]
    async fn one_that_is_asked_anew_all_the_time_tells_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("accounts.toml");
        let watch = Watch::default();
        watch.set_read(Base { fingerprint: fingerprint(&path), content: None });
        std::fs::write(&path, "").unwrap();
        let begun = Instant::now();
        while tokio::time::timeout(Duration::from_millis(1), watch.changed(&path)).await.is_err() {
            assert!(begun.elapsed() < Duration::from_mins(1));
        }
    }

    #[test]
    fn without_a_runtime_it_waits() {
        let watch = Watch::default();
        let mut changed = std::pin::pin!(watch.changed("/".as_ref()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(changed.as_mut().poll(&mut context).is_pending());
    }
}
