//! Which limit caps which dimension of an account, and where it stands.

use std::collections::BTreeMap;
use std::fmt;

use spur_sdk::{AccountName, Bytes, Limit, Millicores, Tres};

use crate::model::{Account, CountLimit, Limits, Model, Origin, Tree, TresLimit};
use crate::policy::Policy;

/// What a quota caps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Dimension {
    /// CPU, in millicores.
    Cpu,
    /// Memory, in bytes.
    Memory,
    /// An extended resource such as `amd.com/gpu`, in devices.
    Extended(String),
}

impl Dimension {
    /// The key in a ResourceQuota, such as `requests.amd.com/gpu`.
    #[must_use]
    pub fn quota_key(&self) -> String {
        format!("requests.{self}")
    }

    /// An amount as Kubernetes spells it.
    #[must_use]
    pub fn display_amount(&self, amount: u64) -> String {
        match self {
            Self::Cpu => Millicores(amount).to_string(),
            Self::Memory => Bytes(amount).to_string(),
            Self::Extended(_) => amount.to_string(),
        }
    }
}

/// The resource's name in a pod: `cpu`, `memory`, `amd.com/gpu`.
impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Extended(resource) => resource,
        })
    }
}

/// Whose limit it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// An account's, `root` among them.
    Account(AccountName),
    /// The cluster line's.
    Cluster,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account(name) => write!(f, "account {name}"),
            Self::Cluster => f.write_str("the cluster"),
        }
    }
}

/// A cap and the limit that it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cap {
    /// The amount, in the dimension's unit; 0 blocks.
    pub amount: u64,
    /// Whose limit binds.
    pub holder: Holder,
    /// Where it was read.
    pub origin: Origin,
    /// Typed GRES that were added up because no count without a type stands beside them.
    pub summed: Vec<Tres>,
}

/// Caps by dimension.
pub(crate) type Caps = BTreeMap<Dimension, Cap>;

/// What a TRES is to the quota.
pub(crate) enum Role<'p> {
    Cap(Dimension),
    /// A GRES by type without a resource of its own.
    Typed(&'p str),
    None,
}

/// What a TRES is to the quota, by the policy's table.
pub(crate) fn role<'p>(tres: &Tres, policy: &'p Policy) -> Role<'p> {
    match tres {
        Tres::Cpu => Role::Cap(Dimension::Cpu),
        Tres::Mem => Role::Cap(Dimension::Memory),
        Tres::Gres { name, kind } => {
            let plain = Tres::Gres { name: name.clone(), kind: None };
            match (policy.resources.get(tres), policy.resources.get(&plain), kind) {
                (Some(own), Some(shared), Some(_)) if own == shared => Role::Typed(shared),
                (Some(own), ..) => Role::Cap(Dimension::Extended(own.clone())),
                (None, Some(shared), Some(_)) => Role::Typed(shared),
                _ => Role::None,
            }
        }
        _ => Role::None,
    }
}

/// Whether a typed GRES is mapped by itself to a resource that another is mapped to as well.
fn shares_resource(tres: &Tres, dimension: &Dimension, policy: &Policy) -> bool {
    let Dimension::Extended(resource) = dimension else { return false };
    matches!(tres, Tres::Gres { kind: Some(_), .. })
        && policy.resources.iter().any(|(other, mapped)| other != tres && mapped == resource)
}

/// The caps that one holder's own limits give.
pub(crate) fn own_caps(limits: &Limits, holder: &Holder, policy: &Policy) -> Caps {
    let mut caps = Caps::new();
    let mut typed = Caps::new();
    let set = limits.tres.get(&TresLimit::GrpTres).into_iter().flatten();
    for (tres, limit) in set {
        let Limit::Value(amount) = limit.value else { continue };
        let (into, dimension, summed) = match role(tres, policy) {
            Role::Cap(dimension) => {
                let summed = shares_resource(tres, &dimension, policy);
                (&mut caps, dimension, summed)
            }
            Role::Typed(resource) => (&mut typed, Dimension::Extended(resource.to_owned()), true),
            Role::None => continue,
        };
        let cap = into.entry(dimension).or_insert_with(|| Cap {
            amount: 0,
            holder: holder.clone(),
            origin: limit.origin.clone(),
            summed: Vec::new(),
        });
        // A sum beyond what Kubernetes holds is refused by the check.
        cap.amount = cap.amount.saturating_add(amount);
        if summed {
            cap.summed.push(tres.clone());
        }
    }
    // Beside a count without a type, typed ones are its breakdown.
    for (dimension, cap) in typed {
        caps.entry(dimension).or_insert(cap);
    }
    caps
}

/// What binds an account: its caps, and a group limit of zero jobs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bounds {
    pub(crate) caps: Caps,
    /// Whose limit of zero jobs, running or submitted, blocks the account.
    pub(crate) no_jobs: Option<(CountLimit, Holder)>,
}

impl Bounds {
    fn of(limits: &Limits, holder: &Holder, policy: &Policy) -> Self {
        let zero = |limit: &&CountLimit| {
            limits.counts.get(*limit).is_some_and(|value| value.value == Limit::Value(0))
        };
        let no_jobs = [CountLimit::GrpJobs, CountLimit::GrpSubmitJobs].iter().find(zero);
        Self {
            caps: own_caps(limits, holder, policy),
            no_jobs: no_jobs.map(|limit| (*limit, holder.clone())),
        }
    }

    /// These bounds, tightened by what stands above. On a tie the nearer holder is named.
    fn below(mut self, above: &Self) -> Self {
        for (dimension, cap) in &above.caps {
            match self.caps.get_mut(dimension) {
                Some(own) if own.amount <= cap.amount => {}
                Some(own) => *own = cap.clone(),
                None => drop(self.caps.insert(dimension.clone(), cap.clone())),
            }
        }
        if self.no_jobs.is_none() {
            self.no_jobs.clone_from(&above.no_jobs);
        }
        self
    }
}

/// The bounds of every account that is not stopped, in time linear in the accounts.
pub(crate) fn bounds<'m>(tree: &Tree<'m>, policy: &Policy) -> BTreeMap<&'m AccountName, Bounds> {
    let model = tree.model();
    let cluster = Bounds::of(&model.cluster.terms.limits, &Holder::Cluster, policy);
    let own =
        |account: &Account| Bounds::of(&account.terms.limits, &Holder::Account(account.name.clone()), policy);
    let top = match model.accounts.get(crate::model::ROOT) {
        Some(root) => own(root).below(&cluster),
        None => cluster,
    };
    let mut known: BTreeMap<&AccountName, Bounds> = BTreeMap::new();
    for account in model.accounts.values().filter(|account| tree.stopped(&account.name).is_none()) {
        // Up to the nearest ancestor that is known, then down again.
        let mut path = Vec::new();
        let mut above = top.clone();
        for ancestor in tree.path(account).filter(|ancestor| !Model::is_root(&ancestor.name)) {
            if let Some(bounds) = known.get(&ancestor.name) {
                above = bounds.clone();
                break;
            }
            path.push(ancestor);
        }
        for account in path.into_iter().rev() {
            above = own(account).below(&above);
            known.insert(&account.name, above.clone());
        }
    }
    known
}
