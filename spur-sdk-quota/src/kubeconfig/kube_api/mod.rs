//! Sessions and access over the kube client.

mod access;
mod pods;
mod sessions;

pub use access::KubeAccess;
pub use sessions::KubeSessions;
