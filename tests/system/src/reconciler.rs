//! A controller that runs beside a test, over a host's own store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::Value;
use spur_sdk::Deadlines;
use spur_sdk_quota::cluster::{
    ControllerError, ControllerOptions, Event, EventApi, Key, LeaseSettings, PlanOptions, QuotaController,
    Report, Status, observe, plan,
};
use spur_sdk_quota::k8s::KubeApi;
use spur_sdk_quota::source::{Source, SourceError};
use spur_sdk_quota::{CancellationToken, Model, Policy, QuotaProjector};
use spur_test_control_plane::ControlPlane;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::proxy::Proxy;

/// What a host's store says: a model, or that it cannot be read. Clones are the same store.
#[derive(Debug, Clone)]
pub struct Store {
    content: Arc<Mutex<Result<Model, String>>>,
    changes: watch::Sender<u64>,
    read: Arc<Mutex<u64>>,
}

impl Store {
    /// A store with a model.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self {
            content: Arc::new(Mutex::new(Ok(model))),
            changes: watch::Sender::new(1),
            read: Arc::default(),
        }
    }

    /// A store with what a file named `accounts.toml` says.
    ///
    /// # Errors
    /// The text is no file of accounts.
    pub fn of(accounts: &str) -> Result<Self> {
        Ok(Self::new(crate::model(accounts)?))
    }

    /// Says something else from now on.
    pub fn set(&self, model: Model) {
        self.put(Ok(model));
    }

    /// Says what a file named `accounts.toml` says from now on.
    ///
    /// # Errors
    /// The text is no file of accounts.
    pub fn say(&self, accounts: &str) -> Result<()> {
        self.set(crate::model(accounts)?);
        Ok(())
    }

    /// What it says.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn model(&self) -> Result<Model> {
        let content = self.content.lock().unwrap_or_else(PoisonError::into_inner).clone();
        content.map_err(anyhow::Error::msg)
    }

    /// Cannot be read from now on.
    pub fn fail(&self, why: &str) {
        self.put(Err(why.to_owned()));
    }

    fn put(&self, content: Result<Model, String>) {
        *self.content.lock().unwrap_or_else(PoisonError::into_inner) = content;
        self.changes.send_modify(|version| *version += 1);
    }
}

impl Source for Store {
    fn name(&self) -> String {
        "the test's store".to_owned()
    }

    async fn read(&self) -> Result<Model, SourceError> {
        let version = *self.changes.borrow();
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = version;
        let content = self.content.lock().unwrap_or_else(PoisonError::into_inner).clone();
        content.map_err(|error| SourceError::Store { store: self.name(), source: error.into() })
    }

    async fn changed(&self) {
        let read = *self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = self.changes.subscribe();
        // The sender is ours, so it lives on.
        let _ = changes.wait_for(|version| *version > read).await;
    }
}

/// A controller in a task of its own; it ends with the value.
#[derive(Debug)]
pub struct Running {
    reports: mpsc::Receiver<Report>,
    status: watch::Receiver<Status>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), ControllerError>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Running {
    /// Starts one with a Lease of 3 s, so that tests of failover need not wait long.
    #[must_use]
    pub fn start(source: impl Source + 'static, client: &Client, policy: &Policy) -> Self {
        Self::start_with(source, client, policy, ControllerOptions::default().lease(Some(quick_lease())))
    }

    /// Starts one with options; reports and status are the test's.
    #[must_use]
    pub fn start_with(
        source: impl Source + 'static,
        client: &Client,
        policy: &Policy,
        options: ControllerOptions,
    ) -> Self {
        let deadlines = Deadlines::default();
        Self::start_on(source, KubeApi::new(client.clone(), deadlines), policy, options)
    }

    /// Starts one on an API of the test's own.
    #[must_use]
    pub fn start_on(
        source: impl Source + 'static,
        api: KubeApi,
        policy: &Policy,
        options: ControllerOptions,
    ) -> Self {
        let (report, reports) = mpsc::channel(100_000);
        let (state, status) = watch::channel(Status::default());
        let shutdown = CancellationToken::new();
        let (policy, stop) = (policy.clone(), shutdown.clone());
        let controller = QuotaController::with(options.reports(report).status(state));
        let task = tokio::spawn(async move { controller.serve(source, api, policy, stop).await });
        Self { reports, status, shutdown, task }
    }

    /// The next report that a test waits for, within a minute; those before are passed over.
    ///
    /// # Errors
    /// It does not come.
    pub async fn wait_for<T>(&mut self, mut wanted: impl FnMut(&Report) -> Option<T>) -> Result<T> {
        let mut passed = Vec::new();
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(report) = timeout(left, self.reports.recv()).await else {
                bail!("the report does not come; those before: {passed:#?}");
            };
            let report = report.context("the controller has ended")?;
            if let Some(found) = wanted(&report) {
                return Ok(found);
            }
            passed.push(report);
        }
    }

    /// Waits until everything is as the source says.
    ///
    /// # Errors
    /// It is not within a minute.
    pub async fn settled(&mut self) -> Result<()> {
        self.wait_for(|report| matches!(report, Report::Settled).then_some(())).await
    }

    /// The reports that have come by now.
    pub fn reports(&mut self) -> Vec<Report> {
        std::iter::from_fn(|| self.reports.try_recv().ok()).collect()
    }

    /// The state.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Waits until the state is one that a test wants, for half a minute.
    ///
    /// # Errors
    /// It does not get there.
    pub async fn stands<T>(&self, mut wanted: impl FnMut(&Status) -> Option<T>) -> Result<T> {
        let mut status = self.status.clone();
        let mut found = None;
        let looked = status.wait_for(|status| {
            found = wanted(status);
            found.is_some()
        });
        let looked = timeout(Duration::from_secs(30), looked).await;
        let stands = matches!(looked, Ok(Ok(_)));
        found.filter(|_| stands).with_context(|| format!("the state is another one: {:#?}", self.status()))
    }

    /// Stops it, as a program does on SIGTERM.
    ///
    /// # Errors
    /// It does not end within ten seconds.
    pub async fn stop(mut self) -> Result<()> {
        self.shutdown.cancel();
        timeout(Duration::from_secs(10), &mut self.task)
            .await
            .context("the controller does not stop")???;
        Ok(())
    }
}

/// A Lease of 3 s.
#[must_use]
pub fn quick_lease() -> LeaseSettings {
    LeaseSettings::default().duration(Duration::from_secs(3))
}

/// Waits until the cluster is in step with a model, for a minute at most.
///
/// # Errors
/// It is not.
pub async fn in_step(client: &Client, model: &Model, policy: &Policy) -> Result<()> {
    let api = KubeApi::new(client.clone(), Deadlines::default());
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let observed = observe(&api).await?;
        let projector = QuotaProjector::new(policy).default_priority_class(observed.default_priority_class());
        let plan = plan(&projector.project(model), &observed, &PlanOptions::default());
        if plan.is_empty() && plan.refused.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("still to do:\n{plan}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A controller, its source, and the test's own hand.
#[expect(missing_debug_implementations, reason = "a kube client has none")]
pub struct Scene {
    /// An administrator who is not the controller.
    pub client: Client,
    /// The default one.
    pub policy: Policy,
    /// The source.
    pub store: Store,
    /// What the controller asks goes through this.
    pub proxy: Proxy,
    /// The controller, user `reconciler` in `system:masters`.
    pub running: Running,
}

impl Scene {
    /// Starts a controller and waits until everything is as its source says.
    ///
    /// # Errors
    /// It does not get there.
    pub async fn start(
        control_plane: &ControlPlane,
        accounts: &str,
        options: ControllerOptions,
    ) -> Result<Self> {
        let store = Store::of(accounts)?;
        let policy = Policy::default();
        let proxy = Proxy::start(control_plane.client_for("reconciler", &["system:masters"]).await?).await?;
        let options = options.lease(Some(quick_lease()));
        let mut running = Running::start_with(store.clone(), &proxy.client()?, &policy, options);
        running.settled().await?;
        let scene = Self { client: control_plane.client().await?, policy, store, proxy, running };
        scene.in_step().await?;
        Ok(scene)
    }

    /// Waits until the cluster is as the source says.
    ///
    /// # Errors
    /// It is not within a minute.
    pub async fn in_step(&self) -> Result<()> {
        in_step(&self.client, &self.store.model()?, &self.policy).await
    }

    /// What the controller has written since it had made so many requests, Lease and Events aside: `PATCH PATH`.
    #[must_use]
    pub fn written_since(&self, requests: usize) -> Vec<String> {
        let asked = self.proxy.asked().into_iter().skip(requests).map(|asked| asked.request);
        let writes = asked.filter(|it| it.is_write() && !it.is_of_lease() && !it.is_of_event());
        writes.map(|request| format!("{} {}", request.method, request.path)).collect()
    }
}

/// Objects of a kind, where this one stands.
#[must_use]
pub fn objects(client: &Client, key: &Key) -> Api<DynamicObject> {
    let (group, version, plural, _) = key.kind.resource();
    let kind = GroupVersionKind::gvk(group, version, key.kind.name());
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    match &key.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// What an object says, without what the API server and the controller manager fill in; `None` when it is not there.
///
/// # Errors
/// It cannot be read.
pub async fn content(client: &Client, key: &Key) -> Result<Option<Value>> {
    let Some(object) = objects(client, key).get_opt(&key.name).await? else { return Ok(None) };
    let mut object = serde_json::to_value(object)?;
    if let Some(fields) = object.as_object_mut() {
        for field in ["status", "secrets"] {
            fields.remove(field);
        }
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"] {
            metadata.remove(field);
        }
    }
    Ok(Some(object))
}

/// Events that controllers have written about a namespace, in no order.
///
/// # Errors
/// They cannot be read.
pub async fn events(client: &Client, namespace: &str) -> Result<Vec<Event>> {
    let all = KubeApi::new(client.clone(), Deadlines::default()).recorded().await?;
    Ok(all.into_iter().filter(|event| event.namespace == namespace).collect())
}
