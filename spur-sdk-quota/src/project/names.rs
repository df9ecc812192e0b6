//! The names of our objects: a public contract.

use spur_sdk::LabelMapping;

/// The field manager, and the value of the label that says whose an object is.
pub const MANAGER: &str = "spur-quota";

/// The label that says whose an object is.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The namespace of the users' ServiceAccounts.
pub const USERS_NAMESPACE: &str = "spur-users";

/// Account name to namespace.
pub const NAMESPACES: LabelMapping = LabelMapping::new("spur-acct-");

/// User name to ServiceAccount in [`USERS_NAMESPACE`].
pub const SERVICE_ACCOUNTS: LabelMapping = LabelMapping::new("spur-user-");

/// The ResourceQuota with the account's caps.
pub const QUOTA: &str = "spur-quota";

/// The ResourceQuota against the two system PriorityClasses.
pub const PRIORITY_QUOTA: &str = "spur-priority";

/// The ResourceQuota that keeps a namespace closed while `spur-quota` has to be made anew.
pub const CLOSING_QUOTA: &str = "spur-closing";

/// The LimitRange.
pub const DEFAULTS: &str = "spur-defaults";

/// The RoleBinding of members.
pub const MEMBERS: &str = "spur-members";

/// The RoleBinding of coordinators.
pub const COORDINATORS: &str = "spur-coordinators";

/// The ClusterRole of members.
pub const TENANT_ROLE: &str = "spur-tenant";

/// The ClusterRole of coordinators.
pub const COORDINATOR_ROLE: &str = "spur-coordinator";

/// The prefix of the names of the tenant guard's policies.
pub const GUARD: &str = "spur-guard-";

/// The policy of the tenant guard that judges new pods.
pub const GUARD_OF_PODS: &str = "spur-guard-pods";

/// The pod with which apply asks, by a dry run, whether the tenant guard is in force; it is always refused.
pub const GUARD_PROBE: &str = "spur-guard-probe";

/// The prefix of Pod Security labels.
pub const POD_SECURITY: &str = "pod-security.kubernetes.io/";

/// The label, behind the prefix, of a namespace whose account is gone; its value is [`RETIRED`].
pub const STATE: &str = "state";

/// The state of a namespace whose account is gone from the source: nobody is let in, nothing new is let in.
pub const RETIRED: &str = "retired";

/// The annotation, behind the prefix, that says since when: RFC 3339, UTC.
pub const RETIRED_AT: &str = "retired-at";

/// The annotation, behind the prefix, with which somebody suspends all that we do in a namespace. Any value but
/// `false` does.
pub const PAUSED: &str = "paused";

/// The annotation, behind the prefix, of [`USERS_NAMESPACE`] that lets removals go on which were held: its value
/// names them.
pub const CONFIRMED: &str = "confirm-removals";
