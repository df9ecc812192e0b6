//! The keys that sacctmgr knows, with Slurm's shortest forms of them.
//!
//! Source: `src/sacctmgr/{account,user,qos,association}_functions.c` and `common.c`, 22.05.

use super::words::is;

/// What a key is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Name,
    Cluster,
    Account,
    Parent,
    Description,
    Organization,
    Fairshare,
    GrpJobs,
    GrpSubmitJobs,
    GrpTres,
    GrpWall,
    MaxJobs,
    MaxSubmitJobs,
    MaxTresPerJob,
    MaxWall,
    DefaultQos,
    Qos,
    DefaultAccount,
    AdminLevel,
    Partition,
    Priority,
    Flags,
    UsageFactor,
    Preempt,
    PreemptMode,
    PreemptExemptTime,
    MaxJobsPerUser,
    MaxSubmitJobsPerUser,
    MaxSubmitJobsPerAccount,
    MaxTresPerUser,
    /// An older key for one TRES of `GrpTRES`.
    GrpOne(&'static str),
    /// An older key for one TRES of `MaxTRES`.
    MaxOne(&'static str),
    /// Slurm keeps it, SPUR's accounting does not: why, and the way out.
    Unkept(&'static str),
}

/// A key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// How many letters at least.
    least: usize,
    pub(super) field: Field,
}

const fn key(name: &'static str, least: usize, field: Field) -> Key {
    Key { name, least, field }
}

/// The key that `written` is or begins: a whole name first, `GrpTRES` also begins `GrpTRESMins`.
pub(super) fn find<'k>(keys: &'k [Key], written: &str) -> Option<&'k Key> {
    let whole = keys.iter().find(|key| key.name.eq_ignore_ascii_case(written));
    whole.or_else(|| keys.iter().find(|key| is(written, key.name, key.least)))
}

const TIME: Field = Field::Unkept("SPUR's accounting keeps no limits of TRES over time; leave it out");
const ACCRUE: Field = Field::Unkept("SPUR's accounting keeps no limits of waiting priority; leave it out");
const ORDER: Field =
    Field::Unkept("SPUR's accounting keeps this for QoS only; leave it out, or set priority of a QoS");
const PER_NODE: Field =
    Field::Unkept("SPUR's accounting keeps no limit per node; leave it out, or set maxtres");
const WCKEY: Field = Field::Unkept("SPUR's accounting keeps no workload keys; leave it out");
const USAGE: Field = Field::Unkept("usage is not set by hand; leave it out");
const OF_USER: Field = Field::Unkept(
    "SPUR's accounting keeps it for users, not for accounts: spur sacctmgr modify user where account=ACCOUNT set …; \
     grpjobs and grptres limit all of an account",
);
const OF_ACCOUNT: Field = Field::Unkept(
    "SPUR's accounting keeps it for accounts, not for users; set it with modify account, or set maxjobs",
);
const OTHER_QOS: Field = Field::Unkept("SPUR's accounting has no field for it; leave it out");

/// What `add account` and `modify account … set` take.
pub(super) const ACCOUNT: &[Key] = &[
    key("Names", 1, Field::Name),
    key("Accounts", 2, Field::Name),
    key("Acct", 4, Field::Name),
    key("Cluster", 1, Field::Cluster),
    key("Description", 3, Field::Description),
    key("Organization", 1, Field::Organization),
    key("Parent", 1, Field::Parent),
    key("RawUsage", 7, USAGE),
    key("Fairshare", 1, Field::Fairshare),
    key("Shares", 1, Field::Fairshare),
    key("GrpCPUMins", 7, TIME),
    key("GrpCPURunMins", 7, TIME),
    key("GrpCPUs", 6, Field::GrpOne("cpu")),
    key("GrpJobsAccrue", 8, ACCRUE),
    key("GrpJobs", 4, Field::GrpJobs),
    key("GrpMemory", 4, Field::GrpOne("mem")),
    key("GrpNodes", 4, Field::GrpOne("node")),
    key("GrpSubmitJobs", 4, OF_USER),
    key("GrpTRESMins", 8, TIME),
    key("GrpTRESRunMins", 8, TIME),
    key("GrpTRES", 7, Field::GrpTres),
    key("GrpWall", 4, TIME),
    key("MaxCPUMinsPerJob", 7, TIME),
    key("MaxCPUsPerJob", 7, OF_USER),
    key("MaxJobsAccrue", 8, ACCRUE),
    key("MaxJobs", 4, OF_USER),
    key("MaxNodesPerJob", 4, OF_USER),
    key("MaxSubmitJobs", 4, OF_USER),
    key("MaxTRESMinsPerJob", 8, TIME),
    key("MaxTRESRunMins", 8, TIME),
    key("MaxTRESPerNode", 11, PER_NODE),
    key("MaxTRESPerJob", 7, OF_USER),
    key("MaxWallDurationPerJob", 4, OF_USER),
    key("MinPrioThresh", 4, ORDER),
    key("Priority", 2, ORDER),
    key("DefaultQOS", 8, OF_USER),
    key("QOSLevel", 1, OF_USER),
];

/// What `… account where` takes.
pub(super) const ACCOUNT_WHERE: &[Key] = &[
    key("Names", 1, Field::Name),
    key("Accounts", 1, Field::Name),
    key("Acct", 4, Field::Name),
    key("Cluster", 1, Field::Cluster),
    key("Description", 3, Field::Description),
    key("Organization", 1, Field::Organization),
    key("Parent", 1, Field::Parent),
];

/// What `add user` and `modify user … set` take.
pub(super) const USER: &[Key] = &[
    key("Names", 1, Field::Name),
    key("Users", 1, Field::Name),
    key("Accounts", 2, Field::Account),
    key("Acct", 4, Field::Account),
    key("AdminLevel", 2, Field::AdminLevel),
    key("Cluster", 1, Field::Cluster),
    key("Comment", 3, OTHER_QOS),
    key("DefaultAccount", 8, Field::DefaultAccount),
    key("DefaultWCKey", 8, WCKEY),
    key("NewName", 7, Field::Unkept("a user cannot be renamed; add the new one and delete the old one")),
    key("Partitions", 1, Field::Partition),
    key("RawUsage", 7, USAGE),
    key("WCKeys", 1, WCKEY),
    key("Fairshare", 1, OF_ACCOUNT),
    key("Shares", 1, OF_ACCOUNT),
    key("GrpCPUMins", 7, TIME),
    key("GrpCPURunMins", 7, TIME),
    key("GrpCPUs", 6, Field::GrpOne("cpu")),
    key("GrpJobsAccrue", 8, ACCRUE),
    key("GrpJobs", 4, OF_ACCOUNT),
    key("GrpMemory", 4, Field::GrpOne("mem")),
    key("GrpNodes", 4, Field::GrpOne("node")),
    key("GrpSubmitJobs", 4, Field::GrpSubmitJobs),
    key("GrpTRESMins", 8, TIME),
    key("GrpTRESRunMins", 8, TIME),
    key("GrpTRES", 7, Field::GrpTres),
    key("GrpWall", 4, TIME),
    key("MaxCPUMinsPerJob", 8, TIME),
    key("MaxCPURunMins", 8, TIME),
    key("MaxCPUsPerJob", 7, Field::MaxOne("cpu")),
    key("MaxJobsAccrue", 8, ACCRUE),
    key("MaxJobs", 4, Field::MaxJobs),
    key("MaxNodesPerJob", 4, Field::MaxOne("node")),
    key("MaxSubmitJobs", 4, Field::MaxSubmitJobs),
    key("MaxTRESMinsPerJob", 8, TIME),
    key("MaxTRESRunMins", 8, TIME),
    key("MaxTRESPerNode", 11, PER_NODE),
    key("MaxTRESPerJob", 7, Field::MaxTresPerJob),
    key("MaxWallDurationPerJob", 4, Field::MaxWall),
    key("MinPrioThresh", 4, ORDER),
    key("Priority", 2, ORDER),
    key("DefaultQOS", 8, Field::DefaultQos),
    key("QOSLevel", 1, Field::Qos),
];

/// What `… user where` takes.
pub(super) const USER_WHERE: &[Key] = &[
    key("Names", 1, Field::Name),
    key("Users", 1, Field::Name),
    key("Accounts", 2, Field::Account),
    key("Acct", 4, Field::Account),
    key("AdminLevel", 2, Field::AdminLevel),
    key("Cluster", 1, Field::Cluster),
    key("DefaultAccount", 8, Field::DefaultAccount),
    key("DefaultQOS", 8, Field::DefaultQos),
    key("Partitions", 1, Field::Partition),
    key("QOSLevel", 1, Field::Qos),
];

/// What `add qos` and `modify qos … set` take.
pub(super) const QOS: &[Key] = &[
    key("Names", 1, Field::Name),
    key("QOSLevel", 1, Field::Name),
    key("Description", 1, Field::Description),
    key("Flags", 2, Field::Flags),
    key("GraceTime", 3, OTHER_QOS),
    key("GrpCPUMins", 7, TIME),
    key("GrpCPURunMins", 7, TIME),
    key("GrpCPUs", 6, Field::GrpOne("cpu")),
    key("GrpJobsAccrue", 8, ACCRUE),
    key("GrpJobs", 4, OTHER_QOS),
    key("GrpMemory", 4, Field::GrpOne("mem")),
    key("GrpNodes", 4, Field::GrpOne("node")),
    key("GrpSubmitJobs", 8, Field::GrpSubmitJobs),
    key("GrpTRESMins", 8, TIME),
    key("GrpTRESRunMins", 8, TIME),
    key("GrpTRES", 7, Field::GrpTres),
    key("GrpWall", 4, Field::GrpWall),
    key("LimitFactor", 6, OTHER_QOS),
    key("MaxCPUMinsPerJob", 7, TIME),
    key("MaxCPUsPerJob", 11, Field::MaxOne("cpu")),
    key("MaxJobsAccruePA", 15, ACCRUE),
    key("MaxJobsAccruePerAccount", 17, ACCRUE),
    key("MaxJobsAccruePU", 15, ACCRUE),
    key("MaxJobsAccruePerUser", 17, ACCRUE),
    key("MaxJobsPA", 9, OTHER_QOS),
    key("MaxJobsPerAccount", 11, OTHER_QOS),
    key("MaxJobsPU", 8, Field::MaxJobsPerUser),
    key("MaxJobsPerUser", 8, Field::MaxJobsPerUser),
    key("MaxNodesPerJob", 4, Field::MaxOne("node")),
    key("MaxSubmitJobsPA", 15, Field::MaxSubmitJobsPerAccount),
    key("MaxSubmitJobsPerAccount", 17, Field::MaxSubmitJobsPerAccount),
    key("MaxSubmitPA", 11, Field::MaxSubmitJobsPerAccount),
    key("MaxSubmitPU", 11, Field::MaxSubmitJobsPerUser),
    key("MaxSubmitJobsPU", 6, Field::MaxSubmitJobsPerUser),
    key("MaxSubmitJobsPerUser", 6, Field::MaxSubmitJobsPerUser),
    key("MaxTRESMinsPerJob", 8, TIME),
    key("MaxTRESRunMinsPA", 15, TIME),
    key("MaxTRESRunMinsPerAccount", 18, TIME),
    key("MaxTRESRunMinsPU", 15, TIME),
    key("MaxTRESRunMinsPerUser", 18, TIME),
    key("MaxTRESPA", 9, OTHER_QOS),
    key("MaxTRESPerAccount", 11, OTHER_QOS),
    key("MaxTRESPU", 9, Field::MaxTresPerUser),
    key("MaxTRESPerUser", 11, Field::MaxTresPerUser),
    key("MaxTRESPerNode", 11, PER_NODE),
    key("MaxTRESPerJob", 7, Field::MaxTresPerJob),
    key("MaxWallDurationPerJob", 4, Field::MaxWall),
    key("MinPrioThresh", 4, OTHER_QOS),
    key("MinTRESPerJob", 7, OTHER_QOS),
    key("PreemptExemptTime", 8, Field::PreemptExemptTime),
    key("PreemptMode", 8, Field::PreemptMode),
    key("Preempt", 7, Field::Preempt),
    key("Priority", 3, Field::Priority),
    key("RawUsage", 7, USAGE),
    key("UsageFactor", 6, Field::UsageFactor),
    key("UsageThreshold", 6, OTHER_QOS),
];

/// What `… qos where` takes.
pub(super) const QOS_WHERE: &[Key] = &[
    key("Names", 1, Field::Name),
    key("QOSLevel", 1, Field::Name),
    key("Description", 1, Field::Description),
    key("PreemptMode", 8, Field::PreemptMode),
];

/// What `show assoc where` takes.
pub(super) const ASSOCIATION_WHERE: &[Key] = &[
    key("Accounts", 2, Field::Account),
    key("Acct", 4, Field::Account),
    key("Cluster", 1, Field::Cluster),
    key("DefaultQOS", 8, Field::DefaultQos),
    key("Partitions", 3, Field::Partition),
    key("Parent", 4, Field::Parent),
    key("QOSLevel", 1, Field::Qos),
    key("Users", 1, Field::Name),
];

/// What `add coordinator` and `delete coordinator` take.
pub(super) const COORDINATOR: &[Key] = &[
    key("Accounts", 1, Field::Account),
    key("Acct", 4, Field::Account),
    key("Names", 1, Field::Name),
    key("Users", 1, Field::Name),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_slurms_shortest_forms() {
        let field = |keys: &[Key], written: &str| find(keys, written).map(|key| key.field);
        assert_eq!(field(ACCOUNT, "grptres"), Some(Field::GrpTres));
        assert_eq!(field(ACCOUNT, "GRPTRESM"), Some(TIME));
        assert_eq!(field(ACCOUNT, "org"), Some(Field::Organization));
        assert_eq!(field(ACCOUNT, "f"), Some(Field::Fairshare));
        assert_eq!(field(ACCOUNT, "grpj"), Some(Field::GrpJobs));
        assert_eq!(field(USER, "maxj"), Some(Field::MaxJobs));
        assert_eq!(field(USER, "maxw"), Some(Field::MaxWall));
        assert_eq!(field(USER, "defaulta"), Some(Field::DefaultAccount));
        assert_eq!(field(USER, "defaultq"), Some(Field::DefaultQos));
        assert_eq!(field(USER, "q"), Some(Field::Qos));
        assert_eq!(field(QOS, "prio"), Some(Field::Priority));
        assert_eq!(field(QOS, "maxsubmitjobsperuser"), Some(Field::MaxSubmitJobsPerUser));
        assert_eq!(field(QOS, "preempt"), Some(Field::Preempt));
        assert_eq!(field(ACCOUNT, "grp"), None);
        assert_eq!(field(ACCOUNT, "foo"), None);
    }
}
