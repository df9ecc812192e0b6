//! What is planned and written by itself: what all accounts share, an account, a user.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::cache::Contents;
use super::pace::pause;
use super::report::State;
use super::work::Purpose;
use crate::cluster::apply::steps::Written;
use crate::cluster::{Key, Kind, StepError};
use crate::project::names;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unit {
    /// Roles, guard, the users' namespace.
    Shared,
    /// An account, by its namespace.
    Account(String),
    /// A user, by the ServiceAccount's name.
    User(String),
}

impl Unit {
    /// A number that differs between units, the same in every run.
    pub(super) fn spread(&self) -> u64 {
        match self {
            Self::Shared => 0,
            Self::Account(name) | Self::User(name) => {
                name.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
            }
        }
    }

    /// Whose an object is.
    pub(super) fn of(key: &Key) -> Option<Self> {
        let users = key.namespace.as_deref() == Some(names::USERS_NAMESPACE);
        Some(match (key.kind, &key.namespace) {
            (Kind::Namespace, _) if key.name == names::USERS_NAMESPACE => Self::Shared,
            (Kind::Namespace, _) => Self::Account(key.name.clone()),
            (Kind::ServiceAccount, Some(_)) if users => Self::User(key.name.clone()),
            (_, Some(_)) if users => return None,
            (_, Some(namespace)) => Self::Account(namespace.clone()),
            (_, None) => Self::Shared,
        })
    }
}

/// A write that the cache has to show before the unit is judged again: until then it shows what was before.
#[derive(Debug)]
struct Expected {
    key: Key,
    uid: String,
    version: Option<u64>,
}

impl Expected {
    fn is_seen(&self, contents: &Contents) -> bool {
        let live = contents.observed.get(&self.key);
        match self.version {
            // Deleted: gone, going, or another one.
            None => live.is_none_or(|live| live.is_terminating() || live.text("/metadata/uid") != self.uid),
            Some(version) => live.and_then(crate::cluster::Live::version).is_some_and(|seen| seen >= version),
        }
    }
}

/// Where a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing has to be done.
    Idle,
    /// It waits to be looked at.
    Queued,
    /// It has to be looked at and may not be yet.
    Deferred,
    /// It is looked at, or worked on.
    Busy {
        /// What has happened meanwhile.
        meanwhile: Option<Mark>,
    },
}

/// Why a unit is to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// Something in the cluster is another: after those that wait already.
    Later,
    /// The same, before those.
    Ahead,
    /// The source says something new of it: before those, and whatever it waits for after a failure.
    News,
}

/// How a unit stands.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) state: State,
    pub(super) reason: String,
    pub(super) error: Option<StepError>,
    /// Since when.
    pub(super) since: Instant,
    /// Whether it was reported.
    pub(super) told: bool,
    /// Whether it was in step since the source last said something new of it: what differs then is somebody else's work.
    pub(super) was_in_step: bool,
    /// What a round that failed was for; the next one is for the same.
    pub(super) owed: Option<Purpose>,
    pub(super) attempts: u32,
    /// Why a namespace is not deleted though its time is over, and until when that is not asked again.
    pub(super) kept: Option<(Instant, String)>,
    /// Since when its grace period is over.
    pub(super) over_since: Option<Instant>,
    /// Rounds of writes in a row after which it was not in step.
    pub(super) rounds: u32,
    place: Place,
    /// When it is looked at by itself.
    due: Option<Instant>,
    /// When the change was seen that it is looked at for.
    pub(super) marked: Instant,
    not_before: Instant,
    expected: Vec<Expected>,
    expected_until: Instant,
}

impl Tracked {
    /// Whether nothing waits to be done about it.
    pub(super) fn is_idle(&self) -> bool {
        self.place == Place::Idle
    }

    fn new(now: Instant) -> Self {
        Self {
            state: State::Changing,
            reason: String::new(),
            error: None,
            since: now,
            told: false,
            was_in_step: false,
            owed: None,
            attempts: 0,
            kept: None,
            over_since: None,
            rounds: 0,
            due: None,
            place: Place::Idle,
            marked: now,
            not_before: now,
            expected: Vec::new(),
            expected_until: now,
        }
    }

    /// Takes a new state; whether it is another one than before.
    pub(super) fn stands(&mut self, state: State, reason: String, error: Option<StepError>) -> bool {
        let changed = self.state != state || self.reason != reason;
        if self.state != state {
            self.since = Instant::now();
        }
        if changed {
            self.told = false;
        }
        (self.state, self.reason, self.error) = (state, reason, error);
        changed
    }
}

/// How long the cache may take to show a write; after that it is judged as it is.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

/// The least between two rounds of writes to the same unit, so that a fight with another program stays cheap.
const SPACING: Duration = Duration::from_millis(100);

/// The most, so that a hand edit is put back within a second however many came before it.
const WIDER_SPACING: Duration = Duration::from_millis(500);

/// So many rounds in a row that did not bring a unit in step are no hand edits any more.
const MANY_ROUNDS: u32 = 20;

/// The most after so many.
const WIDEST_SPACING: Duration = Duration::from_secs(10);

/// All units, and which of them have to be looked at.
#[derive(Debug, Default)]
pub(super) struct Units {
    all: BTreeMap<Unit, Tracked>,
    queue: VecDeque<Unit>,
    due: BTreeSet<(Instant, Unit)>,
}

impl Units {
    pub(super) fn get(&self, unit: &Unit) -> Option<&Tracked> {
        self.all.get(unit)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Unit, &Tracked)> {
        self.all.iter()
    }

    pub(super) fn entry(&mut self, unit: &Unit) -> &mut Tracked {
        self.all.entry(unit.clone()).or_insert_with(|| Tracked::new(Instant::now()))
    }

    pub(super) fn forget(&mut self, unit: &Unit) {
        if let Some(due) = self.all.remove(unit).and_then(|tracked| tracked.due) {
            self.due.remove(&(due, unit.clone()));
        }
    }

    /// Has the unit looked at.
    pub(super) fn mark(&mut self, unit: Unit, mark: Mark) {
        let first = mark > Mark::Later;
        let tracked = self.entry(&unit);
        if mark == Mark::News {
            // What is new may work where the last did not.
            tracked.not_before = Instant::now();
            tracked.was_in_step = false;
        }
        match tracked.place {
            // Queued twice, it is looked at where it comes first.
            Place::Queued if first => {}
            Place::Queued => return,
            Place::Busy { meanwhile } => {
                tracked.place = Place::Busy { meanwhile: meanwhile.max(Some(mark)) };
                return;
            }
            Place::Idle | Place::Deferred => tracked.place = Place::Queued,
        }
        tracked.marked = Instant::now();
        if first {
            self.queue.push_front(unit);
        } else {
            self.queue.push_back(unit);
        }
    }

    /// Has the unit looked at at a time, unless it is before anyway.
    pub(super) fn mark_at(&mut self, at: Instant, unit: &Unit) {
        let Some(tracked) = self.all.get_mut(unit) else { return };
        match tracked.due {
            Some(due) if due <= at => return,
            Some(due) => drop(self.due.remove(&(due, unit.clone()))),
            None => {}
        }
        tracked.due = Some(at);
        self.due.insert((at, unit.clone()));
    }

    /// Has it count as never in step: the source, or what may be taken away, has changed for it.
    pub(super) fn unsettle(&mut self, unit: &Unit) {
        if let Some(tracked) = self.all.get_mut(unit) {
            tracked.was_in_step = false;
        }
    }

    /// The next time at which something is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Marks what is due.
    pub(super) fn take_due(&mut self, now: Instant) {
        while self.due.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, unit)) = self.due.pop_first()
                && let Some(tracked) = self.all.get_mut(&unit)
            {
                tracked.due = None;
                self.mark(unit, Mark::Later);
            }
        }
    }

    /// Whether every unit is in step, or cannot be for a reason that is known.
    pub(super) fn are_at_rest(&self) -> bool {
        self.all.values().all(|tracked| match tracked.state {
            State::Changing | State::Waiting | State::NotLetIn => false,
            State::InStep | State::Failed | State::Refused | State::Paused | State::Retired | State::Held => {
                true
            }
        })
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The next unit to look at, if it may be judged now; otherwise it is looked at when it may.
    pub(super) fn next(&mut self, contents: &Contents, now: Instant) -> Option<Unit> {
        while let Some(unit) = self.queue.pop_front() {
            let Some(tracked) = self.all.get_mut(&unit) else { continue };
            if tracked.place != Place::Queued {
                continue;
            }
            tracked.place = Place::Deferred;
            tracked.expected.retain(|expected| !expected.is_seen(contents));
            if !tracked.expected.is_empty() && now < tracked.expected_until {
                // The event that shows it marks the unit again; the time is for an event that never comes.
                let until = tracked.expected_until;
                self.mark_at(until, &unit);
                continue;
            }
            tracked.expected.clear();
            tracked.place = Place::Busy { meanwhile: None };
            return Some(unit);
        }
        None
    }

    /// Whether a unit that was looked at has to wait before it is written again; then it is looked at again in time.
    pub(super) fn waits(&mut self, unit: &Unit, now: Instant) -> bool {
        let Some(tracked) = self.all.get_mut(unit).filter(|tracked| now < tracked.not_before) else {
            return false;
        };
        tracked.place = Place::Deferred;
        let at = tracked.not_before;
        self.mark_at(at, unit);
        true
    }

    /// Takes a unit back that was looked at and needs no work now.
    pub(super) fn put_back(&mut self, unit: &Unit) {
        let Some(tracked) = self.all.get_mut(unit) else { return };
        if matches!(tracked.place, Place::Busy { meanwhile: Some(_) }) {
            tracked.place = Place::Queued;
            self.queue.push_back(unit.clone());
        } else {
            tracked.place = Place::Idle;
        }
    }

    /// Takes a unit back after work; it is looked at again when the cache shows the writes.
    pub(super) fn worked(&mut self, unit: &Unit, written: Vec<Written>, again_after: Option<Duration>) {
        let now = Instant::now();
        let after = |wait: Duration| now.checked_add(wait).unwrap_or(now);
        let Some(tracked) = self.all.get_mut(unit) else { return };
        let news = tracked.place == (Place::Busy { meanwhile: Some(Mark::News) });
        tracked.place = Place::Queued;
        let widest = if tracked.rounds < MANY_ROUNDS { WIDER_SPACING } else { WIDEST_SPACING };
        let spacing = || pause(SPACING, widest, tracked.rounds, 0);
        tracked.not_before = if news { now } else { after(again_after.unwrap_or_else(spacing)) };
        let expected = written.into_iter().map(|written| Expected {
            version: written.version.as_ref().map(|version| version.parse().unwrap_or(0)),
            key: written.key,
            uid: written.uid,
        });
        tracked.expected.extend(expected);
        tracked.expected_until = after(SHOWN_WITHIN);
        self.queue.push_back(unit.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str) -> Unit {
        Unit::Account(name.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_source_changed_comes_before_what_waits() {
        let (mut units, contents) = (Units::default(), Contents::default());
        units.mark(account("a"), Mark::Later);
        units.mark(account("b"), Mark::Later);
        units.mark(account("c"), Mark::News);
        let order: Vec<_> = std::iter::from_fn(|| units.next(&contents, Instant::now())).collect();
        assert_eq!(order, [account("c"), account("a"), account("b")]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_unit_is_judged_again_only_when_the_cache_shows_what_was_written() {
        let (mut units, mut contents) = (Units::default(), Contents::default());
        let key = Key::namespaced(Kind::ResourceQuota, "a", "q");
        units.mark(account("a"), Mark::Later);
        assert_eq!(units.next(&contents, Instant::now()), Some(account("a")));
        let written = Written { key: key.clone(), uid: "u".to_owned(), version: Some("7".to_owned()) };
        units.worked(&account("a"), vec![written], None);
        let later = Instant::now() + SPACING;
        assert_eq!(units.next(&contents, later), None, "the cache shows nothing of it");
        let object =
            serde_json::json!({ "metadata": { "namespace": "a", "name": "q", "resourceVersion": "7" } });
        contents.observed.insert(Kind::ResourceQuota, object);
        units.mark(account("a"), Mark::Later);
        assert_eq!(units.next(&contents, later), Some(account("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_no_event_shows_delays_a_unit_for_ten_seconds_at_most() {
        let (mut units, contents) = (Units::default(), Contents::default());
        units.mark(account("a"), Mark::Later);
        units.next(&contents, Instant::now());
        let key = Key::namespaced(Kind::ResourceQuota, "a", "q");
        let written = Written { key, uid: "u".to_owned(), version: Some("7".to_owned()) };
        units.worked(&account("a"), vec![written], None);
        assert_eq!(units.next(&contents, Instant::now()), None);
        let due = units.next_due().unwrap_or_else(Instant::now);
        units.take_due(due);
        assert_eq!(units.next(&contents, due), Some(account("a")));
    }
}
