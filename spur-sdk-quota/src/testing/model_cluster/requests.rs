//! The course that a request or a watch takes: its delay, its fault, its events.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::audit::Verb;
use super::state::{Change, State, selects, status};
use crate::cluster::{ApiError, Kind, Selection, WatchEvent};

/// How long a request without an answer is waited for.
const DEADLINE: Duration = Duration::from_secs(30);

/// How long a watch on a dead connection is silent until it is given up.
const SILENCE: Duration = Duration::from_secs(150);

/// How often a watch tells how far it is.
const BOOKMARKS: Duration = Duration::from_mins(1);

/// What becomes of a request.
#[derive(Debug)]
pub(super) struct Course {
    /// Until its effect, or its failure.
    pub(super) delay: Duration,
    /// Whether it has an effect.
    pub(super) carried_out: bool,
    /// Then, what takes the answer's place, and after how long.
    pub(super) failure: Option<(Duration, ApiError)>,
}

impl State {
    fn is_cut_off(&self, who: &Arc<str>) -> bool {
        self.cut_off.contains(who)
    }

    /// Draws the course of a request, and counts it.
    pub(super) fn course(&mut self, who: &Arc<str>, verb: Verb) -> Course {
        let count = self.requests.entry((Arc::clone(who), verb)).or_default();
        *count = count.saturating_add(1);
        let delay = self.random.duration(&self.delays.request);
        let fails = |carried_out, after, error| Course { delay, carried_out, failure: Some((after, error)) };
        if self.is_cut_off(who) {
            let silent = self.random.happens(500);
            let (after, error) = if silent {
                (DEADLINE, ApiError::Timeout(DEADLINE))
            } else {
                (Duration::ZERO, unreachable())
            };
            return fails(false, after, error);
        }
        let faults = self.faults;
        if self.random.happens(faults.refused) {
            let error = self.refused(verb);
            return fails(false, Duration::ZERO, error);
        }
        if self.random.happens(faults.lost) {
            let after = self.random.duration(&(Duration::ZERO..=Duration::from_secs(1)));
            return fails(true, after, ApiError::Transport("connection reset".to_owned()));
        }
        if self.random.happens(faults.hanging) {
            let carried_out = self.random.happens(500);
            return fails(carried_out, DEADLINE, ApiError::Timeout(DEADLINE));
        }
        let slow = self.random.happens(faults.slow);
        let delay =
            if slow { self.random.duration(&(Duration::ZERO..=Duration::from_secs(10))) } else { delay };
        Course { delay, carried_out: true, failure: None }
    }

    fn refused(&mut self, verb: Verb) -> ApiError {
        let write = matches!(verb, Verb::Apply | Verb::Merge | Verb::Delete | Verb::WriteLease);
        match self.random.below(if write { 4 } else { 3 }) {
            0 => ApiError::Status {
                code: 429,
                reason: "TooManyRequests".to_owned(),
                message: "too many requests, please try again later".to_owned(),
                retry_after: Some(Duration::from_secs(self.random.below(5).saturating_add(1))),
            },
            1 => status(500, "InternalError", "etcdserver: request timed out"),
            2 => unreachable(),
            _ => status(409, "Conflict", "the object has been modified"),
        }
    }
}

fn unreachable() -> ApiError {
    ApiError::Transport("connection refused".to_owned())
}

fn expired(version: u64) -> ApiError {
    status(410, "Expired", format!("too old resource version: {version}"))
}

/// How far a watch is.
#[derive(Debug)]
pub(super) struct Following {
    /// All up to this version is told.
    cursor: u64,
    /// When it ends by itself.
    ends: Instant,
    /// When the next events are told; `None` while there are none.
    release: Option<Instant>,
    /// When it tells next how far it is.
    bookmark: Instant,
    /// Whether the connection is dead, which only silence shows.
    dead: bool,
    /// How often all watches had been disconnected when it was opened.
    disconnected: u64,
}

/// What a watch does next.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) events: Vec<WatchEvent>,
    /// How it ends after them, if it does.
    pub(super) end: Option<Result<(), ApiError>>,
    /// When there may be more, at the latest.
    pub(super) wake: Instant,
}

impl State {
    fn after(&self, delay: Duration) -> Instant {
        self.now.checked_add(delay).unwrap_or(self.now)
    }

    /// Opens a watch; from the moment `0` it tells first what is there.
    pub(super) fn open_watch(
        &mut self,
        kind: Kind,
        selection: &Selection<'_>,
        version: &str,
    ) -> Result<(Following, Vec<WatchEvent>), ApiError> {
        let version = if version.is_empty() { "0" } else { version };
        let cursor: u64 = version
            .parse()
            .map_err(|_| status(400, "BadRequest", format!("invalid resource version {version}")))?;
        let mut events = Vec::new();
        if cursor == 0 {
            let there = self.list(kind, selection).items.into_iter();
            events.extend(there.map(|object| WatchEvent::Changed(with_type(kind, object))));
        } else if cursor < self.forgotten {
            return Err(expired(cursor));
        } else if cursor > self.version {
            return Err(status(504, "Timeout", "Too large resource version"));
        }
        let lasts = self.random.duration(&self.delays.watch_end);
        let following = Following {
            cursor: if cursor == 0 { self.version } else { cursor },
            ends: self.after(lasts),
            release: None,
            bookmark: self.after(BOOKMARKS),
            dead: false,
            disconnected: self.disconnected,
        };
        Ok((following, events))
    }

    /// What a watch tells now.
    pub(super) fn turn(
        &mut self,
        who: &Arc<str>,
        kind: Kind,
        selection: &Selection<'_>,
        following: &mut Following,
    ) -> Turn {
        let mut turn = Turn { events: Vec::new(), end: None, wake: following.ends.min(following.bookmark) };
        if self.is_cut_off(who) && !following.dead {
            following.dead = true;
            following.ends = self.after(SILENCE);
        }
        if following.disconnected != self.disconnected && !following.dead {
            turn.end = Some(Err(unreachable()));
            return turn;
        }
        if self.now >= following.ends {
            turn.end = Some(if following.dead { Err(ApiError::Timeout(SILENCE)) } else { Ok(()) });
            return turn;
        }
        if following.dead {
            turn.wake = following.ends;
            return turn;
        }
        if following.cursor < self.forgotten {
            turn.end = Some(if self.random.happens(500) { Ok(()) } else { Err(expired(following.cursor)) });
            return turn;
        }
        let start = self.history.partition_point(|change| change.version <= following.cursor);
        let changes = self.history.range(start..).filter(|change| change.key.kind == kind);
        let events: Vec<(u64, WatchEvent)> =
            changes.filter_map(|change| Some((change.version, event(change, selection)?))).collect();
        if events.is_empty() {
            following.cursor = self.version;
            if self.now >= following.bookmark {
                following.bookmark = self.after(BOOKMARKS);
                turn.events.push(WatchEvent::Version(self.version.to_string()));
            }
            turn.wake = following.ends.min(following.bookmark);
        } else {
            let release = match following.release {
                Some(release) => release,
                None => *following.release.insert(self.release()),
            };
            if self.now >= release {
                following.release = None;
                self.tell(events, following, &mut turn);
            } else {
                turn.wake = release.min(following.ends);
            }
        }
        turn.wake = self.next_due().map_or(turn.wake, |due| due.min(turn.wake));
        turn
    }

    /// When events that have come up are told.
    fn release(&mut self) -> Instant {
        let silent = self.random.happens(self.faults.watch_silences);
        let range = if silent { Duration::ZERO..=Duration::from_secs(15) } else { self.delays.watch.clone() };
        let delay = self.random.duration(&range);
        self.after(delay)
    }

    /// Tells events, unless the watch ends before one of them.
    fn tell(&mut self, events: Vec<(u64, WatchEvent)>, following: &mut Following, turn: &mut Turn) {
        for (version, event) in events {
            if self.random.happens(self.faults.watch_breaks) {
                let end = self.random.happens(500);
                turn.end = Some(if end { Ok(()) } else { Err(unreachable()) });
                return;
            }
            following.cursor = version;
            turn.events.push(event);
        }
        following.cursor = self.version;
        if self.random.happens(100) {
            turn.events.push(WatchEvent::Version(self.version.to_string()));
        }
    }

    /// Cuts what a watch tells first short, as often as it breaks; says how it then ends.
    pub(super) fn cut_short(&mut self, events: &mut Vec<WatchEvent>) -> Option<Result<(), ApiError>> {
        if !self.random.happens(self.faults.watch_breaks) {
            return None;
        }
        let kept = self.random.below(u64::try_from(events.len()).unwrap_or(0));
        events.truncate(usize::try_from(kept).unwrap_or(0));
        Some(Err(unreachable()))
    }
}

/// A change as a watch of a selection sees it. What leaves the selection is gone for it.
fn event(change: &Change, selection: &Selection<'_>) -> Option<WatchEvent> {
    let selected = |value: &Option<Arc<Value>>| {
        value.as_ref().filter(|value| selects(selection, &change.key, value)).map(|value| (**value).clone())
    };
    let (before, after) = (selected(&change.before), selected(&change.after));
    if let Some(object) = after {
        return Some(WatchEvent::Changed(with_type(change.key.kind, object)));
    }
    let mut object = before?;
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), json!(change.version.to_string()));
    }
    Some(WatchEvent::Deleted(with_type(change.key.kind, object)))
}

/// An object that stands by itself says of which type it is.
fn with_type(kind: Kind, mut object: Value) -> Value {
    let (group, version, _, _) = kind.resource();
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".to_owned(), api_version.into());
        map.insert("kind".to_owned(), kind.name().into());
    }
    object
}
