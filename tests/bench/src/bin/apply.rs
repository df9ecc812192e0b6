//! The first apply of 1 000 accounts against a bare loop of the same writes, on real control planes, in one run.
//!
//! "Written" is the time until everything that restricts is written: that is ours to make fast, and what the bare
//! loop does too. "Binding" is the time from then until the last member is let in: the controller manager fills in
//! the status of quotas at its own pace (20 requests a second by default), and nothing of ours can hasten it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::Value;
use spur_bench::site;
use spur_sdk::Deadlines;
use spur_sdk_quota::cluster::{ApplyOptions, PlanOptions, apply, observe, plan};
use spur_sdk_quota::k8s::{KubeApi, Object};
use spur_sdk_quota::{Policy, Projection, QuotaProjector};
use spur_test_control_plane::ControlPlane;

#[expect(clippy::print_stdout, reason = "this is a program")]
fn say(text: &str) {
    println!("{text}");
}

struct Write {
    api: Api<DynamicObject>,
    name: String,
    object: Value,
}

fn writes(client: &Client, objects: &[Object]) -> Result<Vec<Write>> {
    let restricts = objects.iter().filter(|object| !matches!(object, Object::RoleBinding(_)));
    restricts
        .map(|object| {
            let (group, version) = object.api_version().split_once('/').unwrap_or(("", object.api_version()));
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, object.kind()));
            let api = match object.namespace() {
                Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
                None => Api::all_with(client.clone(), &resource),
            };
            Ok(Write { api, name: object.name().to_owned(), object: serde_json::to_value(object)? })
        })
        .collect()
}

async fn write(write: &Write) -> Result<()> {
    let parameters = PatchParams::apply("spur-quota").force();
    write.api.patch(&write.name, &parameters, &Patch::Apply(&write.object)).await?;
    Ok(())
}

/// The same writes without any of our machinery: users' ServiceAccounts; of an account its namespace, then what is
/// in it at once.
async fn bare(client: &Client, projection: &Projection, concurrency: usize) -> Result<(usize, Duration)> {
    let (shared, users): (Vec<_>, Vec<_>) =
        projection.shared.iter().cloned().partition(|object| object.namespace().is_none());
    let users = users.iter().map(|user| writes(client, std::slice::from_ref(user)));
    let accounts = projection.accounts.iter().map(|account| writes(client, &account.objects));
    let units = users.chain(accounts).collect::<Result<Vec<_>>>()?;
    let shared = writes(client, &shared)?;
    let count = units.iter().map(Vec::len).sum::<usize>() + shared.len();
    let start = Instant::now();
    for object in &shared {
        write(object).await?;
    }
    let mut running = stream::iter(units.iter().map(|writes| async move {
        for namespace in writes.iter().take(1) {
            write(namespace).await?;
        }
        futures::future::try_join_all(writes.iter().skip(1).map(write)).await.map(drop)
    }))
    .buffer_unordered(concurrency);
    while let Some(result) = running.next().await {
        result?;
    }
    Ok((count, start.elapsed()))
}

#[tokio::main]
async fn main() -> Result<()> {
    let accounts = std::env::args().nth(1).map_or(Ok(1_000), |text| text.parse())?;
    let model = site(accounts, 1)?;
    let policy = Policy::default();
    let projection = QuotaProjector::new(&policy).project(&model);
    let mut best = 0.0_f64;
    let mut restricts = 0;
    for concurrency in [8, 16, 32, 64] {
        let control_plane = ControlPlane::start().await?;
        let (count, time) = bare(&control_plane.client().await?, &projection, concurrency).await?;
        let rate = rate(count, time);
        say(&format!(
            "bare loop, {concurrency:>2} accounts at a time: {count} writes in {:.2} s, {rate:.0}/s",
            time.as_secs_f64()
        ));
        best = best.max(rate);
        restricts = count;
        control_plane.stop().await?;
    }
    {
        let concurrency = ApplyOptions::default().concurrency;
        let control_plane = ControlPlane::start().await?;
        let client = control_plane.client().await?;
        let api = KubeApi::new(client.clone(), Deadlines::default());
        let observed = observe(&api).await?;
        let steps = plan(&projection, &observed, &PlanOptions::default());
        let before = requests(&control_plane).await?;
        let report = apply(&steps, &api, &ApplyOptions::default()).await;
        ensure!(report.is_complete(), "{report:#?}");
        let after = requests(&control_plane).await?;
        let written = Duration::from_millis(report.written_ms);
        let rate = rate(restricts, written);
        say(&format!(
            "apply, {concurrency} accounts at a time: {} writes; the loop's {restricts} written in {:.2} s, {rate:.0}/s, \
             {:.2} of the best bare loop; binding {:.1} s more; {} requests at the server by this client",
            report.writes,
            written.as_secs_f64(),
            rate / best,
            Duration::from_millis(report.binding_ms).as_secs_f64(),
            after - before,
        ));
        let start = Instant::now();
        let observed = observe(&api).await?;
        let reading = start.elapsed();
        let again = plan(&projection, &observed, &PlanOptions::default());
        ensure!(again.is_empty(), "{again}");
        say(&format!(
            "observe and plan with everything in step: {:.2} s, of which reading {:.2} s; no writes",
            start.elapsed().as_secs_f64(),
            reading.as_secs_f64()
        ));
        let namespaces: Api<Namespace> = Api::all(client);
        let one = namespaces.get("spur-acct-account-1").await?;
        ensure!(one.name_any() == "spur-acct-account-1");
        control_plane.stop().await?;
    }
    Ok(())
}

fn rate(count: usize, time: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / time.as_secs_f64()
}

/// PATCH requests that the API server has answered, by whomever: nobody else patches in this time.
async fn requests(control_plane: &ControlPlane) -> Result<u64> {
    let metrics = control_plane.metrics().await?;
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("apiserver_request_total{") && line.contains("verb=\"APPLY\""));
    let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter")]
    Ok(counts.sum::<f64>() as u64)
}
