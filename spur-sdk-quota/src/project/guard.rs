//! The tenant guard: admission policies for what quota and RBAC cannot hold.
//!
//! One policy for each kind of request, so that a request is judged by few expressions; one validation for each
//! rule, so that an answer names one fault. The policies are bound to our namespaces by their label and need no
//! webhook. Every field that the API server would default is set, so that what is read back equals what was
//! written, and every list is one that server-side apply replaces as a whole (see [`cel`]).

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use sha2::{Digest, Sha256};

use super::names;
use crate::policy::guard::GuardPolicy;

mod cel;
mod rules;

/// One of the policies: the requests that it judges, and how.
struct Section {
    name: &'static str,
    resource: &'static str,
    operations: &'static [&'static str],
    checks: Vec<rules::Check>,
}

/// The policies of the tenant guard with their bindings, sorted by name but for that on new pods, which is last.
///
/// `default_priority_class` is the cluster's global default, which the API server fills in before the guard sees
/// a pod. `namespace_label` is the key and value that our namespaces carry. A policy none of whose rules is on is
/// left out.
pub(crate) fn guard_objects(
    policy: &GuardPolicy,
    default_priority_class: Option<&str>,
    namespace_label: (&str, &str),
    prefix: &str,
    labels: &BTreeMap<String, String>,
) -> Vec<(ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding)> {
    let mut sections = [
        Section {
            name: "spur-guard-pods",
            resource: "pods",
            operations: &["CREATE"],
            checks: rules::pod_creation(policy, default_priority_class),
        },
        Section {
            name: "spur-guard-pod-updates",
            resource: "pods",
            operations: &["UPDATE"],
            checks: rules::pod_update(policy),
        },
        Section {
            name: "spur-guard-pod-deletion",
            resource: "pods",
            operations: &["DELETE"],
            checks: rules::pod_deletion(policy),
        },
        Section {
            name: "spur-guard-eviction",
            resource: "pods/eviction",
            operations: &["CREATE"],
            checks: rules::eviction(policy),
        },
        Section {
            name: "spur-guard-services",
            resource: "services",
            operations: &["CREATE", "UPDATE"],
            checks: rules::service(),
        },
    ];
    for section in &mut sections {
        section.checks.retain(|check| policy.enforces(check.rule));
    }
    if sections.iter().all(|section| section.checks.is_empty()) {
        return Vec::new();
    }
    // The policy that can be probed is written last: when it is in force, so are the others.
    sections.sort_unstable_by_key(|section| (section.name == names::GUARD_OF_PODS, section.name));
    let probe = probe(&sections);
    sections
        .into_iter()
        .filter_map(|section| {
            let probe = (section.name == names::GUARD_OF_PODS).then(|| probe.clone());
            objects(section, probe, namespace_label, prefix, labels)
        })
        .collect()
}

/// A rule that refuses just the pod with which apply asks whether the guard is in force. Its message holds a
/// digest of all rules, so that an older version does not pass for this one.
fn probe(sections: &[Section]) -> Validation {
    let mut digest = Sha256::new();
    for section in sections {
        for text in [section.name, section.resource].into_iter().chain(section.operations.iter().copied()) {
            digest.update(text);
            digest.update([0]);
        }
        for check in &section.checks {
            digest.update(&check.expression);
            digest.update([0]);
            digest.update(&check.message);
            digest.update([0]);
        }
    }
    let digest = digest.finalize().iter().take(8).fold(0_u64, |bits, byte| (bits << 8) | u64::from(*byte));
    Validation {
        expression: format!("object.metadata.?name.orValue('') != {}", cel::string(names::GUARD_PROBE)),
        message: Some(format!("the tenant guard is in force, version {digest:016x}")),
        reason: Some("Forbidden".to_owned()),
        ..Validation::default()
    }
}

fn objects(
    section: Section,
    probe: Option<Validation>,
    namespace_label: (&str, &str),
    prefix: &str,
    labels: &BTreeMap<String, String>,
) -> Option<(ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding)> {
    let checks = section.checks;
    if checks.is_empty() && probe.is_none() {
        return None;
    }
    let mut rules: Vec<_> = checks.iter().map(|check| check.rule.name()).collect();
    rules.dedup();
    let metadata = ObjectMeta {
        name: Some(section.name.to_owned()),
        labels: Some(labels.clone()),
        annotations: Some(BTreeMap::from([(format!("{prefix}/guard-rules"), rules.join(","))])),
        ..ObjectMeta::default()
    };
    let spec = ValidatingAdmissionPolicySpec {
        failure_policy: Some("Fail".to_owned()),
        match_constraints: Some(MatchResources {
            match_policy: Some("Equivalent".to_owned()),
            namespace_selector: Some(LabelSelector {
                match_labels: Some(BTreeMap::from([(
                    namespace_label.0.to_owned(),
                    namespace_label.1.to_owned(),
                )])),
                ..LabelSelector::default()
            }),
            object_selector: Some(LabelSelector::default()),
            resource_rules: Some(vec![NamedRuleWithOperations {
                api_groups: Some(vec![String::new()]),
                api_versions: Some(vec!["v1".to_owned()]),
                operations: Some(section.operations.iter().map(|&operation| operation.to_owned()).collect()),
                resources: Some(vec![section.resource.to_owned()]),
                scope: Some("*".to_owned()),
                ..NamedRuleWithOperations::default()
            }]),
            ..MatchResources::default()
        }),
        validations: Some(probe.into_iter().chain(checks.into_iter().map(validation)).collect()),
        ..ValidatingAdmissionPolicySpec::default()
    };
    let binding = ValidatingAdmissionPolicyBindingSpec {
        policy_name: Some(section.name.to_owned()),
        validation_actions: Some(vec!["Deny".to_owned()]),
        ..ValidatingAdmissionPolicyBindingSpec::default()
    };
    Some((
        ValidatingAdmissionPolicy { metadata: metadata.clone(), spec: Some(spec), status: None },
        ValidatingAdmissionPolicyBinding { metadata, spec: Some(binding) },
    ))
}

fn validation(check: rules::Check) -> Validation {
    Validation {
        expression: check.expression,
        message: Some(check.message),
        // Without a reason the answer is 422.
        reason: Some("Forbidden".to_owned()),
        ..Validation::default()
    }
}

#[cfg(test)]
mod tests;
