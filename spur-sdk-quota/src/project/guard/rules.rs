//! What each rule says: its expression and the answer to a request that breaks it.

use super::cel;
use crate::policy::guard::{GuardPolicy, GuardRule};

/// How many names a message spells out.
const NAMES_IN_MESSAGE: usize = 10;

/// One rule as one of the policies checks it.
pub(super) struct Check {
    pub(super) rule: GuardRule,
    pub(super) expression: String,
    /// What is wrong and the way out, on one line.
    pub(super) message: String,
}

/// Rules on the content of a pod that is created, by whomever.
pub(super) fn pod_creation(policy: &GuardPolicy, default_priority_class: Option<&str>) -> Vec<Check> {
    let mut checks = vec![
        Check {
            rule: GuardRule::NodeName,
            expression: "object.spec.?nodeName.orValue('') == ''".to_owned(),
            message: "spec.nodeName may not be set when a pod is created, since it passes by the scheduler; leave it \
                      out and choose nodes by spec.nodeSelector or spec.affinity"
                .to_owned(),
        },
        scheduler(policy),
        priority_class(policy, default_priority_class),
        Check {
            rule: GuardRule::GracePeriod,
            expression: cel::grace_period(
                "object.spec.?terminationGracePeriodSeconds.orValue(30)",
                max_grace_period(policy),
            ),
            message: format!(
                "spec.terminationGracePeriodSeconds must be between 1 and {}; leave it out to get 30",
                max_grace_period(policy)
            ),
        },
        Check {
            rule: GuardRule::PodResources,
            expression: "!has(object.spec.resources)".to_owned(),
            message: "spec.resources, the resources of the pod as a whole, may not be set, since the account's \
                      defaults and minimum do not hold for them; set resources on each container"
                .to_owned(),
        },
        Check {
            rule: GuardRule::ResourceClaims,
            expression: cel::no_device_claims(),
            message: "devices may not be claimed by spec.resourceClaims or by resources named \
                      deviceclass.resource.kubernetes.io/..., since the account is not charged for them; ask for \
                      them by their own resource name under resources.limits of a container"
                .to_owned(),
        },
        tolerations(policy, "false"),
        Check {
            rule: GuardRule::CrossNamespaceAffinity,
            expression: cel::affinity_of_own_namespace(),
            message: "spec.affinity may not refer to pods of other namespaces, since it could keep other accounts' \
                      pods off a node; leave out namespaces and namespaceSelector"
                .to_owned(),
        },
        Check {
            rule: GuardRule::Volumes,
            expression: cel::volumes_of_the_cluster(),
            message: "spec.volumes may hold configMap, secret, persistentVolumeClaim, projected, downwardAPI, image, \
                      ephemeral and emptyDir only, since the node would mount any other whoever may read it; use a \
                      claim"
                .to_owned(),
        },
        finalizers(policy, cel::FINALIZER_OF_JOB_CONTROLLER),
    ];
    for check in &mut checks {
        check.expression = format!("{} || ({})", cel::MIRROR_POD, check.expression);
    }
    checks
}

/// Rules on what may be changed in a pod. What it had already may stay.
pub(super) fn pod_update(policy: &GuardPolicy) -> Vec<Check> {
    let mut finalizers = finalizers(policy, "finalizer in oldObject.metadata.?finalizers.orValue([])");
    finalizers.expression = format!("{} || {}", exempt(policy), finalizers.expression);
    vec![tolerations(policy, "toleration in oldObject.spec.?tolerations.orValue([])"), finalizers]
}

/// Rules on the deletion of pods, one by one or as a collection.
pub(super) fn pod_deletion(policy: &GuardPolicy) -> Vec<Check> {
    let max = max_grace_period(policy);
    vec![Check {
        rule: GuardRule::ForceDelete,
        // The API server has put the pod's own grace period in before it asks, and 0 for a pod that runs
        // nowhere; the pod's own stands here in case a version does not.
        expression: format!(
            "{} || {} || ({})",
            exempt(policy),
            cel::RUNS_NOWHERE,
            cel::grace_period(
                "request.options.?gracePeriodSeconds.orValue(\
                     oldObject.spec.?terminationGracePeriodSeconds.orValue(30))",
                max
            )
        ),
        message: format!(
            "a pod on a node must be deleted with a grace period between 1 and {max} seconds, since the account \
                 would no longer be charged for containers that still run; delete it without --force, or with \
                 --grace-period=1"
        ),
    }]
}

/// Rules on eviction.
pub(super) fn eviction(policy: &GuardPolicy) -> Vec<Check> {
    let max = max_grace_period(policy);
    vec![Check {
        rule: GuardRule::ForceEvict,
        expression: format!(
            "{} || object.?deleteOptions.?gracePeriodSeconds.optMap(seconds, {}).orValue(true)",
            exempt(policy),
            cel::grace_period("seconds", max)
        ),
        message: format!(
            "a pod must be evicted with a grace period between 1 and {max} seconds, since the account would no \
                 longer be charged for containers that still run; leave deleteOptions.gracePeriodSeconds out to get \
                 the pod's own"
        ),
    }]
}

/// Rules on Services.
pub(super) fn service() -> Vec<Check> {
    vec![Check {
        rule: GuardRule::ExternalIps,
        expression: "object.spec.?externalIPs.orValue([]).all(address, request.operation == 'UPDATE' && \
                     address in oldObject.spec.?externalIPs.orValue([]))"
            .to_owned(),
        message: "spec.externalIPs may not be set, since they take over the traffic to any address; leave them out \
                  and reach the Service by its name in the cluster or by kubectl port-forward"
            .to_owned(),
    }]
}

fn scheduler(policy: &GuardPolicy) -> Check {
    let way_out = match names(policy.schedulers.iter()) {
        Some(schedulers) => format!("use {schedulers}"),
        None => "no scheduler is open to accounts here".to_owned(),
    };
    Check {
        rule: GuardRule::Scheduler,
        expression: format!(
            "object.spec.?schedulerName.orValue('default-scheduler') in {}",
            cel::union(&[], &policy.schedulers)
        ),
        message: format!("the scheduler that spec.schedulerName names is not open to accounts; {way_out}"),
    }
}

fn priority_class(policy: &GuardPolicy, default: Option<&str>) -> Check {
    let open = policy.priority_classes.iter().map(String::as_str).chain(default).collect::<Vec<_>>();
    let way_out = match names(open.iter()) {
        Some(classes) => format!("leave it out, or use {classes}"),
        None => "leave it out".to_owned(),
    };
    let mut fixed = vec![""];
    fixed.extend(default);
    Check {
        rule: GuardRule::PriorityClass,
        expression: format!(
            "object.spec.?priorityClassName.orValue('') in {}",
            cel::union(&fixed, &policy.priority_classes)
        ),
        message: format!("the class that spec.priorityClassName names is not open to accounts; {way_out}"),
    }
}

/// `unless`: an expression that lets a `toleration` through which would be refused.
fn tolerations(policy: &GuardPolicy, unless: &str) -> Check {
    let keys = cel::union(&[], &policy.taints);
    let others = match names(policy.taints.iter()) {
        Some(taints) => format!(", nor {taints}"),
        None => String::new(),
    };
    let ok = format!("({}) || {unless}", cel::toleration_of_others(&keys));
    Check {
        rule: GuardRule::Tolerations,
        expression: format!("object.spec.?tolerations.orValue([]).all(toleration, {ok})"),
        message: format!(
            "spec.tolerations may not tolerate every taint, as an entry without a key does{others}; name the key of \
             each taint that the pod is to tolerate"
        ),
    }
}

/// `unless`: an expression that lets a `finalizer` through which would be refused.
fn finalizers(policy: &GuardPolicy, unless: &str) -> Check {
    let ok = format!("finalizer in {} || ({unless})", cel::union(&[], &policy.finalizers));
    Check {
        rule: GuardRule::Finalizers,
        expression: format!("object.metadata.?finalizers.orValue([]).all(finalizer, {ok})"),
        message: "metadata.finalizers may not be set on a pod, since it would hold up the draining of its node; leave \
                  it out, or have it listed among the guard's finalizers"
            .to_owned(),
    }
}

/// True when the caller may delete pods at once: those who see to it that containers have ended, and those whom
/// policy trusts.
fn exempt(policy: &GuardPolicy) -> String {
    cel::caller(
        &cel::union(&["system:kube-controller-manager", "system:kube-scheduler"], &policy.exempt_users),
        &cel::union(
            &["system:masters", "system:nodes", "system:serviceaccounts:kube-system"],
            &policy.exempt_groups,
        ),
    )
}

fn max_grace_period(policy: &GuardPolicy) -> u32 {
    policy.max_grace_period_seconds.max(1)
}

/// Names for a message: on one line, the first few spelled out. `None` when there are none.
fn names<'a, T: AsRef<str> + 'a>(all: impl ExactSizeIterator<Item = &'a T>) -> Option<String> {
    let count = all.len();
    let shown: Vec<String> =
        all.take(NAMES_IN_MESSAGE).map(|name| name.as_ref().replace(char::is_control, " ")).collect();
    let hidden = count.saturating_sub(shown.len());
    match shown.split_last() {
        None => None,
        Some((last, [])) => Some(last.clone()),
        Some(_) if hidden > 0 => Some(format!("{} or one of {hidden} others", shown.join(", "))),
        Some((last, rest)) => Some(format!("{} or {last}", rest.join(", "))),
    }
}
