//! What members and coordinators of an account may do in its namespace.
//!
//! Without wildcards, and not aggregated: a role that a new API or a CRD can widen by itself is not least
//! privilege. What is left out, and why:
//!
//! - `namespaces`, even `get`: with it the Multi-Tenancy Benchmarks count the tenant as having access to a
//!   cluster-scoped resource.
//! - `serviceaccounts`, `serviceaccounts/token`, impersonation, RBAC: the way to other identities.
//! - `pods/resize`, `pods/ephemeralcontainers`, `resourceclaims`: the way round quota and the tenant guard.
//! - `pods/status`, `pods/binding`: a pod that says it has ended is no longer charged.
//! - `poddisruptionbudgets`: they block drains. `networkpolicies`: deleting one opens the namespace.
//! - `endpoints`, `endpointslices`: they redirect a Service elsewhere (CVE-2021-25740).
//! - `leases`, custom resources and metrics: a site that wants them binds a role of its own.

use k8s_openapi::api::rbac::v1::PolicyRule;

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// The rules of the ClusterRole `spur-tenant`: what every member of an account may do in its namespace.
pub(crate) fn tenant_rules() -> Vec<PolicyRule> {
    vec![
        rule("", &["configmaps", "persistentvolumeclaims", "pods", "secrets", "services"], WRITE),
        rule("", &["pods/log"], &["get"]),
        // The verb of a stream follows its HTTP method: websockets begin with GET, SPDY with POST.
        rule("", &["pods/attach", "pods/exec", "pods/portforward"], &["create", "get"]),
        rule("", &["pods/eviction"], &["create"]),
        rule("", &["events", "limitranges", "resourcequotas"], READ),
        rule("apps", &["daemonsets", "deployments", "replicasets", "statefulsets"], WRITE),
        rule(
            "apps",
            &["deployments/scale", "replicasets/scale", "statefulsets/scale"],
            &["get", "update", "patch"],
        ),
        // Written by controllers; `kubectl rollout history` and `undo` read them.
        rule("apps", &["controllerrevisions"], READ),
        rule("autoscaling", &["horizontalpodautoscalers"], WRITE),
        rule("batch", &["cronjobs", "jobs"], WRITE),
        rule("events.k8s.io", &["events"], READ),
    ]
}

/// The rules of the ClusterRole `spur-coordinator`: what a member may do, and a look at what else binds the
/// account. A coordinator need not be a member.
pub(crate) fn coordinator_rules() -> Vec<PolicyRule> {
    let mut rules = tenant_rules();
    rules.push(rule("", &["serviceaccounts"], READ));
    rules.push(rule("discovery.k8s.io", &["endpointslices"], READ));
    rules.push(rule("networking.k8s.io", &["networkpolicies"], READ));
    rules.push(rule("policy", &["poddisruptionbudgets"], READ));
    rules
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |items: &[&str]| items.iter().map(|&item| item.to_owned()).collect();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resource names of all rules, `group/resource` with an empty group for the core.
    fn granted(rules: &[PolicyRule]) -> Vec<(String, String)> {
        let mut granted = Vec::new();
        for rule in rules {
            for group in rule.api_groups.iter().flatten() {
                for resource in rule.resources.iter().flatten() {
                    for verb in &rule.verbs {
                        granted.push((format!("{group}/{resource}"), verb.clone()));
                    }
                }
            }
        }
        granted
    }

    #[test]
    fn no_role_has_a_wildcard_or_a_url() {
        for rule in tenant_rules().iter().chain(&coordinator_rules()) {
            let names = rule.api_groups.iter().chain(&rule.resources).flatten().chain(&rule.verbs);
            assert!(names.into_iter().all(|name| !name.contains('*')), "{rule:?}");
            assert_eq!(rule.non_resource_urls, None);
        }
    }

    #[test]
    fn nothing_is_granted_twice() {
        for rules in [tenant_rules(), coordinator_rules()] {
            let mut granted = granted(&rules);
            let all = granted.len();
            granted.sort_unstable();
            granted.dedup();
            assert_eq!(granted.len(), all);
        }
    }

    #[test]
    fn no_role_reaches_identities_limits_or_the_way_round_them() {
        let never = [
            "/bindings",
            "/endpoints",
            "/namespaces",
            "/nodes",
            "/pods/binding",
            "/pods/ephemeralcontainers",
            "/pods/proxy",
            "/pods/resize",
            "/pods/status",
            "/serviceaccounts/token",
            "/services/proxy",
            "/services/status",
            "resource.k8s.io/resourceclaims",
            "resource.k8s.io/resourceclaimtemplates",
        ];
        for (resource, verb) in granted(&tenant_rules()).into_iter().chain(granted(&coordinator_rules())) {
            assert!(!never.contains(&resource.as_str()), "{verb} {resource}");
            assert!(!resource.starts_with("rbac.authorization.k8s.io/"), "{verb} {resource}");
            // Kubernetes 1.36 has several verbs of impersonation.
            assert!(!verb.contains("impersonate"), "{verb} {resource}");
            assert!(!["bind", "escalate"].contains(&verb.as_str()), "{verb} {resource}");
        }
    }

    #[test]
    fn what_restricts_an_account_is_only_read() {
        let read_only = [
            "/events",
            "/limitranges",
            "/resourcequotas",
            "/serviceaccounts",
            "apps/controllerrevisions",
            "discovery.k8s.io/endpointslices",
            "events.k8s.io/events",
            "networking.k8s.io/networkpolicies",
            "policy/poddisruptionbudgets",
        ];
        for (resource, verb) in granted(&coordinator_rules()) {
            if read_only.contains(&resource.as_str()) {
                assert!(READ.contains(&verb.as_str()), "{verb} {resource}");
            }
        }
    }

    #[test]
    fn a_coordinator_may_do_what_a_member_may() {
        let coordinator = granted(&coordinator_rules());
        assert!(granted(&tenant_rules()).iter().all(|grant| coordinator.contains(grant)));
    }
}
