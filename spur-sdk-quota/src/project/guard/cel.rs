//! Pieces of CEL, the language of admission policies, from which the rules are put together.
//!
//! A policy's `variables` and `matchConditions` would say some of this once. They are lists that server-side
//! apply merges by name, so that another manager could add to them: a condition that is never true would switch
//! a rule off. The list of validations is replaced as a whole.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// A string literal.
pub(super) fn string(text: &str) -> String {
    let mut literal = String::with_capacity(text.len().saturating_add(2));
    literal.push('\'');
    for c in text.chars() {
        match c {
            '\'' | '\\' => {
                literal.push('\\');
                literal.push(c);
            }
            // Also the line separators beyond ASCII: an expression on one line needs no other care.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                // Writing to a String never fails.
                let _ = write!(literal, "\\U{:08x}", u32::from(c));
            }
            c => literal.push(c),
        }
    }
    literal.push('\'');
    literal
}

/// A list literal of strings, in the order given.
pub(super) fn list<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    format!("[{}]", items.into_iter().map(string).collect::<Vec<_>>().join(", "))
}

/// A list literal of two sources together, sorted and without doubles.
pub(super) fn union<'a>(fixed: &[&'a str], more: &'a BTreeSet<String>) -> String {
    let all: BTreeSet<&str> = fixed.iter().copied().chain(more.iter().map(String::as_str)).collect();
    list(all)
}

/// True when the caller is one of these users, or in one of these groups (list literals).
pub(super) fn caller(users: &str, groups: &str) -> String {
    format!(
        "request.userInfo.username in {users} || (has(request.userInfo.groups) && \
         request.userInfo.groups.exists(group, group in {groups}))"
    )
}

/// True when the object is the mirror of a static pod, written by a node.
pub(super) const MIRROR_POD: &str = "(has(object.metadata.annotations) && 'kubernetes.io/config.mirror' in \
     object.metadata.annotations && has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups)";

/// True when a `finalizer` is the one that the Job controller sets on the pods of a Job that it creates. Others may
/// not have it: a `ReplicaSet` would copy it from its template, and the Job controller never takes it off the pod of
/// another kind, nor off the pod of a Job that names another manager.
pub(super) const FINALIZER_OF_JOB_CONTROLLER: &str = "finalizer == 'batch.kubernetes.io/job-tracking' && \
     request.userInfo.username in ['system:kube-controller-manager', \
     'system:serviceaccount:kube-system:job-controller'] && \
     object.metadata.?ownerReferences.orValue([]).exists(owner, owner.?controller.orValue(false) && \
     owner.apiVersion == 'batch/v1' && owner.kind == 'Job')";

/// True when the pod that is being deleted runs nowhere: it was never bound, or has ended.
pub(super) const RUNS_NOWHERE: &str = "oldObject.spec.?nodeName.orValue('') == '' || \
     oldObject.?status.?phase.orValue('') in ['Succeeded', 'Failed']";

/// True when a term of pod affinity (a CEL expression) stays in its namespace.
fn own_namespace(term: &str) -> String {
    format!(
        "!has({term}.namespaceSelector) && {term}.?namespaces.orValue([]).all(name, name == request.namespace)"
    )
}

/// True when every term of pod affinity and anti-affinity stays in its namespace.
pub(super) fn affinity_of_own_namespace() -> String {
    let mut parts = Vec::new();
    for kind in ["podAffinity", "podAntiAffinity"] {
        let terms = format!("object.spec.?affinity.?{kind}");
        parts.push(format!(
            "{terms}.?requiredDuringSchedulingIgnoredDuringExecution.orValue([]).all(term, {})",
            own_namespace("term")
        ));
        parts.push(format!(
            "{terms}.?preferredDuringSchedulingIgnoredDuringExecution.orValue([]).all(term, {})",
            own_namespace("term.podAffinityTerm")
        ));
    }
    parts.join(" && ")
}

/// Whether every volume of the pod is of a kind that the cluster itself gives out.
pub(super) fn volumes_of_the_cluster() -> String {
    let kinds = [
        "configMap",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    let kinds = kinds.map(|kind| format!("has(volume.{kind})")).join(" || ");
    format!("object.spec.?volumes.orValue([]).all(volume, {kinds})")
}

/// True when the pod claims no devices. The API server copies limits to requests, so requests say it all; it leaves
/// them out of the type that it checks expressions against, hence `dyn`.
pub(super) fn no_device_claims() -> String {
    let container = "dyn(container).?resources.?requests.orValue({}).all(name, \
                     !name.startsWith('deviceclass.resource.kubernetes.io/'))";
    format!(
        "object.spec.?resourceClaims.orValue([]).size() == 0 && object.spec.containers.all(container, {container}) \
         && object.spec.?initContainers.orValue([]).all(container, {container})"
    )
}

/// True when a toleration (named `toleration`) names a taint, and none of these keys (a list literal).
pub(super) fn toleration_of_others(keys: &str) -> String {
    format!("toleration.?key.orValue('') != '' && !(toleration.key in {keys})")
}

/// True when a number of seconds (a CEL expression) lies between 1 and `max`.
pub(super) fn grace_period(seconds: &str, max: u32) -> String {
    format!("{seconds} >= 1 && {seconds} <= {max}")
}
