//! A projection, judged and indexed once, so that any part of it can be planned by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use spur_sdk::AccountName;

use super::removal::Removals;
use super::{AccountPlan, OverQuota, Plan, PlanOptions, Planner, Refusal, Step, delete, removal};
use crate::cluster::{Key, Kind, Live, Observed};
use crate::k8s::Object;
use crate::model::Completeness;
use crate::project::{AccountProjection, Projection, names};

/// What a cluster is to hold.
#[derive(Debug)]
pub(in crate::cluster) struct Desired<P> {
    projection: P,
    /// Why nothing at all may be written.
    refused: Vec<String>,
    /// Why an account may not be.
    stopped: BTreeMap<AccountName, String>,
    /// The same, by namespace.
    stopped_namespaces: BTreeMap<String, AccountName>,
    /// The place of each account's projection, by namespace.
    accounts: BTreeMap<String, usize>,
    /// The place of each user's ServiceAccount, by name.
    users: BTreeMap<String, usize>,
    /// Namespaces of all accounts that the source names.
    known: BTreeSet<String>,
    /// ServiceAccounts of all users that the source gives something.
    known_users: BTreeSet<String>,
    guard: Option<String>,
}

/// Why an account is passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cluster) enum Skipped {
    /// The reason, and the way out.
    Refused(String),
    /// Its namespace has the annotation that suspends us.
    Paused,
}

impl<P: Deref<Target = Projection>> Desired<P> {
    pub(in crate::cluster) fn new(projection: P) -> Self {
        let mut refused: Vec<String> = projection.refused().map(ToString::to_string).into_iter().collect();
        let mut stopped: BTreeMap<AccountName, String> = BTreeMap::new();
        for finding in crate::check::check(&projection) {
            match &finding.account {
                Some(account) => drop(stopped.insert(account.clone(), finding.to_string())),
                None if projection.refused().is_none() => refused.push(finding.to_string()),
                None => {}
            }
        }
        let problems = projection.stopped.iter();
        stopped.extend(problems.map(|stopped| (stopped.account.clone(), stopped.problem.to_string())));
        let namespaces = projection.accounts.iter().enumerate();
        let users = projection.shared.iter().enumerate();
        let users = users.filter(|(_, object)| matches!(object, Object::ServiceAccount(_)));
        let namespace = |account: &AccountName| (names::NAMESPACES.map(account.as_str()), account.clone());
        Self {
            refused,
            stopped_namespaces: stopped.keys().map(namespace).collect(),
            stopped,
            accounts: namespaces.map(|(at, account)| (account.namespace.clone(), at)).collect(),
            users: users.map(|(at, object)| (object.name().to_owned(), at)).collect(),
            known: projection.known.iter().map(|account| names::NAMESPACES.map(account.as_str())).collect(),
            known_users: projection
                .known_users
                .iter()
                .map(|user| names::SERVICE_ACCOUNTS.map(user.as_str()))
                .collect(),
            guard: guard_answer(&projection),
            projection,
        }
    }

    pub(in crate::cluster) fn projection(&self) -> &Projection {
        &self.projection
    }

    /// Why nothing at all may be written.
    pub(in crate::cluster) fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Accounts that may not be written, and why.
    pub(in crate::cluster) fn stopped(&self) -> &BTreeMap<AccountName, String> {
        &self.stopped
    }

    /// Why the account of a namespace may not be written, if so.
    pub(in crate::cluster) fn stopped_in(&self, namespace: &str) -> Option<&str> {
        self.stopped.get(self.stopped_namespaces.get(namespace)?).map(String::as_str)
    }

    /// What the tenant guard answers to its probe once it is in force.
    pub(in crate::cluster) fn guard(&self) -> Option<&str> {
        self.guard.as_deref()
    }

    /// The policies of the tenant guard.
    pub(in crate::cluster) fn guard_policies(&self) -> Vec<Key> {
        let policies = self.projection.shared.iter();
        let policies = policies.filter(|object| matches!(object, Object::ValidatingAdmissionPolicy(_)));
        policies.map(|policy| Key::cluster(Kind::ValidatingAdmissionPolicy, policy.name())).collect()
    }

    /// The accounts by namespace.
    pub(in crate::cluster) fn accounts(&self) -> impl Iterator<Item = (&str, &AccountProjection)> {
        let accounts = self.accounts.iter();
        accounts.filter_map(|(namespace, at)| Some((namespace.as_str(), self.projection.accounts.get(*at)?)))
    }

    /// The users' ServiceAccounts by name.
    pub(in crate::cluster) fn users(&self) -> impl Iterator<Item = (&str, &Object)> {
        let users = self.users.iter();
        users.filter_map(|(name, at)| Some((name.as_str(), self.projection.shared.get(*at)?)))
    }

    pub(in crate::cluster) fn has_user(&self, name: &str) -> bool {
        self.users.contains_key(name)
    }

    /// The account that a namespace is of.
    pub(in crate::cluster) fn account_in(&self, namespace: &str) -> Option<&AccountProjection> {
        self.projection.accounts.get(*self.accounts.get(namespace)?)
    }

    /// Whether the source names the account of a namespace, also one that is stopped or out of scope.
    pub(in crate::cluster) fn is_known(&self, namespace: &str) -> bool {
        self.known.contains(namespace)
    }

    fn planner<'a>(&'a self, observed: &'a Observed, options: &'a PlanOptions) -> Planner<'a> {
        Planner { observed, options, prefix: &self.projection.prefix }
    }

    /// What all accounts share, without the users' ServiceAccounts: steps, and why some objects may not be written.
    pub(in crate::cluster) fn shared(
        &self,
        observed: &Observed,
        options: &PlanOptions,
    ) -> (Vec<Step>, Vec<String>) {
        let planner = self.planner(observed, options);
        let (mut steps, mut refused) = (Vec::new(), Vec::new());
        let shared = self.projection.shared.iter();
        let paused = planner.is_paused(names::USERS_NAMESPACE);
        for object in shared.filter(|object| match object {
            Object::ServiceAccount(_) => false,
            Object::Namespace(_) => !paused,
            _ => true,
        }) {
            match planner.object(object) {
                Ok(needed) => steps.extend(needed),
                Err(reason) => refused.push(reason),
            }
        }
        steps.extend(planner.guard_no_longer_wanted(&self.projection));
        (steps, refused)
    }

    /// The ServiceAccount of a user, by its name; with removals allowed also one that nobody needs any more.
    pub(in crate::cluster) fn user(
        &self,
        name: &str,
        observed: &Observed,
        options: &PlanOptions,
        removals_allowed: bool,
    ) -> Result<Vec<Step>, String> {
        let planner = self.planner(observed, options);
        if planner.is_paused(names::USERS_NAMESPACE) {
            return Ok(Vec::new());
        }
        if let Some(object) = self.users.get(name).and_then(|at| self.projection.shared.get(*at)) {
            return planner.object(object);
        }
        let target = Key::namespaced(Kind::ServiceAccount, names::USERS_NAMESPACE, name);
        let gone = |live: &&Live| {
            live.is_ours() && !live.is_terminating() && names::SERVICE_ACCOUNTS.is_mapped(name)
        };
        let live = observed.get(&target).filter(gone);
        let live = live.filter(|_| removals_allowed && !self.known_users.contains(name));
        Ok(live.map(|live| delete(target, live, "the user is in no account any more")).into_iter().collect())
    }

    /// The writes of one account.
    pub(in crate::cluster) fn account(
        &self,
        account: &AccountProjection,
        observed: &Observed,
        options: &PlanOptions,
        completeness: Completeness,
    ) -> Result<AccountPlan, Skipped> {
        if let Some(reason) = self.stopped.get(&account.account) {
            return Err(Skipped::Refused(reason.clone()));
        }
        let planner = self.planner(observed, options);
        if planner.is_paused(&account.namespace) {
            return Err(Skipped::Paused);
        }
        planner.account(account, completeness).map_err(Skipped::Refused)
    }

    /// The writes that retire a namespace of ours whose account the source does not name any more.
    pub(in crate::cluster) fn retire(
        &self,
        namespace: &str,
        observed: &Observed,
        options: &PlanOptions,
        now: std::time::SystemTime,
    ) -> Result<AccountPlan, Skipped> {
        let planner = self.planner(observed, options);
        if planner.is_paused(namespace) {
            return Err(Skipped::Paused);
        }
        planner.retire(namespace, now).map_err(Skipped::Refused)
    }

    pub(in crate::cluster) fn over_quota(
        &self,
        account: &AccountProjection,
        observed: &Observed,
    ) -> Vec<OverQuota> {
        self.planner(observed, &PlanOptions::default()).over_quota(account)
    }

    /// What has vanished, and whether it may be taken away.
    pub(in crate::cluster) fn removals(&self, observed: &Observed, now: std::time::SystemTime) -> Removals {
        removal::judge(&self.projection, &self.known, observed, now)
    }

    /// The step that takes a confirmation of removals away which has served.
    pub(in crate::cluster) fn forget_confirmation(&self, observed: &Observed) -> Option<Step> {
        removal::forget_confirmation(observed, &self.projection.prefix)
    }

    /// Whether somebody has suspended what we do in a namespace.
    pub(in crate::cluster) fn is_paused(&self, namespace: &str, observed: &Observed) -> bool {
        self.planner(observed, &PlanOptions::default()).is_paused(namespace)
    }

    /// All of it at once.
    pub(in crate::cluster) fn plan(&self, observed: &Observed, options: &PlanOptions) -> Plan {
        let mut plan = Plan::default();
        let refuse = |reason: &String| Refusal { account: None, reason: reason.clone() };
        if self.projection.refused().is_some() {
            plan.refused = self.refused.iter().map(refuse).collect();
            return plan;
        }
        let (steps, refused) = self.shared(observed, options);
        plan.shared = steps;
        plan.refused = refused.iter().map(refuse).collect();
        let users = self.users().map(|(name, _)| self.user(name, observed, options, false));
        for user in users {
            match user {
                Ok(steps) => plan.shared.extend(steps),
                Err(reason) => plan.refused.push(Refusal { account: None, reason }),
            }
        }
        if !plan.refused.is_empty() {
            plan.shared.clear();
            return plan;
        }
        plan.guard.clone_from(&self.guard);
        let stopped = self.stopped.iter();
        plan.refused.extend(
            stopped
                .map(|(account, reason)| Refusal { account: Some(account.clone()), reason: reason.clone() }),
        );
        if !self.refused.is_empty() {
            plan.refused.extend(self.refused.iter().map(refuse));
            plan.shared.clear();
            return plan;
        }
        for account in &self.projection.accounts {
            let name = &account.account;
            if self.stopped.contains_key(name) {
                continue;
            }
            match self.account(account, observed, options, self.projection.completeness) {
                Ok(steps) if steps.is_empty() => plan.unchanged = plan.unchanged.saturating_add(1),
                Ok(steps) => plan.accounts.push(steps),
                Err(Skipped::Refused(reason)) => {
                    plan.refused.push(Refusal { account: Some(name.clone()), reason });
                    continue;
                }
                Err(Skipped::Paused) => plan.paused.push(name.clone()),
            }
            plan.over_quota.extend(self.over_quota(account, observed));
        }
        plan.refused.sort();
        let ours = observed.of_kind(Kind::Namespace).filter(|(_, live)| live.is_ours());
        let unlisted = ours.map(|(key, _)| &key.name).filter(|name| !self.known.contains(*name));
        plan.unlisted = unlisted.filter(|name| *name != names::USERS_NAMESPACE).cloned().collect();
        plan
    }
}

/// What the guard's first rule on new pods says to the probe.
fn guard_answer(projection: &Projection) -> Option<String> {
    projection.shared.iter().find_map(|object| match object {
        Object::ValidatingAdmissionPolicy(policy) if object.name() == names::GUARD_OF_PODS => {
            policy.spec.as_ref()?.validations.as_ref()?.first()?.message.clone()
        }
        _ => None,
    })
}
