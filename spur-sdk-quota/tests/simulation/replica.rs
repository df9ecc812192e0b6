//! Replicas of the controller that crash, stand still and come back.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use spur_sdk::Clock;
use spur_sdk_quota::cluster::{ControllerError, ControllerOptions, LeaseSettings, QuotaController};
use spur_sdk_quota::testing::{ModelClock, ModelCluster};
use spur_sdk_quota::{CancellationToken, Policy};
use tokio::task::JoinHandle;

use crate::site::Site;

/// How long a grace period must have been over. The default is longer than a run.
pub(crate) const DELETION_DELAY: Duration = Duration::from_secs(20);

/// The wall clock of all machines, which somebody may set.
#[derive(Clone)]
pub(crate) struct SkewedClock {
    clock: ModelClock,
    /// Since when it is how far ahead.
    skews: Arc<Mutex<Vec<(Duration, Duration)>>>,
    cluster: ModelCluster,
}

impl SkewedClock {
    pub(crate) fn new(cluster: &ModelCluster) -> Self {
        let skews = Arc::new(Mutex::new(Vec::new()));
        Self { clock: cluster.clock(), skews, cluster: cluster.clone() }
    }

    /// Sets the clock so far ahead of where it was.
    pub(crate) fn jump(&self, by: Duration) {
        let at = self.cluster.elapsed();
        let mut skews = self.skews.lock().unwrap();
        let before = skews.last().map_or(Duration::ZERO, |(_, skew)| *skew);
        skews.push((at, before + by));
    }

    /// What it said at a moment of the model's time.
    pub(crate) fn at(&self, moment: Duration) -> SystemTime {
        let skews = self.skews.lock().unwrap();
        let skew = skews.iter().rev().find(|(at, _)| *at <= moment).map_or(Duration::ZERO, |(_, skew)| *skew);
        let now = self.cluster.elapsed();
        self.clock.now() - now.saturating_sub(moment) + skew
    }
}

impl Clock for SkewedClock {
    fn now(&self) -> SystemTime {
        let skew = self.skews.lock().unwrap().last().map_or(Duration::ZERO, |(_, skew)| *skew);
        self.clock.now() + skew
    }
}

/// Lets a future stand still, as a stopped process does.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<(bool, Option<Waker>)>>);

impl Gate {
    fn shut(&self, shut: bool) {
        let mut gate = self.0.lock().unwrap();
        gate.0 = shut;
        if let Some(waker) = gate.1.take().filter(|_| !shut) {
            waker.wake();
        }
    }
}

/// A future behind a gate.
struct Gated<F> {
    gate: Gate,
    inner: Pin<Box<F>>,
}

impl<F: Future> Future for Gated<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut gate = self.gate.0.lock().unwrap();
        if gate.0 {
            gate.1 = Some(context.waker().clone());
            return Poll::Pending;
        }
        drop(gate);
        self.inner.as_mut().poll(context)
    }
}

/// How all replicas run.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) site: Site,
    pub(crate) cluster: ModelCluster,
    pub(crate) policy: Policy,
    pub(crate) clock: SkewedClock,
    pub(crate) grace: Option<Duration>,
    pub(crate) concurrency: usize,
}

struct Run {
    who: String,
    task: JoinHandle<Result<(), ControllerError>>,
    gate: Gate,
    shutdown: CancellationToken,
}

/// One replica. Each run of it has an identity of its own.
pub(crate) struct Replica {
    name: &'static str,
    settings: Settings,
    runs: usize,
    run: Option<Run>,
    pub(crate) still: bool,
}

impl Replica {
    pub(crate) fn new(name: &'static str, settings: Settings) -> Self {
        Self { name, settings, runs: 0, run: None, still: false }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// What the present run is called.
    pub(crate) fn who(&self) -> Option<&str> {
        self.run.as_ref().map(|run| run.who.as_str())
    }

    pub(crate) fn start(&mut self) {
        if self.run.is_some() {
            return;
        }
        self.runs += 1;
        let who = format!("replica-{}.{}", self.name, self.runs);
        let settings = &self.settings;
        let options = ControllerOptions::default()
            .lease(Some(LeaseSettings::default().identity(&who)))
            .clock(Arc::new(settings.clock.clone()))
            .concurrency(settings.concurrency)
            .delete_retired_after(settings.grace)
            .deletion_delay(DELETION_DELAY);
        let (source, client) = (settings.site.source(&who), settings.cluster.client(&who));
        let (policy, shutdown) = (settings.policy.clone(), CancellationToken::new());
        let token = shutdown.clone();
        let gate = Gate::default();
        let inner = async move { QuotaController::with(options).serve(source, client, policy, token).await };
        let task = tokio::spawn(Gated { gate: gate.clone(), inner: Box::pin(inner) });
        self.run = Some(Run { who, task, gate, shutdown });
        self.still = false;
    }

    /// Ends at once, wherever it is.
    pub(crate) async fn crash(&mut self) {
        let Some(run) = self.run.take() else { return };
        run.task.abort();
        match run.task.await {
            Ok(ended) => ended.unwrap(),
            Err(error) => assert!(error.is_cancelled(), "{}: {error}", run.who),
        }
    }

    /// Is told to stop, and does.
    pub(crate) async fn shut_down(&mut self) {
        let Some(run) = self.run.take() else { return };
        run.gate.shut(false);
        run.shutdown.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(5), run.task).await;
        ended.unwrap_or_else(|_| panic!("{} does not end when told to", run.who)).unwrap().unwrap();
    }

    /// Stands still like a stopped process, or goes on.
    pub(crate) fn stand_still(&mut self, still: bool) {
        if let Some(run) = &self.run {
            run.gate.shut(still);
            self.still = still;
        }
    }
}
