//! What the tenant guard refuses, and whom it lets through.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use spur_sdk::{Classify, ErrorKind};

/// The longest grace period that the guard lets a pod have unless policy says otherwise, in seconds.
const MAX_GRACE_PERIOD_SECONDS: u32 = 300;

/// One rule of the tenant guard. Policy can switch each of them off.
///
/// Rules on the content of a pod bind every pod that is created in one of our namespaces, whoever creates it:
/// what a tenant writes into a Deployment reaches the API server as a pod of the controller manager. Only the
/// mirror pods of nodes are let through. Rules on deletion bind everybody except nodes, the controllers and
/// schedulers of Kubernetes, `system:masters`, and whom [`GuardPolicy`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum GuardRule {
    /// A pod may not be created with `spec.nodeName`: it would pass by the scheduler, its gates and the taints
    /// of nodes.
    NodeName,
    /// `spec.schedulerName` must be one of [`GuardPolicy::schedulers`]: another scheduler may know nothing of
    /// priorities and partitions.
    Scheduler,
    /// `spec.priorityClassName` must be empty, the cluster's global default, or one of
    /// [`GuardPolicy::priority_classes`]: any account could otherwise take a class that preempts the others.
    PriorityClass,
    /// `spec.terminationGracePeriodSeconds` lies between 1 and [`GuardPolicy::max_grace_period_seconds`]: 0 drops
    /// the charge while the container still runs, and a day holds up the draining of a node for a day.
    GracePeriod,
    /// No `spec.resources`, the resources of a pod as a whole: neither defaults nor the minimum of a LimitRange
    /// hold for them.
    PodResources,
    /// No device claims, neither as `spec.resourceClaims` nor as a container's
    /// `deviceclass.resource.kubernetes.io/…` resource: a quota on the device's extended resource does not count
    /// them.
    ResourceClaims,
    /// No toleration of every taint, nor of one in [`GuardPolicy::taints`]. Binds later changes of a pod too,
    /// since tolerations may be added to a pod that exists.
    Tolerations,
    /// Pod affinity and anti-affinity look only at pods of their own namespace: a required anti-affinity to the
    /// pods of all namespaces would keep every other account's pods off the node, or the zone.
    CrossNamespaceAffinity,
    /// Volumes are ConfigMaps, Secrets, claims, projected, of the downward API, images, ephemeral or empty: the
    /// kubelet mounts any other, such as `nfs` or an inline `csi`, by itself, and with a user id that the pod
    /// chooses the files of everybody are its own. Claims reach what the site has made a PersistentVolume of.
    Volumes,
    /// No finalizers on pods besides [`GuardPolicy::finalizers`] and the one that the Job controller sets itself:
    /// a pod that cannot go holds up the draining of its node. Binds later changes of a pod too. (It does not
    /// keep a tenant from deleting a pod in the foreground that a dependent with a finalizer holds: drain with
    /// a timeout.)
    Finalizers,
    /// A pod that is bound to a node and has not ended is deleted with a grace period between 1 and
    /// [`GuardPolicy::max_grace_period_seconds`]: with 0 the object and its charge are gone at once, while the
    /// container may still run.
    ForceDelete,
    /// The same for evictions, which the rule on deletion does not see.
    ForceEvict,
    /// No new `spec.externalIPs` on a Service: they take over the traffic to any address (CVE-2020-8554). Binds
    /// later changes too.
    ExternalIps,
}

impl GuardRule {
    /// Every rule, in the order in which a request is judged.
    pub const ALL: [Self; 13] = [
        Self::NodeName,
        Self::Scheduler,
        Self::PriorityClass,
        Self::GracePeriod,
        Self::PodResources,
        Self::ResourceClaims,
        Self::Tolerations,
        Self::CrossNamespaceAffinity,
        Self::Volumes,
        Self::Finalizers,
        Self::ForceDelete,
        Self::ForceEvict,
        Self::ExternalIps,
    ];

    /// The rule's name in a policy file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NodeName => "node_name",
            Self::Scheduler => "scheduler",
            Self::PriorityClass => "priority_class",
            Self::GracePeriod => "grace_period",
            Self::PodResources => "pod_resources",
            Self::ResourceClaims => "resource_claims",
            Self::Tolerations => "tolerations",
            Self::CrossNamespaceAffinity => "cross_namespace_affinity",
            Self::Volumes => "volumes",
            Self::Finalizers => "finalizers",
            Self::ForceDelete => "force_delete",
            Self::ForceEvict => "force_evict",
            Self::ExternalIps => "external_ips",
        }
    }
}

impl fmt::Display for GuardRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no rule of the tenant guard has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tenant guard has no rule \"{name}\"; its rules are {}", GuardRule::ALL.map(GuardRule::name).join(", "))]
#[non_exhaustive]
pub struct GuardRuleError {
    /// The name that was given.
    pub name: String,
}

impl Classify for GuardRuleError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

impl FromStr for GuardRule {
    type Err = GuardRuleError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|rule| rule.name() == name)
            .ok_or_else(|| GuardRuleError { name: name.to_owned() })
    }
}

/// How strict the tenant guard is, once for the cluster. The default has every rule on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardPolicy {
    /// Rules that are off. Default: none.
    pub disabled: BTreeSet<GuardRule>,
    /// Priority classes that accounts may use, beside none and the cluster's global default. Default: none.
    /// `system-node-critical` and `system-cluster-critical` stay refused by quota even when they stand here.
    pub priority_classes: BTreeSet<String>,
    /// Schedulers that accounts may use. Default: `default-scheduler`. When empty, no pod can be created.
    pub schedulers: BTreeSet<String>,
    /// Keys of taints that accounts may not tolerate. Default: those of the control plane,
    /// `node-role.kubernetes.io/control-plane` and `node-role.kubernetes.io/master`. A key that the `DaemonSet`
    /// controller tolerates by itself (`node.kubernetes.io/unschedulable` and others) stops `DaemonSet`s.
    pub taints: BTreeSet<String>,
    /// Finalizers that a pod may carry, for controllers which set them on pods, such as
    /// `kueue.x-k8s.io/managed`. Default: none.
    pub finalizers: BTreeSet<String>,
    /// The longest grace period of a pod, of a deletion and of an eviction, in seconds. Default: 300; 0 counts
    /// as 1.
    pub max_grace_period_seconds: u32,
    /// Users who may delete and evict pods at once and set finalizers on existing pods, by the name that the API server
    /// knows them by (`system:serviceaccount:NAMESPACE:NAME` for a ServiceAccount). Default: none.
    pub exempt_users: BTreeSet<String>,
    /// The same for groups, such as `kubeadm:cluster-admins`. Default: none.
    pub exempt_groups: BTreeSet<String>,
}

impl Default for GuardPolicy {
    fn default() -> Self {
        Self {
            disabled: BTreeSet::new(),
            priority_classes: BTreeSet::new(),
            schedulers: BTreeSet::from(["default-scheduler".to_owned()]),
            taints: BTreeSet::from([
                "node-role.kubernetes.io/control-plane".to_owned(),
                "node-role.kubernetes.io/master".to_owned(),
            ]),
            finalizers: BTreeSet::new(),
            max_grace_period_seconds: MAX_GRACE_PERIOD_SECONDS,
            exempt_users: BTreeSet::new(),
            exempt_groups: BTreeSet::new(),
        }
    }
}

impl GuardPolicy {
    /// Whether a rule is on.
    #[must_use]
    pub fn enforces(&self, rule: GuardRule) -> bool {
        !self.disabled.contains(&rule)
    }

    /// Switches a rule off.
    #[must_use]
    pub fn without(mut self, rule: GuardRule) -> Self {
        self.disabled.insert(rule);
        self
    }

    /// Opens a PriorityClass to accounts.
    #[must_use]
    pub fn with_priority_class(mut self, class: impl Into<String>) -> Self {
        self.priority_classes.insert(class.into());
        self
    }

    /// Opens a scheduler to accounts.
    #[must_use]
    pub fn with_scheduler(mut self, scheduler: impl Into<String>) -> Self {
        self.schedulers.insert(scheduler.into());
        self
    }

    /// Exempts a user from the rules on deletion.
    #[must_use]
    pub fn with_exempt_user(mut self, user: impl Into<String>) -> Self {
        self.exempt_users.insert(user.into());
        self
    }

    /// Exempts a group from the rules on deletion.
    #[must_use]
    pub fn with_exempt_group(mut self, group: impl Into<String>) -> Self {
        self.exempt_groups.insert(group.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_listed_once_and_reads_back_from_its_name() {
        let names: BTreeSet<_> = GuardRule::ALL.map(GuardRule::name).into();
        assert_eq!(names.len(), GuardRule::ALL.len());
        for rule in GuardRule::ALL {
            assert_eq!(rule.name().parse(), Ok(rule));
            assert_eq!(format!("{rule:>30}").trim_start(), rule.name());
            assert!(rule.name().chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{rule}");
        }
    }

    #[test]
    fn a_name_of_no_rule_is_an_error_that_lists_the_rules() {
        let error = "nodename".parse::<GuardRule>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(
            error.to_string(),
            "the tenant guard has no rule \"nodename\"; its rules are node_name, scheduler, priority_class, \
             grace_period, pod_resources, resource_claims, tolerations, cross_namespace_affinity, volumes, \
             finalizers, force_delete, force_evict, external_ips"
        );
    }

    #[test]
    fn the_default_enforces_every_rule_and_exempts_nobody() {
        let policy = GuardPolicy::default();
        assert!(GuardRule::ALL.into_iter().all(|rule| policy.enforces(rule)));
        assert!(policy.exempt_users.is_empty() && policy.exempt_groups.is_empty());
        assert_eq!(policy.max_grace_period_seconds, 300);
    }

    #[test]
    fn switching_a_rule_off_leaves_the_others_on() {
        let policy = GuardPolicy::default().without(GuardRule::ForceEvict);
        let on: Vec<_> = GuardRule::ALL.into_iter().filter(|rule| policy.enforces(*rule)).collect();
        assert_eq!(on.len(), GuardRule::ALL.len() - 1);
        assert!(!on.contains(&GuardRule::ForceEvict));
    }
}
