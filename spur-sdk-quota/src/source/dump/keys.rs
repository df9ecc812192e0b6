//! The keys of a dump: what each is read as, or why it is not.

use spur_sdk::Tres;

use crate::model::{CountLimit, QosSetting, TresLimit};

/// What a key is read as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Count(CountLimit),
    Tres(TresLimit),
    /// An older key for one TRES.
    OneTres(TresLimit, Tres),
    Setting(QosSetting),
    Fairshare,
    QosList,
    DefaultQos,
    Description,
    Organization,
    Partition,
    DefaultAccount,
    DefaultWckey,
    AdminLevel,
    Coordinator,
    Wckeys,
    Comment,
    /// Known, without meaning for what we do.
    Ignored(&'static str),
}

/// One key.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// How many characters at least; a shorter one is not taken for this key.
    least: usize,
    pub(super) target: Target,
}

fn key(name: &'static str, least: usize, target: Target) -> Key {
    Key { name, least, target }
}

/// Keys of the cluster line, accounts and users. A key is the first that what is written begins.
///
/// The order and the least lengths are Slurm's (`src/sacctmgr/file_functions.c`, `_parse_options`;
/// `src/sacctmgr/common.c`, `sacctmgr_set_assoc_rec`).
pub(super) fn association_keys() -> Vec<Key> {
    use CountLimit as C;
    use Target::{Count, OneTres};
    use TresLimit as T;
    let mut keys = vec![
        key("AdminLevel", 2, Target::AdminLevel),
        key("Comment", 3, Target::Comment),
        key("Coordinator", 2, Target::Coordinator),
        key("DefaultAccount", 8, Target::DefaultAccount),
        key("DefaultQOS", 8, Target::DefaultQos),
        key("DefaultWCKey", 8, Target::DefaultWckey),
        key("Description", 3, Target::Description),
        key("Organization", 1, Target::Organization),
        key("Partition", 1, Target::Partition),
        key("WCKeys", 2, Target::Wckeys),
        key("Parent", 6, Target::Ignored("the parent is what the last Parent line says, also in Slurm")),
        key("Classification", 3, Target::Ignored("the machine's class decides nothing about accounts")),
        key("Flags", 2, Target::Ignored("flags of the cluster or association concern Slurm's own daemons")),
        key("Fairshare", 1, Target::Fairshare),
        key("Shares", 1, Target::Fairshare),
    ];
    keys.extend(group_keys());
    keys.extend([
        key("MaxCPUMinsPerJob", 7, OneTres(T::MaxTresMinsPerJob, Tres::Cpu)),
        key("MaxCPURunMins", 7, OneTres(T::MaxTresRunMins, Tres::Cpu)),
        key("MaxCPUsPerJob", 7, OneTres(T::MaxTresPerJob, Tres::Cpu)),
        key("MaxJobsAccrue", 8, Count(C::MaxJobsAccrue)),
        key("MaxJobs", 4, Count(C::MaxJobs)),
        key("MaxNodesPerJob", 4, OneTres(T::MaxTresPerJob, Tres::Node)),
        key("MaxSubmitJobs", 4, Count(C::MaxSubmitJobs)),
        key("MaxTRESMinsPerJob", 8, Target::Tres(T::MaxTresMinsPerJob)),
        key("MaxTRESRunMins", 8, Target::Tres(T::MaxTresRunMins)),
        key("MaxTRESPerNode", 11, Target::Tres(T::MaxTresPerNode)),
        key("MaxTRESPerJob", 7, Target::Tres(T::MaxTresPerJob)),
        key("MaxWallDurationPerJob", 4, Count(C::MaxWall)),
        key("MinPrioThresh", 4, Count(C::MinPrioThreshold)),
        key("Priority", 2, Count(C::Priority)),
        key("QOSLevel", 1, Target::QosList),
    ]);
    keys
}

/// Keys of a group's limits, which associations and QoS share.
fn group_keys() -> Vec<Key> {
    use CountLimit as C;
    use Target::{Count, OneTres};
    use TresLimit as T;
    vec![
        key("GrpCPUMins", 7, OneTres(T::GrpTresMins, Tres::Cpu)),
        key("GrpCPURunMins", 7, OneTres(T::GrpTresRunMins, Tres::Cpu)),
        key("GrpCPUs", 7, OneTres(T::GrpTres, Tres::Cpu)),
        key("GrpJobsAccrue", 8, Count(C::GrpJobsAccrue)),
        key("GrpJobs", 4, Count(C::GrpJobs)),
        key("GrpMemory", 4, OneTres(T::GrpTres, Tres::Mem)),
        key("GrpNodes", 4, OneTres(T::GrpTres, Tres::Node)),
        key("GrpSubmitJobs", 4, Count(C::GrpSubmitJobs)),
        key("GrpTRESMins", 8, Target::Tres(T::GrpTresMins)),
        key("GrpTRESRunMins", 8, Target::Tres(T::GrpTresRunMins)),
        key("GrpTRES", 7, Target::Tres(T::GrpTres)),
        key("GrpWall", 4, Count(C::GrpWall)),
    ]
}

/// Keys of a QOS line (Slurm 25.05 and later).
pub(super) fn qos_keys() -> Vec<Key> {
    use CountLimit as C;
    use QosSetting as S;
    use Target::{Count, OneTres, Setting};
    use TresLimit as T;
    let mut keys = vec![
        key("Description", 1, Target::Description),
        key("Flags", 2, Setting(S::Flags)),
        key("GraceTime", 3, Setting(S::GraceTime)),
    ];
    keys.extend(group_keys());
    keys.extend([
        key("LimitFactor", 6, Setting(S::LimitFactor)),
        key("MaxCPUMinsPerJob", 7, OneTres(T::MaxTresMinsPerJob, Tres::Cpu)),
        key("MaxCPUsPerJob", 11, OneTres(T::MaxTresPerJob, Tres::Cpu)),
        key("MaxCPUsPerUser", 11, OneTres(T::MaxTresPerUser, Tres::Cpu)),
        key("MaxJobsAccruePA", 15, Count(C::MaxJobsAccruePerAccount)),
        key("MaxJobsAccruePerAccount", 17, Count(C::MaxJobsAccruePerAccount)),
        key("MaxJobsAccruePU", 15, Count(C::MaxJobsAccruePerUser)),
        key("MaxJobsAccruePerUser", 17, Count(C::MaxJobsAccruePerUser)),
        key("MaxJobsPA", 9, Count(C::MaxJobsPerAccount)),
        key("MaxJobsPerAccount", 11, Count(C::MaxJobsPerAccount)),
        key("MaxJobsPU", 8, Count(C::MaxJobsPerUser)),
        key("MaxJobsPerUser", 8, Count(C::MaxJobsPerUser)),
        key("MaxNodesPerUser", 12, OneTres(T::MaxTresPerUser, Tres::Node)),
        key("MaxNodesPerJob", 4, OneTres(T::MaxTresPerJob, Tres::Node)),
        key("MaxSubmitJobsPA", 15, Count(C::MaxSubmitJobsPerAccount)),
        key("MaxSubmitJobsPerAccount", 17, Count(C::MaxSubmitJobsPerAccount)),
        key("MaxSubmitJobsPU", 6, Count(C::MaxSubmitJobsPerUser)),
        key("MaxSubmitJobsPerUser", 6, Count(C::MaxSubmitJobsPerUser)),
        key("MaxTRESMinsPerJob", 8, Target::Tres(T::MaxTresMinsPerJob)),
        key("MaxTRESRunMinsPA", 16, Target::Tres(T::MaxTresRunMinsPerAccount)),
        key("MaxTRESRunMinsPerAccount", 18, Target::Tres(T::MaxTresRunMinsPerAccount)),
        key("MaxTRESRunMinsPU", 14, Target::Tres(T::MaxTresRunMinsPerUser)),
        key("MaxTRESRunMinsPerUser", 14, Target::Tres(T::MaxTresRunMinsPerUser)),
        key("MaxTRESPA", 9, Target::Tres(T::MaxTresPerAccount)),
        key("MaxTRESPerAccount", 11, Target::Tres(T::MaxTresPerAccount)),
        key("MaxTRESPU", 9, Target::Tres(T::MaxTresPerUser)),
        key("MaxTRESPerUser", 11, Target::Tres(T::MaxTresPerUser)),
        key("MaxTRESPerNode", 11, Target::Tres(T::MaxTresPerNode)),
        key("MaxTRESPerJob", 7, Target::Tres(T::MaxTresPerJob)),
        key("MaxWallDurationPerJob", 4, Count(C::MaxWall)),
        key("MinPrioThresh", 4, Count(C::MinPrioThreshold)),
        key("MinTRESPerJob", 7, Target::Tres(T::MinTresPerJob)),
        key("PreemptExemptTime", 8, Setting(S::PreemptExemptTime)),
        key("PreemptMode", 8, Setting(S::PreemptMode)),
        key("Preempt", 7, Setting(S::Preempt)),
        key("Priority", 3, Count(C::Priority)),
        key("UsageFactor", 6, Setting(S::UsageFactor)),
        key("UsageThreshold", 6, Setting(S::UsageThreshold)),
    ]);
    keys
}

/// The key that `written` is or begins.
pub(super) fn find<'k>(keys: &'k [Key], written: &str) -> Option<&'k Key> {
    let begins = |key: &&Key| {
        let beginning = key.name.get(..written.len());
        written.len() >= key.least
            && beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(written))
    };
    // A whole name first: `GrpTRES` is also the beginning of `GrpTRESMins`.
    keys.iter().find(|key| key.name.eq_ignore_ascii_case(written)).or_else(|| keys.iter().find(begins))
}
