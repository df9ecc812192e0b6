//! Kubeconfigs that reach the accounts of one user and nothing else.
//!
//! A user's identity in Kubernetes is the ServiceAccount that the reconciler keeps in `spur-users` while the user is
//! in an account. A **session** is a Secret beside it, without content; tokens are bound to it, so that deleting it
//! voids them. A kubeconfig holds either such a token or, by default, a command that fetches one.
//!
//! ```no_run
//! use spur_sdk::UserName;
//! use spur_sdk_quota::k8s::KubeAccess;
//! use spur_sdk_quota::kubeconfig::{Form, KubeconfigPolicy, Minter, Memberships, MintRequest, mint_scoped_kubeconfig};
//!
//! # async fn run(memberships: impl Memberships) -> Result<(), Box<dyn std::error::Error>> {
//! let access = KubeAccess::file("/etc/spur/control-plane.kubeconfig", None, spur_sdk::Deadlines::default());
//! let minter = Minter::new(access, memberships, KubeconfigPolicy::new("site"))?;
//! let request = MintRequest::new("alice".parse::<UserName>()?).client("spur kubeconfig on login1");
//! let minted = mint_scoped_kubeconfig(&minter, &request, Form::Static).await?;
//! std::fs::write("alice.kubeconfig", minted.kubeconfig.to_yaml()?)?;
//! # Ok(())
//! # }
//! ```
//!
//! Who may ask for whom is the host's to decide, before it calls: nothing here knows the caller.
//!
//! # Permissions
//!
//! In namespace `spur-users`: `get` on serviceaccounts, `create` on serviceaccounts/token, `create`, `list` and
//! `delete` on secrets. `docs/guides/kubeconfig.md` has them as YAML.

mod access;
mod api;
#[cfg(unix)]
pub mod cache;
mod document;
mod error;
mod evict;
mod exec;
pub(crate) mod kube_api;
#[cfg(feature = "accounting")]
mod lock_out;
mod membership;
mod minter;
mod policy;
mod revoke;
#[cfg(feature = "accounting")]
mod routes;
mod session;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod token;

pub use access::{AccessError, ControlPlaneAccess, Endpoint};
pub use api::{NewSession, SessionApi, StoredAccount};
pub use document::{Credential, Kubeconfig};
pub use error::{KubeconfigError, PolicyError};
pub use evict::{EvictionReport, PodApi, UserPod};
pub use exec::ExecPlugin;
#[cfg(feature = "accounting")]
pub use lock_out::lock_out;
pub use membership::{Directory, Membership, Memberships};
pub use minter::{Form, MintRequest, Minted, Minter, mint_scoped_kubeconfig};
pub use policy::{KubeconfigPolicy, SHORTEST_LIFETIME};
pub use revoke::{Removal, RemovalReport};
#[cfg(feature = "accounting")]
pub use routes::{AccountMemberships, routes};
pub use session::{Session, SessionName, SessionNameError};
pub use token::{BearerToken, Issued, Token};

pub use crate::api_error::ApiError;
