//! What is kept of accounts, users, memberships and QoS.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use spur_sdk::store::Record;
use spur_sdk::{AccountName, MemorySpelling, QosName, TresLimits, UserName, format_tres, parse_tres};

use crate::model::AdminLevel;

/// Amounts by TRES; kept as SPUR's exact text, such as `cpu=64,mem=131072,gres/gpu=8`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Amounts(pub TresLimits);

impl Amounts {
    /// SPUR's exact text.
    #[must_use]
    pub fn text(&self) -> String {
        format_tres(&self.0, MemorySpelling::Spur)
    }
}

impl Serialize for Amounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for Amounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_tres(&text, MemorySpelling::Spur).map(Self).map_err(serde::de::Error::custom)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

macro_rules! record {
    ($(#[$doc:meta])* $name:ident, $kind:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* #[serde(default, skip_serializing_if = "is_default")] pub $field: $type,)*
        }

        impl Record for $name {
            const KIND: &'static str = $kind;
        }
    };
}

record! {
    /// An account. Its name is in the key.
    AccountRecord, "account" {
        /// What it is, in words.
        description: Option<String>,
        /// Whose it is.
        organization: Option<String>,
        /// The account above; `None` is directly under `root`.
        parent: Option<AccountName>,
        /// Its share among its siblings.
        fairshare_weight: Option<f64>,
        /// Jobs running at once; 0 blocks.
        max_running_jobs: Option<u32>,
        /// What it may use at once, with everything below it.
        grp_tres: Amounts,
        /// Who administers it.
        coordinators: BTreeSet<UserName>,
    }
}

record! {
    /// A user, apart from any account.
    UserRecord, "user" {
        /// Rights over the accounts.
        admin_level: AdminLevel,
        /// The account of a job that names none.
        default_account: Option<AccountName>,
    }
}

record! {
    /// A user's membership in an account. Both names are in the key.
    MemberRecord, "member" {
        /// The QoS of a job that names none.
        default_qos: Option<QosName>,
        /// The QoS that may be used; `None` is all.
        allowed_qos: Option<BTreeSet<QosName>>,
        /// Jobs running at once; 0 blocks.
        max_running_jobs: Option<u32>,
        /// Jobs pending or running at once; 0 blocks.
        max_submit_jobs: Option<u32>,
        /// Jobs pending or running at once, of all below; 0 blocks.
        grp_submit_jobs: Option<u32>,
        /// Wall time of a job, in minutes; 0 blocks.
        max_wall_minutes: Option<u32>,
        /// What a job may use.
        max_tres_per_job: Amounts,
        /// What the user may use at once in the account.
        grp_tres: Amounts,
    }
}

record! {
    /// A quality of service. Its name is in the key.
    QosRecord, "qos" {
        /// What it is, in words.
        description: Option<String>,
        /// Its weight in the order of the queue.
        priority: Option<i32>,
        /// How a job is preempted.
        preempt_mode: Option<String>,
        /// QoS whose jobs this one preempts.
        preempt: BTreeSet<QosName>,
        /// Seconds before a job may be preempted.
        preempt_exempt_time: Option<u32>,
        /// Factor on usage.
        usage_factor: Option<f64>,
        /// Flags, in Slurm's words.
        flags: BTreeSet<String>,
        /// Jobs running at once per user; 0 blocks.
        max_jobs_per_user: Option<u32>,
        /// Jobs pending or running per user; 0 blocks.
        max_submit_jobs_per_user: Option<u32>,
        /// Jobs pending or running per account; 0 blocks.
        max_submit_jobs_per_account: Option<u32>,
        /// Jobs pending or running in all; 0 blocks.
        grp_submit_jobs: Option<u32>,
        /// Wall time of a job, in minutes; 0 blocks.
        max_wall_minutes: Option<u32>,
        /// Wall time of all jobs, in minutes; 0 blocks.
        grp_wall_minutes: Option<u32>,
        /// What a job may use.
        max_tres_per_job: Amounts,
        /// What a user may use at once.
        max_tres_per_user: Amounts,
        /// What all may use at once.
        grp_tres: Amounts,
    }
}

/// The number of changes so far. Every change writes it, so that of two at once one is made after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Head {
    /// The number of the last entry of the history.
    pub(super) changes: u64,
}

impl Record for Head {
    const KIND: &'static str = "accounts";
}

/// An entry of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HistoryRecord {
    /// Seconds since 1970.
    pub time: u64,
    /// Who, as verified, and by which way.
    pub caller: String,
    /// About what, such as `account physics`.
    pub subject: String,
    /// What was set to what, in words.
    pub change: String,
}

impl Record for HistoryRecord {
    const KIND: &'static str = "history";
}
