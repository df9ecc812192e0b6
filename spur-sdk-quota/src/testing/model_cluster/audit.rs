//! What happened in the model, for tests to judge.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::Key;

/// What was asked for or done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// A list.
    List,
    /// A watch was opened.
    Watch,
    /// A server-side apply as manager `spur-quota`.
    Apply,
    /// A merge patch.
    Merge,
    /// A deletion.
    Delete,
    /// A dry run of a pod.
    Probe,
    /// A Lease was read.
    ReadLease,
    /// A Lease was written.
    WriteLease,
    /// An Event was written.
    WriteEvent,
    /// Events were listed.
    ListEvents,
    /// Somebody changed an object by hand.
    Edit,
    /// A controller of Kubernetes did its work.
    Control,
}

/// An object that came, changed or went.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Record {
    /// When, since the model was made.
    pub at: Duration,
    /// Who did it: the name of a client, or of somebody who edits by hand.
    pub who: Arc<str>,
    /// How.
    pub verb: Verb,
    /// What.
    pub key: Key,
    /// The object before; `None` when it came.
    pub before: Option<Arc<Value>>,
    /// The object after; `None` when it went.
    pub after: Option<Arc<Value>>,
}

/// `12.345s a Apply ResourceQuota spur-acct-physics/spur-quota: {…} -> {…}`, without what the server adds.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |value: &Option<Arc<Value>>| {
            let Some(value) = value else { return "nothing".to_owned() };
            let mut value = (**value).clone();
            if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
                for key in ["managedFields", "uid", "name", "namespace"] {
                    metadata.remove(key);
                }
            }
            value.to_string()
        };
        let (before, after) = (show(&self.before), show(&self.after));
        write!(f, "{:?} {} {:?} {}: {before} -> {after}", self.at, self.who, self.verb, self.key)
    }
}

/// A Lease that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseRecord {
    /// When, since the model was made.
    pub at: Duration,
    /// Who wrote it.
    pub who: Arc<str>,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who holds it from then on; empty when nobody does, or it was deleted.
    pub holder: String,
}
