//! The main job in a minute, on a real API server: accounts become Kubernetes tenancy, and stay so.
//!
//! ```text
//! cargo run --release --example quickstart [-- --keep]
//! ```
//!
//! The first run builds Kubernetes' control plane from its Go modules (about 8 minutes on two cores), later ones
//! start it in seconds. Nothing runs in the pods: there is no node, and what this shows is decided before one is
//! needed.

#[path = "quickstart/accounts.rs"]
mod accounts;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::json;
use spur_sdk::Deadlines;
use spur_sdk_quota::cluster::{ApplyOptions, Plan, PlanOptions, apply, observe, plan};
use spur_sdk_quota::k8s::KubeApi;
use spur_sdk_quota::source::{ReadOptions, read};
use spur_sdk_quota::{Model, Policy, QuotaProjector, explain, names};
use spur_test_control_plane::ControlPlane;

const ACCOUNTS: &str = include_str!("accounts.toml");

#[expect(clippy::print_stdout, reason = "this is a program")]
fn say(text: &str) {
    println!("{text}");
}

fn title(text: &str) {
    say(&format!("\n== {text}"));
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let keep = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--keep"] => true,
        ["-h" | "--help"] => {
            say(
                "Usage: cargo run --release --example quickstart [-- --keep]\n\n  --keep  leave the control plane running and print its kubeconfig",
            );
            return ExitCode::SUCCESS;
        }
        other => {
            say(&format!("unknown argument {}; there is only --keep", other.join(" ")));
            return ExitCode::from(64);
        }
    };
    let run =
        tokio::runtime::Runtime::new().context("start the runtime").and_then(|rt| rt.block_on(tour(keep)));
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("failed: {}", spur_sdk::error_chain(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

async fn tour(keep: bool) -> Result<()> {
    title("1. A real Kubernetes control plane: etcd, API server, controller manager, scheduler");
    let control_plane = ControlPlane::start().await?;
    let begun = Instant::now();
    say(&format!("up at {} after {:.1} s", control_plane.url(), control_plane.start_time().as_secs_f64()));
    let client = control_plane.client().await?;
    let api = KubeApi::new(client.clone(), Deadlines::default());
    let policy = Policy::default();

    title("2. examples/accounts.toml: an invented site");
    let model = read(ACCOUNTS, "examples/accounts.toml", ReadOptions::default())?;
    let projection = QuotaProjector::new(&policy).project(&model);
    say(&format!(
        "{:<18} {:<46} {:>6} {:>11} {:>5}  {}",
        "ACCOUNT", "NAMESPACE", "CPU", "MEMORY", "GPU", "MEMBERS"
    ));
    for account in &projection.accounts {
        let cap = |name: &str| {
            let found = account.caps.iter().find(|(dimension, _)| dimension.to_string() == name);
            found.map_or("-".to_owned(), |(dimension, cap)| dimension.display_amount(cap.amount))
        };
        let members: Vec<_> = account.members.iter().map(ToString::to_string).collect();
        let state = if account.closed.is_some() { " (closed)" } else { "" };
        say(&format!(
            "{:<18} {:<46} {:>6} {:>11} {:>5}  {}{state}",
            account.account.as_str(),
            account.namespace,
            cap("cpu"),
            cap("memory"),
            cap("amd.com/gpu"),
            members.join(" ")
        ));
    }

    title("3. Apply: what restricts first, members last");
    let first = planned(&api, &policy, &model).await?;
    let report = apply(&first, &api, &ApplyOptions::default()).await;
    ensure!(report.is_complete(), "not applied in full: {report:#?}");
    say(&format!(
        "{} objects for {} accounts in {} ms; every quota bound, and members let in, after {} ms more",
        report.writes,
        report.accounts.len(),
        report.written_ms,
        report.binding_ms
    ));
    let again = planned(&api, &policy, &model).await?;
    ensure!(again.is_empty(), "a second plan is not empty: {again}");
    say("planning again: nothing to do");
    show_quota(&client).await?;

    title("4. alice is a member of optics; her ServiceAccount is all she has");
    let name = names::SERVICE_ACCOUNTS.map("alice");
    let alice = control_plane.client_for_service_account(names::USERS_NAMESPACE, &name).await?;
    attempt(&alice, "spur-acct-optics", "4", true).await?;
    attempt(&alice, "spur-acct-optics", "64", false).await?;
    attempt(&alice, "spur-acct-chemistry", "1", false).await?;
    let optics = "optics".parse()?;
    let explanation = explain(&model, &policy, &optics).context("no such account")?;
    say(&format!("\nwhy 64 (`spur quota explain examples/accounts.toml optics`):\n\n{explanation}"));

    title("5. Somebody edits the quota by hand");
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "spur-acct-optics");
    let edit = json!({ "spec": { "hard": { "requests.cpu": "9999" } } });
    quotas.patch("spur-quota", &PatchParams::default(), &Patch::Merge(&edit)).await?;
    let drift = planned(&api, &policy, &model).await?;
    ensure!(!drift.is_empty(), "the edit was not seen");
    say(&format!("plan:\n{drift}"));
    let report = apply(&drift, &api, &ApplyOptions::default()).await;
    ensure!(report.is_complete(), "not put right: {report:#?}");
    show_quota(&client).await?;

    title("6. A controller keeps the accounts; alice gets a kubeconfig (on a control plane of its own)");
    accounts::story().await?;

    title(&format!("Done in {:.1} s. What to try next", begun.elapsed().as_secs_f64()));
    say("  cargo run --release -p spur -- quota render examples/accounts.toml        the objects, as YAML");
    say(
        "  cargo run --release -p spur -- quota report examples/accounts.toml        what Kubernetes cannot hold, and why",
    );
    say("  sacctmgr dump CLUSTER file=site.dump                            a Slurm site's accounts; then");
    say("  cargo run --release -p spur -- quota render -o table site.dump");
    if keep {
        let kept = control_plane.keep()?;
        say(&format!(
            "\nThe control plane stays up. Use it:\n  export KUBECONFIG={}",
            kept.kubeconfig.display()
        ));
        say("  cargo run --release -p spur -- quota plan examples/accounts.toml");
        say(&format!("End it:\n  sh {}", kept.stop.display()));
        return Ok(());
    }
    say("  --keep leaves the control plane running and prints a kubeconfig");
    control_plane.stop().await
}

async fn planned(api: &KubeApi, policy: &Policy, model: &Model) -> Result<Plan> {
    let observed = observe(api).await?;
    let projector = QuotaProjector::new(policy).default_priority_class(observed.default_priority_class());
    Ok(plan(&projector.project(model), &observed, &PlanOptions::default()))
}

async fn show_quota(client: &Client) -> Result<()> {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "spur-acct-optics");
    let status = quotas.get("spur-quota").await?.status.context("a quota without status")?;
    let (hard, used) = (status.hard.unwrap_or_default(), status.used.unwrap_or_default());
    say("spur-acct-optics/spur-quota as the API server has it:");
    for key in ["requests.cpu", "requests.memory", "requests.amd.com/gpu", "pods"] {
        let text = |map: &std::collections::BTreeMap<String, _>| {
            map.get(key).map_or(
                "-".to_owned(),
                |quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| quantity.0.clone(),
            )
        };
        say(&format!("  {key:<22} used {:>6} of {}", text(&used), text(&hard)));
    }
    Ok(())
}

/// Creates a pod, and says what the API server answers.
async fn attempt(client: &Client, namespace: &str, cpu: &str, allowed: bool) -> Result<()> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "generateName": "job-" },
        "spec": { "containers": [{
            "name": "work", "image": "example", "resources": { "requests": { "cpu": cpu, "memory": "1Gi" } },
        }] },
    }))?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut answer = pods.create(&PostParams::default(), &pod).await;
    // The API server takes a RoleBinding in a moment after it is written.
    let deadline = Instant::now() + Duration::from_secs(10);
    while allowed && answer.is_err() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(50)).await;
        answer = pods.create(&PostParams::default(), &pod).await;
    }
    match answer {
        Ok(_) if allowed => say(&format!("a pod of {cpu} cores in {namespace}: created")),
        Err(Error::Api(status)) if !allowed && status.code == 403 => {
            say(&format!("a pod of {cpu} cores in {namespace}: refused\n    {}", status.message));
        }
        Ok(_) => bail!("a pod of {cpu} cores in {namespace} was let in"),
        Err(error) => return Err(error).context("create a pod"),
    }
    Ok(())
}
