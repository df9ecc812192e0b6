#![doc = include_str!("../README.md")]
// Sums of quotas overflow loudly or not at all.
#![deny(clippy::arithmetic_side_effects)]

#[cfg(feature = "accounting")]
pub mod accounting;
#[cfg(any(feature = "apply", feature = "kubeconfig"))]
mod api_error;
mod check;
#[cfg(feature = "apply")]
pub mod cluster;
mod explain;
pub mod k8s;
#[cfg(feature = "kubeconfig")]
pub mod kubeconfig;
mod model;
mod policy;
mod project;
mod quantity;
mod report;
pub mod source;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(any(feature = "apply", feature = "kubeconfig"))]
mod timestamp;

pub use check::{Finding, check};
pub use explain::{Candidate, DimensionExplanation, Explanation, explain};
pub use model::{
    Account, AdminLevel, Association, AssociationKey, Carrier, Cluster, Completeness, CountLimit, Fairshare,
    LimitSpec, Limits, Model, ModelError, Origin, Problem, Qos, QosSelection, QosSetting, ROOT, Sourced,
    Subject, Terms, Tree, TresLimit, User,
};
pub use policy::{
    Burst, ContainerRequests, GuardPolicy, GuardRule, GuardRuleError, PodSecurity, Policy, PolicyError,
    PolicyProblem, Unlimited,
};
pub use project::{
    AccountProjection, Cap, Closed, Dimension, Holder, Projection, QuotaProjector, StoppedAccount, names,
};
pub use report::{Report, Unenforced};
#[cfg(feature = "apply")]
pub use tokio_util::sync::CancellationToken;
