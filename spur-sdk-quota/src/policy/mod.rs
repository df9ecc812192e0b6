//! How accounts are projected: the choices that are the site's.

pub(crate) mod file;
pub(crate) mod guard;

use std::collections::BTreeMap;

use spur_sdk::{AccountName, Tres};

pub use file::{PolicyError, PolicyProblem};
pub use guard::{GuardPolicy, GuardRule, GuardRuleError};

/// Pod Security level of the accounts' namespaces.
///
/// Source: [Pod Security Standards](https://kubernetes.io/docs/concepts/security/pod-security-standards/).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodSecurity {
    /// `baseline` is enforced, `restricted` warned of and audited.
    #[default]
    Baseline,
    /// `restricted` is enforced.
    Restricted,
}

/// What becomes of something that has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlimited {
    /// It gets nothing.
    Closed,
    /// It stays without a cap, as in Slurm.
    Open,
}

/// Whether pods may use more than they request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Burst {
    /// Requests are capped; what a node has left may be used.
    #[default]
    Free,
    /// Limits of cpu and memory are capped as well, so every pod must set them.
    Limited,
}

/// What a container gets when it asks for nothing, and the least that it may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerRequests {
    /// CPU in millicores. Default request: 100, least: 10.
    pub cpu: u64,
    /// Memory in bytes. Default request: 128 MiB, least: 4 MiB.
    pub memory: u64,
    /// Ephemeral storage in bytes. Default request: 1 GiB, least: none.
    pub ephemeral_storage: Option<u64>,
}

/// The choices of a projection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// Prefix of our labels and annotations, without the slash. Default: `spur.amd.com`.
    pub prefix: String,
    /// Pod Security level. Default: `baseline`.
    pub pod_security: PodSecurity,
    /// An account without a cap on cpu, memory or a mapped GRES anywhere on its path. Default: closed.
    pub no_allocation: Unlimited,
    /// A dimension without a cap, where the account has one on another. Default: open.
    pub unset_dimension: Unlimited,
    /// Whether pods may use more than they request. Default: free.
    pub burst: Burst,
    /// Whether coordinators get ClusterRole `spur-coordinator` in their accounts. Default: no.
    pub coordinators: bool,
    /// Only these accounts and what is below them. Default: empty, all accounts.
    pub scope: Vec<AccountName>,
    /// GRES to extended resource. Default: `gres/gpu` to `amd.com/gpu`. A typed GRES without an entry belongs
    /// to the resource of the plain one.
    pub resources: BTreeMap<Tres, String>,
    /// Caps on kinds of objects and on storage, by the key of a ResourceQuota; bytes for storage.
    pub objects: BTreeMap<String, u64>,
    /// Default requests of a container.
    pub default_request: ContainerRequests,
    /// The least that a container may request.
    pub min_request: ContainerRequests,
    /// The tenant guard.
    pub guard: GuardPolicy,
}

/// The default of [`Policy::objects`].
const OBJECTS: [(&str, u64); 11] = [
    ("configmaps", 500),
    ("persistentvolumeclaims", 100),
    ("pods", 500),
    ("replicationcontrollers", 20),
    ("requests.ephemeral-storage", 2 << 40),
    ("requests.storage", 10 << 40),
    ("resourcequotas", 10),
    ("secrets", 500),
    ("services", 100),
    ("services.loadbalancers", 0),
    ("services.nodeports", 0),
];

impl Default for Policy {
    fn default() -> Self {
        Self {
            prefix: "spur.amd.com".to_owned(),
            pod_security: PodSecurity::default(),
            no_allocation: Unlimited::Closed,
            unset_dimension: Unlimited::Open,
            burst: Burst::default(),
            coordinators: false,
            scope: Vec::new(),
            resources: BTreeMap::from([(
                Tres::Gres { name: "gpu".to_owned(), kind: None },
                "amd.com/gpu".to_owned(),
            )]),
            objects: OBJECTS.into_iter().map(|(key, cap)| (key.to_owned(), cap)).collect(),
            default_request: ContainerRequests {
                cpu: 100,
                memory: 128 << 20,
                ephemeral_storage: Some(1 << 30),
            },
            min_request: ContainerRequests { cpu: 10, memory: 4 << 20, ephemeral_storage: None },
            guard: GuardPolicy::default(),
        }
    }
}

impl Policy {
    /// Reads a policy file, TOML or YAML; what is left out has its default. `name` is what messages call it.
    ///
    /// # Errors
    /// [`PolicyError`] with every problem of the file; nothing of a file with problems is used.
    pub fn read(text: &str, name: &str) -> Result<Self, PolicyError> {
        file::read(text, name)
    }

    /// A key under our prefix, such as `spur.amd.com/account`.
    #[must_use]
    pub fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }
}
