//! What is carried out by itself, beside other things: one unit's writes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::judge::Question;
use super::units::Unit;
use crate::cluster::apply::guard;
use crate::cluster::apply::steps::{Writes, admit, carry_out, restrict};
use crate::cluster::diff::binds;
use crate::cluster::plan::{AccountPlan, Action, Step};
use crate::cluster::{ApiError, ApplyOptions, ClusterApi, Key, Kind, StepError, get, holdings};

/// Why a unit is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The source says something new, or it was never in step.
    Change,
    /// Somebody else has changed what was in step.
    Revert,
    /// The account is gone.
    Retire,
    /// The account is back.
    Restore,
    /// The user is in no account any more.
    Remove,
    /// The grace period is over.
    Delete,
}

/// What became of it.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) unit: Unit,
    pub(super) purpose: Purpose,
    pub(super) writes: Writes,
    pub(super) failed: Option<StepError>,
    /// What was written, in words, and the objects.
    pub(super) what: String,
    pub(super) objects: Vec<Key>,
    /// What the guard answered.
    pub(super) answered: Option<String>,
    /// Why a namespace is not deleted.
    pub(super) kept: Option<String>,
}

impl Done {
    pub(super) fn new<'s>(unit: Unit, purpose: Purpose, steps: impl Iterator<Item = &'s Step>) -> Self {
        let steps: Vec<_> = steps.collect();
        let what: Vec<_> = steps.iter().take(5).map(|step| step.summary()).collect();
        let more = steps.len().saturating_sub(what.len());
        let more = if more == 0 { String::new() } else { format!("; and {more} more") };
        Self {
            unit,
            purpose,
            writes: Writes::default(),
            failed: None,
            what: format!("{}{more}", what.join("; ")),
            objects: steps.iter().map(|step| step.target.clone()).collect(),
            answered: None,
            kept: None,
        }
    }
}

/// Writes an account: what restricts, and then whoever may be let in.
pub(super) async fn account<A: ClusterApi>(
    api: &A,
    plan: AccountPlan,
    mut done: Done,
    options: Arc<ApplyOptions>,
) -> Done {
    let (_, writes, failed) = restrict(&plan, api, &options).await;
    done.writes.add(writes);
    done.failed = failed;
    if done.failed.is_none() && !plan.admit.is_empty() {
        // The cache may be old: what lets in is decided by what the server says now.
        done.failed = bound(api, &plan).await.err();
    }
    if done.failed.is_none() && !plan.admit.is_empty() {
        let (_, writes, failed) = admit(&plan, api, &options).await;
        done.writes.add(writes);
        done.failed = failed;
    }
    done
}

/// Whether an account's quotas bind and nothing is there that is about to be made, asked of the server.
async fn bound<A: ClusterApi>(api: &A, plan: &AccountPlan) -> Result<(), StepError> {
    for wanted in &plan.quotas {
        let name = wanted.pointer("/metadata/name").and_then(serde_json::Value::as_str).unwrap_or_default();
        let key = Key::namespaced(Kind::ResourceQuota, &plan.namespace, name);
        let live = get(api, &key).await.map_err(StepError::request("read", &key))?;
        if !live.is_some_and(|live| binds(wanted, &live)) {
            return Err(StepError::NotBound { target: key, waited: Duration::ZERO });
        }
    }
    // Made anew where there is one that the cache does not show yet, a binding would lose members who are to stay.
    let made = plan.admit.iter().filter(|step| matches!(step.action, Action::Create { .. }));
    for step in made {
        if get(api, &step.target).await.map_err(StepError::request("read", &step.target))?.is_some() {
            let source = ApiError::Status {
                code: 409,
                reason: "AlreadyExists".to_owned(),
                message: "it is there, and no watch has shown it yet".to_owned(),
                retry_after: None,
            };
            return Err(StepError::request("make", &step.target)(source));
        }
    }
    Ok(())
}

/// Writes a user's ServiceAccount.
pub(super) async fn user<A: ClusterApi>(
    api: &A,
    steps: Vec<Step>,
    mut done: Done,
    options: Arc<ApplyOptions>,
) -> Done {
    for step in &steps {
        match carry_out(api, step, &options).await {
            Ok(writes) => done.writes.add(writes),
            Err(error) => done.failed = done.failed.or(Some(error)),
        }
    }
    done
}

/// Writes what all share, and asks for the guard. When what all share changes meanwhile, that comes first, and the
/// question is asked again.
pub(super) async fn shared<A: ClusterApi>(
    api: &A,
    steps: Vec<Step>,
    question: Option<Question>,
    mut done: Done,
    options: Arc<ApplyOptions>,
    touched: Arc<Notify>,
) -> Done {
    for step in &steps {
        match carry_out(api, step, &options).await {
            Ok(writes) => done.writes.add(writes),
            Err(error) => done.failed = done.failed.or(Some(error)),
        }
    }
    let Some(question) = question.filter(|_| done.failed.is_none()) else { return done };
    let timeout = options.binding_timeout;
    let verified = tokio::select! {
        // A question that is dropped is asked again.
        verified = guard::verify(&question.policies, Some(&question.answer), api, timeout) => verified,
        () = touched.notified() => return done,
    };
    match verified {
        Ok(()) => done.answered = Some(question.answer),
        Err(error) => done.failed = Some(error),
    }
    done
}

/// Deletes the namespace of a retired account, unless something is in it that somebody may miss.
pub(super) async fn delete<A: ClusterApi>(
    api: &A,
    namespace: String,
    uid: String,
    version: String,
    mut done: Done,
) -> Done {
    let key = Key::cluster(Kind::Namespace, &namespace);
    match holdings(api, &namespace).await {
        Err(error) => done.failed = Some(error),
        Ok(holdings) if !holdings.is_empty() => done.kept = Some(holdings.to_string()),
        // This very version: an account that came back has another.
        Ok(_) => match api.delete(&key, &uid, &version).await {
            Ok(()) => done.writes.deleted(&key, &uid),
            Err(error) => done.failed = Some(StepError::request("delete", &key)(error)),
        },
    }
    done
}
