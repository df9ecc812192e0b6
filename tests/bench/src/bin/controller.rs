//! The controller with 1 000 accounts on a real control plane, in one run: requests when converged, time from a hand
//! edit to its being put back, time from the source's notification to the change being written, memory, start-up.
//!
//! ```text
//! cargo run --release --bin controller [ACCOUNTS] [CONVERGED_SECONDS] [EDITS]
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use spur_bench::site;
use spur_sdk::Deadlines;
use spur_sdk_quota::cluster::{ControllerOptions, QuotaController, Report};
use spur_sdk_quota::k8s::KubeApi;
use spur_sdk_quota::source::{Source, SourceError};
use spur_sdk_quota::{CancellationToken, Model, Policy};
use spur_test_control_plane::ControlPlane;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

#[expect(clippy::print_stdout, reason = "this is a program")]
fn say(text: &str) {
    println!("{text}");
}

/// A host's store in memory.
#[derive(Clone)]
struct Store {
    model: watch::Sender<Model>,
    seen: Arc<Mutex<watch::Receiver<Model>>>,
}

impl Store {
    fn new(model: Model) -> Self {
        let model = watch::Sender::new(model);
        let seen = Arc::new(Mutex::new(model.subscribe()));
        Self { model, seen }
    }
}

impl Source for Store {
    fn name(&self) -> String {
        "bench".to_owned()
    }

    async fn read(&self) -> Result<Model, SourceError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let model = seen.borrow_and_update().clone();
        drop(seen);
        Ok(model)
    }

    async fn changed(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // The sender is ours, so it lives on.
        let _ = seen.changed().await;
    }
}

struct Running {
    reports: mpsc::Receiver<Report>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    fn start(store: &Store, client: &Client) -> Self {
        let (sender, reports) = mpsc::channel(100_000);
        let shutdown = CancellationToken::new();
        let (store, stop) = (store.clone(), shutdown.clone());
        let api = KubeApi::new(client.clone(), Deadlines::default());
        let task = tokio::spawn(async move {
            let controller = QuotaController::with(ControllerOptions::default().reports(sender));
            // Options are the defaults, which are in order.
            let _ = controller.serve(store, api, Policy::default(), stop).await;
        });
        Self { reports, shutdown, task }
    }

    async fn settled(&mut self) -> Result<()> {
        let deadline = tokio::time::Instant::now() + Duration::from_mins(10);
        loop {
            let report = tokio::time::timeout_at(deadline, self.reports.recv()).await;
            match report.context("not settled within 10 minutes")?.context("the controller has ended")? {
                Report::Settled => return Ok(()),
                Report::Trouble(trouble) => say(&format!("trouble: {trouble:?}")),
                _ => {}
            }
        }
    }

    async fn stop(self) -> Result<()> {
        self.shutdown.cancel();
        Ok(self.task.await?)
    }
}

/// Requests that the API server has answered, by verb and resource. A watch counts when it ends.
async fn requests(control_plane: &ControlPlane) -> Result<BTreeMap<String, u64>> {
    let metrics = control_plane.metrics().await?;
    let mut counts = BTreeMap::new();
    for line in metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        let label = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let key = format!("{} {}", label("verb").unwrap_or_default(), label("resource").unwrap_or_default());
        let count =
            line.rsplit_once(' ').and_then(|(_, count)| count.parse::<f64>().ok()).unwrap_or_default();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter")]
        let count = count as u64;
        *counts.entry(key).or_insert(0) += count;
    }
    Ok(counts)
}

fn grown(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let difference = |(key, count): (&String, &u64)| {
        let more = count - before.get(key).copied().unwrap_or_default().min(*count);
        (more > 0).then(|| (key.clone(), more))
    };
    after.iter().filter_map(difference).collect()
}

/// Resident memory of this process, in kibibytes.
fn memory() -> Result<u64> {
    let status = spur_sdk::fs::read_text(std::path::Path::new("/proc/self/status"), 1 << 20)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    line.trim().trim_end_matches(" kB").trim().parse().context("VmRSS")
}

/// When each quota was last seen with which count of pods: the bench's own eyes on the server.
type Seen = Arc<Mutex<Vec<(Instant, String, String)>>>;

async fn follow(client: Client, seen: Seen) -> Result<()> {
    let quotas: Api<ResourceQuota> = Api::all(client);
    loop {
        let parameters = WatchParams::default().fields("metadata.name=spur-quota").timeout(290);
        let mut events = Box::pin(quotas.watch(&parameters, "0").await?);
        while let Some(event) = events.try_next().await? {
            if let WatchEvent::Added(quota) | WatchEvent::Modified(quota) = event {
                let hard = quota.spec.and_then(|spec| spec.hard).unwrap_or_default();
                let value = |key: &str| hard.get(key).map(|quantity| quantity.0.clone()).unwrap_or_default();
                let spelled = format!("{}/{}", value("pods"), value("requests.cpu"));
                let namespace = quota.metadata.namespace.unwrap_or_default();
                seen.lock().unwrap_or_else(PoisonError::into_inner).push((
                    Instant::now(),
                    namespace,
                    spelled,
                ));
            }
        }
    }
}

/// Waits until a quota is seen with a value after a moment.
async fn appears(seen: &Seen, after: Instant, namespace: &str, wanted: &str) -> Result<Duration> {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let found = {
            let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            let mut found =
                seen.iter().filter(|(at, name, value)| *at >= after && name == namespace && value == wanted);
            found.next().map(|(at, ..)| at.duration_since(after))
        };
        if let Some(found) = found {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("{namespace} is not {wanted} within a minute");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn edit(client: &Client, namespace: &str, hard: Value) -> Result<()> {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), namespace);
    let patch = json!({ "spec": { "hard": hard } });
    quotas.patch("spur-quota", &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

fn distribution(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |part: usize| times.get((times.len() * part / 100).min(times.len().saturating_sub(1)));
    let spell = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1000.0);
    format!("p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms", spell(at(50)), spell(at(99)), spell(times.last()))
}

/// Edits one account after the other, at a pace; how long each took from the answer to the edit until it was put back.
async fn reverts(
    client: &Client,
    seen: &Seen,
    accounts: usize,
    edits: usize,
    pace: Duration,
) -> Result<Vec<Duration>> {
    let mut waiting = Vec::new();
    for number in 0..edits {
        let namespace = format!("spur-acct-account-{}", number * 7 % accounts);
        let before = {
            let quota: Api<ResourceQuota> = Api::namespaced(client.clone(), &namespace);
            let hard = quota.get("spur-quota").await?.spec.and_then(|spec| spec.hard).unwrap_or_default();
            let value = |key: &str| hard.get(key).map(|quantity| quantity.0.clone()).unwrap_or_default();
            format!("{}/{}", value("pods"), value("requests.cpu"))
        };
        let start = Instant::now();
        edit(client, &namespace, json!({ "pods": "9999" })).await?;
        let seen = Arc::clone(seen);
        let edited = Instant::now();
        waiting
            .push(tokio::spawn(async move { appears(&seen, edited.min(start), &namespace, &before).await }));
        tokio::time::sleep(pace.saturating_sub(start.elapsed())).await;
        if pace.is_zero()
            && let Some(last) = waiting.last_mut()
        {
            last.await??;
            waiting.pop();
        }
    }
    let mut times = Vec::new();
    for task in waiting {
        times.push(task.await??);
    }
    Ok(times)
}

#[tokio::main]
async fn main() -> Result<()> {
    let argument = |at: usize, default: usize| {
        std::env::args().nth(at).map_or(Ok(default), |text| text.parse().context("a number"))
    };
    let (accounts, converged, edits) = (argument(1, 1_000)?, argument(2, 300)?, argument(3, 200)?);
    let control_plane = ControlPlane::start().await?;
    let client = control_plane.client().await?;
    let store = Store::new(site(accounts, 1)?);
    let empty = memory()?;

    let start = Instant::now();
    let mut running = Running::start(&store, &client);
    running.settled().await?;
    say(&format!("{accounts} accounts from nothing to settled: {:.1} s", start.elapsed().as_secs_f64()));
    let full = memory()?;
    say(&format!(
        "memory: {} MiB, {} KiB per account beyond the empty program",
        full / 1024,
        (full - empty) / accounts as u64
    ));
    running.stop().await?;

    let before = requests(&control_plane).await?;
    let start = Instant::now();
    let mut running = Running::start(&store, &client);
    running.settled().await?;
    let took = start.elapsed();
    let more = grown(&before, &requests(&control_plane).await?);
    say(&format!("start-up with everything in step: {:.2} s; requests: {more:?}", took.as_secs_f64()));

    let before = requests(&control_plane).await?;
    tokio::time::sleep(Duration::from_secs(converged as u64)).await;
    let more = grown(&before, &requests(&control_plane).await?);
    say(&format!("{converged} s converged, requests at the server by everybody: {more:?}"));
    ensure!(running.reports.try_recv().is_err(), "a converged controller reports nothing");

    let seen: Seen = Arc::default();
    let eyes = tokio::spawn(follow(client.clone(), Arc::clone(&seen)));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let times = reverts(&client, &seen, accounts, edits, Duration::from_millis(500)).await?;
    say(&format!("hand edit to put back, 2 a second: {}", distribution(times)));
    let times = reverts(&client, &seen, accounts, edits, Duration::from_millis(100)).await?;
    say(&format!("hand edit to put back, 10 a second: {}", distribution(times)));
    running.settled().await?;

    let mut times = Vec::new();
    let mut touched = 0;
    for number in 0..edits.min(100) {
        // A leaf, with less than any account above it has: nobody else's cap follows.
        let number = accounts / 2 + number;
        let namespace = format!("spur-acct-account-{number}");
        let before = requests(&control_plane).await?;
        let mut model = store.model.borrow().clone();
        let name: spur_sdk::AccountName = format!("account-{number}").parse()?;
        let account = model.accounts.get_mut(&name).context("an account")?;
        let origin = account.origin.clone();
        let cores = 40 + number % 10;
        let mut changed = Model::default();
        let allocation = format!("cpu={cores},mem={},gres/gpu={}", 256_000 + number, 1 + number % 8);
        changed.add_account(&origin, name.as_str(), None, &allocation)?;
        let limits = changed.accounts.get(&name).context("an account")?.terms.limits.clone();
        account.terms.limits = limits;
        let start = Instant::now();
        store.model.send_replace(model);
        let expected = |value: &str| value.ends_with(&format!("/{cores}"));
        let deadline = Instant::now() + Duration::from_mins(1);
        let took = loop {
            let found = {
                let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                let mut found = seen
                    .iter()
                    .filter(|(at, name, value)| *at >= start && *name == namespace && expected(value));
                found.next().map(|(at, ..)| at.duration_since(start))
            };
            if let Some(found) = found {
                break found;
            }
            ensure!(Instant::now() < deadline, "{namespace} is not written within a minute");
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        times.push(took);
        running.settled().await?;
        let more = grown(&before, &requests(&control_plane).await?);
        touched +=
            more.iter().filter(|(key, _)| key.starts_with("APPLY ")).map(|(_, count)| count).sum::<u64>();
    }
    let count = times.len();
    say(&format!(
        "one changed account of {accounts}, from the source's notification to written: {}",
        distribution(times)
    ));
    say(&format!("writes for {count} such changes: {touched}"));
    eyes.abort();
    running.stop().await?;
    control_plane.stop().await
}
