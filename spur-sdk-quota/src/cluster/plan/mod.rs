//! What has to be written to make a cluster hold a projection. Pure.

mod check;
mod desired;
mod display;
pub(super) mod removal;

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};
use spur_sdk::AccountName;

use super::diff::{Difference, binds, difference, over, removal as removal_patch};
use super::{Key, Kind, Live, Observed};
use crate::k8s::Object;
use crate::model::Completeness;
use crate::project::{AccountProjection, Projection, names};

pub(super) use desired::{Desired, Skipped};

pub use check::check_plan;
pub use removal::{Removals, RemovalsDecision, removals};

/// How a plan treats what it meets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PlanOptions {
    /// Takes over namespaces, roles and policies of the guard that exist under our names and are not ours,
    /// instead of refusing them. Default: no.
    pub adopt: bool,
}

impl PlanOptions {
    /// Takes over what is not ours.
    #[must_use]
    pub fn adopt(mut self, adopt: bool) -> Self {
        self.adopt = adopt;
        self
    }
}

/// One field that gets another value. `null` stands for no value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The field, such as `spec.hard.pods`.
    pub path: String,
    /// What it has.
    pub from: Value,
    /// What it gets.
    pub to: Value,
}

/// One write.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Action {
    /// The object is not there: server-side apply makes it.
    Create {
        /// The object.
        object: Value,
    },
    /// Fields differ: server-side apply puts them right.
    Update {
        /// The object.
        object: Value,
        /// What differs.
        changed: Vec<Change>,
    },
    /// Fields that do not belong there are removed.
    Remove {
        /// Their paths.
        fields: Vec<String>,
        /// The merge patch.
        patch: Value,
        /// The object as the plan saw it, without status and version: what the patch is meant for.
        #[serde(skip)]
        seen: Value,
    },
    /// The object is deleted.
    Delete {
        /// Only if it still is this one.
        uid: String,
        /// And has not changed.
        resource_version: String,
    },
    /// A quota whose scopes cannot be changed is deleted and made anew, behind one that closes the namespace.
    Replace {
        /// The quota that closes meanwhile.
        closing: Value,
        /// The quota.
        object: Value,
        /// Only if it still is this one.
        uid: String,
        /// And has not changed.
        resource_version: String,
    },
}

/// A write and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// The object.
    pub target: Key,
    /// The write.
    #[serde(flatten)]
    pub action: Action,
    /// Why it is needed.
    pub reason: String,
}

/// The writes of one account.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AccountPlan {
    /// The account.
    pub account: AccountName,
    /// Its namespace.
    pub namespace: String,
    /// What restricts: written first.
    pub restrict: Vec<Step>,
    /// Quotas that must bind before `admit`, as they are wanted.
    pub quotas: Vec<Value>,
    /// Whether those quotas do not bind yet, or are about to change.
    pub wait: bool,
    /// What admits: written last.
    pub admit: Vec<Step>,
}

impl AccountPlan {
    /// Whether nothing has to be written and nothing waited for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.restrict.is_empty() && self.admit.is_empty() && !self.wait
    }
}

/// Something that is not written, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct Refusal {
    /// The account; `None` refuses everything.
    pub account: Option<AccountName>,
    /// Why, and the way out.
    pub reason: String,
}

/// An account that uses more than its quota will allow. Nothing is evicted; nothing new is let in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct OverQuota {
    /// The account.
    pub account: AccountName,
    /// The key in the quota.
    pub key: String,
    /// In use.
    pub used: String,
    /// The cap.
    pub hard: String,
}

/// All that has to be written, in order.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// What all accounts share, first.
    pub shared: Vec<Step>,
    /// Accounts with something to do.
    pub accounts: Vec<AccountPlan>,
    /// Accounts in step.
    pub unchanged: usize,
    /// What is not written.
    pub refused: Vec<Refusal>,
    /// Accounts that use more than they will be allowed.
    pub over_quota: Vec<OverQuota>,
    /// Namespaces of ours that the source does not name. Nothing is done to them.
    pub unlisted: Vec<String>,
    /// Accounts whose namespace has the annotation that suspends what we do in it.
    pub paused: Vec<AccountName>,
    /// What the tenant guard answers to its probe once it is in force; `None` when policy has no rule on.
    pub guard: Option<String>,
}

impl Plan {
    /// Whether nothing has to be done. Refusals are not work.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.accounts.is_empty()
    }

    /// All steps, in order.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        let accounts = self.accounts.iter().flat_map(|account| account.restrict.iter().chain(&account.admit));
        self.shared.iter().chain(accounts)
    }
}

/// Plans the writes that make the cluster hold the projection. It deletes nothing but what it makes anew, and
/// a coordinators' binding that policy no longer asks for.
#[must_use]
pub fn plan(projection: &Projection, observed: &Observed, options: &PlanOptions) -> Plan {
    Desired::new(projection).plan(observed, options)
}

struct Planner<'a> {
    observed: &'a Observed,
    options: &'a PlanOptions,
    prefix: &'a str,
}

/// The key of an object of ours.
fn key(object: &Object) -> Key {
    let kind = match object {
        Object::Namespace(_) => Kind::Namespace,
        Object::ResourceQuota(_) => Kind::ResourceQuota,
        Object::LimitRange(_) => Kind::LimitRange,
        Object::ServiceAccount(_) => Kind::ServiceAccount,
        Object::ClusterRole(_) => Kind::ClusterRole,
        Object::RoleBinding(_) => Kind::RoleBinding,
        Object::ValidatingAdmissionPolicy(_) => Kind::ValidatingAdmissionPolicy,
        Object::ValidatingAdmissionPolicyBinding(_) => Kind::ValidatingAdmissionPolicyBinding,
    };
    Key { kind, namespace: object.namespace().map(str::to_owned), name: object.name().to_owned() }
}

/// An object as JSON. The types are Kubernetes' own and their keys are text, so this cannot fail.
fn value(object: &Object) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

fn step(target: Key, action: Action, reason: impl Into<String>) -> Step {
    Step { target, action, reason: reason.into() }
}

impl Planner<'_> {
    /// The steps for an object that stands by itself.
    fn object(&self, object: &Object) -> Result<Vec<Step>, String> {
        let key = key(object);
        let Some(live) = self.observed.get(&key) else {
            return Ok(vec![step(key, Action::Create { object: value(object) }, "is not there")]);
        };
        self.ownership(&key, live)?;
        Ok(self.differences(key, value(object), live))
    }

    /// Policies of the guard of ours that hold a rule no more, bindings first.
    fn guard_no_longer_wanted(&self, projection: &Projection) -> Vec<Step> {
        let of_cluster = projection.shared.iter().filter(|object| object.namespace().is_none());
        let wanted: BTreeSet<Key> = of_cluster.map(key).collect();
        let kinds = [Kind::ValidatingAdmissionPolicyBinding, Kind::ValidatingAdmissionPolicy];
        let live = kinds.into_iter().flat_map(|kind| self.observed.of_kind(kind));
        live.filter(|(key, live)| {
            key.name.starts_with(names::GUARD) && live.is_ours() && !wanted.contains(*key)
        })
        .map(|(key, live)| delete(key.clone(), live, "policy has its rules switched off"))
        .collect()
    }

    /// Refuses what exists and is not ours. Inside a namespace of ours everything with our names is.
    fn ownership(&self, key: &Key, live: &Live) -> Result<(), String> {
        if live.is_terminating() {
            return Err(format!("{key} is being deleted; run again when it is gone"));
        }
        let inside = key.namespace.is_some();
        if inside || live.is_ours() || self.options.adopt {
            return Ok(());
        }
        Err(format!("{key} exists and is not ours; rename or delete it, or take it over with --adopt"))
    }

    fn differences(&self, key: Key, wanted: Value, live: &Live) -> Vec<Step> {
        let Difference { changed, foreign, foreign_paths } =
            difference(key.kind, self.prefix, &wanted, live.value());
        let mut steps = Vec::new();
        // Removal first: it is bound to the version that was seen, and applying changes that.
        if !foreign_paths.is_empty() {
            let patch = removal_patch(foreign, live.text("/metadata/resourceVersion"));
            let action = Action::Remove { fields: foreign_paths, patch, seen: without_status(live.value()) };
            steps.push(step(key.clone(), action, "holds fields that do not belong there"));
        }
        if !changed.is_empty() {
            steps.push(step(key, Action::Update { object: wanted, changed }, "differs"));
        }
        steps
    }

    fn account(
        &self,
        account: &AccountProjection,
        completeness: Completeness,
    ) -> Result<AccountPlan, String> {
        let mut plan = AccountPlan {
            account: account.account.clone(),
            namespace: account.namespace.clone(),
            restrict: Vec::new(),
            quotas: Vec::new(),
            wait: false,
            admit: Vec::new(),
        };
        for object in &account.objects {
            match object {
                Object::RoleBinding(_) => self.binding(object, account, completeness, &mut plan)?,
                Object::ResourceQuota(_) => {
                    let wanted = value(object);
                    let key = key(object);
                    let live = self.observed.get(&key);
                    plan.wait |= live.is_none_or(|live| !binds(&wanted, live.value()));
                    plan.restrict.extend(self.quota(key, &wanted, live)?);
                    plan.quotas.push(wanted);
                }
                _ => plan.restrict.extend(self.object(object)?),
            }
        }
        plan.restrict.extend(self.coordinators(account));
        // A closing quota that an earlier run left goes once the real one binds, before anyone is let in.
        let closing = Key::namespaced(Kind::ResourceQuota, &account.namespace, names::CLOSING_QUOTA);
        let replaced = plan.restrict.iter().any(|step| matches!(step.action, Action::Replace { .. }));
        if let Some(live) = self.observed.get(&closing).filter(|_| !replaced) {
            plan.admit.insert(0, delete(closing, live, "the quota binds again"));
        }
        plan.wait |= plan.restrict.iter().any(|step| step.target.kind == Kind::ResourceQuota);
        Ok(plan)
    }

    fn quota(&self, key: Key, wanted: &Value, live: Option<&Live>) -> Result<Vec<Step>, String> {
        let Some(live) = live else {
            return Ok(vec![step(key, Action::Create { object: wanted.clone() }, "is not there")]);
        };
        self.ownership(&key, live)?;
        // Scopes cannot be changed, and a quota with other scopes restricts other pods.
        let immutable = |value: &Value| {
            let scopes = value.pointer("/spec/scopes").cloned().unwrap_or_default();
            let selector = value.pointer("/spec/scopeSelector").cloned().unwrap_or_default();
            (scopes, selector)
        };
        if immutable(wanted) == immutable(live.value()) {
            return Ok(self.differences(key, wanted.clone(), live));
        }
        let action = Action::Replace {
            closing: closing_quota(wanted),
            object: wanted.clone(),
            uid: live.text("/metadata/uid").to_owned(),
            resource_version: live.text("/metadata/resourceVersion").to_owned(),
        };
        Ok(vec![step(key, action, "has scopes that do not belong there and cannot be changed")])
    }

    /// The steps for a RoleBinding: who loses access does so with what restricts, who gets it comes last. Who is
    /// in it and could not be read from the source stays in it.
    fn binding(
        &self,
        object: &Object,
        account: &AccountProjection,
        completeness: Completeness,
        plan: &mut AccountPlan,
    ) -> Result<(), String> {
        let key = key(object);
        let mut wanted = value(object);
        let Some(live) = self.observed.get(&key) else {
            plan.admit.push(step(key, Action::Create { object: wanted }, "is not there"));
            return Ok(());
        };
        self.ownership(&key, live)?;
        let unread: BTreeSet<String> =
            account.unread_members.iter().map(|user| names::SERVICE_ACCOUNTS.map(user.as_str())).collect();
        let present = subjects(live.value());
        let kept = present.iter().filter(|(namespace, name)| {
            namespace == names::USERS_NAMESPACE
                && (completeness == Completeness::Partial || unread.contains(name))
        });
        let mut all = subjects(&wanted);
        all.extend(kept.cloned());
        set_subjects(&mut wanted, &all);
        if wanted.get("roleRef") != live.value().get("roleRef") {
            plan.restrict.push(delete(key.clone(), live, "binds another role, which cannot be changed"));
            plan.admit.push(step(key, Action::Create { object: wanted }, "is made anew"));
            return Ok(());
        }
        let known = wanted.get("subjects").and_then(Value::as_array).map_or(0, Vec::len);
        let listed = live.value().get("subjects").and_then(Value::as_array).map_or(0, Vec::len);
        // Subjects of another kind, such as a group, are in the list and not among those that are compared.
        if listed > present.len() || !present.is_subset(&all) {
            let staying: BTreeSet<_> = present.intersection(&all).cloned().collect();
            let mut narrowed = wanted.clone();
            set_subjects(&mut narrowed, &staying);
            plan.restrict.extend(self.differences(key.clone(), narrowed, live));
            if staying.len() == known {
                return Ok(());
            }
            let change = Change {
                path: "subjects".to_owned(),
                from: staying.into_iter().map(|(_, name)| name).collect(),
                to: all.into_iter().map(|(_, name)| name).collect(),
            };
            let action = Action::Update { object: wanted, changed: vec![change] };
            plan.admit.push(step(key, action, "lacks members"));
            return Ok(());
        }
        plan.admit.extend(self.differences(key, wanted, live));
        Ok(())
    }

    /// Takes away a coordinators' binding that policy no longer asks for.
    fn coordinators(&self, account: &AccountProjection) -> Option<Step> {
        let wanted = account.objects.iter().any(|object| object.name() == names::COORDINATORS);
        let key = Key::namespaced(Kind::RoleBinding, &account.namespace, names::COORDINATORS);
        let live = self.observed.get(&key).filter(|live| !wanted && live.is_ours())?;
        Some(delete(key, live, "policy gives coordinators no role"))
    }

    fn over_quota(&self, account: &AccountProjection) -> Vec<OverQuota> {
        let quota = account.objects.iter().find(|object| object.name() == names::QUOTA);
        let Some((quota, live)) = quota.and_then(|quota| Some((quota, self.observed.get(&key(quota))?)))
        else {
            return Vec::new();
        };
        let over = over(&value(quota), live.value()).into_iter();
        over.map(|(key, used, hard)| OverQuota { account: account.account.clone(), key, used, hard })
            .collect()
    }
}

/// An object without what changes by itself: status, version, and who manages which field.
pub(super) fn without_status(live: &Value) -> Value {
    let mut value = live.clone();
    if let Some(object) = value.as_object_mut() {
        // The items of a list come without the first two.
        for key in ["apiVersion", "kind", "status"] {
            object.remove(key);
        }
    }
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
    }
    value
}

fn delete(key: Key, live: &Live, reason: &str) -> Step {
    let action = Action::Delete {
        uid: live.text("/metadata/uid").to_owned(),
        resource_version: live.text("/metadata/resourceVersion").to_owned(),
    };
    step(key, action, reason)
}

/// The ServiceAccounts that a RoleBinding names: namespace and name.
pub(super) fn subjects(binding: &Value) -> BTreeSet<(String, String)> {
    let all = binding.get("subjects").and_then(Value::as_array);
    let text = |subject: &Value, key| subject.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let accounts = all.into_iter().flatten().filter(|subject| text(subject, "kind") == "ServiceAccount");
    accounts.map(|subject| (text(subject, "namespace"), text(subject, "name"))).collect()
}

fn set_subjects(binding: &mut Value, subjects: &BTreeSet<(String, String)>) {
    let list: Vec<Value> = subjects
        .iter()
        .map(|(namespace, name)| json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace }))
        .collect();
    if let Some(binding) = binding.as_object_mut() {
        binding.remove("subjects");
        if !list.is_empty() {
            binding.insert("subjects".to_owned(), list.into());
        }
    }
}

/// A quota that lets nothing new in: every cap of the real one at zero, and no pods.
fn closing_quota(wanted: &Value) -> Value {
    let mut hard = closed(wanted.pointer("/spec/hard").and_then(Value::as_object));
    // It must not keep out the quota that is made anew behind it.
    hard.remove("resourcequotas");
    json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {
            "name": names::CLOSING_QUOTA,
            "namespace": wanted.pointer("/metadata/namespace"),
            "labels": wanted.pointer("/metadata/labels"),
        },
        "spec": { "hard": hard },
    })
}

/// The caps of a quota, all zero but the count of quotas, which would keep our own out.
fn closed(hard: Option<&serde_json::Map<String, Value>>) -> serde_json::Map<String, Value> {
    let zero = |(key, value): (&String, &Value)| {
        let cap = if key == "resourcequotas" { value.clone() } else { "0".into() };
        (key.clone(), cap)
    };
    let mut closed: serde_json::Map<String, Value> = hard.into_iter().flatten().map(zero).collect();
    closed.insert("pods".to_owned(), "0".into());
    closed
}
