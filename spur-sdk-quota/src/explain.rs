//! Why an account's caps are what they are.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use spur_sdk::AccountName;

use crate::model::{Model, Tree};
use crate::policy::{Policy, Unlimited};
use crate::project::caps::own_caps;
use crate::project::{Dimension, Holder, QuotaProjector};

/// One limit on an account's path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Candidate {
    /// Whose limit it is.
    pub holder: String,
    /// The amount, as Kubernetes spells it.
    pub amount: String,
    /// Where it was read.
    pub origin: String,
    /// Whether this one is the cap.
    pub binds: bool,
}

/// One dimension of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DimensionExplanation {
    /// The key in the ResourceQuota.
    pub key: String,
    /// The limits on the path, from the account up. Empty: no cap.
    pub candidates: Vec<Candidate>,
}

/// An account's caps and where they come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The account.
    pub account: AccountName,
    /// Its namespace.
    pub namespace: String,
    /// From the account up to the cluster.
    pub path: Vec<String>,
    /// By dimension.
    pub dimensions: Vec<DimensionExplanation>,
    /// Why no pod can be created, if so.
    pub closed: Option<String>,
    /// Why the account is not projected, if so.
    pub stopped: Option<String>,
    /// What quota cannot hold.
    pub notes: Vec<String>,
    /// Members, sorted.
    pub members: Vec<String>,
}

/// Explains one account; `None` when the model does not name it, and for root, which gets no namespace.
#[must_use]
pub fn explain(model: &Model, policy: &Policy, account: &AccountName) -> Option<Explanation> {
    let tree = Tree::of(model);
    let entry = model.accounts.get(account).filter(|_| !Model::is_root(account))?;
    // Only this account: its own path decides about its caps.
    let projection =
        QuotaProjector::new(&Policy { scope: vec![account.clone()], ..policy.clone() }).project(model);
    let projected = projection.accounts.iter().find(|projected| projected.account == *account);
    let mut holders: Vec<(Holder, &crate::model::Limits)> = Vec::new();
    if tree.stopped(account).is_none() {
        holders
            .extend(tree.path(entry).map(|above| (Holder::Account(above.name.clone()), &above.terms.limits)));
    }
    holders.push((Holder::Cluster, &model.cluster.terms.limits));
    let mut dimensions: BTreeMap<Dimension, Vec<Candidate>> =
        BTreeMap::from([(Dimension::Cpu, Vec::new()), (Dimension::Memory, Vec::new())]);
    for resource in policy.resources.values() {
        dimensions.entry(Dimension::Extended(resource.clone())).or_default();
    }
    for (holder, limits) in &holders {
        for (dimension, cap) in own_caps(limits, holder, policy) {
            let binding = projected.and_then(|projected| projected.caps.get(&dimension));
            let candidate = Candidate {
                holder: holder.to_string(),
                amount: dimension.display_amount(cap.amount),
                origin: cap.origin.to_string(),
                binds: binding.is_some_and(|binding| binding.holder == *holder),
            };
            dimensions.entry(dimension).or_default().push(candidate);
        }
    }
    let closes = policy.unset_dimension == Unlimited::Closed && projected.is_some_and(|p| !p.caps.is_empty());
    for candidates in dimensions.values_mut().filter(|candidates| closes && candidates.is_empty()) {
        candidates.push(Candidate {
            holder: "the policy".to_owned(),
            amount: "0".to_owned(),
            origin: "unset_dimension = \"closed\"".to_owned(),
            binds: true,
        });
    }
    Some(Explanation {
        account: account.clone(),
        namespace: crate::project::names::NAMESPACES.map(account.as_str()),
        path: holders.iter().map(|(holder, _)| holder.to_string()).collect(),
        dimensions: dimensions
            .into_iter()
            .map(|(dimension, candidates)| DimensionExplanation { key: dimension.quota_key(), candidates })
            .collect(),
        closed: projected.and_then(|projected| projected.closed.as_ref()).map(ToString::to_string),
        stopped: tree.stopped(account).map(ToString::to_string),
        notes: siblings(model, policy, account),
        members: projected.map_or_else(Vec::new, |p| p.members.iter().map(ToString::to_string).collect()),
    })
}

/// What the account and its siblings may use together, where that is more than the parent has.
fn siblings(model: &Model, policy: &Policy, account: &AccountName) -> Vec<String> {
    let Some(parent) = model.accounts.get(account).and_then(|entry| entry.parent.as_ref()) else {
        return Vec::new();
    };
    let Some(above) = model.accounts.get(&parent.value) else { return Vec::new() };
    let children: Vec<_> = model
        .accounts
        .values()
        .filter(|child| child.parent.as_ref().is_some_and(|p| p.value == parent.value))
        .collect();
    let holder = Holder::Account(parent.value.clone());
    let mut notes = Vec::new();
    for (dimension, cap) in own_caps(&above.terms.limits, &holder, policy) {
        let own = |child: &&crate::model::Account| {
            let caps = own_caps(&child.terms.limits, &Holder::Account(child.name.clone()), policy);
            caps.get(&dimension).map_or(cap.amount, |own| own.amount.min(cap.amount))
        };
        let together = children.iter().map(own).fold(0_u64, u64::saturating_add);
        if together > cap.amount {
            notes.push(format!(
                "{}: the {} accounts below {} may request {} together, its own limit is {}; plain quota cannot \
                 enforce a sum over siblings",
                dimension.quota_key(),
                children.len(),
                parent.value,
                dimension.display_amount(together),
                dimension.display_amount(cap.amount),
            ));
        }
    }
    notes
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "account    {}", self.account)?;
        writeln!(f, "namespace  {}", self.namespace)?;
        writeln!(f, "path       {}", self.path.join(" < "))?;
        let members = if self.members.is_empty() { "none".to_owned() } else { self.members.join(", ") };
        writeln!(f, "members    {members}")?;
        if let Some(stopped) = &self.stopped {
            writeln!(f, "stopped    {stopped}")?;
            return Ok(());
        }
        if let Some(closed) = &self.closed {
            writeln!(f, "closed     no pod can be created: {closed}")?;
        }
        for dimension in &self.dimensions {
            let bound = dimension.candidates.iter().find(|candidate| candidate.binds);
            let cap = bound.map_or("no cap", |candidate| &candidate.amount);
            writeln!(f, "\n{} = {cap}", dimension.key)?;
            for Candidate { holder, amount, origin, binds } in &dimension.candidates {
                let mark = if *binds { "->" } else { "  " };
                writeln!(f, "  {mark} {amount:<12} {holder} ({origin})")?;
            }
        }
        for note in &self.notes {
            writeln!(f, "\nnote: {note}")?;
        }
        Ok(())
    }
}
