//! Kubernetes types: the objects of a projection, over `k8s-openapi`.

pub use k8s_openapi;
#[cfg(any(feature = "apply", feature = "kubeconfig"))]
pub use kube;

#[cfg(feature = "apply")]
pub use crate::cluster::kube_api::KubeApi;
#[cfg(feature = "kubeconfig")]
pub use crate::kubeconfig::kube_api::{KubeAccess, KubeSessions};

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{LimitRange, Namespace, ResourceQuota, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

macro_rules! objects {
    ($($(#[$doc:meta])* $kind:ident = $api:literal),* $(,)?) => {
        /// One object of a projection. It serializes as what `kubectl apply` takes.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(untagged)]
        #[non_exhaustive]
        pub enum Object {
            $($(#[$doc])* $kind($kind),)*
        }

        impl Object {
            /// The kind, such as `ResourceQuota`.
            #[must_use]
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => stringify!($kind),)*
                }
            }

            /// The API version, such as `v1` or `rbac.authorization.k8s.io/v1`.
            #[must_use]
            pub fn api_version(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => $api,)*
                }
            }

            /// The metadata.
            #[must_use]
            pub fn metadata(&self) -> &ObjectMeta {
                match self {
                    $(Self::$kind(object) => &object.metadata,)*
                }
            }
        }

        $(
            impl From<$kind> for Object {
                fn from(object: $kind) -> Self {
                    Self::$kind(object)
                }
            }
        )*
    };
}

objects! {
    /// An account's namespace, or the one of the users' ServiceAccounts.
    Namespace = "v1",
    /// A cap.
    ResourceQuota = "v1",
    /// Default and least requests.
    LimitRange = "v1",
    /// A user's identity, or a namespace's `default`.
    ServiceAccount = "v1",
    /// What a member may do.
    ClusterRole = "rbac.authorization.k8s.io/v1",
    /// Who is a member.
    RoleBinding = "rbac.authorization.k8s.io/v1",
    /// A rule of the tenant guard.
    ValidatingAdmissionPolicy = "admissionregistration.k8s.io/v1",
    /// Where a rule holds.
    ValidatingAdmissionPolicyBinding = "admissionregistration.k8s.io/v1",
}

impl Object {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// The namespace; `None` for what stands in none.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.metadata().namespace.as_deref()
    }

    /// `ResourceQuota spur-acct-physics/spur-quota`.
    #[must_use]
    pub fn title(&self) -> String {
        match self.namespace() {
            Some(namespace) => format!("{} {namespace}/{}", self.kind(), self.name()),
            None => format!("{} {}", self.kind(), self.name()),
        }
    }
}
