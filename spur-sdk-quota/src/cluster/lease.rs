//! Which of several replicas leads: a Lease, and the fence that keeps a replica that leads no more from writing.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, ready};
use std::time::{Duration, SystemTime};

use spur_sdk::{Classify, Clock, ErrorKind, error_chain};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::ApiError;

/// The longest that a Lease holds.
pub(super) const LONGEST_LEASE: Duration = Duration::from_mins(10);

/// A `coordination.k8s.io/v1` Lease.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Lease {
    /// Who holds it; empty when nobody does.
    pub holder: String,
    /// How long it holds after it was renewed; whole seconds.
    pub duration: Duration,
    /// When the holder took it, by the holder's clock.
    pub acquired_at: Option<SystemTime>,
    /// When it was last renewed, by the holder's clock.
    pub renewed_at: Option<SystemTime>,
    /// How often it changed hands.
    pub transitions: u32,
    /// The version that was read; empty for one that is not there yet.
    pub version: String,
}

/// Leases of an API server. Each call is one try with a deadline of its own.
pub trait LeaseApi: Send + Sync {
    /// The Lease, if there is one.
    fn read_lease(
        &self,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<Lease>, ApiError>> + Send;

    /// Writes the Lease if its version still is the one that was read, and makes it when the version is empty and
    /// there is none. Otherwise it is a conflict. The answer is the Lease as it is now.
    fn write_lease(
        &self,
        namespace: &str,
        name: &str,
        lease: &Lease,
    ) -> impl Future<Output = Result<Lease, ApiError>> + Send;
}

/// Which Lease is led by, and at what pace.
///
/// A replica takes the Lease of another when it has not seen it renewed for its duration, by its own clock: clocks of
/// different machines are never compared.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseSettings {
    /// The namespace, which must exist. Default: `kube-system`, which always does and where no tenant gets.
    pub namespace: String,
    /// The name. Default: `spur-quota`. Controllers with the same name and namespace lead in turn.
    pub name: String,
    /// What this replica calls itself; must differ between replicas and runs. Default: `spur-` and random characters.
    pub identity: String,
    /// How long a Lease holds; whole seconds. Default: 15 s.
    pub duration: Duration,
    /// How often the leader renews it. Default: 5 s.
    pub renew_every: Duration,
    /// After this time without a renewal the leader stops; less than the duration. Default: 10 s.
    pub give_up_after: Duration,
    /// How often the others look. Default: 2 s.
    pub look_every: Duration,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self {
            namespace: "kube-system".to_owned(),
            name: "spur-quota".to_owned(),
            identity: format!("spur-{:016x}", random()),
            duration: Duration::from_secs(15),
            renew_every: Duration::from_secs(5),
            give_up_after: Duration::from_secs(10),
            look_every: Duration::from_secs(2),
        }
    }
}

/// A number that no other run has, from the keys that the standard library draws for its hash maps.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

impl LeaseSettings {
    /// Sets the namespace.
    #[must_use]
    pub fn namespace(mut self, value: impl Into<String>) -> Self {
        self.namespace = value.into();
        self
    }

    /// Sets the name.
    #[must_use]
    pub fn name(mut self, value: impl Into<String>) -> Self {
        self.name = value.into();
        self
    }

    /// Sets what this replica calls itself.
    #[must_use]
    pub fn identity(mut self, value: impl Into<String>) -> Self {
        self.identity = value.into();
        self
    }

    /// Sets how long a Lease holds, in whole seconds; the other times follow: renewed after a third, given up after two
    /// thirds, looked at every seventh, and every 10 s at least.
    #[must_use]
    pub fn duration(mut self, value: Duration) -> Self {
        self.duration = Duration::from_secs(value.as_secs().clamp(1, LONGEST_LEASE.as_secs()));
        self.renew_every = self.duration.mul_f64(1.0 / 3.0);
        self.give_up_after = self.duration.mul_f64(2.0 / 3.0);
        self.look_every = self.duration.mul_f64(1.0 / 7.0).min(Duration::from_secs(10));
        self
    }
}

/// Until when this replica may write.
#[derive(Debug)]
pub(super) struct Fence(Mutex<Instant>);

impl Fence {
    /// One that is shut.
    pub(super) fn shut() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    fn until(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_until(&self, until: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// Ends when this replica may write no more.
    ///
    /// The clock is looked at whenever this is polled: in a process that was stopped, timers may fire after other
    /// things have gone on.
    pub(super) async fn lost(&self) {
        let mut timer = pin!(sleep_until(self.until()));
        poll_fn(|context| {
            loop {
                let until = self.until();
                if Instant::now() >= until {
                    return Poll::Ready(());
                }
                if timer.deadline() != until {
                    timer.as_mut().reset(until);
                }
                ready!(timer.as_mut().poll(context));
            }
        })
        .await;
    }
}

/// What a replica that does not lead does about a Lease that it sees.
#[derive(Debug, PartialEq, Eq)]
enum Bid {
    Take,
    Wait,
}

/// A Lease is free when nobody holds it, or when it has not changed for its duration while we looked. One that does not
/// say how long it holds does for as long as ours.
fn bid(lease: &Lease, me: &str, unchanged: Duration, ours: Duration) -> Bid {
    let duration = if lease.duration.is_zero() { ours } else { lease.duration.min(LONGEST_LEASE) };
    let free = lease.holder.is_empty() || lease.holder == me || unchanged >= duration;
    if free { Bid::Take } else { Bid::Wait }
}

/// Takes and keeps a Lease.
pub(super) struct Elector<'a, A> {
    api: &'a A,
    settings: &'a LeaseSettings,
    clock: &'a dyn Clock,
    fence: &'a Fence,
    /// The Lease as last seen, and since when it is so.
    seen: Option<(Lease, Instant)>,
}

impl<'a, A: LeaseApi> Elector<'a, A> {
    pub(super) fn new(
        api: &'a A,
        settings: &'a LeaseSettings,
        clock: &'a dyn Clock,
        fence: &'a Fence,
    ) -> Self {
        Self { api, settings, clock, fence, seen: None }
    }

    /// Waits until this replica leads.
    ///
    /// # Cancellation
    /// May leave the Lease taken; it runs out.
    pub(super) async fn acquire(&mut self, mut on_wait: impl FnMut(Result<&str, &ApiError>)) {
        loop {
            let taken = timeout(self.settings.give_up_after, self.try_to_take()).await;
            match taken.unwrap_or(Err(ApiError::Timeout(self.settings.give_up_after))) {
                Ok(true) => return,
                Ok(false) => on_wait(Ok(self.seen.as_ref().map_or("", |(lease, _)| &lease.holder))),
                Err(error) => on_wait(Err(&error)),
            }
            sleep(self.settings.look_every).await;
        }
    }

    async fn read(&self) -> Result<Option<Lease>, ApiError> {
        self.api.read_lease(&self.settings.namespace, &self.settings.name).await
    }

    /// Writes the Lease as ours and opens the fence, counted from before the write.
    async fn write(&mut self, lease: &Lease) -> Result<(), ApiError> {
        let start = Instant::now();
        let written = self.api.write_lease(&self.settings.namespace, &self.settings.name, lease).await?;
        self.fence.open_until(start.checked_add(self.settings.give_up_after).unwrap_or(start));
        self.seen = Some((written, start));
        Ok(())
    }

    async fn try_to_take(&mut self) -> Result<bool, ApiError> {
        let found = match (self.read().await?, &self.seen) {
            (Some(found), _) => found,
            // Deleted by hand. Who held it may write until the next renewal, so it counts as still held.
            (None, Some((seen, _))) => Lease { version: String::new(), ..seen.clone() },
            (None, None) => Lease::default(),
        };
        let now = Instant::now();
        let since = match &self.seen {
            Some((seen, since)) if *seen == found => *since,
            _ => now,
        };
        let unchanged = now.saturating_duration_since(since);
        let decision = bid(&found, &self.settings.identity, unchanged, self.settings.duration);
        self.seen = Some((found.clone(), since));
        if decision == Bid::Wait {
            return Ok(false);
        }
        let time = Some(self.clock.now());
        let mine = Lease {
            holder: self.settings.identity.clone(),
            duration: self.settings.duration,
            acquired_at: time,
            renewed_at: time,
            transitions: found.transitions.saturating_add(1),
            version: found.version,
        };
        match self.write(&mine).await {
            Ok(()) => Ok(true),
            // Somebody else was quicker.
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Renews the Lease until it is lost.
    pub(super) async fn hold(&mut self) {
        loop {
            let last = self.seen.as_ref().map_or_else(Instant::now, |(_, at)| *at);
            sleep_until(last.checked_add(self.settings.renew_every).unwrap_or(last)).await;
            // After a stop for longer than the Lease not even that is asked.
            if Instant::now() >= self.fence.until() {
                return;
            }
            while !self.renew().await {
                if Instant::now() >= self.fence.until() {
                    return;
                }
                sleep(self.settings.look_every.mul_f64(0.5)).await;
            }
            if Instant::now() >= self.fence.until() {
                return;
            }
        }
    }

    /// One try; whether it is settled, one way or the other.
    async fn renew(&mut self) -> bool {
        let Some((mut lease, _)) = self.seen.clone() else { return true };
        lease.renewed_at = Some(self.clock.now());
        lease.duration = self.settings.duration;
        let left = self.fence.until().saturating_duration_since(Instant::now());
        // One call that hangs leaves time for another.
        let limit = left.min(self.settings.give_up_after.mul_f64(0.4));
        let result = timeout(limit, self.write(&lease)).await;
        match result.unwrap_or(Err(ApiError::Timeout(limit))) {
            Ok(()) => true,
            Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                // A write of ours may have gone through without an answer; or another holds it.
                let left = self.fence.until().saturating_duration_since(Instant::now());
                match timeout(left, self.read()).await {
                    Ok(Ok(Some(found))) if found.holder == self.settings.identity => {
                        self.seen = Some((found, Instant::now()));
                        false
                    }
                    Ok(Ok(None)) => {
                        // Somebody has deleted it. Making it anew is a conflict if another was quicker.
                        self.seen = Some((Lease { version: String::new(), ..lease }, Instant::now()));
                        false
                    }
                    Ok(Ok(Some(_))) => {
                        self.fence.open_until(Instant::now());
                        true
                    }
                    _ => false,
                }
            }
            Err(error) => {
                tracing::warn!(error = %error_chain(&error), "the Lease cannot be renewed");
                false
            }
        }
    }

    /// Gives the Lease back, so that another need not wait. Tried once.
    pub(super) async fn release(&mut self) {
        let Some((lease, _)) = self.seen.take() else { return };
        if Instant::now() >= self.fence.until() {
            return;
        }
        self.fence.open_until(Instant::now());
        let free = Lease { holder: String::new(), renewed_at: Some(self.clock.now()), ..lease };
        let write = self.api.write_lease(&self.settings.namespace, &self.settings.name, &free);
        if let Ok(Err(error)) = timeout(Duration::from_secs(2), write).await {
            tracing::debug!(error = %error_chain(&error), "the Lease is not given back; it runs out");
        }
    }

    /// Whether the Lease still names this replica, asked of the server.
    pub(super) async fn is_held(api: &A, settings: &LeaseSettings) -> Result<bool, ApiError> {
        let found = api.read_lease(&settings.namespace, &settings.name).await?;
        Ok(found.is_some_and(|lease| lease.holder == settings.identity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str) -> Lease {
        Lease { holder: holder.to_owned(), duration: Duration::from_secs(15), ..Lease::default() }
    }

    #[test]
    fn a_lease_is_taken_when_free_or_not_renewed_for_its_duration() {
        let bid = |lease: &Lease, unchanged| bid(lease, "me", unchanged, Duration::from_secs(30));
        assert_eq!(bid(&lease(""), Duration::ZERO), Bid::Take);
        assert_eq!(bid(&lease("other"), Duration::from_secs(14)), Bid::Wait);
        assert_eq!(bid(&lease("other"), Duration::from_secs(15)), Bid::Take);
        let silent = Lease { duration: Duration::ZERO, ..lease("other") };
        assert_eq!(bid(&silent, Duration::from_secs(29)), Bid::Wait);
    }

    #[test]
    fn a_lease_written_by_hand_for_a_century_runs_out_all_the_same() {
        let century = Lease { duration: Duration::from_hours(900_000), ..lease("other") };
        let ours = Duration::from_secs(15);
        assert_eq!(bid(&century, "me", Duration::from_mins(9), ours), Bid::Wait);
        assert_eq!(bid(&century, "me", Duration::from_mins(10), ours), Bid::Take);
    }

    #[test]
    fn two_settings_never_share_an_identity() {
        assert_ne!(LeaseSettings::default().identity, LeaseSettings::default().identity);
    }
}
