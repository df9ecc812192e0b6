//! What the fence refuses.

use serde_json::{Value, json};

use super::RBAC;

/// What RBAC lets the operator do and the fence does not: where, what, and the answer.
pub(crate) fn fenced() -> Vec<(String, Value, &'static str)> {
    let namespace = |name: &str, labels: Value| {
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } });
        (format!("/api/v1/namespaces/{name}"), object)
    };
    let role = |rest: Value| {
        let mut object = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "spur-tenant" },
        });
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        (format!("{RBAC}/clusterroles/spur-tenant"), object)
    };
    let inside = |version: &str, kind: &str, rest: &str, name: &str, more: Value| {
        let group = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
        let mut object = json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name } });
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (format!("{group}/namespaces/{rest}"), object)
    };
    let level = "pod-security.kubernetes.io/enforce";
    let everything = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]);
    let bound = json!({
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "spur-tenant" },
    });
    let about = json!({ "involvedObject": { "namespace": "default" } });
    let cases = [
        (
            namespace("elsewhere", json!({ level: "baseline" })),
            "writes namespaces of accounts and spur-users",
        ),
        (namespace("spur-acct-x", json!({})), "enforces the Pod Security level"),
        (namespace("spur-acct-x", json!({ level: "privileged" })), "enforces the Pod Security level"),
        (namespace("spur-users", json!({ level: "privileged" })), "enforces the Pod Security level"),
        (role(json!({ "rules": everything })), "writes no other rules"),
        (role(json!({ "rules": [] })), "writes no other rules"),
        (role(json!({ "aggregationRule": { "clusterRoleSelectors": [{}] } })), "the operator"),
        (
            inside(
                "rbac.authorization.k8s.io/v1",
                "RoleBinding",
                "kube-system/rolebindings/spur-members",
                "spur-members",
                bound.clone(),
            ),
            "writes quotas, limits and bindings in the namespaces of accounts",
        ),
        (
            inside(
                "rbac.authorization.k8s.io/v1",
                "RoleBinding",
                "spur-users/rolebindings/spur-members",
                "spur-members",
                bound,
            ),
            "writes quotas, limits and bindings in the namespaces of accounts",
        ),
        (
            inside("v1", "ResourceQuota", "kube-system/resourcequotas/spur-quota", "spur-quota", json!({})),
            "writes quotas, limits and bindings in the namespaces of accounts",
        ),
        (
            inside("v1", "LimitRange", "default/limitranges/spur-defaults", "spur-defaults", json!({})),
            "writes quotas, limits and bindings in the namespaces of accounts",
        ),
        (
            inside("v1", "ServiceAccount", "default/serviceaccounts/default", "default", json!({})),
            "writes ServiceAccounts and Events in the namespaces of accounts",
        ),
        (
            inside("v1", "Event", "default/events", "x", about),
            "writes ServiceAccounts and Events in the namespaces of accounts",
        ),
        (
            inside("coordination.k8s.io/v1", "Lease", "kube-system/leases", "kube-scheduler", json!({})),
            "has one Lease",
        ),
    ];
    cases.into_iter().map(|((path, object), answer)| (path, object, answer)).collect()
}
