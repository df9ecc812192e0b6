//! What the projection does not express, and what an operator should know of it. Nothing is dropped
//! silently.

use std::fmt;

use serde::Serialize;
use spur_sdk::{AccountName, Limit, Tres};

use crate::model::{CountLimit, Limits, Origin, Terms, Tree, TresLimit};
use crate::policy::{Burst, Policy};
use crate::project::caps::{Role, role};
use crate::project::{Closed, Projection};

/// A limit that holds in the scheduler and not in Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct Unenforced {
    /// Whose limit it is: `account physics`, `user alice in account physics`, `qos gpu`, `cluster`.
    pub holder: String,
    /// The limit, in the spelling of our files, with the TRES if it has one: `grp_tres node`.
    pub limit: String,
    /// The value.
    pub value: String,
    /// Where it was read.
    pub origin: String,
    /// Why it is not expressed.
    pub reason: String,
}

/// What an operator should know of a projection.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Limits that Kubernetes does not enforce, sorted by holder.
    pub unenforced: Vec<Unenforced>,
    /// Sentences about single accounts and about the whole, the whole first.
    pub notes: Vec<String>,
    /// Accounts in whose namespace no pod can be created since they have no allocation, sorted.
    pub without_allocation: Vec<AccountName>,
}

impl Report {
    /// How many accounts are closed for want of an allocation, and the way out; `None` when none is.
    #[must_use]
    pub fn closed_note(&self) -> Option<&str> {
        let closed =
            |note: &&String| !self.without_allocation.is_empty() && note.contains("accounts are closed");
        self.notes.iter().find(closed).map(String::as_str)
    }

    pub(crate) fn of(tree: &Tree<'_>, policy: &Policy, projection: &Projection) -> Self {
        let model = tree.model();
        let mut report = Self::default();
        report.whole(policy, projection);
        report.holder("cluster", &model.cluster.terms, policy, true);
        for account in model.accounts.values() {
            report.holder(&format!("account {}", account.name), &account.terms, policy, true);
        }
        for (key, association) in &model.associations {
            report.holder(&key.to_string(), &association.terms, policy, false);
        }
        for qos in model.qos.values() {
            report.limits(&format!("qos {}", qos.name), &qos.limits, policy, QOS);
        }
        report.accounts(projection);
        report.unenforced.sort();
        report
    }

    fn whole(&mut self, policy: &Policy, projection: &Projection) {
        let closed =
            projection.accounts.iter().filter(|account| account.closed == Some(Closed::NoAllocation));
        self.without_allocation = closed.map(|account| account.account.clone()).collect();
        if !self.without_allocation.is_empty() {
            self.notes.push(format!(
                "{} of {} accounts are closed: no limit on cpu, memory or a mapped GRES stands on their path; \
                 no_allocation = \"open\" in the policy opens them, a grp_tres on the account or above it gives a cap",
                self.without_allocation.len(),
                projection.accounts.len(),
            ));
        }
        if policy.burst == Burst::Free {
            self.notes.push(
                "burst = \"free\": requests are capped, limits are not; a pod may use what its node has left, and \
                 memory beyond its request can get it killed (burst = \"limited\" caps limits as well)"
                    .to_owned(),
            );
        }
        self.notes.push(
            "a quota holds for one namespace: what siblings use together may exceed their parent's limit"
                .to_owned(),
        );
    }

    fn accounts(&mut self, projection: &Projection) {
        for account in &projection.accounts {
            for (dimension, cap) in &account.caps {
                if cap.summed.is_empty() {
                    continue;
                }
                let types: Vec<_> = cap.summed.iter().map(Tres::to_string).collect();
                self.notes.push(format!(
                    "account {}: {dimension} is capped at {}, the sum of {} ({}); other types are then capped too",
                    account.account,
                    cap.amount,
                    types.join(", "),
                    cap.origin,
                ));
            }
        }
    }

    fn holder(&mut self, holder: &str, terms: &Terms, policy: &Policy, projected: bool) {
        self.limits(holder, &terms.limits, policy, if projected { "" } else { USER });
    }

    /// `elsewhere` says why a cap of this holder is not projected; empty when it is.
    fn limits(&mut self, holder: &str, limits: &Limits, policy: &Policy, elsewhere: &str) {
        for (limit, value) in &limits.counts {
            let Limit::Value(amount) = value.value else { continue };
            let reason = match limit {
                CountLimit::GrpJobs | CountLimit::GrpSubmitJobs if amount == 0 && elsewhere.is_empty() => {
                    continue;
                }
                _ => limit.spec().reason,
            };
            self.push(holder, limit.spec().key, amount.to_string(), &value.origin, reason);
        }
        for (limit, amounts) in &limits.tres {
            for (tres, value) in amounts {
                let Limit::Value(amount) = value.value else { continue };
                let reason = match limit {
                    TresLimit::GrpTres => match uncapped(tres, amounts, policy, elsewhere) {
                        Some(reason) => reason,
                        None => continue,
                    },
                    _ => limit.spec().reason,
                };
                let name = format!("{} {tres}", limit.spec().key);
                self.push(holder, &name, tres.display_amount(amount), &value.origin, reason);
            }
        }
    }

    fn push(&mut self, holder: &str, limit: &str, value: String, origin: &Origin, reason: &str) {
        self.unenforced.push(Unenforced {
            holder: holder.to_owned(),
            limit: limit.to_owned(),
            value,
            origin: origin.to_string(),
            reason: reason.to_owned(),
        });
    }
}

const QOS: &str = "a QoS is not a namespace: what its jobs use together cannot be counted by native quota";
const USER: &str = "native quota holds for a namespace, not for a user in it";

/// Why a group limit gives no cap; `None` when it does.
fn uncapped<'a>(
    tres: &Tres,
    beside: &std::collections::BTreeMap<Tres, crate::model::Sourced<Limit<u64>>>,
    policy: &Policy,
    elsewhere: &'a str,
) -> Option<&'a str> {
    if !elsewhere.is_empty() {
        return Some(elsewhere);
    }
    match role(tres, policy) {
        Role::Cap(_) => None,
        Role::Typed(_) => {
            let Tres::Gres { name, .. } = tres else { return None };
            let plain = Tres::Gres { name: name.clone(), kind: None };
            let breakdown = beside.get(&plain).is_some_and(|plain| plain.value.value().is_some());
            breakdown.then_some(
                "beside a count without a type this is its breakdown; map the type to a resource of its own to cap it",
            )
        }
        Role::None => Some(match tres {
            Tres::Gres { .. } => "no extended resource is mapped to this GRES ([resources] in the policy)",
            Tres::Node => "a quota counts pods and requests, not nodes",
            Tres::Billing => "billing is a weighted sum, and a quota caps each resource by itself",
            Tres::License(_) => "licences come with a later milestone",
            _ => TresLimit::GrpTres.spec().reason,
        }),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for row in &self.unenforced {
            let Unenforced { holder, limit, value, origin, reason } = row;
            writeln!(f, "{holder}: {limit} = {value} ({origin}) is not enforced: {reason}")?;
        }
        Ok(())
    }
}
