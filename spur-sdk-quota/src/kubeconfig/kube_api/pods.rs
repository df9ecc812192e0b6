//! [`PodApi`] over the kube client.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, Preconditions};

use super::KubeSessions;
use crate::kubeconfig::{ApiError, PodApi, UserPod};
use crate::project::names;

impl PodApi for KubeSessions {
    async fn account_namespaces(&self, prefix: &str) -> Result<BTreeSet<String>, ApiError> {
        let labels = format!("{}={},{prefix}/account", names::MANAGED_BY, names::MANAGER);
        let api: Api<Namespace> = Api::all(self.client.clone());
        let found = self.metadata_of(&api, &labels).await?;
        Ok(found.into_iter().filter_map(|namespace| namespace.metadata.name).collect())
    }

    async fn pods(&self, key: &str, value: &str) -> Result<Vec<UserPod>, ApiError> {
        let api: Api<Pod> = Api::all(self.client.clone());
        let found = self.metadata_of(&api, &format!("{key}={value}")).await?;
        let pods = found.into_iter().filter_map(|pod| {
            let metadata = pod.metadata;
            Some(UserPod::new(metadata.namespace?, metadata.name?, metadata.uid?))
        });
        Ok(pods.collect())
    }

    async fn delete_pod(&self, pod: &UserPod) -> Result<bool, ApiError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let preconditions = Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        self.deleted(api.delete(&pod.name, &parameters)).await
    }
}
