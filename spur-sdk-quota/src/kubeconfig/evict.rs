//! Ending pods whose user is known.

use std::collections::BTreeSet;
use std::future::Future;

use futures::{StreamExt, stream};
use serde::Serialize;
use spur_sdk::UserName;

use super::{ApiError, ControlPlaneAccess, KubeconfigError, Memberships, Minter};
use crate::project::names;

/// The label, behind the prefix, that names the ServiceAccount of a pod's user.
pub(super) const USER: &str = "user";

/// A pod that carries a user's label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct UserPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: what is deleted is this one and no later one of the same name.
    pub uid: String,
}

impl UserPod {
    /// A pod.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, uid: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into(), uid: uid.into() }
    }
}

/// The API server, as far as ending pods needs it. Every call ends by a deadline of its own.
pub trait PodApi: Send + Sync {
    /// The namespaces of accounts: those with our label and one of an account.
    fn account_namespaces(
        &self,
        prefix: &str,
    ) -> impl Future<Output = Result<BTreeSet<String>, ApiError>> + Send;

    /// The pods with this label in all namespaces, in no order.
    fn pods(&self, key: &str, value: &str) -> impl Future<Output = Result<Vec<UserPod>, ApiError>> + Send;

    /// Deletes a pod with the grace period that it has itself; whether there was one.
    fn delete_pod(&self, pod: &UserPod) -> impl Future<Output = Result<bool, ApiError>> + Send;
}

/// What became of a user's pods.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct EvictionReport {
    /// Deleted, sorted.
    pub deleted: Vec<UserPod>,
    /// Not deleted, and why not; sorted.
    pub failed: Vec<(UserPod, KubeconfigError)>,
}

impl<A: ControlPlaneAccess, M: Memberships> Minter<A, M>
where
    A::Api: PodApi,
{
    /// Deletes the pods of accounts that carry the label `PREFIX/user` with the user's ServiceAccount.
    ///
    /// Kubernetes does not say who made a pod, and SPUR sets no such label: a site may, by an admission policy. A pod
    /// without it is not touched, and what a controller has made it makes again.
    ///
    /// # Errors
    /// Namespaces or pods cannot be listed. What could not be deleted stands in the report.
    ///
    /// # Permissions
    /// Cluster-wide `list` on namespaces and pods, and `delete` on pods.
    ///
    /// # Cancellation
    /// Some may have been deleted.
    pub async fn evict_user_pods(&self, user: &UserName) -> Result<EvictionReport, KubeconfigError> {
        let api = self.access.sessions().await?;
        let namespaces = api.account_namespaces(&self.policy.prefix).await;
        let namespaces = namespaces.map_err(KubeconfigError::request("list", "namespaces"))?;
        let account = names::SERVICE_ACCOUNTS.map(user.as_str());
        let pods = api.pods(&self.policy.key(USER), &account).await;
        let mut pods = pods.map_err(KubeconfigError::request("list", "pods"))?;
        pods.retain(|pod| namespaces.contains(&pod.namespace));
        let api = &api;
        let deleted = stream::iter(pods.into_iter().map(|pod| async move {
            let deleted = api.delete_pod(&pod).await;
            (pod, deleted)
        }));
        let mut deleted = deleted.buffer_unordered(self.policy.concurrency.max(1));
        let mut report = EvictionReport::default();
        while let Some((pod, deleted)) = deleted.next().await {
            match deleted {
                Ok(true) => report.deleted.push(pod),
                Ok(false) => {}
                Err(error) => {
                    let target = format!("pod {}/{}", pod.namespace, pod.name);
                    report.failed.push((pod, KubeconfigError::request("delete", target)(error)));
                }
            }
        }
        report.deleted.sort();
        report.failed.sort_by(|a, b| a.0.cmp(&b.0));
        tracing::info!(%user, deleted = report.deleted.len(), failed = report.failed.len(), "pods of a user deleted");
        Ok(report)
    }
}
