//! What a controller tells.

use std::fmt;
use std::time::SystemTime;

use serde::Serialize;
use spur_sdk::AccountName;

use crate::cluster::{Key, Removals, StepError};

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "report", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Report {
    /// This replica leads.
    Leading,
    /// Another replica leads, or the Lease cannot be had: nothing is done.
    Following {
        /// Who leads; empty when it cannot be told.
        leader: String,
        /// Why the Lease cannot be read or written.
        trouble: Option<String>,
    },
    /// The source was read.
    SourceRead {
        /// Accounts that it names.
        accounts: usize,
        /// Entries that could not be understood.
        problems: usize,
        /// Whether it was read in full; otherwise nothing is taken away.
        full: bool,
    },
    /// The source could not be read, or nothing in it may be used; what was read before stays in force.
    SourceFailed {
        /// Why.
        error: String,
    },
    /// The API server cannot be asked about a kind of objects; what is known of them grows old.
    Unwatched {
        /// The kind of objects, such as `resourcequotas`.
        resource: &'static str,
        /// Why.
        error: String,
    },
    /// What the source says was written.
    Written {
        /// Of what: an account, a user, or what all accounts share.
        subject: String,
        /// The account; `None` for what all share and for users.
        account: Option<AccountName>,
        /// The namespace, if it is one account's.
        namespace: Option<String>,
        /// Writes.
        writes: usize,
    },
    /// A change by somebody else was put back.
    Reverted {
        /// The account; `None` for what all share and for users.
        account: Option<AccountName>,
        /// The objects.
        objects: Vec<Key>,
        /// What was put back, in words.
        what: String,
    },
    /// An account is gone from the source: access removed, quota closed.
    Retired {
        /// The account.
        account: AccountName,
        /// Its namespace.
        namespace: String,
    },
    /// An account that was retired is in the source again.
    Restored {
        /// The account.
        account: AccountName,
        /// Its namespace.
        namespace: String,
    },
    /// The namespace of a retired account was deleted after the grace period.
    Deleted {
        /// The namespace.
        namespace: String,
    },
    /// A user who is in no account any more has lost the ServiceAccount, and with it all tokens.
    UserRemoved {
        /// The ServiceAccount.
        service_account: String,
    },
    /// So much has vanished from the source that nothing is taken away until somebody confirms it.
    RemovalsHeld(Removals),
    /// An account, a user or what all share is not in step.
    Trouble(Trouble),
    /// Everything is as the source says, but for what is named in troubles.
    Settled,
}

/// One line, as for a log: `put back: ResourceQuota spur-acct-a/spur-quota: spec.hard.pods: 9 -> 5`.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leading => f.write_str("leading"),
            Self::Following { trouble: Some(error), .. } => write!(f, "not leading: {error}"),
            Self::Following { leader, trouble: None } => write!(f, "following: {leader} leads"),
            Self::SourceRead { accounts, problems: 0, full: true } => {
                write!(f, "source read: {accounts} accounts")
            }
            Self::SourceRead { accounts, problems, full } => {
                let part = if *full { "" } else { ", not in full: nothing is taken away" };
                write!(f, "source read: {accounts} accounts, {problems} errors{part}")
            }
            Self::SourceFailed { error } => {
                write!(f, "source not used, what was read before stays in force: {error}")
            }
            Self::Unwatched { resource, error } => write!(f, "cannot watch {resource}: {error}"),
            Self::Written { subject, writes, .. } => write!(f, "written: {subject}, {writes} writes"),
            Self::Reverted { what, .. } => write!(f, "put back: {what}"),
            Self::Retired { account, namespace } => {
                write!(
                    f,
                    "retired: account {account} is gone from the source; {namespace} is closed, nothing deleted"
                )
            }
            Self::Restored { account, .. } => write!(f, "restored: account {account} is in the source again"),
            Self::Deleted { namespace } => write!(f, "deleted: {namespace}, retired for the grace period"),
            Self::UserRemoved { service_account } => {
                write!(f, "removed: ServiceAccount {service_account}, whose user is in no account any more")
            }
            Self::RemovalsHeld(removals) => write!(
                f,
                "removals held: {} of {} accounts vanished from the source ({} more in the last 24 h); nothing is taken \
                 away until: spur quota confirm {}",
                removals.vanished.len(),
                removals.accounts,
                removals.recent.len(),
                removals.digest
            ),
            Self::Trouble(Trouble { subject, state, reason, .. }) => {
                write!(f, "{state}: {subject}: {reason}")
            }
            Self::Settled => {
                f.write_str("settled: everything is as the source says, but for what is named above")
            }
        }
    }
}

/// How something that is not in step stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum State {
    /// As the source says.
    InStep,
    /// About to be written.
    Changing,
    /// Written; its quota does not bind yet, so nobody new is let in.
    Waiting,
    /// Written; nobody new is let in before what all accounts share is in place.
    NotLetIn,
    /// A write failed; it is tried again.
    Failed,
    /// It may not be written: an error in the source, or an object that is not ours or is being deleted.
    Refused,
    /// Somebody has suspended it.
    Paused,
    /// Its account is gone from the source: nobody is let in, nothing new is let in.
    Retired,
    /// Its account is gone from the source, and removals are held.
    Held,
}

/// As it serializes: `in-step`.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InStep => "in-step",
            Self::Changing => "changing",
            Self::Waiting => "waiting",
            Self::NotLetIn => "not-let-in",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Paused => "paused",
            Self::Retired => "retired",
            Self::Held => "held",
        })
    }
}

/// Something that is not in step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Trouble {
    /// What: an account's name, `user NAME` by the ServiceAccount's name, or `shared`.
    pub subject: String,
    /// The namespace, if it is one account's.
    pub namespace: Option<String>,
    /// How it stands.
    pub state: State,
    /// Why, and the way out.
    pub reason: String,
    /// The error, when a write failed.
    pub error: Option<StepError>,
}

/// How many accounts stand how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// As the source says.
    pub in_step: usize,
    /// Being written, or waiting for a quota to bind.
    pub changing: usize,
    /// Failed; tried again.
    pub failed: usize,
    /// Refused.
    pub refused: usize,
    /// Suspended by somebody.
    pub paused: usize,
    /// Gone from the source.
    pub retired: usize,
    /// Gone from the source, and removals are held.
    pub held: usize,
}

/// The state of a controller.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// Whether this replica leads.
    pub leading: bool,
    /// Whether the cluster has been read in full since it leads.
    pub synced: bool,
    /// Whether a reading of the source is in force.
    pub has_source: bool,
    /// Why the source's last reading is not in force, if so.
    pub source_error: Option<String>,
    /// Why the Lease cannot be had, if so.
    pub lease_error: Option<String>,
    /// Accounts by how they stand.
    pub counts: Counts,
    /// What is not in step, at most [`Status::MOST_TROUBLES`].
    pub troubles: Vec<Trouble>,
    /// What has vanished, if anything has.
    pub removals: Option<Removals>,
    /// When the controller last went round; it does so every 10 s at least.
    #[serde(skip)]
    pub beat: Option<SystemTime>,
}

impl Status {
    /// How many troubles are listed.
    pub const MOST_TROUBLES: usize = 100;

    /// Whether this replica does its work: it leads and knows cluster and source, or it follows and sees the Lease.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        if self.leading {
            self.synced && self.has_source
        } else {
            self.beat.is_some() && self.lease_error.is_none()
        }
    }
}
