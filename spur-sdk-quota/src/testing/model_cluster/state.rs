//! The state behind the model's requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::audit::{LeaseRecord, Record, Verb};
use super::controllers::Due;
use super::fields::{Owners, leaves, merge, tidy};
use super::settings::{Delays, Faults};
use crate::cluster::{ApiError, Event, Key, Kind, Lease, List, Selection};
use crate::project::names;
use crate::testing::Random;

/// The model's wall clock when it is made: 2026-01-01T00:00:00Z.
const START: Duration = Duration::from_hours(490_896);

/// An object and who owns its fields.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) value: Arc<Value>,
    owners: Owners,
}

/// An object at one version.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) key: Key,
    pub(super) before: Option<Arc<Value>>,
    pub(super) after: Option<Arc<Value>>,
}

/// A request: whose and what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) who: &'a Arc<str>,
    pub(super) verb: Verb,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) random: Random,
    pub(super) delays: Delays,
    pub(super) faults: Faults,
    /// How often all watches have been disconnected.
    pub(super) disconnected: u64,
    /// Clients that reach nothing.
    pub(super) cut_off: Vec<Arc<str>>,
    start: Instant,
    /// The moment of what is being done.
    pub(super) now: Instant,
    pub(super) version: u64,
    pub(super) objects: BTreeMap<Key, Stored>,
    /// The last changes, oldest first.
    pub(super) history: VecDeque<Change>,
    /// How many are kept.
    pub(super) history_length: usize,
    /// The version of the last change that is no longer kept.
    pub(super) forgotten: u64,
    /// What the controllers will do, by time.
    pub(super) due: BTreeMap<(Instant, u64), Due>,
    pub(super) due_number: u64,
    /// What the controller manager has put off since it was stopped.
    pub(super) put_off: Option<Vec<Due>>,
    /// What the guard's policy on pods says to the probe, as the API server judges now.
    pub(super) guard: Option<String>,
    /// What it said from which time on.
    pub(super) guard_audit: Vec<(Duration, Option<String>)>,
    pub(super) audit: Vec<Record>,
    leases: BTreeMap<(String, String), Lease>,
    pub(super) lease_audit: Vec<LeaseRecord>,
    pub(super) events: Vec<(Instant, Event)>,
    pub(super) requests: BTreeMap<(Arc<str>, Verb), usize>,
}

pub(super) fn status(code: u16, reason: &str, message: impl Into<String>) -> ApiError {
    ApiError::Status { code, reason: reason.to_owned(), message: message.into(), retry_after: None }
}

fn conflict(key: &Key) -> ApiError {
    let message = format!("{key}: the object has been modified; apply your changes to the latest version");
    status(409, "Conflict", message)
}

fn not_found(key: &Key) -> ApiError {
    status(404, "NotFound", format!("{key} not found"))
}

pub(super) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Whether an object is one of a selection.
pub(super) fn selects(selection: &Selection<'_>, key: &Key, value: &Value) -> bool {
    match *selection {
        Selection::All => true,
        Selection::Ours => {
            let labels = value.pointer("/metadata/labels");
            let label = labels.and_then(|labels| labels.get(names::MANAGED_BY)).and_then(Value::as_str);
            label == Some(names::MANAGER)
        }
        Selection::Named(name) => key.name == name,
        Selection::In(namespace) => key.namespace.as_deref() == Some(namespace),
        Selection::One(namespace, name) => key.namespace.as_deref() == namespace && key.name == name,
    }
}

/// Fields that cannot be changed.
fn immutable(key: &Key, before: &Value, after: &Value) -> Result<(), ApiError> {
    let fields: &[&str] = match key.kind {
        Kind::ResourceQuota => &["/spec/scopes", "/spec/scopeSelector"],
        Kind::RoleBinding => &["/roleRef"],
        _ => &[],
    };
    match fields.iter().find(|field| before.pointer(field) != after.pointer(field)) {
        Some(field) => Err(status(422, "Invalid", format!("{key} is invalid: {field}: field is immutable"))),
        None => Ok(()),
    }
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        let now = Instant::now();
        let mut state = Self {
            random: Random::new(seed),
            delays: Delays::default(),
            faults: Faults::default(),
            disconnected: 0,
            cut_off: Vec::new(),
            start: now,
            now,
            version: 0,
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            history_length: 1000,
            forgotten: 0,
            due: BTreeMap::new(),
            due_number: 0,
            put_off: None,
            guard: None,
            guard_audit: Vec::new(),
            audit: Vec::new(),
            leases: BTreeMap::new(),
            lease_audit: Vec::new(),
            events: Vec::new(),
            requests: BTreeMap::new(),
        };
        let who = Arc::from("kubernetes");
        for name in ["default", "kube-system"] {
            let key = Key::cluster(Kind::Namespace, name);
            let request = Request { who: &who, verb: Verb::Control };
            // A namespace by itself is never refused.
            let _ = state.replace(request, &key, json!({}));
        }
        state
    }

    /// The time since the model was made.
    pub(super) fn elapsed(&self) -> Duration {
        self.now.saturating_duration_since(self.start)
    }

    /// The model's wall clock.
    pub(super) fn wall(&self) -> SystemTime {
        let start = SystemTime::UNIX_EPOCH.checked_add(START).unwrap_or(SystemTime::UNIX_EPOCH);
        start.checked_add(self.elapsed()).unwrap_or(start)
    }

    pub(super) fn next_version(&mut self) -> u64 {
        self.version = self.version.saturating_add(1);
        self.version
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&Key, &Stored)> {
        let first = Key::cluster(kind, "");
        self.objects.range(first..).take_while(move |(key, _)| key.kind == kind)
    }

    pub(super) fn value(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key).map(|stored| &stored.value)
    }

    pub(super) fn list(&self, kind: Kind, selection: &Selection<'_>) -> List {
        let one = match *selection {
            Selection::One(namespace, name) => {
                let key = Key { kind, namespace: namespace.map(str::to_owned), name: name.to_owned() };
                Some(self.value(&key).into_iter().map(|value| (**value).clone()).collect())
            }
            _ => None,
        };
        let items = one.unwrap_or_else(|| {
            let all = self.of_kind(kind).filter(|(key, stored)| selects(selection, key, &stored.value));
            all.map(|(_, stored)| (*stored.value).clone()).collect()
        });
        List::new(items, self.version.to_string())
    }

    /// Whether an object may come: its namespace is there and stays.
    pub(super) fn place(&self, kind: &str, namespace: Option<&str>) -> Result<(), ApiError> {
        let Some(namespace) = namespace else { return Ok(()) };
        let key = Key::cluster(Kind::Namespace, namespace);
        let live = self.value(&key).ok_or_else(|| not_found(&key))?;
        if live.pointer("/metadata/deletionTimestamp").is_some() {
            let message = format!(
                "{kind}: unable to create new content in namespace {namespace} because it is being terminated"
            );
            return Err(status(403, "Forbidden", message));
        }
        Ok(())
    }

    /// Server-side apply as manager `spur-quota`, forced.
    pub(super) fn apply(
        &mut self,
        request: Request<'_>,
        key: &Key,
        object: &Value,
    ) -> Result<Value, ApiError> {
        let mut wanted = object.clone();
        let version = wanted.pointer("/metadata/resourceVersion").cloned();
        tidy(key.kind, &mut wanted);
        let wanted = leaves(&wanted);
        let (mut value, mut owners) = match self.objects.get(key) {
            Some(stored) => ((*stored.value).clone(), stored.owners.clone()),
            None => (json!({}), Owners::default()),
        };
        if version.is_some() && value.pointer("/metadata/resourceVersion") != version.as_ref() {
            return Err(conflict(key));
        }
        owners.apply(&mut value, &wanted);
        self.store(request, key, value, owners)
    }

    /// A JSON merge patch.
    pub(super) fn merge(
        &mut self,
        request: Request<'_>,
        key: &Key,
        patch: &Value,
    ) -> Result<Value, ApiError> {
        let live = self.value(key).ok_or_else(|| not_found(key))?;
        let version = patch.pointer("/metadata/resourceVersion");
        if version.is_some() && version != live.pointer("/metadata/resourceVersion") {
            return Err(conflict(key));
        }
        let mut value = (**live).clone();
        merge(&mut value, patch);
        self.replace(request, key, value)
    }

    /// Makes or replaces an object, as an update does: who writes it owns what changes by it.
    pub(super) fn replace(
        &mut self,
        request: Request<'_>,
        key: &Key,
        mut value: Value,
    ) -> Result<Value, ApiError> {
        tidy(key.kind, &mut value);
        let nothing = Value::Null;
        let (before, mut owners) = match self.objects.get(key) {
            Some(stored) => (&*stored.value, stored.owners.clone()),
            None => (&nothing, Owners::default()),
        };
        owners.update(before, &value);
        self.store(request, key, value, owners)
    }

    /// Changes a status, which nobody owns.
    pub(super) fn set_status(&mut self, request: Request<'_>, key: &Key, status: Value) {
        let Some(stored) = self.objects.get(key).cloned() else { return };
        let mut value = (*stored.value).clone();
        super::fields::set(&mut value, &["status".to_owned()], status);
        // What is there already is never refused.
        let _ = self.store(request, key, value, stored.owners);
    }

    pub(super) fn delete(
        &mut self,
        request: Request<'_>,
        key: &Key,
        uid: &str,
        resource_version: &str,
    ) -> Result<(), ApiError> {
        let Some(live) = self.value(key) else { return Ok(()) };
        let same = text(live, "/metadata/uid") == uid;
        if !same || text(live, "/metadata/resourceVersion") != resource_version {
            return Err(conflict(key));
        }
        self.remove(request, key);
        Ok(())
    }

    /// Deletes an object; a namespace is emptied first.
    pub(super) fn remove(&mut self, request: Request<'_>, key: &Key) {
        let Some(stored) = self.objects.get(key).cloned() else { return };
        if key.kind != Kind::Namespace {
            self.objects.remove(key);
            self.changed(request, key, Some(stored.value), None);
            return;
        }
        if stored.value.pointer("/metadata/deletionTimestamp").is_some() {
            return;
        }
        let mut value = (*stored.value).clone();
        let time = crate::timestamp::format_time(self.wall());
        super::fields::set(&mut value, &["metadata".to_owned(), "deletionTimestamp".to_owned()], time.into());
        super::fields::set(&mut value, &["status".to_owned()], json!({ "phase": "Terminating" }));
        let uid = text(&value, "/metadata/uid").to_owned();
        let _ = self.store(request, key, value, stored.owners);
        let delay = self.random.duration(&self.delays.namespace);
        self.schedule(delay, Due::EmptyNamespace(key.name.clone(), uid));
    }

    /// Takes away a namespace that has been emptied.
    pub(super) fn end_namespace(&mut self, request: Request<'_>, key: &Key) {
        if let Some(stored) = self.objects.remove(key) {
            self.changed(request, key, Some(stored.value), None);
        }
    }

    /// Stores an object in its new form, unless that is the old one; gives its metadata.
    fn store(
        &mut self,
        request: Request<'_>,
        key: &Key,
        mut value: Value,
        owners: Owners,
    ) -> Result<Value, ApiError> {
        let stored = self.objects.get(key).map(|stored| (Arc::clone(&stored.value), stored.owners == owners));
        let (before, same_owners) = stored.map_or((None, false), |(value, same)| (Some(value), same));
        match &before {
            Some(before) => immutable(key, before, &value)?,
            None => self.place(key.kind.name(), key.namespace.as_deref())?,
        }
        self.server_metadata(key, before.as_deref(), &mut value, &owners);
        if same_owners && before.as_deref() == Some(&value) {
            return Ok(json!({ "metadata": value.get("metadata") }));
        }
        let version = self.next_version().to_string();
        super::fields::set(
            &mut value,
            &["metadata".to_owned(), "resourceVersion".to_owned()],
            version.into(),
        );
        let answer = json!({ "metadata": value.get("metadata") });
        let after = Arc::new(value);
        self.objects.insert(key.clone(), Stored { value: Arc::clone(&after), owners });
        self.changed(request, key, before, Some(after));
        Ok(answer)
    }

    /// What the server itself keeps of an object.
    fn server_metadata(&self, key: &Key, before: Option<&Value>, value: &mut Value, owners: &Owners) {
        let old = |name: &str| before.and_then(|before| before.pointer("/metadata")?.get(name)).cloned();
        let uid = old("uid").unwrap_or_else(|| format!("uid-{}", self.version.saturating_add(1)).into());
        let manager = |manager: &str, operation: &str| json!({ "manager": manager, "operation": operation });
        let mut managers = Vec::new();
        if !owners.applied.is_empty() {
            managers.push(manager(names::MANAGER, "Apply"));
        }
        if !owners.updated.is_empty() {
            managers.push(manager("others", "Update"));
        }
        let mut set = |name: &str, value_of: Option<Value>| {
            let path = ["metadata".to_owned(), name.to_owned()];
            match value_of {
                Some(value_of) => super::fields::set(value, &path, value_of),
                None => super::fields::remove(value, &path),
            }
        };
        set("name", Some(key.name.clone().into()));
        set("namespace", key.namespace.clone().map(Value::from));
        set("uid", Some(uid));
        set("resourceVersion", old("resourceVersion"));
        set("managedFields", Some(managers).filter(|managers| !managers.is_empty()).map(Value::from));
        match key.kind {
            Kind::Namespace => {
                let label = "kubernetes.io/metadata.name".to_owned();
                let path = ["metadata".to_owned(), "labels".to_owned(), label];
                super::fields::set(value, &path, key.name.clone().into());
                if before.is_none() {
                    super::fields::set(value, &["status".to_owned()], json!({ "phase": "Active" }));
                }
            }
            Kind::ValidatingAdmissionPolicy => {
                let generation = old("generation").and_then(|generation| generation.as_u64()).unwrap_or(0);
                let same = before.is_some_and(|before| before.get("spec") == value.get("spec"));
                let generation = if same { generation } else { generation.saturating_add(1) };
                let path = ["metadata".to_owned(), "generation".to_owned()];
                super::fields::set(value, &path, generation.into());
            }
            _ => {}
        }
    }

    /// Keeps the record of a change, and sets going who reacts to it.
    fn changed(
        &mut self,
        request: Request<'_>,
        key: &Key,
        before: Option<Arc<Value>>,
        after: Option<Arc<Value>>,
    ) {
        let version = if after.is_some() { self.version } else { self.next_version() };
        self.history.push_back(Change {
            version,
            key: key.clone(),
            before: before.clone(),
            after: after.clone(),
        });
        while self.history.len() > self.history_length {
            self.forgotten = self.history.pop_front().map_or(self.forgotten, |change| change.version);
        }
        self.react(key, before.as_deref(), after.as_deref());
        let (at, who) = (self.elapsed(), Arc::clone(request.who));
        self.audit.push(Record { at, who, verb: request.verb, key: key.clone(), before, after });
    }

    pub(super) fn lease(&self, namespace: &str, name: &str) -> Option<Lease> {
        self.leases.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    pub(super) fn set_lease(
        &mut self,
        who: &Arc<str>,
        namespace: &str,
        name: &str,
        lease: &Lease,
    ) -> Result<Lease, ApiError> {
        self.place("Lease", Some(namespace))?;
        let place = (namespace.to_owned(), name.to_owned());
        let version = self.leases.get(&place).map_or("", |lease| &lease.version);
        if version != lease.version {
            let message = format!("Lease {namespace}/{name}: the object has been modified");
            return Err(status(409, "Conflict", message));
        }
        let lease = Lease { version: self.next_version().to_string(), ..lease.clone() };
        self.leases.insert(place, lease.clone());
        self.audit_lease(who, namespace, name, &lease.holder);
        Ok(lease)
    }

    pub(super) fn remove_lease(&mut self, who: &Arc<str>, namespace: &str, name: &str) {
        self.leases.remove(&(namespace.to_owned(), name.to_owned()));
        self.audit_lease(who, namespace, name, "");
    }

    fn audit_lease(&mut self, who: &Arc<str>, namespace: &str, name: &str, holder: &str) {
        self.lease_audit.push(LeaseRecord {
            at: self.elapsed(),
            who: Arc::clone(who),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            holder: holder.to_owned(),
        });
    }
}
