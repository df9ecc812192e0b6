//! What Kubernetes' own controllers do in the model, each at its own pace.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::audit::Verb;
use super::state::{Request, State, text};
use crate::cluster::{Key, Kind};
use crate::project::names;

/// Something that a controller will do.
#[derive(Debug, Clone)]
pub(super) enum Due {
    /// A quota's status follows its spec.
    Quota(Key),
    /// A namespace gets its ServiceAccount `default`.
    ServiceAccount(String),
    /// A policy is type-checked.
    Policy(Key),
    /// The API server takes the guard in as it is now.
    Guard,
    /// A deleted namespace loses what is in it, if it still is the one with this uid.
    EmptyNamespace(String, String),
    /// And goes itself.
    EndNamespace(String, String),
}

impl State {
    pub(super) fn schedule(&mut self, delay: Duration, due: Due) {
        self.due_number = self.due_number.saturating_add(1);
        let at = self.now.checked_add(delay).unwrap_or(self.now);
        self.due.insert((at, self.due_number), due);
    }

    /// When a controller acts next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Does what has come due until now.
    pub(super) fn advance(&mut self, now: Instant) {
        while let Some(first) = self.due.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, _), due) = first.remove_entry();
            self.now = at.max(self.now);
            match (&mut self.put_off, &due) {
                (Some(put_off), due) if !matches!(due, Due::Guard) => put_off.push(due.clone()),
                _ => self.act(due),
            }
        }
        self.now = now.max(self.now);
    }

    /// Stops the controller manager, or has it go on with what it has put off.
    pub(super) fn stop_controllers(&mut self, stop: bool) {
        if stop {
            self.put_off.get_or_insert_default();
            return;
        }
        for due in self.put_off.take().into_iter().flatten() {
            let delay = self.random.duration(&self.delays.quota);
            self.schedule(delay, due);
        }
    }

    /// Sets going who reacts to a change.
    pub(super) fn react(&mut self, key: &Key, before: Option<&Value>, after: Option<&Value>) {
        let spec = |value: Option<&Value>| value.and_then(|value| value.get("spec")).cloned();
        let new_spec = after.is_some() && spec(before) != spec(after);
        match key.kind {
            Kind::ResourceQuota if new_spec => {
                let delay = self.random.duration(&self.delays.quota);
                self.schedule(delay, Due::Quota(key.clone()));
            }
            Kind::Namespace if before.is_none() => {
                let delay = self.random.duration(&self.delays.service_account);
                self.schedule(delay, Due::ServiceAccount(key.name.clone()));
            }
            Kind::ServiceAccount if after.is_none() && key.name == "default" => {
                let delay = self.random.duration(&self.delays.service_account);
                self.schedule(delay, Due::ServiceAccount(key.namespace.clone().unwrap_or_default()));
            }
            Kind::ValidatingAdmissionPolicy | Kind::ValidatingAdmissionPolicyBinding => {
                if key.kind == Kind::ValidatingAdmissionPolicy && new_spec {
                    let delay = self.random.duration(&self.delays.policy);
                    self.schedule(delay, Due::Policy(key.clone()));
                }
                if key.name == names::GUARD_OF_PODS && (new_spec || after.is_none()) {
                    let delay = self.random.duration(&self.delays.policy);
                    self.schedule(delay, Due::Guard);
                }
            }
            _ => {}
        }
    }

    fn act(&mut self, due: Due) {
        let who = Arc::from("kube-controller-manager");
        let request = Request { who: &who, verb: Verb::Control };
        match due {
            Due::Quota(key) => {
                let Some(quota) = self.value(&key) else { return };
                let status = quota_status(quota);
                self.set_status(request, &key, status);
            }
            Due::ServiceAccount(namespace) => {
                let key = Key::namespaced(Kind::ServiceAccount, &namespace, "default");
                if self.value(&key).is_none() {
                    // A namespace that is gone or going needs none.
                    let _ = self.replace(request, &key, json!({}));
                }
            }
            Due::Policy(key) => {
                let Some(policy) = self.value(&key) else { return };
                let generation = policy.pointer("/metadata/generation").cloned();
                self.set_status(
                    request,
                    &key,
                    json!({ "observedGeneration": generation, "typeChecking": {} }),
                );
            }
            Due::Guard => {
                self.guard = self.guard_answer();
                self.guard_audit.push((self.elapsed(), self.guard.clone()));
            }
            Due::EmptyNamespace(name, uid) => {
                if !self.is_namespace(&name, &uid) {
                    return;
                }
                let inside = self.objects.keys().filter(|key| key.namespace.as_ref() == Some(&name));
                let inside: Vec<Key> = inside.cloned().collect();
                for key in inside {
                    self.remove(request, &key);
                }
                let delay = self.random.duration(&self.delays.namespace);
                self.schedule(delay, Due::EndNamespace(name, uid));
            }
            Due::EndNamespace(name, uid) => {
                if self.is_namespace(&name, &uid) {
                    self.end_namespace(request, &Key::cluster(Kind::Namespace, &name));
                }
            }
        }
    }

    fn is_namespace(&self, name: &str, uid: &str) -> bool {
        let live = self.value(&Key::cluster(Kind::Namespace, name));
        live.is_some_and(|live| text(live, "/metadata/uid") == uid)
    }

    /// What `spur-guard-pods` says to the probe, if it is bound.
    fn guard_answer(&self) -> Option<String> {
        let policy = self.value(&Key::cluster(Kind::ValidatingAdmissionPolicy, names::GUARD_OF_PODS))?;
        let binding = Key::cluster(Kind::ValidatingAdmissionPolicyBinding, names::GUARD_OF_PODS);
        let binding = self.value(&binding)?;
        let denies = binding.pointer("/spec/validationActions").and_then(Value::as_array);
        let denies = denies.is_some_and(|actions| actions.iter().any(|action| action == "Deny"));
        let bound = text(binding, "/spec/policyName") == names::GUARD_OF_PODS;
        let message = text(policy, "/spec/validations/0/message");
        (denies && bound && !message.is_empty()).then(|| message.to_owned())
    }

    /// Why a pod would be refused: as the guard judges in namespaces of ours.
    pub(super) fn refusal(&self, namespace: &str, pod: &str) -> Option<String> {
        let account = Key::namespaced(Kind::ServiceAccount, namespace, "default");
        if self.value(&account).is_none() {
            let account = format!("serviceaccount \"{namespace}/default\" not found");
            return Some(format!("pods \"{pod}\" is forbidden: error looking up service account: {account}"));
        }
        let live = self.value(&Key::cluster(Kind::Namespace, namespace))?;
        let label = live.pointer("/metadata/labels").and_then(|labels| labels.get(names::MANAGED_BY));
        let message = self.guard.as_ref().filter(|_| label.is_some_and(|label| label == names::MANAGER))?;
        let policy = names::GUARD_OF_PODS;
        Some(format!(
            "pods \"{pod}\" is forbidden: ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied \
             request: {message}"
        ))
    }
}

/// The status that a quota's spec asks for; what is in use stays so.
fn quota_status(quota: &Value) -> Value {
    let hard = quota.pointer("/spec/hard").and_then(Value::as_object).cloned().unwrap_or_default();
    let used = quota.pointer("/status/used").and_then(Value::as_object);
    let used: Map<String, Value> = hard
        .keys()
        .map(|key| (key.clone(), used.and_then(|used| used.get(key)).cloned().unwrap_or_else(|| "0".into())))
        .collect();
    json!({ "hard": hard, "used": used })
}
