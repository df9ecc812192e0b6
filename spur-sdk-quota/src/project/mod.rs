//! Accounts to objects: pure, deterministic, sorted.

pub(crate) mod caps;
mod guard;
pub mod names;
mod objects;
mod roles;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use spur_sdk::{AccountName, UserName};

pub use caps::{Cap, Dimension, Holder};

use self::caps::{Bounds, Caps};
use self::objects::Maker;
use crate::k8s::Object;
use crate::model::{Account, Completeness, CountLimit, Model, Problem, Subject, Tree};
use crate::policy::{Policy, Unlimited};
use crate::report::Report;

/// Projects a model of accounts onto Kubernetes objects.
///
/// ```
/// use spur_sdk_quota::{Model, Origin, Policy, QuotaProjector};
///
/// let mut model = Model::default();
/// let origin = Origin::store("my scheduler");
/// model.add_account(&origin, "physics", None, "cpu=16,mem=32768,gres/gpu=8")?;
/// model.add_member(&origin, "physics", "alice")?;
/// let projection = QuotaProjector::new(&Policy::default()).project(&model);
/// assert_eq!(projection.accounts[0].namespace, "spur-acct-physics");
/// # Ok::<(), spur_sdk_quota::ModelError>(())
/// ```
#[derive(Debug, Clone)]
pub struct QuotaProjector<'p> {
    policy: &'p Policy,
    default_priority_class: Option<String>,
}

/// Why no pod can be created in an account's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// No limit on cpu, memory or a mapped GRES stands anywhere on its path, and policy does not open it.
    NoAllocation,
    /// A cap on cpu or memory is zero.
    Zero(Dimension),
    /// A cap on cpu or memory is below the least that a container may request.
    BelowMinimum(Dimension),
    /// Policy closes a dimension that has no cap.
    Unset(Dimension),
    /// A group limit of zero jobs stands on its path.
    NoJobs(CountLimit, Holder),
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAllocation => f.write_str(
                "no limit on cpu, memory or a mapped GRES on its path (give it grp_tres, or set no_allocation = \"open\")",
            ),
            Self::Zero(dimension) => write!(f, "its cap on {dimension} is 0"),
            Self::BelowMinimum(dimension) => {
                write!(f, "its cap on {dimension} is below the least that a container may request (limit_range.min)")
            }
            Self::Unset(dimension) => {
                write!(f, "it has no cap on {dimension} and policy says unset_dimension = \"closed\"")
            }
            Self::NoJobs(limit, holder) => write!(f, "{holder} has {} = 0", limit.spec().key),
        }
    }
}

/// What one account became.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AccountProjection {
    /// The account.
    pub account: AccountName,
    /// Its parent, unless that is root.
    pub parent: Option<AccountName>,
    /// Its namespace.
    pub namespace: String,
    /// Why no pod can be created, if so.
    pub closed: Option<Closed>,
    /// Its caps and what bound each.
    pub caps: BTreeMap<Dimension, Cap>,
    /// Users in it, sorted.
    pub members: BTreeSet<UserName>,
    /// Users whose terms could not be read: nothing is said about them, so what they have stays.
    pub unread_members: BTreeSet<UserName>,
    /// Its objects, what restricts before what admits.
    pub objects: Vec<Object>,
}

/// An account that is not projected; what it has in a cluster stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoppedAccount {
    /// The account.
    pub account: AccountName,
    /// Why.
    pub problem: Problem,
}

/// All that a model became.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Projection {
    /// Objects that all accounts share: the users' namespace and ServiceAccounts, roles, the tenant guard.
    pub shared: Vec<Object>,
    /// Accounts, sorted by name.
    pub accounts: Vec<AccountProjection>,
    /// Accounts that are not projected, sorted by name.
    pub stopped: Vec<StoppedAccount>,
    /// Everything that could not be understood.
    pub problems: Vec<Problem>,
    /// What Kubernetes cannot express, and what an operator should know.
    pub report: Report,
    /// Whether the source was read in full. Otherwise a missing member is not a removed one.
    pub completeness: Completeness,
    /// The prefix of our labels and annotations.
    pub prefix: String,
    /// Every account that the model names, also those that are stopped or out of scope.
    pub known: BTreeSet<AccountName>,
    /// Every user who is in an account, also in one that is stopped or out of scope, or whose entry could not be
    /// read.
    pub known_users: BTreeSet<UserName>,
    /// The policy's scope.
    pub scope: Vec<AccountName>,
}

impl Projection {
    /// All objects, those that all share first.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.shared.iter().chain(self.accounts.iter().flat_map(|account| &account.objects))
    }

    /// Why nothing is projected at all, if so.
    #[must_use]
    pub fn refused(&self) -> Option<&Problem> {
        // What root is not understood to have binds everybody.
        self.problems.iter().find(|problem| match &problem.subject {
            Subject::Source => true,
            Subject::Account(name) => Model::is_root(name),
            Subject::Member(..) | Subject::User(_) | Subject::Qos(_) => false,
        })
    }
}

/// What a source says of itself, unless it cannot be: one without an account, or with a part that could not even
/// be told what it is about, was not read in full.
fn completeness(model: &Model) -> Completeness {
    let whole = |problem: &Problem| problem.subject == Subject::Source;
    if model.accounts.is_empty() || model.problems.iter().any(whole) {
        Completeness::Partial
    } else {
        model.completeness
    }
}

/// Whom a model gives something, or cannot be said not to.
fn known_users(model: &Model) -> BTreeSet<UserName> {
    let unread = model.problems.iter().filter_map(|problem| match &problem.subject {
        Subject::Member(_, user) | Subject::User(user) => Some(user),
        Subject::Source | Subject::Account(_) | Subject::Qos(_) => None,
    });
    let members = model.associations.keys().map(|key| &key.user);
    let coordinators = model.accounts.values().flat_map(|account| account.coordinators.keys());
    members.chain(coordinators).chain(unread).cloned().collect()
}

impl<'p> QuotaProjector<'p> {
    /// A projector with a site's choices.
    #[must_use]
    pub fn new(policy: &'p Policy) -> Self {
        Self { policy, default_priority_class: None }
    }

    /// Sets the cluster's PriorityClass with `globalDefault`, which the tenant guard always lets through since
    /// the API server gives it to every pod without a class.
    #[must_use]
    pub fn default_priority_class(mut self, class: Option<String>) -> Self {
        self.default_priority_class = class;
        self
    }

    /// Projects a model. The same model and policy give the same projection, in time linear in the accounts
    /// and memberships.
    #[must_use]
    pub fn project(&self, model: &Model) -> Projection {
        let tree = Tree::of(model);
        let bounds = caps::bounds(&tree, self.policy);
        let mut projection = Projection {
            shared: Vec::new(),
            accounts: Vec::new(),
            stopped: Vec::new(),
            problems: self.scope_problems(model).chain(tree.problems()).collect(),
            report: Report::default(),
            completeness: completeness(model),
            known: model.accounts.keys().cloned().collect(),
            known_users: known_users(model),
            scope: self.policy.scope.clone(),
            prefix: self.policy.prefix.clone(),
        };
        // Both maps are sorted by account, so one walk over the memberships serves all accounts.
        let mut associations = model.associations.keys().peekable();
        let mut users = BTreeSet::new();
        for account in model.accounts.values() {
            while associations.next_if(|key| key.account < account.name).is_some() {}
            let mut members = BTreeSet::new();
            while let Some(key) = associations.next_if(|key| key.account == account.name) {
                members.insert(&key.user);
            }
            if Model::is_root(&account.name) || !self.in_scope(&tree, account) {
                continue;
            }
            if let Some(problem) = tree.stopped(&account.name) {
                let problem = problem.clone();
                projection.stopped.push(StoppedAccount { account: account.name.clone(), problem });
                continue;
            }
            members.retain(|user| !tree.is_unread(&account.name, user));
            users.extend(members.iter().copied());
            if self.policy.coordinators {
                users.extend(account.coordinators.keys());
            }
            let bounds = bounds.get(&account.name).cloned().unwrap_or_default();
            projection.accounts.push(self.account(&tree, account, bounds, &members));
        }
        if projection.refused().is_none() {
            projection.shared = self.shared(&users);
        }
        projection.report = Report::of(&tree, self.policy, &projection);
        projection
    }

    /// A scope that names nobody would leave all of them unmanaged without a word.
    fn scope_problems<'a>(&'a self, model: &'a Model) -> impl Iterator<Item = Problem> + 'a {
        let unknown = |name: &&AccountName| !model.accounts.contains_key(*name) && !Model::is_root(name);
        self.policy.scope.iter().filter(unknown).map(|name| Problem {
            origin: crate::model::Origin::store("policy"),
            subject: Subject::Source,
            field: "scope".to_owned(),
            message: format!("there is no account {name} in the sources"),
        })
    }

    fn in_scope(&self, tree: &Tree<'_>, account: &Account) -> bool {
        // A stopped account may have no path; it is named rather than passed over.
        self.policy.scope.is_empty()
            || self.policy.scope.iter().any(|name| *name == account.name || Model::is_root(name))
            || tree.model().accounts.get(&account.name).is_some_and(|account| {
                tree.path(account).any(|ancestor| self.policy.scope.contains(&ancestor.name))
            })
    }

    fn shared(&self, users: &BTreeSet<&UserName>) -> Vec<Object> {
        let mut shared: Vec<Object> = vec![objects::users_namespace().into()];
        let guard = guard::guard_objects(
            &self.policy.guard,
            self.default_priority_class.as_deref(),
            (names::MANAGED_BY, names::MANAGER),
            &self.policy.prefix,
            &objects::labels(),
        );
        for (policy, binding) in guard {
            shared.push(policy.into());
            shared.push(binding.into());
        }
        // What admits comes after what restricts: a wider role must not act under an older guard.
        shared.push(objects::cluster_role(names::TENANT_ROLE, roles::tenant_rules()).into());
        if self.policy.coordinators {
            shared.push(objects::cluster_role(names::COORDINATOR_ROLE, roles::coordinator_rules()).into());
        }
        shared.extend(users.iter().map(|user| objects::user(user, self.policy).into()));
        shared
    }

    fn account(
        &self,
        tree: &Tree<'_>,
        account: &Account,
        bounds: Bounds,
        members: &BTreeSet<&UserName>,
    ) -> AccountProjection {
        let label = names::NAMESPACES.label(account.name.as_str());
        let namespace = names::NAMESPACES.map(account.name.as_str());
        let mut quota_caps = bounds.caps.clone();
        let closed = self.closed(&bounds, &mut quota_caps, account);
        let maker = Maker { policy: self.policy, namespace: &namespace, label: &label };
        let pods = if closed.is_some() { Some(0) } else { self.policy.objects.get("pods").copied() };
        let mut objects: Vec<Object> = vec![
            maker.namespace(account).into(),
            maker.quota(&quota_caps, pods).into(),
            maker.priority_quota().into(),
            maker.limit_range(&quota_caps).into(),
            maker.default_service_account().into(),
        ];
        let members = members.iter().copied();
        objects.push(maker.role_binding(names::MEMBERS, names::TENANT_ROLE, members.clone()).into());
        if self.policy.coordinators {
            let coordinators = account.coordinators.keys();
            objects
                .push(maker.role_binding(names::COORDINATORS, names::COORDINATOR_ROLE, coordinators).into());
        }
        AccountProjection {
            account: account.name.clone(),
            parent: account.parent.as_ref().map(|parent| parent.value.clone()).filter(|p| !Model::is_root(p)),
            closed,
            caps: bounds.caps,
            members: members.cloned().collect(),
            unread_members: tree.unread(&account.name),
            objects,
            namespace,
        }
    }

    /// Why the account gets no pods; adds the caps of zero that policy asks for.
    fn closed(&self, bounds: &Bounds, caps: &mut Caps, account: &Account) -> Option<Closed> {
        if bounds.caps.is_empty() && self.policy.no_allocation == Unlimited::Closed {
            return Some(Closed::NoAllocation);
        }
        let mut closed = bounds.no_jobs.clone().map(|(limit, holder)| Closed::NoJobs(limit, holder));
        let least = self.policy.min_request;
        for (dimension, least) in [(Dimension::Cpu, least.cpu), (Dimension::Memory, least.memory)] {
            match caps.get(&dimension).map(|cap| cap.amount) {
                Some(0) => closed = closed.or(Some(Closed::Zero(dimension))),
                Some(amount) if amount < least => closed = closed.or(Some(Closed::BelowMinimum(dimension))),
                _ => {}
            }
        }
        if self.policy.unset_dimension == Unlimited::Closed && !bounds.caps.is_empty() {
            let resources = self.policy.resources.values().cloned().map(Dimension::Extended);
            for dimension in [Dimension::Cpu, Dimension::Memory].into_iter().chain(resources) {
                if caps.contains_key(&dimension) {
                    continue;
                }
                if !matches!(dimension, Dimension::Extended(_)) {
                    closed = closed.or(Some(Closed::Unset(dimension.clone())));
                }
                let holder = Holder::Account(account.name.clone());
                let cap = Cap { amount: 0, holder, origin: account.origin.clone(), summed: Vec::new() };
                caps.insert(dimension, cap);
            }
        }
        closed
    }
}
