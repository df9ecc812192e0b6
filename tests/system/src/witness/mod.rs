//! Sees every version of every object of ours on the real API server, and judges whether each change was allowed.

mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
    PropagationPolicy,
};
use kube::core::GroupVersionKind;
use kube::{Client, Error};
use serde_json::Value;
use spur_sdk::Deadlines;
use spur_sdk_quota::cluster::{
    ApiError, ClusterApi, Key, Kind, List, Plan, PlanOptions, Selection, WatchEvent, observe, plan,
};
use spur_sdk_quota::k8s::{KubeApi, Object};
use spur_sdk_quota::{Model, Policy, Projection, QuotaProjector, names};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const KINDS: [Kind; 9] = [
    Kind::Namespace,
    Kind::ResourceQuota,
    Kind::LimitRange,
    Kind::ServiceAccount,
    Kind::RoleBinding,
    Kind::ClusterRole,
    Kind::ValidatingAdmissionPolicy,
    Kind::ValidatingAdmissionPolicyBinding,
    Kind::PriorityClass,
];

/// The witness; it sees nothing more when it is gone.
#[expect(missing_debug_implementations, reason = "a kube client has none")]
pub struct Witness {
    client: Client,
    seen: Arc<Mutex<Seen>>,
    policy: Policy,
    _watches: JoinSet<()>,
}

/// All that was seen and said.
#[derive(Debug, Default)]
struct Seen {
    state: BTreeMap<Key, Value>,
    history: Vec<Version>,
    said: Vec<(u64, Said)>,
    /// Versions that the test's own hand has written.
    by_hand: BTreeSet<u64>,
    /// Objects that the test's own hand has deleted, by uid.
    deleted_by_hand: BTreeSet<String>,
    /// Why something may have been missed.
    blind: Vec<String>,
}

/// One version of an object.
#[derive(Debug, Clone)]
struct Version {
    /// When: versions of a cluster grow.
    at: u64,
    key: Key,
    /// `None` for the version in which it was deleted.
    object: Option<Value>,
    uid: String,
    /// Whether it was there when the witness came.
    first: bool,
}

/// What a reading of the source means, as far as it is judged.
#[derive(Debug, Default)]
struct Said {
    /// Namespaces of the accounts that it names.
    named: BTreeSet<String>,
    /// ServiceAccounts of its users.
    users: BTreeSet<String>,
    /// Caps by quota.
    caps: BTreeMap<Key, BTreeMap<String, String>>,
    /// ServiceAccounts by RoleBinding.
    subjects: BTreeMap<Key, BTreeSet<String>>,
}

impl Said {
    fn of(projection: &Projection) -> Self {
        let named = projection.known.iter().map(|account| names::NAMESPACES.map(account.as_str()));
        let users = projection.known_users.iter().map(|user| names::SERVICE_ACCOUNTS.map(user.as_str()));
        let mut said = Self { named: named.collect(), users: users.collect(), ..Self::default() };
        for object in projection.accounts.iter().flat_map(|account| &account.objects) {
            let namespace = object.namespace().unwrap_or_default();
            let value = serde_json::to_value(object).unwrap_or_default();
            match object {
                Object::ResourceQuota(_) => {
                    let key = Key::namespaced(Kind::ResourceQuota, namespace, object.name());
                    said.caps.insert(key, caps(&value));
                }
                Object::RoleBinding(_) => {
                    let key = Key::namespaced(Kind::RoleBinding, namespace, object.name());
                    said.subjects.insert(key, subjects(&value));
                }
                _ => {}
            }
        }
        said
    }
}

/// A quota's caps.
fn caps(quota: &Value) -> BTreeMap<String, String> {
    let hard = quota.pointer("/spec/hard").and_then(Value::as_object).into_iter().flatten();
    hard.map(|(key, cap)| (key.clone(), cap.as_str().unwrap_or_default().to_owned())).collect()
}

/// Those whom a RoleBinding names, ServiceAccounts of users by their name, others in full.
fn subjects(binding: &Value) -> BTreeSet<String> {
    let all = binding.get("subjects").and_then(Value::as_array).into_iter().flatten();
    let name = |subject: &Value| {
        let text = |key| subject.get(key).and_then(Value::as_str).unwrap_or_default();
        if text("kind") == "ServiceAccount" && text("namespace") == names::USERS_NAMESPACE {
            text("name").to_owned()
        } else {
            subject.to_string()
        }
    };
    all.map(name).collect()
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(value: &Value) -> u64 {
    text(value, "/metadata/resourceVersion").parse().unwrap_or_default()
}

impl Seen {
    fn take(&mut self, kind: Kind, value: Value, gone: bool, first: bool) {
        let namespace = value.pointer("/metadata/namespace").and_then(Value::as_str).map(str::to_owned);
        let key = Key { kind, namespace, name: text(&value, "/metadata/name") };
        let (at, uid) = (number(&value), text(&value, "/metadata/uid"));
        let object = (!gone).then_some(value);
        match &object {
            Some(object) => drop(self.state.insert(key.clone(), object.clone())),
            None => drop(self.state.remove(&key)),
        }
        self.history.push(Version { at, key, object, uid, first });
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Witness {
    /// A witness that has seen what is there.
    ///
    /// # Errors
    /// The API server cannot be read.
    pub async fn start(client: &Client, policy: &Policy) -> Result<Self> {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let api = KubeApi::new(client.clone(), Deadlines::default());
        let mut watches = JoinSet::new();
        for kind in KINDS {
            let list = api.list(kind, Selection::All).await?;
            for item in list.items {
                lock(&seen).take(kind, item, false, true);
            }
            watches.spawn(follow(api.clone(), kind, list.version, Arc::clone(&seen)));
        }
        Ok(Self { client: client.clone(), seen, policy: policy.clone(), _watches: watches })
    }

    /// Notes that the source says this from now on. To be told before the source says it.
    ///
    /// # Errors
    /// The API server does not say which moment it is.
    pub async fn hears(&self, model: &Model) -> Result<()> {
        let namespaces: Api<DynamicObject> = self.api(&Key::cluster(Kind::Namespace, ""));
        let now = namespaces.list_metadata(&ListParams::default().limit(1)).await?.metadata.resource_version;
        let now = now.context("a list without a version")?.parse()?;
        let said = Said::of(&QuotaProjector::new(&self.policy).project(model));
        lock(&self.seen).said.push((now, said));
        Ok(())
    }

    fn api(&self, key: &Key) -> Api<DynamicObject> {
        let (group, version, plural, _) = key.kind.resource();
        let gvk = GroupVersionKind::gvk(group, version, key.kind.name());
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        match &key.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// A change by hand, as somebody else; whether the object was there.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn edit(&self, key: &Key, patch: Value) -> Result<bool> {
        let parameters = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
        let patched = self.api(key).patch(&key.name, &parameters, &Patch::Merge(patch)).await;
        self.written(key, patched)
    }

    /// Makes an object by hand; whether it was not there.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn create(&self, key: &Key, object: Value) -> Result<bool> {
        let created = self.api(key).create(&PostParams::default(), &serde_json::from_value(object)?).await;
        self.written(key, created)
    }

    fn written(&self, key: &Key, answer: Result<DynamicObject, Error>) -> Result<bool> {
        match answer {
            Ok(object) => {
                let version = object.metadata.resource_version.unwrap_or_default().parse()?;
                lock(&self.seen).by_hand.insert(version);
                Ok(true)
            }
            // Not there, there already, or its namespace is going.
            Err(Error::Api(error)) if [404, 409, 403].contains(&error.code) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("hand edit of {key}")),
        }
    }

    /// Deletes an object by hand; whether it was there.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn remove(&self, key: &Key) -> Result<bool> {
        let Some(uid) = self.get(key).map(|object| text(&object, "/metadata/uid")) else { return Ok(false) };
        lock(&self.seen).deleted_by_hand.insert(uid);
        let parameters = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        match self.api(key).delete(&key.name, &parameters).await {
            Ok(_) => Ok(true),
            Err(Error::Api(error)) if [404, 409].contains(&error.code) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("delete {key} by hand")),
        }
    }

    /// An object as it was last seen.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Value> {
        lock(&self.seen).state.get(key).cloned()
    }

    /// Every version of everything that has been seen, in words.
    #[must_use]
    pub fn versions(&self) -> usize {
        lock(&self.seen).history.len()
    }

    /// Whether a namespace is retired in full: marked, nobody let in, its quota closed.
    #[must_use]
    pub fn is_retired(&self, namespace: &str) -> bool {
        let marked = self.get(&Key::cluster(Kind::Namespace, namespace));
        let label = format!("/metadata/labels/{}~1{}", self.policy.prefix, names::STATE);
        let marked = marked.is_some_and(|live| text(&live, &label) == names::RETIRED);
        let members = self.get(&Key::namespaced(Kind::RoleBinding, namespace, names::MEMBERS));
        let quota = self.get(&Key::namespaced(Kind::ResourceQuota, namespace, names::QUOTA));
        let closed = quota
            .is_some_and(|quota| caps(&quota).iter().all(|(key, cap)| key == "resourcequotas" || cap == "0"));
        marked && members.is_none() && closed
    }

    /// What the model does not name and what is not taken away: accounts that are not retired, users.
    #[must_use]
    pub fn still_there(&self, model: &Model) -> Vec<Key> {
        let said = Said::of(&QuotaProjector::new(&self.policy).project(model));
        let keys: Vec<Key> = lock(&self.seen).state.keys().cloned().collect();
        let is_left = |key: &Key| match key.kind {
            Kind::Namespace => {
                let gone = names::NAMESPACES.is_mapped(&key.name) && !said.named.contains(&key.name);
                gone && !self.is_retired(&key.name)
            }
            Kind::ServiceAccount => {
                let user = key.namespace.as_deref() == Some(names::USERS_NAMESPACE);
                user && names::SERVICE_ACCOUNTS.is_mapped(&key.name) && !said.users.contains(&key.name)
            }
            _ => false,
        };
        keys.into_iter().filter(is_left).collect()
    }

    /// What is still to do for the cluster to be as the model says.
    ///
    /// # Errors
    /// Never; what is read has been seen already.
    pub async fn to_do(&self, model: &Model) -> Result<Plan> {
        let observed = observe(self).await?;
        let projector =
            QuotaProjector::new(&self.policy).default_priority_class(observed.default_priority_class());
        Ok(plan(&projector.project(model), &observed, &PlanOptions::default()))
    }

    /// Waits until the cluster is as the model says.
    ///
    /// # Errors
    /// It is not in time.
    pub async fn in_step(&self, model: &Model, within: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let left = self.to_do(model).await?;
            if left.is_empty() && left.refused.is_empty() {
                return Ok(());
            }
            if start.elapsed() > within {
                bail!("not in step after {within:?}; still to do:\n{left}");
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// What was done that may not be, once nothing has changed for half a second.
    ///
    /// # Errors
    /// Something may have been missed.
    pub async fn verdict(&self) -> Result<Vec<String>> {
        let mut before = 0;
        while before != self.versions() {
            before = self.versions();
            sleep(Duration::from_millis(500)).await;
        }
        let seen = lock(&self.seen);
        if let Some(blind) = seen.blind.first() {
            bail!("the witness may have missed something: {blind}");
        }
        Ok(verdict::of(&seen, &self.policy))
    }
}

/// Sees a kind for ever.
async fn follow(api: KubeApi, kind: Kind, mut version: String, seen: Arc<Mutex<Seen>>) {
    loop {
        let mut last = version.clone();
        let see = |event| match event {
            WatchEvent::Changed(value) => {
                last = text(&value, "/metadata/resourceVersion");
                lock(&seen).take(kind, value, false, false);
            }
            WatchEvent::Deleted(value) => {
                last = text(&value, "/metadata/resourceVersion");
                lock(&seen).take(kind, value, true, false);
            }
            WatchEvent::Version(at) => last = at,
            _ => {}
        };
        if let Err(error) = api.watch(kind, Selection::All, &version, see).await {
            lock(&seen).blind.push(format!("watch of {}: {error}", kind.name()));
            sleep(Duration::from_millis(200)).await;
        }
        version = last;
    }
}

/// What was seen, as an API server that can only be listed.
impl ClusterApi for Witness {
    async fn list(&self, kind: Kind, selection: Selection<'_>) -> Result<List, ApiError> {
        let seen = lock(&self.seen);
        let selected = |key: &Key| match selection {
            Selection::Named(name) => key.name == name,
            Selection::In(namespace) => key.namespace.as_deref() == Some(namespace),
            Selection::One(namespace, name) => key.namespace.as_deref() == namespace && key.name == name,
            _ => true,
        };
        let items = seen.state.iter().filter(|(key, _)| key.kind == kind && selected(key));
        Ok(List::new(items.map(|(_, value)| value.clone()).collect(), "0"))
    }

    async fn watch(
        &self,
        _: Kind,
        _: Selection<'_>,
        _: &str,
        _: impl FnMut(WatchEvent) + Send,
    ) -> Result<(), ApiError> {
        Err(only_lists())
    }

    async fn apply(&self, _: &Key, _: &Value) -> Result<Value, ApiError> {
        Err(only_lists())
    }

    async fn merge(&self, _: &Key, _: &Value) -> Result<Value, ApiError> {
        Err(only_lists())
    }

    async fn delete(&self, _: &Key, _: &str, _: &str) -> Result<(), ApiError> {
        Err(only_lists())
    }

    async fn refusal(&self, _: &str, _: &Value) -> Result<Option<String>, ApiError> {
        Err(only_lists())
    }
}

fn only_lists() -> ApiError {
    ApiError::Answer("a witness can only be listed".to_owned())
}
