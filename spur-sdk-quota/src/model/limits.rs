//! Every limit that an association or a QoS can carry, as one table.

use std::collections::BTreeMap;

use spur_sdk::{Limit, Tres};

use super::Sourced;

/// Where a limit may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// On the cluster, an account or a user's association.
    Association,
    /// On a QoS.
    Qos,
    /// On either.
    Both,
}

impl Carrier {
    pub(crate) fn on_association(self) -> bool {
        matches!(self, Self::Association | Self::Both)
    }

    pub(crate) fn on_qos(self) -> bool {
        matches!(self, Self::Qos | Self::Both)
    }
}

/// What a reader, a writer and a report need to know of one limit.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LimitSpec {
    /// The key in our own files.
    pub key: &'static str,
    /// The key in a Slurm dump, as Slurm prints it.
    pub slurm: &'static str,
    /// Where it may stand.
    pub carrier: Carrier,
    /// Why the projection does not express it, for reports and the reference.
    pub reason: &'static str,
}

macro_rules! limit_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident: $key:literal, $slurm:literal, $carrier:ident, $reason:expr;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// Every one, in the order of the reference.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its keys, where it may stand, and why the projection does not express it.
            #[must_use]
            pub fn spec(self) -> LimitSpec {
                match self {
                    $(Self::$variant => LimitSpec { key: $key, slurm: $slurm, carrier: Carrier::$carrier, reason: $reason },)*
                }
            }
        }
    };
}

const JOBS: &str = "Kubernetes has no jobs of the scheduler's to count; pods are limited by policy [objects]";
const QUEUE: &str = "Kubernetes keeps no queue whose length could be limited per account";
const TIME: &str = "native quota holds no sum over time; limits of time come with the fairness backends";
const PER_JOB: &str = "native quota holds for a namespace, not for a job, and a maximum per container would refuse pods by default";
const PER_USER: &str = "native quota holds for a namespace, not for a user in it";
const ORDER: &str = "the order of the queue is the fairness backend's";

limit_enum! {
    /// A limit that is one number: a count, or minutes where the name says wall.
    CountLimit {
        /// Jobs running at once in the account and below.
        GrpJobs: "grp_jobs", "GrpJobs", Both, JOBS;
        /// Pending jobs that gain age priority at once.
        GrpJobsAccrue: "grp_jobs_accrue", "GrpJobsAccrue", Both, QUEUE;
        /// Jobs pending or running at once.
        GrpSubmitJobs: "grp_submit_jobs", "GrpSubmitJobs", Both, QUEUE;
        /// Minutes of wall time over all jobs.
        GrpWall: "grp_wall", "GrpWall", Both, TIME;
        /// Jobs running at once per association.
        MaxJobs: "max_jobs", "MaxJobs", Association, JOBS;
        /// Pending jobs that gain age priority at once, per association.
        MaxJobsAccrue: "max_jobs_accrue", "MaxJobsAccrue", Association, QUEUE;
        /// Jobs pending or running at once, per association.
        MaxSubmitJobs: "max_submit_jobs", "MaxSubmitJobs", Association, QUEUE;
        /// Minutes of wall time of one job.
        MaxWall: "max_wall", "MaxWallDurationPerJob", Both, "a pod has no time limit by default; time limits come with the fairness backends";
        /// The lowest priority at which a job starts.
        MinPrioThreshold: "min_prio_threshold", "MinPrioThresh", Both, ORDER;
        /// The association's or QoS's own priority.
        Priority: "priority", "Priority", Both, ORDER;
        /// Jobs running at once per user of a QoS.
        MaxJobsPerUser: "max_jobs_per_user", "MaxJobsPU", Qos, PER_USER;
        /// Jobs running at once per account of a QoS.
        MaxJobsPerAccount: "max_jobs_per_account", "MaxJobsPA", Qos, JOBS;
        /// Jobs pending or running per user of a QoS.
        MaxSubmitJobsPerUser: "max_submit_jobs_per_user", "MaxSubmitJobsPU", Qos, PER_USER;
        /// Jobs pending or running per account of a QoS.
        MaxSubmitJobsPerAccount: "max_submit_jobs_per_account", "MaxSubmitJobsPA", Qos, QUEUE;
        /// Pending jobs that gain age priority, per user of a QoS.
        MaxJobsAccruePerUser: "max_jobs_accrue_per_user", "MaxJobsAccruePU", Qos, PER_USER;
        /// Pending jobs that gain age priority, per account of a QoS.
        MaxJobsAccruePerAccount: "max_jobs_accrue_per_account", "MaxJobsAccruePA", Qos, QUEUE;
    }
}

limit_enum! {
    /// A limit with an amount per TRES.
    TresLimit {
        /// In use at once by the account and everything below it: what the projection caps.
        GrpTres: "grp_tres", "GrpTRES", Both, "this resource has no counterpart in a Kubernetes quota";
        /// TRES-minutes over all time.
        GrpTresMins: "grp_tres_mins", "GrpTRESMins", Both, TIME;
        /// TRES-minutes that running jobs may still use.
        GrpTresRunMins: "grp_tres_run_mins", "GrpTRESRunMins", Both, TIME;
        /// TRES-minutes of one job.
        MaxTresMinsPerJob: "max_tres_mins_per_job", "MaxTRESMinsPerJob", Both, TIME;
        /// TRES-minutes that an association's running jobs may still use.
        MaxTresRunMins: "max_tres_run_mins", "MaxTRESRunMins", Association, TIME;
        /// In use by one job.
        MaxTresPerJob: "max_tres_per_job", "MaxTRESPerJob", Both, PER_JOB;
        /// In use by one job on one node.
        MaxTresPerNode: "max_tres_per_node", "MaxTRESPerNode", Both, PER_JOB;
        /// In use per user of a QoS.
        MaxTresPerUser: "max_tres_per_user", "MaxTRESPerUser", Qos, PER_USER;
        /// In use per account of a QoS.
        MaxTresPerAccount: "max_tres_per_account", "MaxTRESPerAccount", Qos, "a QoS is not a namespace: its limit per account cuts across those of the account";
        /// TRES-minutes that running jobs may still use, per user of a QoS.
        MaxTresRunMinsPerUser: "max_tres_run_mins_per_user", "MaxTRESRunMinsPU", Qos, TIME;
        /// TRES-minutes that running jobs may still use, per account of a QoS.
        MaxTresRunMinsPerAccount: "max_tres_run_mins_per_account", "MaxTRESRunMinsPA", Qos, TIME;
        /// The least that one job must ask for.
        MinTresPerJob: "min_tres_per_job", "MinTRESPerJob", Qos, PER_JOB;
    }
}

impl CountLimit {
    /// Whether the number is minutes of wall time.
    #[must_use]
    pub fn is_minutes(self) -> bool {
        matches!(self, Self::GrpWall | Self::MaxWall)
    }
}

/// The limits of one carrier. What is not in a map is not set; where it came from stands beside each value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Limits {
    /// Limits that are one number.
    pub counts: BTreeMap<CountLimit, Sourced<Limit<u64>>>,
    /// Limits by TRES, in the TRES's unit (millicores, bytes, counts; times minutes where the name says so).
    pub tres: BTreeMap<TresLimit, BTreeMap<Tres, Sourced<Limit<u64>>>>,
}

impl Limits {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.tres.values().all(BTreeMap::is_empty)
    }

    /// The limit of one TRES, if one stands here.
    #[must_use]
    pub fn tres(&self, limit: TresLimit, tres: &Tres) -> Option<&Sourced<Limit<u64>>> {
        self.tres.get(&limit)?.get(tres)
    }

    /// Whether these set the same, wherever they were read.
    pub(crate) fn says_as(&self, other: &Self) -> bool {
        fn values<K, T>(map: &BTreeMap<K, Sourced<T>>) -> impl Iterator<Item = (&K, &T)> {
            map.iter().map(|(key, sourced)| (key, &sourced.value))
        }
        let amounts = |limits: &Self| -> Vec<_> {
            limits
                .tres
                .iter()
                .flat_map(|(limit, set)| values(set).map(|(tres, l)| (*limit, tres.clone(), *l)))
                .collect()
        };
        values(&self.counts).eq(values(&other.counts)) && amounts(self) == amounts(other)
    }

    /// Sets the amounts of a TRES limit, beside those that stand for other TRES.
    pub fn set_tres(&mut self, limit: TresLimit, amounts: spur_sdk::TresLimits, origin: &super::Origin) {
        if amounts.is_empty() {
            return;
        }
        let set = self.tres.entry(limit).or_default();
        for (tres, amount) in amounts {
            set.insert(tres, Sourced::new(amount, origin.clone()));
        }
    }
}
