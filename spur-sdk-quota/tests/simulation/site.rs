//! A site whose accounts change, and a source that reads them, or fails to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spur_sdk_quota::source::{Source, SourceError};
use spur_sdk_quota::testing::{ModelCluster, Random};
use spur_sdk_quota::{Completeness, Model, Origin, Problem, Subject};
use tokio::sync::Notify;
use tokio::time::sleep;

/// An account of the site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) cpu: u64,
    pub(crate) gpu: Option<u64>,
    pub(crate) parent: Option<String>,
    pub(crate) members: BTreeSet<String>,
}

/// What is wrong with the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceFault {
    /// It cannot be read.
    Fails,
    /// It does not answer.
    Hangs,
    /// It was not read in full, and says so.
    Partial,
    /// It holds something that could not be told what it is about, and less than there is.
    Garbage,
    /// It says that there is no account at all.
    Empty,
    /// One account and one membership could not be understood.
    Unclear,
}

/// A reading that a replica was given.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) at: Duration,
    pub(crate) who: String,
    pub(crate) model: Arc<Model>,
}

impl Reading {
    /// Whether nothing of it may be used.
    pub(crate) fn is_useless(&self) -> bool {
        let whole = |problem: &Problem| problem.subject == Subject::Source;
        self.model.accounts.is_empty() || self.model.problems.iter().any(whole)
    }

    pub(crate) fn is_full(&self) -> bool {
        !self.is_useless() && self.model.completeness == Completeness::Full
    }

    /// Whether it says in full that there is no such account.
    pub(crate) fn lacks_account(&self, namespace: &str) -> bool {
        let mut known = self.model.accounts.keys();
        let maps = |name: &str| spur_sdk_quota::names::NAMESPACES.map(name) == namespace;
        self.is_full() && !known.any(|name| maps(name.as_str()))
    }

    /// Whether it says in full that a user, by the name of the ServiceAccount, is not in an account, or in none.
    pub(crate) fn lacks_member(&self, namespace: Option<&str>, service_account: &str) -> bool {
        let user = |name: &str| spur_sdk_quota::names::SERVICE_ACCOUNTS.map(name) == service_account;
        let account = |name: &str| {
            namespace.is_none_or(|namespace| spur_sdk_quota::names::NAMESPACES.map(name) == namespace)
        };
        let mut members = self.model.associations.keys();
        let unread = self.model.problems.iter().any(|problem| match &problem.subject {
            Subject::Member(of, name) => user(name.as_str()) && account(of.as_str()),
            Subject::User(name) => user(name.as_str()),
            _ => false,
        });
        self.is_full()
            && !unread
            && !members.any(|key| user(key.user.as_str()) && account(key.account.as_str()))
    }
}

struct State {
    accounts: BTreeMap<String, Account>,
    version: u64,
    fault: Option<SourceFault>,
    random: Random,
    readings: Vec<Reading>,
}

/// The site. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Site {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    cluster: ModelCluster,
}

impl Site {
    pub(crate) fn new(cluster: ModelCluster, random: Random) -> Self {
        let state =
            State { accounts: BTreeMap::new(), version: 0, fault: None, random, readings: Vec::new() };
        Self { state: Arc::new(Mutex::new(state)), changed: Arc::new(Notify::new()), cluster }
    }

    pub(crate) fn accounts(&self) -> BTreeMap<String, Account> {
        self.state.lock().unwrap().accounts.clone()
    }

    pub(crate) fn readings(&self) -> Vec<Reading> {
        self.state.lock().unwrap().readings.clone()
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<String, Account>) -> T) -> T {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        self.changed.notify_waiters();
        change(&mut state.accounts)
    }

    pub(crate) fn set_fault(&self, fault: Option<SourceFault>) {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        state.fault = fault;
        self.changed.notify_waiters();
    }

    /// The accounts as a model that was read in full.
    pub(crate) fn model(&self) -> Model {
        model(&self.accounts())
    }

    /// The source as one replica reads it.
    pub(crate) fn source(&self, who: &str) -> SiteSource {
        SiteSource { site: self.clone(), who: who.to_owned(), read: Mutex::new(0) }
    }
}

fn model(accounts: &BTreeMap<String, Account>) -> Model {
    let origin = Origin::store("site");
    let mut model = Model::default();
    for (name, account) in accounts {
        let gpu = account.gpu.map(|gpu| format!(",gres/gpu={gpu}")).unwrap_or_default();
        let allocation = format!("cpu={},mem=4000{gpu}", account.cpu);
        let parent = account.parent.as_deref().filter(|parent| accounts.contains_key(*parent));
        model.add_account(&origin, name, parent, &allocation).unwrap();
        for user in &account.members {
            model.add_member(&origin, name, user).unwrap();
        }
    }
    model.completeness = Completeness::Full;
    model
}

/// Leaves out some of the accounts and memberships.
fn thin(accounts: &mut BTreeMap<String, Account>, random: &mut Random) {
    accounts.retain(|_, _| random.happens(700));
    for account in accounts.values_mut() {
        account.members.retain(|_| random.happens(700));
    }
}

fn problem(subject: Subject) -> Problem {
    let (field, message) = (String::new(), "cannot be understood".to_owned());
    Problem { origin: Origin::store("site"), subject, field, message }
}

/// What a reading gives under a fault.
fn faulty(
    mut accounts: BTreeMap<String, Account>,
    fault: SourceFault,
    random: &mut Random,
) -> Result<Model, SourceError> {
    match fault {
        SourceFault::Fails => {
            Err(SourceError::Store { store: "site".to_owned(), source: "it is down".into() })
        }
        SourceFault::Hangs | SourceFault::Empty => Ok(model(&BTreeMap::new())),
        SourceFault::Partial => {
            thin(&mut accounts, random);
            let mut model = model(&accounts);
            model.completeness = Completeness::Partial;
            Ok(model)
        }
        SourceFault::Garbage => {
            thin(&mut accounts, random);
            let mut model = model(&accounts);
            model.problems.push(problem(Subject::Source));
            Ok(model)
        }
        SourceFault::Unclear => {
            let names: Vec<String> = accounts.keys().cloned().collect();
            let mut unclear = model(&accounts);
            if let Some(name) = random.pick(&names) {
                unclear.problems.push(problem(Subject::Account(name.parse().unwrap())));
            }
            let members: Vec<_> = unclear.associations.keys().cloned().collect();
            if let Some(key) = random.pick(&members) {
                // Nothing is known of it but that it is there.
                unclear.associations.remove(key);
                unclear.problems.push(problem(Subject::Member(key.account.clone(), key.user.clone())));
            }
            Ok(unclear)
        }
    }
}

/// The site as one replica reads it.
pub(crate) struct SiteSource {
    site: Site,
    who: String,
    /// The version that was read last.
    read: Mutex<u64>,
}

impl Source for SiteSource {
    fn name(&self) -> String {
        "site".to_owned()
    }

    async fn read(&self) -> Result<Model, SourceError> {
        let (delay, fault, accounts, mut random) = {
            let mut state = self.site.state.lock().unwrap();
            *self.read.lock().unwrap() = state.version;
            let delay = state.random.duration(&(Duration::ZERO..=Duration::from_millis(200)));
            let random = state.random.split();
            (delay, state.fault, state.accounts.clone(), random)
        };
        sleep(delay).await;
        if fault == Some(SourceFault::Hangs) {
            sleep(Duration::from_hours(1)).await;
        }
        let model = match fault {
            Some(fault) => faulty(accounts, fault, &mut random)?,
            None => model(&accounts),
        };
        let reading = Reading {
            at: self.site.cluster.elapsed(),
            who: self.who.clone(),
            model: Arc::new(model.clone()),
        };
        self.site.state.lock().unwrap().readings.push(reading);
        Ok(model)
    }

    async fn changed(&self) {
        let changed = self.site.changed.notified();
        let read = *self.read.lock().unwrap();
        if self.site.state.lock().unwrap().version == read {
            changed.await;
        }
    }
}
