//! Names of environment variables, all of them. A flag goes before its variable.

/// Files of accounts, with colons between them.
pub(crate) const SOURCES: &str = "SPUR_OPERATOR_SOURCES";
/// A controller as the source.
pub(crate) const FROM_SPUR: &str = "SPUR_OPERATOR_FROM_SPUR";
/// Credentials for it.
pub(crate) const CREDENTIALS: &str = "SPUR_OPERATOR_CREDENTIALS";
/// Format of the files.
pub(crate) const FORMAT: &str = "SPUR_OPERATOR_FORMAT";
/// Whether dumps are whole.
pub(crate) const COMPLETE: &str = "SPUR_OPERATOR_COMPLETE";
/// Policy file.
pub(crate) const POLICY: &str = "SPUR_OPERATOR_POLICY";
/// Kubeconfig.
pub(crate) const KUBECONFIG: &str = "SPUR_OPERATOR_KUBECONFIG";
/// Context of the kubeconfig.
pub(crate) const CONTEXT: &str = "SPUR_OPERATOR_CONTEXT";
/// Whether to take over what is not ours.
pub(crate) const ADOPT: &str = "SPUR_OPERATOR_ADOPT";
/// How many accounts are written at the same time.
pub(crate) const CONCURRENCY: &str = "SPUR_OPERATOR_CONCURRENCY";
/// Namespace of the Lease.
pub(crate) const LEASE_NAMESPACE: &str = "SPUR_OPERATOR_LEASE_NAMESPACE";
/// Name of the Lease.
pub(crate) const LEASE_NAME: &str = "SPUR_OPERATOR_LEASE_NAME";
/// How long the Lease holds.
pub(crate) const LEASE_DURATION: &str = "SPUR_OPERATOR_LEASE_DURATION";
/// What this replica calls itself.
pub(crate) const IDENTITY: &str = "SPUR_OPERATOR_IDENTITY";
/// The grace period of retired accounts.
pub(crate) const DELETE_RETIRED_AFTER: &str = "SPUR_OPERATOR_DELETE_RETIRED_AFTER";
/// Where pages are served.
pub(crate) const LISTEN: &str = "SPUR_OPERATOR_LISTEN";
/// Format of the log.
pub(crate) const LOG_FORMAT: &str = "SPUR_OPERATOR_LOG_FORMAT";
/// What is logged.
pub(crate) const LOG: &str = "SPUR_LOG";
/// The pod's name, which a Deployment sets from its metadata.
pub(crate) const POD_NAME: &str = "POD_NAME";
