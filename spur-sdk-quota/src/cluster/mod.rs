//! A cluster made to hold a projection: observe, plan, check, apply, report.
//!
//! ```no_run
//! use spur_sdk_quota::cluster::{ApplyOptions, PlanOptions, apply, observe, plan};
//! use spur_sdk_quota::k8s::{KubeApi, kube};
//! use spur_sdk_quota::{Model, Policy, QuotaProjector};
//!
//! # async fn run(model: Model) -> Result<(), Box<dyn std::error::Error>> {
//! let api = KubeApi::new(kube::Client::try_default().await?, spur_sdk::Deadlines::default());
//! let policy = Policy::default();
//! let observed = observe(&api).await?;
//! let projector = QuotaProjector::new(&policy).default_priority_class(observed.default_priority_class());
//! let projection = projector.project(&model);
//! let plan = plan(&projection, &observed, &PlanOptions::default());
//! println!("{plan}");
//! let report = apply(&plan, &api, &ApplyOptions::default()).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Permissions
//!
//! Cluster-wide: `list` on namespaces, resourcequotas, limitranges, serviceaccounts, rolebindings,
//! clusterroles, validatingadmissionpolicies, their bindings and priorityclasses; `watch` on resourcequotas;
//! `create` and `patch` on what is written; `delete` on resourcequotas, rolebindings and the guard's policies and
//! bindings; `bind` on the
//! ClusterRoles `spur-tenant` and `spur-coordinator`, and every right that those two hold (or `escalate` on
//! them). In namespace `spur-users`: `create` on pods, for a dry run that asks whether the tenant guard binds.

mod apply;
mod controller;
mod diff;
mod error;
mod event;
pub(crate) mod kube_api;
mod lease;
mod observe;
mod plan;
mod prune;
mod site;

use std::future::Future;

use serde_json::Value;

pub use apply::{AccountOutcome, AccountReport, ApplyOptions, ApplyReport, Progress, apply};
#[cfg(feature = "metrics")]
pub use controller::Metrics;
pub use controller::{
    ControllerError, ControllerOptions, Counts, QuotaController, Report, SHORTEST_GRACE, State, Status,
    Trouble,
};
pub use error::{ApiError, ClusterError, StepError};
pub use event::{Event, EventApi, EventKind};
pub use lease::{Lease, LeaseApi, LeaseSettings};
pub use observe::{Key, Live, Observed, observe};
pub use plan::{
    AccountPlan, Action, Change, OverQuota, Plan, PlanOptions, Refusal, Removals, RemovalsDecision, Step,
    check_plan, plan, removals,
};
pub(crate) use prune::holdings;
pub use prune::{Holdings, Kept, Prunable, PruneOptions, PrunePlan, plan_prune, prune};
pub use site::{AccountStatus, Compared, SiteStatus, confirm_removals, site_status};

/// The kinds that are read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[non_exhaustive]
pub enum Kind {
    /// `v1` Namespace.
    Namespace,
    /// `v1` ResourceQuota.
    ResourceQuota,
    /// `v1` LimitRange.
    LimitRange,
    /// `v1` ServiceAccount.
    ServiceAccount,
    /// `rbac.authorization.k8s.io/v1` ClusterRole.
    ClusterRole,
    /// `rbac.authorization.k8s.io/v1` RoleBinding.
    RoleBinding,
    /// `admissionregistration.k8s.io/v1` ValidatingAdmissionPolicy.
    ValidatingAdmissionPolicy,
    /// `admissionregistration.k8s.io/v1` ValidatingAdmissionPolicyBinding.
    ValidatingAdmissionPolicyBinding,
    /// `scheduling.k8s.io/v1` PriorityClass; only read.
    PriorityClass,
    /// `v1` Pod; only read, before a namespace is deleted.
    Pod,
    /// `v1` PersistentVolumeClaim; only read, before a namespace is deleted.
    PersistentVolumeClaim,
}

impl Kind {
    /// API group (empty for the core), version, plural name, and whether it stands in namespaces.
    #[must_use]
    pub fn resource(self) -> (&'static str, &'static str, &'static str, bool) {
        match self {
            Self::Namespace => ("", "v1", "namespaces", false),
            Self::ResourceQuota => ("", "v1", "resourcequotas", true),
            Self::LimitRange => ("", "v1", "limitranges", true),
            Self::ServiceAccount => ("", "v1", "serviceaccounts", true),
            Self::ClusterRole => ("rbac.authorization.k8s.io", "v1", "clusterroles", false),
            Self::RoleBinding => ("rbac.authorization.k8s.io", "v1", "rolebindings", true),
            Self::ValidatingAdmissionPolicy => {
                ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", false)
            }
            Self::ValidatingAdmissionPolicyBinding => {
                ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", false)
            }
            Self::PriorityClass => ("scheduling.k8s.io", "v1", "priorityclasses", false),
            Self::Pod => ("", "v1", "pods", true),
            Self::PersistentVolumeClaim => ("", "v1", "persistentvolumeclaims", true),
        }
    }

    /// The kind's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::ResourceQuota => "ResourceQuota",
            Self::LimitRange => "LimitRange",
            Self::ServiceAccount => "ServiceAccount",
            Self::ClusterRole => "ClusterRole",
            Self::RoleBinding => "RoleBinding",
            Self::ValidatingAdmissionPolicy => "ValidatingAdmissionPolicy",
            Self::ValidatingAdmissionPolicyBinding => "ValidatingAdmissionPolicyBinding",
            Self::PriorityClass => "PriorityClass",
            Self::Pod => "Pod",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
        }
    }
}

/// Which objects of a kind a list or a watch is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Selection<'a> {
    /// All.
    All,
    /// Those with the label that makes them ours.
    Ours,
    /// Those with a name, in every namespace.
    Named(&'a str),
    /// Those in a namespace.
    In(&'a str),
    /// The one in a namespace, or the one that stands in none.
    One(Option<&'a str>, &'a str),
}

/// Objects as they were at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct List {
    /// The objects.
    pub items: Vec<Value>,
    /// The moment, as the server names it: where a watch goes on.
    pub version: String,
}

impl List {
    /// Objects at a moment.
    #[must_use]
    pub fn new(items: Vec<Value>, version: impl Into<String>) -> Self {
        Self { items, version: version.into() }
    }
}

/// What a watch tells.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// An object is new or has changed.
    Changed(Value),
    /// An object is gone; as it was last.
    Deleted(Value),
    /// Nothing is missing up to this moment.
    Version(String),
}

/// One object, if there is one.
///
/// # Errors
/// The request failed.
pub(crate) async fn get<A: ClusterApi>(api: &A, key: &Key) -> Result<Option<Value>, ApiError> {
    let found = api.list(key.kind, Selection::One(key.namespace.as_deref(), &key.name)).await?;
    Ok(found.items.into_iter().next())
}

/// The API server, as far as a projection needs it. Every call ends by a deadline of its own.
pub trait ClusterApi: Send + Sync {
    /// All objects of a selection, as one consistent list.
    fn list(
        &self,
        kind: Kind,
        selection: Selection<'_>,
    ) -> impl Future<Output = Result<List, ApiError>> + Send;

    /// Tells what changes after a moment, until the watch ends, which it may at any time; from the moment `0`,
    /// first what is there. `on_event` must return at once. A moment that the server has forgotten is
    /// [`ApiError::is_expired`].
    fn watch(
        &self,
        kind: Kind,
        selection: Selection<'_>,
        version: &str,
        on_event: impl FnMut(WatchEvent) + Send,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Server-side apply as manager `spur-quota`, forced: the fields in `object` are ours. The answer holds at
    /// least the object's metadata.
    fn apply(&self, key: &Key, object: &Value) -> impl Future<Output = Result<Value, ApiError>> + Send;

    /// A JSON merge patch. The answer holds at least the object's metadata.
    fn merge(&self, key: &Key, patch: &Value) -> impl Future<Output = Result<Value, ApiError>> + Send;

    /// Deletes the object if it still is the one with this uid and resource version; done when it is gone
    /// already.
    fn delete(
        &self,
        key: &Key,
        uid: &str,
        resource_version: &str,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Why the server would refuse to create the pod in the namespace, asked by a dry run; `None` when it would
    /// take it.
    fn refusal(
        &self,
        namespace: &str,
        pod: &Value,
    ) -> impl Future<Output = Result<Option<String>, ApiError>> + Send;
}
