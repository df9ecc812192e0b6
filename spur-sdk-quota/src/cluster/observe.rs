//! What a cluster has of us.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::{ApiError, ClusterApi, ClusterError, Kind, Selection};
use crate::project::names;

/// Which object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Key {
    /// The kind.
    pub kind: Kind,
    /// The namespace, if it stands in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl Key {
    /// An object in a namespace.
    #[must_use]
    pub fn namespaced(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: Some(namespace.to_owned()), name: name.to_owned() }
    }

    /// The key of an object as the API server gives it; `None` for one without a name.
    pub(crate) fn of(kind: Kind, value: &Value) -> Option<Self> {
        let text = |pointer| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Some(Self { kind, namespace: text("/metadata/namespace"), name: text("/metadata/name")? })
    }

    /// An object that stands in no namespace.
    #[must_use]
    pub fn cluster(kind: Kind, name: &str) -> Self {
        Self { kind, namespace: None, name: name.to_owned() }
    }
}

/// `ResourceQuota spur-acct-physics/spur-quota`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind.name(), self.name),
            None => write!(f, "{} {}", self.kind.name(), self.name),
        }
    }
}

/// An object as the API server has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Live {
    value: Value,
    ours: bool,
}

impl Live {
    pub(crate) fn new(mut value: Value) -> Self {
        let label = value.pointer("/metadata/labels").and_then(|labels| labels.get(names::MANAGED_BY));
        let labelled = label.and_then(Value::as_str) == Some(names::MANAGER);
        // A hand edit may have taken the label; who has applied an object stays known.
        let managed = value
            .pointer("/metadata/managedFields")
            .and_then(Value::as_array)
            .is_some_and(|fields| fields.iter().any(is_applied_by_us));
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        Self { value, ours: labelled || managed }
    }

    /// Whether we made or adopted it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// Whether it is being deleted.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.value.pointer("/metadata/deletionTimestamp").is_some()
    }

    /// Whether another version of a quota differs in nothing but what is used of it.
    fn differs_in_use_alone(&self, other: &Self) -> bool {
        let same = |pointer| self.value.pointer(pointer) == other.value.pointer(pointer);
        let metadata = |live: &Self| {
            let mut metadata = live.value.get("metadata").cloned().unwrap_or_default();
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.remove("resourceVersion");
            }
            metadata
        };
        same("/spec") && same("/status/hard") && self.ours == other.ours && metadata(self) == metadata(other)
    }

    /// Its version, where that is a number.
    pub(crate) fn version(&self) -> Option<u64> {
        self.text("/metadata/resourceVersion").parse().ok()
    }

    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    pub(crate) fn text(&self, pointer: &str) -> &str {
        self.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }
}

fn is_applied_by_us(field: &Value) -> bool {
    let text = |key| field.get(key).and_then(Value::as_str);
    text("manager") == Some(names::MANAGER) && text("operation") == Some("Apply")
}

/// What a cluster has: all namespaces, and every object with one of our names.
///
/// It is as old as the lists that it was made from; a write that races with another manager's is settled by
/// preconditions and by the next run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    objects: BTreeMap<Key, Live>,
    default_priority_class: Option<String>,
}

impl Observed {
    /// The object, if the cluster has it.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Live> {
        self.objects.get(key)
    }

    /// The cluster's PriorityClass with `globalDefault`.
    #[must_use]
    pub fn default_priority_class(&self) -> Option<String> {
        self.default_priority_class.clone()
    }

    /// All objects of a kind.
    pub(crate) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&Key, &Live)> {
        let first = Key::cluster(kind, "");
        self.objects.range(first..).take_while(move |(key, _)| key.kind == kind)
    }

    pub(crate) fn insert(&mut self, kind: Kind, value: Value) {
        if let Some(key) = Key::of(kind, &value) {
            self.objects.insert(key, Live::new(value));
        }
    }

    /// Takes an object in unless what is there is as new or newer; gives its key if it was taken in.
    ///
    /// Versions of built-in kinds are numbers that grow
    /// (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>); where they are not, what
    /// comes last counts.
    pub(crate) fn put_newer(&mut self, kind: Kind, value: Value) -> Option<Key> {
        let key = Key::of(kind, &value)?;
        let live = Live::new(value);
        let known = self.objects.get(&key).and_then(Live::version);
        if known.zip(live.version()).is_some_and(|(known, new)| known >= new) {
            return None;
        }
        let before = self.objects.insert(key.clone(), live);
        // Every pod changes what is used of a quota, and nothing of ours depends on that.
        let after = self.objects.get(&key);
        let same_quota = kind == Kind::ResourceQuota
            && before.zip(after).is_some_and(|(before, after)| before.differs_in_use_alone(after));
        (!same_quota).then_some(key)
    }

    /// Takes an object in as a list has it; gives its key if that is another than what was there.
    pub(crate) fn put_other(&mut self, kind: Kind, value: Value) -> Option<Key> {
        let key = Key::of(kind, &value)?;
        let live = Live::new(value);
        if self.objects.get(&key) == Some(&live) {
            return None;
        }
        self.objects.insert(key.clone(), live);
        Some(key)
    }

    /// Takes an object out unless what is there is newer; gives its key if it was there.
    pub(crate) fn remove_not_newer(&mut self, kind: Kind, value: &Value) -> Option<Key> {
        let key = Key::of(kind, value)?;
        let gone = value.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        let gone = gone.and_then(|version| version.parse::<u64>().ok());
        let known = self.objects.get(&key)?.version();
        if known.zip(gone).is_some_and(|(known, gone)| known > gone) {
            return None;
        }
        self.objects.remove(&key);
        Some(key)
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        self.objects.remove(key);
    }

    /// Takes in what a PriorityClass says of being the default; whether that changed anything.
    pub(crate) fn take_priority_class(&mut self, value: &Value, gone: bool) -> bool {
        let name = value.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
        let default = !gone && value.get("globalDefault").and_then(Value::as_bool) == Some(true);
        let before = self.default_priority_class.clone();
        if default {
            self.default_priority_class = name;
        } else if before.is_some() && before == name {
            self.default_priority_class = None;
        }
        before != self.default_priority_class
    }

    pub(crate) fn forget_priority_class(&mut self) {
        self.default_priority_class = None;
    }
}

/// The lists that an observation is made of. Their number does not depend on the number of accounts.
pub(super) const LISTS: [(Kind, Selection<'static>); 14] = [
    (Kind::Namespace, Selection::All),
    (Kind::ResourceQuota, Selection::Named(names::QUOTA)),
    (Kind::ResourceQuota, Selection::Named(names::PRIORITY_QUOTA)),
    (Kind::ResourceQuota, Selection::Named(names::CLOSING_QUOTA)),
    (Kind::LimitRange, Selection::Named(names::DEFAULTS)),
    (Kind::ServiceAccount, Selection::Named("default")),
    (Kind::ServiceAccount, Selection::In(names::USERS_NAMESPACE)),
    (Kind::RoleBinding, Selection::Named(names::MEMBERS)),
    (Kind::RoleBinding, Selection::Named(names::COORDINATORS)),
    (Kind::ClusterRole, Selection::Named(names::TENANT_ROLE)),
    (Kind::ClusterRole, Selection::Named(names::COORDINATOR_ROLE)),
    (Kind::ValidatingAdmissionPolicy, Selection::All),
    (Kind::ValidatingAdmissionPolicyBinding, Selection::All),
    (Kind::PriorityClass, Selection::All),
];

/// Reads what a cluster has of us, with 14 lists.
///
/// # Errors
/// The first list that failed; a partial observation would look like missing objects.
///
/// # Cancellation
/// Leaves nothing behind.
pub async fn observe<A: ClusterApi>(api: &A) -> Result<Observed, ClusterError> {
    let mut observed = Observed::default();
    for (kind, selection) in LISTS {
        let list = api.list(kind, selection).await.map_err(|source: ApiError| {
            let (_, _, resource, _) = kind.resource();
            ClusterError::List { resource, source }
        })?;
        for value in list.items {
            if kind == Kind::PriorityClass {
                observed.take_priority_class(&value, false);
            } else {
                observed.insert(kind, value);
            }
        }
    }
    Ok(observed)
}
