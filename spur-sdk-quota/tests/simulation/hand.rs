//! What somebody does to the cluster by hand.

use serde_json::{Value, json};
use spur_sdk_quota::cluster::{Key, Kind, observe, removals};
use spur_sdk_quota::{QuotaProjector, names};

use crate::world::{ACCOUNTS, SOMEBODY, USERS, World, namespace_key, namespace_of};

/// An edit of one object.
type Edit = fn(&mut Value);

fn set(live: &mut Value, place: &str, key: &str, to: Value) {
    if let Some(map) = live.pointer_mut(place).and_then(Value::as_object_mut) {
        map.insert(key.to_owned(), to);
    }
}

fn unset(live: &mut Value, place: &str, key: &str) {
    if let Some(map) = live.pointer_mut(place).and_then(Value::as_object_mut) {
        map.remove(key);
    }
}

/// Edits of a namespace of ours.
const OF_NAMESPACES: [(&str, Edit); 8] = [
    ("loses a label", |live| unset(live, "/metadata/labels", "spur.amd.com/account")),
    ("gets another level", |live| {
        set(live, "/metadata/labels", "pod-security.kubernetes.io/enforce", "privileged".into());
    }),
    ("loses our label", |live| unset(live, "/metadata/labels", names::MANAGED_BY)),
    ("gets a foreign label", |live| set(live, "/metadata/labels", "team", "x".into())),
    ("gets a foreign annotation", |live| set(live, "/metadata/annotations", "example.com/note", "y".into())),
    ("is said to be retired", |live| {
        set(live, "/metadata/labels", "spur.amd.com/state", names::RETIRED.into());
    }),
    ("is no longer said to be retired", |live| unset(live, "/metadata/labels", "spur.amd.com/state")),
    ("gets another description", |live| {
        set(live, "/metadata/annotations", "spur.amd.com/description", "z".into());
    }),
];

/// Edits of the quota.
const OF_QUOTAS: [(&str, Edit); 6] = [
    ("gets more cpus", |live| set(live, "/spec/hard", "requests.cpu", "9999".into())),
    ("gets fewer pods", |live| set(live, "/spec/hard", "pods", "1".into())),
    ("gets a foreign cap", |live| set(live, "/spec/hard", "count/jobs.batch", "0".into())),
    ("loses a cap", |live| unset(live, "/spec/hard", "requests.cpu")),
    ("loses its labels", |live| unset(live, "/metadata", "labels")),
    ("loses its caps", |live| unset(live, "/spec", "hard")),
];

/// Edits of the members' binding.
const OF_MEMBERS: [(&str, Edit); 3] = [
    ("gets somebody else", |live| {
        let other = json!({ "kind": "ServiceAccount", "name": "intruder", "namespace": "default" });
        let mut subjects = live.get("subjects").and_then(Value::as_array).cloned().unwrap_or_default();
        subjects.push(other);
        set(live, "", "subjects", subjects.into());
    }),
    ("gets a group", |live| {
        let group = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "everybody" });
        let mut subjects = live.get("subjects").and_then(Value::as_array).cloned().unwrap_or_default();
        subjects.push(group);
        set(live, "", "subjects", subjects.into());
    }),
    ("loses everybody", |live| unset(live, "", "subjects")),
];

impl World {
    fn edit(&mut self, key: &Key, what: &str, edit: impl FnOnce(&mut Value)) {
        if self.cluster.edit(SOMEBODY, key, edit).unwrap_or(false) {
            self.tell(format_args!("by hand: {key} {what}"));
        }
    }

    fn delete(&mut self, key: &Key) {
        if self.cluster.remove(SOMEBODY, key) {
            self.tell(format_args!("by hand: {key} is deleted"));
        }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        *self.random.pick(from).unwrap()
    }

    /// Something that somebody does by hand.
    pub(crate) async fn edit_by_hand(&mut self) {
        let account = self.pick(&ACCOUNTS);
        let namespace = namespace_of(account);
        let quota = Key::namespaced(Kind::ResourceQuota, &namespace, names::QUOTA);
        let members = Key::namespaced(Kind::RoleBinding, &namespace, names::MEMBERS);
        match self.random.below(24) {
            0..=2 => {
                let (what, edit) = self.pick(&OF_NAMESPACES);
                self.edit(&namespace_key(account), what, edit);
            }
            3..=5 => {
                let (what, edit) = self.pick(&OF_QUOTAS);
                self.edit(&quota, what, edit);
            }
            6 => self.delete(&quota),
            7 | 8 => {
                let (what, edit) = self.pick(&OF_MEMBERS);
                self.edit(&members, what, edit);
            }
            9 => self.delete(&members),
            10 => self.bind_another_role(&members),
            11 | 12 => {
                let value = self.pick(&["true", "true", "false", ""]);
                let what = format!("is paused: {value:?}");
                self.edit(&namespace_key(account), &what, |live| match value {
                    "" => unset(live, "/metadata/annotations", "spur.amd.com/paused"),
                    _ => set(live, "/metadata/annotations", "spur.amd.com/paused", value.into()),
                });
            }
            13 => self.delete(&namespace_key(account)),
            14 => {
                let used = json!({ "pods": self.random.below(5).to_string() });
                self.cluster.set_used(&quota, &used);
            }
            15 => self.scope_quota(&quota),
            16 => self.put_foreign(&namespace),
            17 => {
                let name = self.pick(&[names::DEFAULTS, "default", names::PRIORITY_QUOTA]);
                let kind = match name {
                    names::DEFAULTS => Kind::LimitRange,
                    "default" => Kind::ServiceAccount,
                    _ => Kind::ResourceQuota,
                };
                self.delete(&Key::namespaced(kind, &namespace, name));
            }
            18 => {
                let user = names::SERVICE_ACCOUNTS.map(self.pick(&USERS));
                self.delete(&Key::namespaced(Kind::ServiceAccount, names::USERS_NAMESPACE, &user));
            }
            19 | 20 => self.edit_shared(),
            21 => self.confirm(true).await,
            22 => self.confirm(false).await,
            _ => {
                self.cluster.remove_lease(SOMEBODY, "kube-system", "spur-quota");
                self.tell("by hand: the Lease is deleted");
            }
        }
    }

    fn bind_another_role(&mut self, members: &Key) {
        let Some(mut live) = self.cluster.object(members) else { return };
        live["roleRef"]["name"] = "admin".into();
        self.delete(members);
        let _ = self.cluster.put(SOMEBODY, members, live);
        self.tell(format_args!("by hand: {members} binds another role"));
    }

    fn scope_quota(&mut self, quota: &Key) {
        let Some(mut live) = self.cluster.object(quota) else { return };
        live["spec"]["scopes"] = json!(["Terminating"]);
        self.delete(quota);
        let _ = self.cluster.put(SOMEBODY, quota, live);
        self.tell(format_args!("by hand: {quota} gets a scope"));
    }

    fn put_foreign(&mut self, namespace: &str) {
        let objects = [
            (Kind::ResourceQuota, "theirs", json!({ "spec": { "hard": { "pods": "7" } } })),
            (Kind::RoleBinding, "theirs", json!({ "roleRef": { "name": "view" } })),
            (Kind::ServiceAccount, "theirs", json!({})),
            (Kind::PersistentVolumeClaim, "data", json!({})),
            (Kind::Pod, "job", json!({ "status": { "phase": "Running" } })),
        ];
        let (kind, name, object) = self.random.pick(&objects).unwrap().clone();
        let key = Key::namespaced(kind, namespace, name);
        if self.cluster.put(SOMEBODY, &key, object).is_ok() {
            self.tell(format_args!("by hand: {key} is there"));
        }
    }

    fn edit_shared(&mut self) {
        let policy = Key::cluster(Kind::ValidatingAdmissionPolicy, names::GUARD_OF_PODS);
        let binding = Key::cluster(Kind::ValidatingAdmissionPolicyBinding, names::GUARD_OF_PODS);
        let role = Key::cluster(Kind::ClusterRole, names::TENANT_ROLE);
        let users = Key::cluster(Kind::Namespace, names::USERS_NAMESPACE);
        match self.random.below(8) {
            0 => self.delete(&policy),
            1 => self.delete(&binding),
            2 => self.edit(&binding, "only audits", |live| {
                set(live, "/spec", "validationActions", json!(["Audit"]));
            }),
            3 => self
                .edit(&policy, "has other validations", |live| set(live, "/spec", "validations", json!([]))),
            4 => self.edit(&role, "gets wider", |live| set(live, "", "rules", json!([{ "verbs": ["*"] }]))),
            5 => self.delete(&role),
            6 => self
                .edit(&users, "loses our label", |live| unset(live, "/metadata/labels", names::MANAGED_BY)),
            _ if self.random.happens(300) => self.delete(&users),
            _ => {}
        }
    }

    /// Says that what has vanished is meant, or something that stands for nothing.
    async fn confirm(&mut self, right: bool) {
        let digest = if right {
            let Ok(observed) = observe(&self.cluster.client("reader")).await else { return };
            let projection = QuotaProjector::new(&self.policy).project(&self.site.model());
            removals(&projection, &observed, spur_sdk::Clock::now(&self.clock)).digest
        } else {
            "000000000000".to_owned()
        };
        let users = Key::cluster(Kind::Namespace, names::USERS_NAMESPACE);
        let what = format!("confirms removals {digest}");
        self.edit(&users, &what, |live| {
            if live.pointer("/metadata/annotations").is_none() {
                set(live, "/metadata", "annotations", json!({}));
            }
            set(live, "/metadata/annotations", "spur.amd.com/confirm-removals", digest.into());
        });
    }

    /// Ends every suspension.
    pub(crate) fn unpause(&mut self) {
        let namespaces: Vec<Key> =
            self.cluster.objects().into_keys().filter(|key| key.kind == Kind::Namespace).collect();
        for key in namespaces {
            self.edit(&key, "is paused no more", |live| {
                unset(live, "/metadata/annotations", "spur.amd.com/paused");
            });
        }
    }
}
