//! Whether the tenant guard is in force.

use std::time::Duration;

use serde_json::{Value, json};
use spur_sdk::error_chain;
use tokio::time::{Instant, sleep};

use super::steps::is_past;
use crate::cluster::plan::{Action, Plan};
use crate::cluster::{ClusterApi, Key, Kind, get};
use crate::project::names;

/// Waits until the guard is in force: what the plan has written of it type-checked by the controller manager,
/// and all of it judged by in the API server, which takes policies in by itself. Of several API servers this
/// asks one.
pub(super) async fn verify<A: ClusterApi>(plan: &Plan, api: &A, timeout: Duration) -> Result<(), String> {
    let written = plan.shared.iter().filter(|step| {
        step.target.kind == Kind::ValidatingAdmissionPolicy && !matches!(step.action, Action::Delete { .. })
    });
    for step in written {
        observed(api, &step.target, timeout).await?;
    }
    let admits = plan.accounts.iter().any(|account| !account.admit.is_empty());
    let touched = plan.shared.iter().any(|step| step.target.name.starts_with(names::GUARD));
    match &plan.guard {
        Some(answer) if admits || touched => in_force(api, answer, timeout).await,
        _ => Ok(()),
    }
}

/// Asks by a dry run until the guard refuses its probe in the words of the version that is wanted.
async fn in_force<A: ClusterApi>(api: &A, answer: &str, timeout: Duration) -> Result<(), String> {
    // Passes Pod Security, which comes before the guard.
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": names::GUARD_PROBE },
        "spec": {
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "probe",
                "image": "probe",
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            }],
        },
    });
    let deadline = Instant::now().checked_add(timeout);
    loop {
        // Until the controller manager has made the `default` ServiceAccount, the answer is another refusal.
        let refusal = api.refusal(names::USERS_NAMESPACE, &pod).await;
        let refusal = refusal.map_err(|error| format!("probe the tenant guard: {}", error_chain(&error)))?;
        if refusal.as_ref().is_some_and(|message| message.contains(answer)) {
            return Ok(());
        }
        if is_past(deadline) {
            let refusal = refusal.unwrap_or_else(|| "its probe would be let in".to_owned());
            return Err(format!(
                "the tenant guard is written and not in force after {} s ({refusal}); run again to go on",
                timeout.as_secs()
            ));
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until Kubernetes has taken in a policy of the guard, and reports what its type checker says.
async fn observed<A: ClusterApi>(api: &A, key: &Key, timeout: Duration) -> Result<(), String> {
    let deadline = Instant::now().checked_add(timeout);
    loop {
        let live = get(api, key).await.map_err(|error| format!("read {key}: {}", error_chain(&error)))?;
        let number = |pointer| live.as_ref().and_then(|live| live.pointer(pointer)).and_then(Value::as_i64);
        let seen = number("/status/observedGeneration");
        if seen.is_some() && seen >= number("/metadata/generation") {
            // Warnings of an earlier generation say nothing.
            if let Some(warnings) =
                live.as_ref().and_then(|live| live.pointer("/status/typeChecking/expressionWarnings"))
            {
                return Err(format!("{key} does not type-check: {warnings}"));
            }
            return Ok(());
        }
        if is_past(deadline) {
            return Err(format!(
                "{key} is written, but the controller manager has not taken it in within {} s; is it running? Run \
                 again to go on",
                timeout.as_secs()
            ));
        }
        sleep(Duration::from_millis(100)).await;
    }
}
