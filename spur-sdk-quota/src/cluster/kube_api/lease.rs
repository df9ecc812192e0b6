//! Leases over the kube client.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::coordination::v1::{Lease as KubeLease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};

use super::{KubeApi, names};
use crate::cluster::{ApiError, Lease, LeaseApi};

impl From<KubeLease> for Lease {
    fn from(lease: KubeLease) -> Self {
        let spec = lease.spec.unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let time = |time: MicroTime| SystemTime::from(time.0);
        Self {
            holder: spec.holder_identity.unwrap_or_default(),
            duration: Duration::from_secs(seconds.unwrap_or_default()),
            acquired_at: spec.acquire_time.map(time),
            renewed_at: spec.renew_time.map(time),
            transitions: spec.lease_transitions.and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
            version: lease.metadata.resource_version.unwrap_or_default(),
        }
    }
}

fn to_kube(namespace: &str, name: &str, lease: &Lease) -> KubeLease {
    let time = |time: SystemTime| Timestamp::try_from(time).ok().map(MicroTime);
    KubeLease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            resource_version: Some(lease.version.clone()).filter(|version| !version.is_empty()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(lease.holder.clone()),
            lease_duration_seconds: i32::try_from(lease.duration.as_secs().max(1)).ok(),
            acquire_time: lease.acquired_at.and_then(time),
            renew_time: lease.renewed_at.and_then(time),
            lease_transitions: i32::try_from(lease.transitions).ok(),
            ..LeaseSpec::default()
        }),
    }
}

impl LeaseApi for KubeApi {
    async fn read_lease(&self, namespace: &str, name: &str) -> Result<Option<Lease>, ApiError> {
        let api: Api<KubeLease> = Api::namespaced(self.client.clone(), namespace);
        Ok(self.once(api.get_opt(name)).await?.map(Lease::from))
    }

    async fn write_lease(&self, namespace: &str, name: &str, lease: &Lease) -> Result<Lease, ApiError> {
        let api: Api<KubeLease> = Api::namespaced(self.client.clone(), namespace);
        let parameters =
            PostParams { field_manager: Some(names::MANAGER.to_owned()), ..PostParams::default() };
        let object = to_kube(namespace, name, lease);
        let written = if lease.version.is_empty() {
            self.once(api.create(&parameters, &object)).await?
        } else {
            self.once(api.replace(name, &parameters, &object)).await?
        };
        Ok(written.into())
    }
}
