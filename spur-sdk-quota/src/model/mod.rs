//! Accounts, users, associations and QoS as they were read, with the place that each value came from.

mod limits;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use spur_sdk::{AccountName, ClusterName, NameError, PartitionName, QosName, TresError, UserName};

pub use tree::Tree;

pub use limits::{Carrier, CountLimit, LimitSpec, Limits, TresLimit};

/// The name of the account that is every other's ancestor.
pub const ROOT: &str = "root";

/// Where a value was read: a file and a line, or what a host calls its store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    source: Arc<str>,
    line: u32,
}

impl Origin {
    /// A line of a file; lines count from 1.
    #[must_use]
    pub fn line(source: &Arc<str>, line: u32) -> Self {
        Self { source: Arc::clone(source), line }
    }

    /// A source without lines, such as a host's own database.
    #[must_use]
    pub fn store(name: &str) -> Self {
        Self { source: Arc::from(name), line: 0 }
    }

    /// Another line of the same source.
    pub(crate) fn at(self, line: u32) -> Self {
        Self { line, ..self }
    }
}

/// `accounts.toml:12`, or the name of the store.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.source),
            line => write!(f, "{}:{line}", self.source),
        }
    }
}

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it was read.
    pub origin: Origin,
}

impl<T> Sourced<T> {
    /// A value from `origin`.
    #[must_use]
    pub fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }
}

/// An account's or association's share of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fairshare {
    /// Shares relative to the siblings'.
    Shares(u32),
    /// The users compete as if they stood directly under the parent. Slurm's 2147483647.
    Parent,
}

impl fmt::Display for Fairshare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shares(shares) => shares.fmt(f),
            Self::Parent => f.write_str("parent"),
        }
    }
}

/// What a user may do in the accounting database. Nothing of it reaches Kubernetes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum AdminLevel {
    /// An ordinary user.
    #[default]
    None,
    /// May change limits and users.
    Operator,
    /// May do everything.
    Administrator,
}

impl fmt::Display for AdminLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Operator => "operator",
            Self::Administrator => "administrator",
        })
    }
}

/// What a cluster line, an account and an association have in common.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Terms {
    /// The share, if one is set.
    pub fairshare: Option<Sourced<Fairshare>>,
    /// The limits.
    pub limits: Limits,
    /// The QoS that may be used; `None` is whatever the parent has.
    pub qos: Option<Sourced<QosSelection>>,
    /// The QoS of a job that names none.
    pub default_qos: Option<Sourced<QosName>>,
}

impl Terms {
    /// Whether these say the same, wherever they were read.
    pub(crate) fn says_as(&self, other: &Self) -> bool {
        says_as(self.fairshare.as_ref(), other.fairshare.as_ref())
            && says_as(self.qos.as_ref(), other.qos.as_ref())
            && says_as(self.default_qos.as_ref(), other.default_qos.as_ref())
            && self.limits.says_as(&other.limits)
    }
}

fn says_as<T: PartialEq>(a: Option<&Sourced<T>>, b: Option<&Sourced<T>>) -> bool {
    a.map(|a| &a.value) == b.map(|b| &b.value)
}

/// The QoS that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QosSelection {
    /// Just these.
    Only(BTreeSet<QosName>),
    /// The parent's, with some added and some taken away (`QOS+=a`, `QOS-=b`).
    Changed {
        /// Added to the parent's.
        add: BTreeSet<QosName>,
        /// Taken from the parent's.
        remove: BTreeSet<QosName>,
    },
}

/// The cluster line: its limits bind everybody.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Cluster {
    /// Its name in the accounting database.
    pub name: Option<Sourced<ClusterName>>,
    /// Share and limits.
    pub terms: Terms,
}

/// An account.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Account {
    /// Its name.
    pub name: AccountName,
    /// Where it was defined.
    pub origin: Origin,
    /// The account above it; `None` is directly under `root`.
    pub parent: Option<Sourced<AccountName>>,
    /// What it is, in words.
    pub description: Option<Sourced<String>>,
    /// Whose it is.
    pub organization: Option<Sourced<String>>,
    /// Who administers it.
    pub coordinators: BTreeMap<UserName, Origin>,
    /// Share and limits.
    pub terms: Terms,
}

impl Account {
    /// An account directly under `root`, without limits.
    #[must_use]
    pub fn new(name: AccountName, origin: Origin) -> Self {
        Self {
            name,
            origin,
            parent: None,
            description: None,
            organization: None,
            coordinators: BTreeMap::new(),
            terms: Terms::default(),
        }
    }
}

/// A user, apart from any account.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct User {
    /// The name.
    pub name: UserName,
    /// Where the user was first named.
    pub origin: Origin,
    /// The account of a job that names none.
    pub default_account: Option<Sourced<AccountName>>,
    /// Rights in the accounting database.
    pub admin_level: Option<Sourced<AdminLevel>>,
    /// The workload key of a job that names none.
    pub default_wckey: Option<Sourced<String>>,
    /// Workload keys that may be used, sorted.
    pub wckeys: Option<Sourced<BTreeSet<String>>>,
    /// A comment.
    pub comment: Option<Sourced<String>>,
}

impl User {
    /// A user without anything further.
    #[must_use]
    pub fn new(name: UserName, origin: Origin) -> Self {
        Self {
            name,
            origin,
            default_account: None,
            admin_level: None,
            default_wckey: None,
            wckeys: None,
            comment: None,
        }
    }

    /// Takes in what another source says of the same user; whether the two agree.
    fn take(&mut self, other: Self) -> bool {
        fn fill<T: PartialEq>(own: &mut Option<Sourced<T>>, other: Option<Sourced<T>>) -> bool {
            let agrees = own.is_none() || other.is_none() || says_as(own.as_ref(), other.as_ref());
            if own.is_none() {
                *own = other;
            }
            agrees
        }
        // Each is filled, also after the first that differs.
        let agree = [
            fill(&mut self.default_account, other.default_account),
            fill(&mut self.admin_level, other.admin_level),
            fill(&mut self.default_wckey, other.default_wckey),
            fill(&mut self.wckeys, other.wckeys),
            fill(&mut self.comment, other.comment),
        ];
        agree.into_iter().all(|agrees| agrees)
    }
}

/// What makes an association one: an account, a user in it, and perhaps a partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AssociationKey {
    /// The account.
    pub account: AccountName,
    /// The user.
    pub user: UserName,
    /// The partition that it is for; `None` is all.
    pub partition: Option<PartitionName>,
}

impl fmt::Display for AssociationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {} in account {}", self.user, self.account)?;
        match &self.partition {
            Some(partition) => write!(f, " on partition {partition}"),
            None => Ok(()),
        }
    }
}

/// A user's membership in an account.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Association {
    /// Where it was read.
    pub origin: Origin,
    /// Share and limits.
    pub terms: Terms,
}

impl Association {
    /// A membership without limits of its own.
    #[must_use]
    pub fn new(origin: Origin) -> Self {
        Self { origin, terms: Terms::default() }
    }
}

/// A setting of a QoS that is no limit; kept as the text that the source has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum QosSetting {
    /// Comma-separated flags.
    Flags,
    /// Seconds that a preempted job gets.
    GraceTime,
    /// Factor on the association's TRES limits.
    LimitFactor,
    /// QoS that this one preempts, comma-separated.
    Preempt,
    /// How a job is preempted.
    PreemptMode,
    /// Seconds before a job may be preempted.
    PreemptExemptTime,
    /// Factor on usage.
    UsageFactor,
    /// The lowest usage efficiency at which jobs may be submitted.
    UsageThreshold,
}

impl QosSetting {
    /// Every one.
    pub const ALL: &'static [Self] = &[
        Self::Flags,
        Self::GraceTime,
        Self::LimitFactor,
        Self::Preempt,
        Self::PreemptMode,
        Self::PreemptExemptTime,
        Self::UsageFactor,
        Self::UsageThreshold,
    ];

    /// The key in our own files and the one in a Slurm dump.
    #[must_use]
    pub fn keys(self) -> (&'static str, &'static str) {
        match self {
            Self::Flags => ("flags", "Flags"),
            Self::GraceTime => ("grace_time", "GraceTime"),
            Self::LimitFactor => ("limit_factor", "LimitFactor"),
            Self::Preempt => ("preempt", "Preempt"),
            Self::PreemptMode => ("preempt_mode", "PreemptMode"),
            Self::PreemptExemptTime => ("preempt_exempt_time", "PreemptExemptTime"),
            Self::UsageFactor => ("usage_factor", "UsageFactor"),
            Self::UsageThreshold => ("usage_threshold", "UsageThreshold"),
        }
    }
}

/// A quality of service.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Qos {
    /// Its name.
    pub name: QosName,
    /// Where it was defined.
    pub origin: Origin,
    /// What it is, in words.
    pub description: Option<Sourced<String>>,
    /// Its limits.
    pub limits: Limits,
    /// What is no limit.
    pub settings: BTreeMap<QosSetting, Sourced<String>>,
}

impl Qos {
    /// A QoS without limits.
    #[must_use]
    pub fn new(name: QosName, origin: Origin) -> Self {
        Self { name, origin, description: None, limits: Limits::default(), settings: BTreeMap::new() }
    }
}

/// What a problem stops.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Subject {
    /// The whole source: nothing is projected.
    Source,
    /// An account and everything below it.
    Account(AccountName),
    /// One user's membership in one account; the others of the account go on.
    Member(AccountName, UserName),
    /// A user's memberships everywhere.
    User(UserName),
    /// A QoS; no account's cap depends on one.
    Qos(QosName),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source => f.write_str("source"),
            Self::Account(name) => write!(f, "account {name}"),
            Self::Member(account, user) => write!(f, "user {user} in account {account}"),
            Self::User(name) => write!(f, "user {name}"),
            Self::Qos(name) => write!(f, "qos {name}"),
        }
    }
}

/// Something that could not be understood, and what it therefore stops.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where.
    pub origin: Origin,
    /// What it stops.
    pub subject: Subject,
    /// The field, in the spelling of the source; empty when it is about the whole entry.
    pub field: String,
    /// What is wrong, and the way out.
    pub message: String,
}

/// `accounts.toml:7: account physics: grp_tres: "nodes" is no TRES`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if self.subject != Subject::Source {
            write!(f, "{}: ", self.subject)?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Whether a source was read in full. Only then does a missing member lose access; accounts are never removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Completeness {
    /// There may be more than was read.
    #[default]
    Partial,
    /// Everything that the source has was read.
    Full,
}

/// All that is known of accounts and users.
///
/// The maps are keyed by the names that stand in the values. `root` may be among the accounts: its limits
/// bind everybody.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Model {
    /// The cluster line.
    pub cluster: Cluster,
    /// Accounts by name.
    pub accounts: BTreeMap<AccountName, Account>,
    /// Users by name.
    pub users: BTreeMap<UserName, User>,
    /// Memberships.
    pub associations: BTreeMap<AssociationKey, Association>,
    /// QoS by name.
    pub qos: BTreeMap<QosName, Qos>,
    /// What could not be understood.
    pub problems: Vec<Problem>,
    /// Whether this is all there is.
    pub completeness: Completeness,
}

impl Model {
    /// Adds an account with an allocation in SPUR's spelling (`cpu=16,mem=32768,gres/gpu=8`), for hosts that
    /// build a model by hand.
    ///
    /// # Errors
    /// A name or an allocation that cannot be read, or an account that is there already; nothing is added.
    pub fn add_account(
        &mut self,
        origin: &Origin,
        name: &str,
        parent: Option<&str>,
        grp_tres: &str,
    ) -> Result<&mut Account, ModelError> {
        let name: AccountName = self::name(name)?;
        let parent = parent.map(self::name::<AccountName>).transpose()?;
        let amounts = spur_sdk::parse_tres(grp_tres, spur_sdk::MemorySpelling::Spur).map_err(|source| {
            ModelError::Tres {
                account: name.clone(),
                allocation: grp_tres.to_owned(),
                source: Box::new(source),
            }
        })?;
        if self.accounts.contains_key(&name) {
            return Err(ModelError::Twice(name));
        }
        let mut account = Account::new(name.clone(), origin.clone());
        account.parent = parent.map(|parent| Sourced::new(parent, origin.clone()));
        account.terms.limits.set_tres(TresLimit::GrpTres, amounts, origin);
        Ok(self.accounts.entry(name).insert_entry(account).into_mut())
    }

    /// Adds a user as a member of an account.
    ///
    /// # Errors
    /// A name that cannot be read; nothing is added.
    pub fn add_member(&mut self, origin: &Origin, account: &str, user: &str) -> Result<(), ModelError> {
        let key = AssociationKey { account: name(account)?, user: name(user)?, partition: None };
        self.users.entry(key.user.clone()).or_insert_with(|| User::new(key.user.clone(), origin.clone()));
        self.associations.insert(key, Association::new(origin.clone()));
        Ok(())
    }

    /// Takes in what another source has. What both define is a problem that stops just that.
    pub fn merge(&mut self, other: Self) {
        let twice = |subject: Subject, first: &Origin, second: &Origin| Problem {
            origin: second.clone(),
            subject,
            field: String::new(),
            message: format!("is already defined at {first}; remove one of the two"),
        };
        if self.completeness != other.completeness {
            self.completeness = Completeness::Partial;
        }
        self.problems.extend(other.problems);
        if other.cluster != Cluster::default() {
            if self.cluster == Cluster::default() {
                self.cluster = other.cluster;
            } else if !says_as(self.cluster.name.as_ref(), other.cluster.name.as_ref())
                || !self.cluster.terms.says_as(&other.cluster.terms)
            {
                let place = |cluster: &Cluster| {
                    cluster
                        .name
                        .as_ref()
                        .map_or_else(|| Origin::store("[cluster]"), |name| name.origin.clone())
                };
                let problem = twice(Subject::Source, &place(&self.cluster), &place(&other.cluster));
                self.problems.push(Problem { field: "cluster".to_owned(), ..problem });
            }
        }
        for (name, account) in other.accounts {
            match self.accounts.get(&name) {
                Some(first) => {
                    self.problems.push(twice(Subject::Account(name), &first.origin, &account.origin));
                }
                None => drop(self.accounts.insert(name, account)),
            }
        }
        for (name, qos) in other.qos {
            match self.qos.get(&name) {
                Some(first) => self.problems.push(twice(Subject::Qos(name), &first.origin, &qos.origin)),
                None => drop(self.qos.insert(name, qos)),
            }
        }
        for (name, user) in other.users {
            match self.users.get_mut(&name) {
                Some(first) => {
                    let (place, second) = (first.origin.clone(), user.origin.clone());
                    if !first.take(user) {
                        self.problems.push(twice(Subject::User(name), &place, &second));
                    }
                }
                None => drop(self.users.insert(name, user)),
            }
        }
        for (key, association) in other.associations {
            match self.associations.get(&key) {
                Some(first) if !first.terms.says_as(&association.terms) => {
                    let subject = Subject::Member(key.account, key.user);
                    self.problems.push(twice(subject, &first.origin, &association.origin));
                }
                Some(_) => {}
                None => drop(self.associations.insert(key, association)),
            }
        }
    }

    /// Whether a name is `root`'s.
    #[must_use]
    pub fn is_root(name: &AccountName) -> bool {
        name.as_str() == ROOT
    }
}

/// A model could not be added to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A name is none.
    #[error("name \"{name}\"")]
    Name {
        /// What was given.
        name: String,
        /// Why not.
        #[source]
        source: NameError,
    },
    /// An allocation cannot be read in full.
    #[error("allocation \"{allocation}\" of account {account}")]
    Tres {
        /// The account.
        account: AccountName,
        /// What was given.
        allocation: String,
        /// Why not.
        #[source]
        source: Box<TresError>,
    },
    /// The account is there already.
    #[error("account {0} is added twice")]
    Twice(AccountName),
}

impl spur_sdk::Classify for ModelError {
    fn kind(&self) -> spur_sdk::ErrorKind {
        spur_sdk::ErrorKind::Invalid
    }
}

fn name<T: std::str::FromStr<Err = NameError>>(text: &str) -> Result<T, ModelError> {
    text.parse().map_err(|source| ModelError::Name { name: text.to_owned(), source })
}
