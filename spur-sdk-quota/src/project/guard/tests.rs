use std::collections::BTreeSet;

use super::*;
use crate::policy::guard::GuardRule;

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), "spur-quota".to_owned())])
}

fn guard(policy: &GuardPolicy) -> Vec<(ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding)> {
    guard_objects(policy, None, ("app.kubernetes.io/managed-by", "spur-quota"), "spur.amd.com", &labels())
}

fn name(policy: &ValidatingAdmissionPolicy) -> &str {
    policy.metadata.name.as_deref().unwrap()
}

/// The rules, without the probe that the policy on new pods begins with.
fn validations(policy: &ValidatingAdmissionPolicy) -> &[Validation] {
    let all = policy.spec.as_ref().unwrap().validations.as_deref().unwrap();
    if name(policy) == names::GUARD_OF_PODS { &all[1..] } else { all }
}

fn probe(policy: &GuardPolicy) -> Option<Validation> {
    let objects = guard(policy);
    let (pods, _) = objects.iter().find(|(policy, _)| name(policy) == names::GUARD_OF_PODS)?;
    pods.spec.as_ref()?.validations.as_ref()?.first().cloned()
}

fn messages(policy: &GuardPolicy) -> String {
    let messages: Vec<_> = guard(policy)
        .iter()
        .flat_map(|(policy, _)| validations(policy).iter().map(|v| v.message.clone().unwrap()))
        .collect();
    messages.join("\n")
}

#[test]
fn the_policies_are_sorted_and_each_is_bound_by_its_own_name() {
    let objects = guard(&GuardPolicy::default());
    let names: Vec<_> = objects.iter().map(|(policy, _)| name(policy)).collect();
    assert_eq!(
        names,
        [
            "spur-guard-eviction",
            "spur-guard-pod-deletion",
            "spur-guard-pod-updates",
            "spur-guard-services",
            "spur-guard-pods"
        ]
    );
    for (policy, binding) in &objects {
        assert_eq!(policy.metadata, binding.metadata);
        assert_eq!(policy.metadata.labels, Some(labels()));
        let spec = binding.spec.as_ref().unwrap();
        assert_eq!(spec.policy_name.as_deref(), Some(name(policy)));
        assert_eq!(spec.validation_actions, Some(vec!["Deny".to_owned()]));
    }
}

#[test]
fn an_annotation_names_the_rules_that_are_on() {
    let objects = guard(&GuardPolicy::default().without(GuardRule::ForceEvict));
    let rules: Vec<_> = objects
        .iter()
        .map(|(policy, _)| policy.metadata.annotations.as_ref().unwrap()["spur.amd.com/guard-rules"].clone())
        .collect();
    assert_eq!(
        rules,
        [
            "force_delete",
            "tolerations,finalizers",
            "external_ips",
            "node_name,scheduler,priority_class,grace_period,pod_resources,resource_claims,tolerations,\
         cross_namespace_affinity,volumes,finalizers",
        ]
    );
}

#[test]
fn every_rule_can_be_switched_off_alone_and_without_rules_there_are_no_objects() {
    let all: usize = guard(&GuardPolicy::default()).iter().map(|(policy, _)| validations(policy).len()).sum();
    let mut none = GuardPolicy::default();
    let mut removed = 0;
    for rule in GuardRule::ALL {
        let objects = guard(&GuardPolicy::default().without(rule));
        let left: usize = objects.iter().map(|(policy, _)| validations(policy).len()).sum();
        assert!(left < all, "{rule} switches nothing off");
        removed += all - left;
        none = none.without(rule);
    }
    assert_eq!(removed, all);
    assert_eq!(guard(&none), []);
}

#[test]
fn the_probe_tells_every_version_of_the_guard_apart() {
    let message = |policy: &GuardPolicy| probe(policy).unwrap().message.unwrap();
    let mut seen = BTreeSet::from([message(&GuardPolicy::default())]);
    for rule in GuardRule::ALL {
        assert!(seen.insert(message(&GuardPolicy::default().without(rule))), "{rule}");
    }
    assert!(seen.insert(message(&GuardPolicy::default().with_priority_class("high"))));
    assert_eq!(message(&GuardPolicy::default()), message(&GuardPolicy::default()));
    // With every rule on new pods off, the others are still probed.
    let others = [GuardRule::ForceDelete, GuardRule::ForceEvict, GuardRule::ExternalIps];
    let off = GuardRule::ALL.into_iter().filter(|rule| !others.contains(rule));
    let policy = off.fold(GuardPolicy::default(), GuardPolicy::without);
    let probe = probe(&policy).unwrap();
    assert_eq!(probe.expression, "object.metadata.?name.orValue('') != 'spur-guard-probe'");
}

#[test]
fn no_list_is_used_that_server_side_apply_merges() {
    for (policy, _) in guard(&GuardPolicy::default()) {
        let spec = policy.spec.unwrap();
        assert_eq!((spec.match_conditions, spec.variables), (None, None));
        assert_eq!((spec.audit_annotations, spec.param_kind), (None, None));
    }
}

#[test]
fn every_denial_is_a_403_with_one_sentence_on_one_line() {
    for (policy, _) in guard(&GuardPolicy::default()) {
        for validation in validations(&policy) {
            let message = validation.message.as_deref().unwrap();
            assert_eq!(validation.reason.as_deref(), Some("Forbidden"));
            assert!(!message.contains(char::is_control) && !message.contains("  "), "{message}");
            assert!(message.contains(';'), "no way out: {message}");
            assert!(!validation.expression.contains(char::is_control), "{}", validation.expression);
            assert!(!validation.expression.contains("  "), "{}", validation.expression);
        }
    }
}

#[test]
fn rules_on_the_content_of_pods_let_nobody_through_but_mirror_pods() {
    let policy = GuardPolicy::default().with_exempt_user("root").with_exempt_group("wheel");
    for (policy, _) in guard(&policy) {
        for validation in validations(&policy) {
            let content = name(&policy) == "spur-guard-pods";
            assert_eq!(validation.expression.starts_with(cel::MIRROR_POD), content);
            if content {
                assert!(!validation.expression.contains("'root'"), "{}", validation.expression);
                assert!(!validation.expression.contains("'wheel'"), "{}", validation.expression);
            }
        }
    }
}

#[test]
fn rules_on_deletion_exempt_whom_policy_names() {
    let policy = GuardPolicy::default().with_exempt_user("o'hara").with_exempt_group("wheel");
    for (policy, _) in guard(&policy) {
        if ["spur-guard-pod-deletion", "spur-guard-eviction"].contains(&name(&policy)) {
            for validation in validations(&policy) {
                assert!(validation.expression.contains(
                    r"request.userInfo.username in ['o\'hara', 'system:kube-controller-manager', 'system:kube-scheduler']"
                ));
                assert!(validation.expression.contains(
                    "['system:masters', 'system:nodes', 'system:serviceaccounts:kube-system', 'wheel']"
                ));
            }
        }
    }
}

#[test]
fn a_priority_class_is_open_when_listed_or_the_default() {
    let policy = GuardPolicy::default().with_priority_class("high").with_priority_class("low");
    let label = ("app.kubernetes.io/managed-by", "spur-quota");
    let objects = guard_objects(&policy, Some("normal"), label, "spur.amd.com", &labels());
    let (pods, _) = objects.iter().find(|(policy, _)| name(policy) == "spur-guard-pods").unwrap();
    let class = &validations(pods)[2];
    assert!(
        class.expression.ends_with("orValue('') in ['', 'high', 'low', 'normal'])"),
        "{}",
        class.expression
    );
    assert_eq!(
        class.message.as_deref().unwrap(),
        "the class that spec.priorityClassName names is not open to accounts; leave it out, or use high, low or normal"
    );
}

#[test]
fn a_message_spells_out_ten_names_and_counts_the_others() {
    let mut policy = GuardPolicy {
        priority_classes: (10..30).map(|n| format!("p{n}")).collect(),
        ..GuardPolicy::default()
    };
    assert!(messages(&policy).contains(
        "leave it out, or use p10, p11, p12, p13, p14, p15, p16, p17, p18, p19 or one of 10 others"
    ));
    policy.priority_classes = BTreeSet::new();
    assert!(messages(&policy).contains("names is not open to accounts; leave it out\n"));
    policy.schedulers = BTreeSet::new();
    policy.taints = BTreeSet::new();
    let messages = messages(&policy);
    assert!(messages.contains("not open to accounts; no scheduler is open to accounts here\n"), "{messages}");
    assert!(messages.contains("as an entry without a key does; name the key"), "{messages}");
}

#[test]
fn a_grace_period_of_nothing_at_most_counts_as_one_second() {
    let mut policy = GuardPolicy { max_grace_period_seconds: 0, ..GuardPolicy::default() };
    assert!(messages(&policy).contains("must be between 1 and 1;"));
    policy.max_grace_period_seconds = 3600;
    assert_eq!(messages(&policy).matches("between 1 and 3600").count(), 3);
}

#[test]
fn names_from_policy_stay_inside_their_literal() {
    let policy = GuardPolicy::default().with_priority_class("a' || true || '\\\n\u{2028}b");
    let objects = guard(&policy);
    let (pods, _) = objects.iter().find(|(policy, _)| name(policy) == "spur-guard-pods").unwrap();
    let class = &validations(pods)[2];
    assert!(
        class.expression.ends_with(r"in ['', 'a\' || true || \'\\\U0000000a\U00002028b'])"),
        "{}",
        class.expression
    );
    assert!(!class.message.as_deref().unwrap().contains('\n'));
}
