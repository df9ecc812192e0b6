//! Whether the tenant guard is in force.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::steps::is_past;
use crate::cluster::{ClusterApi, Key, StepError, get};
use crate::project::names;

/// Waits until the guard is in force: these policies of it type-checked by the controller manager, and all of it
/// judged by in the API server, which takes policies in by itself. Of several API servers this asks one. Without an
/// answer to expect nothing is asked.
pub(in crate::cluster) async fn verify<A: ClusterApi>(
    policies: &[Key],
    answer: Option<&str>,
    api: &A,
    timeout: Duration,
) -> Result<(), StepError> {
    for policy in policies {
        observed(api, policy, timeout).await?;
    }
    match answer {
        Some(answer) => in_force(api, answer, timeout).await,
        None => Ok(()),
    }
}

/// Asks by a dry run until the guard refuses its probe in the words of the version that is wanted.
async fn in_force<A: ClusterApi>(api: &A, answer: &str, timeout: Duration) -> Result<(), StepError> {
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
        let refusal = refusal.map_err(StepError::Probe)?;
        if refusal.as_ref().is_some_and(|message| message.contains(answer)) {
            return Ok(());
        }
        if is_past(deadline) {
            let answer = refusal.unwrap_or_else(|| "its probe would be let in".to_owned());
            return Err(StepError::GuardNotInForce { answer, waited: timeout });
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until Kubernetes has taken in a policy of the guard, and reports what its type checker says.
async fn observed<A: ClusterApi>(api: &A, key: &Key, timeout: Duration) -> Result<(), StepError> {
    let deadline = Instant::now().checked_add(timeout);
    loop {
        let live = get(api, key).await.map_err(StepError::request("read", key))?;
        let number = |pointer| live.as_ref().and_then(|live| live.pointer(pointer)).and_then(Value::as_i64);
        let seen = number("/status/observedGeneration");
        if seen.is_some() && seen >= number("/metadata/generation") {
            // Warnings of an earlier generation say nothing.
            if let Some(warnings) =
                live.as_ref().and_then(|live| live.pointer("/status/typeChecking/expressionWarnings"))
            {
                let (target, warnings) = (key.clone(), warnings.to_string());
                return Err(StepError::TypeCheck { target, warnings });
            }
            return Ok(());
        }
        if is_past(deadline) {
            return Err(StepError::NotTakenIn { target: key.clone(), waited: timeout });
        }
        sleep(Duration::from_millis(100)).await;
    }
}
