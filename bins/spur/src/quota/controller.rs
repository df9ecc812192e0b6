//! Commands around the controller.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use comfy_table::{Table, presets};
use spur_sdk::error_chain;
use spur_sdk_quota::cluster::{
    Compared, ControllerOptions, Kept, LeaseSettings, PlanOptions, PruneOptions, PrunePlan, QuotaController,
    RemovalsDecision, Report, SiteStatus, State, confirm_removals, observe, plan as make_plan, plan_prune,
    prune as delete_planned, removals, site_status,
};
use spur_sdk_quota::source::{FileSource, Merged, ReadOptions, SpurSource};
use spur_sdk_quota::{CancellationToken, Policy, QuotaProjector};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::cluster::{connect, runtime};
use super::sources::{policy as read_policy, read, tell_problems};
use super::{FromSpur, Input, LeaseArgs, Pruned, Reach, Target, Watching};
use crate::exit::{Exit, UsageError};
use crate::output::{self, Format};

impl LeaseArgs {
    fn settings(self) -> LeaseSettings {
        LeaseSettings::default().namespace(self.lease_namespace).name(self.lease_name)
    }
}

impl Watching {
    fn options(self, adopt: bool) -> ControllerOptions {
        let mut lease = self.lease.settings().duration(Duration::from_secs(self.lease_duration));
        if let Some(identity) = self.identity {
            lease = lease.identity(identity);
        }
        ControllerOptions::default()
            .lease(Some(lease).filter(|_| !self.no_lease))
            .delete_retired_after(self.delete_retired_after)
            .concurrency(self.concurrency.into())
            .adopt(adopt)
    }
}

fn policy_or_default(path: Option<&Path>) -> anyhow::Result<Policy> {
    path.map_or_else(|| Ok(Policy::default()), read_policy)
}

pub(super) fn watch(
    sources: &[PathBuf],
    spur: FromSpur,
    input: &Input,
    target: &Target,
    watching: Watching,
    format: Format,
) -> anyhow::Result<Exit> {
    let controller = spur.controller();
    if sources.iter().any(|source| source.as_os_str() == "-") {
        bail!(UsageError("standard input (-) cannot be watched; name files"));
    }
    let policy = policy_or_default(input.policy.as_deref())?;
    let reading = ReadOptions::default().format(input.reading.format()).complete(input.complete);
    let files: Vec<_> = sources.iter().map(|path| FileSource::new(path, reading)).collect();
    let (sender, reports) = mpsc::channel(1024);
    let options = watching.options(target.adopt).reports(sender);
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let (api, name) = connect(&target.reach).await?;
        let shutdown = stop_on_signal()?;
        output::status(&format!("{name}; stop with Ctrl-C"));
        let stop = shutdown.clone();
        let printing = tokio::task::spawn_blocking(move || {
            let printed = print(reports, format);
            stop.cancel();
            printed
        });
        // The sender goes with the controller, and the last report ends the printing.
        match controller {
            Some(spur) => {
                let source = SpurSource::new(spur.client()?);
                QuotaController::with(options).serve(source, api, policy, shutdown).await?;
            }
            None => QuotaController::with(options).serve(Merged::new(files), api, policy, shutdown).await?,
        }
        // Whoever reads may have stopped reading.
        tokio::time::timeout(Duration::from_secs(1), printing).await.unwrap_or(Ok(Ok(())))?
    });
    // A file server that hangs holds a thread for ever.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended.map(|()| Exit::Done)
}

/// Is cancelled when the program is asked to end.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let shutdown = CancellationToken::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let mut signal = signal(kind).context("listen for signals")?;
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            signal.recv().await;
            shutdown.cancel();
        });
    }
    Ok(shutdown)
}

/// Prints reports until the last one. It waits for whoever reads them, so it has a thread of its own; what does not
/// fit into the channel meanwhile is dropped.
fn print(mut reports: mpsc::Receiver<Report>, format: Format) -> anyhow::Result<()> {
    while let Some(report) = reports.blocking_recv() {
        match format {
            Format::Table => output::print(&report.to_string())?,
            Format::Json => {
                output::print(&serde_json::to_string(&report).context("write JSON")?)?;
            }
            Format::Yaml => output::print(&format!("---\n{}", output::yaml(&report)?))?,
        }
    }
    Ok(())
}

pub(super) fn status(
    sources: &[PathBuf],
    input: &Input,
    target: &Target,
    lease: LeaseArgs,
    exit_code: bool,
    format: Format,
) -> anyhow::Result<Exit> {
    let (policy, model) = if sources.is_empty() {
        (policy_or_default(input.policy.as_deref())?, None)
    } else {
        let (policy, model) = read(sources, input)?;
        (policy, Some(model))
    };
    let settings = lease.settings();
    let (status, exit) = runtime()?.block_on(async {
        let (api, name) = connect(&target.reach).await?;
        let observed = observe(&api).await.with_context(|| name.clone())?;
        let projector =
            QuotaProjector::new(&policy).default_priority_class(observed.default_priority_class());
        let projection = model.as_ref().map(|model| projector.project(model));
        let exit = projection.as_ref().map_or(Exit::Done, tell_problems);
        let compared = projection.as_ref().map(|projection| {
            let plan = make_plan(projection, &observed, &PlanOptions::default().adopt(target.adopt));
            (plan, removals(projection, &observed, SystemTime::now()))
        });
        let compared = compared.as_ref().map(|(plan, removals)| Compared::new(plan, removals));
        let status = site_status(&api, &observed, &policy.prefix, &settings, compared).await;
        anyhow::Ok((status.with_context(|| format!("{name}: read the Lease"))?, exit))
    })?;
    output::value(format, &status, || table(&status))?;
    Ok(match exit {
        Exit::Done if exit_code && !status.is_in_step() => Exit::Differences,
        exit => exit,
    })
}

fn table(status: &SiteStatus) -> String {
    let mut lines = Vec::new();
    lines.push(match (&*status.leader, &status.renewed_at) {
        ("", _) => "no controller leads".to_owned(),
        (leader, Some(renewed)) => format!("{leader} leads, last heard of at {renewed}"),
        (leader, None) => format!("{leader} leads"),
    });
    if let Some(removals) = &status.removals
        && removals.decision == RemovalsDecision::Held
    {
        lines.push(format!(
            "removals are held: {} of {} accounts vanished from the source; spur quota confirm {}",
            removals.vanished.len(),
            removals.accounts,
            removals.digest
        ));
    }
    lines.extend(status.shared.iter().map(|step| format!("shared, not in step: {step}")));
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["ACCOUNT", "NAMESPACE", "STATE", "WHY"]);
    for account in &status.accounts {
        let over = account
            .over_quota
            .iter()
            .map(|over| format!("over quota: {} {} of {}", over.key, over.used, over.hard));
        let since = account.retired_at.iter().map(|at| format!("since {at}"));
        let reason = Some(account.reason.clone()).filter(|reason| !reason.is_empty());
        // One that is in step has outlived its warnings.
        let fine = matches!(account.state, Some(State::InStep | State::Retired));
        let warning =
            account.warning.iter().filter(|_| !fine).map(|event| format!("last warning: {}", event.message));
        let why: Vec<_> = reason.into_iter().chain(since).chain(over).chain(warning).collect();
        table.add_row([
            account.account.clone(),
            account.namespace.clone(),
            account.state.map_or_else(|| "-".to_owned(), |state| state.to_string()),
            why.join("; "),
        ]);
    }
    lines.push(table.to_string());
    let count = |state| status.accounts.iter().filter(|account| account.state == Some(state)).count();
    let (accounts, retired, paused) = (status.accounts.len(), count(State::Retired), count(State::Paused));
    lines.push(match &status.removals {
        Some(_) => {
            format!("{accounts} accounts: {} in step, {retired} retired, {paused} paused", count(State::InStep))
        }
        None => format!(
            "{accounts} accounts, {retired} retired, {paused} paused; name a source to see whether they are in step"
        ),
    });
    lines.extend(
        status.warnings.iter().take(10).map(|event| format!("warning: {}: {}", event.reason, event.message)),
    );
    lines.join("\n")
}

pub(super) fn confirm(word: &str, policy: Option<&Path>, reach: &Reach) -> anyhow::Result<Exit> {
    let policy = policy_or_default(policy)?;
    runtime()?.block_on(async {
        let (api, name) = connect(reach).await?;
        confirm_removals(&api, &policy.prefix, word).await.context(name)
    })?;
    output::status("confirmed; a controller that holds exactly these removals goes on");
    Ok(Exit::Done)
}

pub(super) fn prune(
    pruned: Pruned,
    policy: Option<&Path>,
    reach: &Reach,
    format: Format,
) -> anyhow::Result<Exit> {
    let policy = policy_or_default(policy)?;
    let named = pruned.accounts.clone();
    let options = PruneOptions::default()
        .only(pruned.accounts)
        .retired_for(pruned.retired_for)
        .delete_data(pruned.delete_data);
    let (plan, failed) = runtime()?.block_on(async {
        let (api, name) = connect(reach).await?;
        let observed = observe(&api).await.with_context(|| name.clone())?;
        let plan = plan_prune(&api, &observed, &policy.prefix, &options, SystemTime::now());
        let plan = plan.await.with_context(|| name.clone())?;
        let failed = if pruned.dry_run { Vec::new() } else { delete_planned(&api, &plan).await };
        anyhow::Ok((plan, failed))
    })?;
    output::value(format, &plan, || prune_table(&plan, pruned.dry_run))?;
    for error in &failed {
        output::problem(&error_chain(error));
    }
    let found = |name: &String| {
        plan.namespaces.iter().any(|found| found.namespace == *name || found.account == *name)
    };
    let missing: Vec<_> = named.iter().filter(|name| !found(name)).map(String::as_str).collect();
    if !missing.is_empty() {
        output::problem(&format!("not retired, so not deleted: {}", output::shorten(&missing)));
    }
    let deleted = plan.namespaces.iter().filter(|found| found.kept.is_none()).count() - failed.len();
    // Of all that are retired, those that are too young are meant to stay.
    let fine = |kept| match kept {
        None | Some(Kept::BeingDeleted) => true,
        Some(Kept::TooYoung) => named.is_empty(),
        Some(_) => false,
    };
    let whole =
        failed.is_empty() && missing.is_empty() && plan.namespaces.iter().all(|found| fine(found.kept));
    Ok(match (whole, deleted) {
        (true, _) => Exit::Done,
        (false, 0) => Exit::Failed,
        (false, _) => Exit::Partly,
    })
}

fn prune_table(plan: &PrunePlan, dry_run: bool) -> String {
    if plan.namespaces.is_empty() {
        return "no account is retired".to_owned();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["NAMESPACE", "ACCOUNT", "RETIRED AT", "HOLDS", "DELETED"]);
    for found in &plan.namespaces {
        let deleted = match &found.kept {
            Some(reason) => format!("no: {reason}"),
            None if dry_run => "would be".to_owned(),
            None => "yes".to_owned(),
        };
        table.add_row([
            found.namespace.clone(),
            found.account.clone(),
            found.retired_at.clone(),
            found.holdings.to_string(),
            deleted,
        ]);
    }
    table.to_string()
}
