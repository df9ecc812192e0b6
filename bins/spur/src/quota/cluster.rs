//! Commands that talk to a cluster.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use spur_sdk::{Deadlines, error_chain};
use spur_sdk_quota::cluster::{
    AccountOutcome, ApplyOptions, ApplyReport, Plan, PlanOptions, Progress, apply as apply_plan, observe,
    plan as make_plan,
};
use spur_sdk_quota::k8s::KubeApi;
use spur_sdk_quota::{Projection, QuotaProjector};

use super::pure::tell_closed;
use super::sources::{read, tell_problems};
use super::{Input, Reach, Target};
use crate::exit::Exit;
use crate::output::{self, Format};

/// An error of kube's without its sources, which its text holds already.
fn unusable(kubeconfig: &str, error: &KubeconfigError) -> anyhow::Error {
    match error {
        KubeconfigError::ReadConfig(error, path) => anyhow!("read kubeconfig {}: {error}", path.display()),
        other => anyhow!("{kubeconfig}: {other}"),
    }
}

/// The cluster, and what errors call it.
pub(super) async fn connect(target: &Reach) -> anyhow::Result<(KubeApi, String)> {
    let deadlines = Deadlines::default();
    let options = KubeConfigOptions { context: target.context.clone(), ..KubeConfigOptions::default() };
    let mut config = if let Some(path) = &target.kubeconfig {
        let unusable = |error| unusable(&format!("kubeconfig {}", path.display()), &error);
        let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
        kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(unusable)?
    } else if target.context.is_some() {
        let found = kube::Config::from_kubeconfig(&options).await;
        found.map_err(|error| unusable("kubeconfig", &error))?
    } else {
        kube::Config::infer().await.map_err(|error| {
            // Of the two places that were tried, the pod's ServiceAccount is seldom what was meant.
            let kubeconfig = error.source().and_then(|source| source.downcast_ref());
            let cause = kubeconfig.map_or_else(|| anyhow!("{error}"), |error| unusable("kubeconfig", error));
            anyhow!("no cluster is configured, name one with --kubeconfig FILE: {cause}")
        })?
    };
    config.connect_timeout = Some(deadlines.connect);
    let name = format!("cluster at {}", config.cluster_url);
    let client = kube::Client::try_from(config).with_context(|| name.clone())?;
    Ok((KubeApi::new(client, deadlines), name))
}

async fn prepare(
    sources: &[PathBuf],
    input: &Input,
    target: &Target,
) -> anyhow::Result<(KubeApi, Projection, Plan, Exit)> {
    let (policy, model) = read(sources, input)?;
    // What ran before a pipe may have failed; a run that does nothing would look like one that went well.
    if model.accounts.is_empty() && model.problems.is_empty() {
        bail!("the sources name no account, so there is nothing to plan");
    }
    let (api, name) = connect(&target.reach).await?;
    let observed = observe(&api).await.context(name)?;
    let projection = QuotaProjector::new(&policy)
        .default_priority_class(observed.default_priority_class())
        .project(&model);
    let exit = tell_problems(&projection);
    let plan = make_plan(&projection, &observed, &PlanOptions::default().adopt(target.adopt));
    Ok((api, projection, plan, exit))
}

pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")
}

pub(super) fn plan(
    sources: &[PathBuf],
    input: &Input,
    target: &Target,
    exit_code: bool,
    format: Format,
) -> anyhow::Result<Exit> {
    let (_, projection, plan, exit) = runtime()?.block_on(prepare(sources, input, target))?;
    output::value(format, &plan, || output::coloured(&plan.to_string()))?;
    tell_closed(&projection);
    if exit == Exit::Failed || plan.refused.iter().any(|refusal| refusal.account.is_none()) {
        return Ok(Exit::Failed);
    }
    let all_refused = !plan.refused.is_empty() && plan.accounts.is_empty() && plan.unchanged == 0;
    Ok(match exit {
        _ if all_refused => Exit::Failed,
        Exit::Partly => Exit::Partly,
        _ if !plan.refused.is_empty() => Exit::Partly,
        _ if exit_code && !plan.is_empty() => Exit::Differences,
        _ => Exit::Done,
    })
}

/// Says how far a run has come, once a second.
fn progress() -> impl Fn(Progress) + Send + Sync + 'static {
    let last = Mutex::new(Instant::now());
    move |progress| {
        let mut last = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.elapsed() < Duration::from_secs(1) {
            return;
        }
        *last = Instant::now();
        let Progress { accounts, written, done, .. } = progress;
        output::status(&format!("{written} of {accounts} accounts written, {done} done"));
    }
}

pub(super) fn apply(
    sources: &[PathBuf],
    input: &Input,
    target: &Target,
    options: ApplyOptions,
    format: Format,
) -> anyhow::Result<Exit> {
    let options = options.progress(progress());
    let (projection, plan, exit, report) = runtime()?.block_on(async {
        let (api, projection, plan, exit) = prepare(sources, input, target).await?;
        if !plan.accounts.is_empty() {
            output::status(&format!("{} steps for {} accounts", plan.steps().count(), plan.accounts.len()));
        }
        let report = apply_plan(&plan, &api, &options).await;
        anyhow::Ok((projection, plan, exit, report))
    })?;
    output::value(format, &report, || summary(&report))?;
    for over in &plan.over_quota {
        let (account, key) = (&over.account, &over.key);
        output::warning(&format!(
            "account {account} uses {key} {} of {}; nothing is evicted, nothing new is let in",
            over.used, over.hard
        ));
    }
    if !plan.paused.is_empty() {
        let names: Vec<_> = plan.paused.iter().map(spur_sdk::AccountName::as_str).collect();
        output::note(&format!("paused by an annotation, nothing done in: {}", output::shorten(&names)));
    }
    if !plan.unlisted.is_empty() {
        let names: Vec<_> = plan.unlisted.iter().map(String::as_str).collect();
        output::note(&format!(
            "left alone, since the sources do not name the account: {}",
            output::shorten(&names)
        ));
    }
    tell_closed(&projection);
    Ok(match () {
        () if report.is_complete() && exit == Exit::Done => Exit::Done,
        () if report.is_untouched() && (report.unchanged == 0 || !report.shared.is_empty()) => Exit::Failed,
        () if report.is_complete() && exit == Exit::Failed => Exit::Failed,
        () => Exit::Partly,
    })
}

fn summary(report: &ApplyReport) -> String {
    let shared = report.shared.iter().chain(&report.users);
    let mut lines: Vec<String> = shared.map(|error| format!("failed: {}", error_chain(error))).collect();
    let mut applied = 0_usize;
    for account in &report.accounts {
        let name = &account.account;
        match &account.outcome {
            AccountOutcome::Failed { error } => {
                lines.push(format!("failed: account {name}: {}", error_chain(error)));
            }
            AccountOutcome::NotLetIn { reason } => {
                lines.push(format!("not let in: account {name}: {reason}"));
            }
            _ => applied += 1,
        }
    }
    lines.extend(report.refused.iter().map(|refusal| match &refusal.account {
        Some(account) => format!("refused: account {account}: {}", refusal.reason),
        None => format!("refused: {}", refusal.reason),
    }));
    lines.push(format!(
        "{applied} accounts applied, {} in step, {} not; {} writes in {:.1} s, members let in after {:.1} s more",
        report.unchanged,
        report.accounts.len() - applied + report.refused.len(),
        report.writes,
        seconds(report.written_ms),
        seconds(report.binding_ms),
    ));
    lines.join("\n")
}

fn seconds(milliseconds: u64) -> f64 {
    Duration::from_millis(milliseconds).as_secs_f64()
}
