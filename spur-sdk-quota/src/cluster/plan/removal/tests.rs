#![allow(clippy::arithmetic_side_effects, reason = "times of a test")]

use std::time::UNIX_EPOCH;

use super::*;
use crate::cluster::plan::{Action, Desired, PlanOptions};
use crate::model::Origin;
use crate::{Policy, QuotaProjector};

const NOW: Duration = Duration::from_hours(24 * 20_000);

fn now() -> SystemTime {
    UNIX_EPOCH + NOW
}

/// What a source says that names these accounts, each with a parent if one is given.
fn projection(accounts: &[(&str, Option<&str>)], policy: &Policy) -> Projection {
    let mut model = Model::default();
    for (name, parent) in accounts {
        let added = model.add_account(&Origin::store("test"), name, *parent, "cpu=1");
        added.unwrap_or_else(|error| unreachable!("{error}"));
    }
    model.completeness = Completeness::Full;
    QuotaProjector::new(policy).project(&model)
}

fn named(accounts: &[&str]) -> Projection {
    let accounts: Vec<_> = accounts.iter().map(|name| (*name, None)).collect();
    projection(&accounts, &Policy::default())
}

/// A cluster with the namespaces of accounts, each retired so many hours ago if a number is given.
fn cluster(accounts: &[(&str, Option<u64>)]) -> Observed {
    let mut observed = Observed::default();
    for (name, retired) in accounts {
        let mut labels = json!({ names::MANAGED_BY: names::MANAGER, "spur.amd.com/account": name });
        let mut annotations = json!({ "spur.amd.com/account-name": name });
        if let Some(hours) = retired {
            labels["spur.amd.com/state"] = names::RETIRED.into();
            annotations["spur.amd.com/retired-at"] = format_time(now() - Duration::from_hours(*hours)).into();
        }
        let metadata = json!({
            "name": format!("spur-acct-{name}"), "uid": "u", "resourceVersion": "1",
            "labels": labels, "annotations": annotations,
        });
        observed.insert(Kind::Namespace, json!({ "metadata": metadata }));
    }
    observed
}

fn numbered(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| format!("a{number}")).collect()
}

/// The decision when of so many accounts the first few vanish.
fn decision(all: u32, vanish: u32) -> RemovalsDecision {
    let names = numbered(0..all);
    let there: Vec<_> = names.iter().map(|name| (name.as_str(), None)).collect();
    let left: Vec<_> = names.iter().skip(vanish as usize).map(String::as_str).collect();
    removals(&named(&left), &cluster(&there), now()).decision
}

#[test]
fn two_accounts_of_three_may_vanish_and_three_of_four_may_not() {
    assert_eq!(decision(3, 2), RemovalsDecision::Allowed);
    assert_eq!(decision(4, 3), RemovalsDecision::Held);
}

#[test]
fn three_accounts_are_held_when_they_are_more_than_a_fifth() {
    assert_eq!(decision(15, 3), RemovalsDecision::Allowed);
    assert_eq!(decision(14, 3), RemovalsDecision::Held);
}

#[test]
fn more_than_ten_accounts_are_held_however_many_there_are() {
    assert_eq!(decision(1_000, 10), RemovalsDecision::Allowed);
    assert_eq!(decision(1_000, 11), RemovalsDecision::Held);
}

#[test]
fn what_was_retired_in_the_last_day_counts_and_what_was_before_does_not() {
    let names = numbered(0..40);
    let site = |hours: u64| {
        let there = names.iter().enumerate().map(|(number, name)| {
            let retired = (number < 10).then_some(hours);
            (name.as_str(), retired)
        });
        cluster(&there.collect::<Vec<_>>())
    };
    let left: Vec<_> = names.iter().skip(11).map(String::as_str).collect();
    assert_eq!(removals(&named(&left), &site(23), now()).decision, RemovalsDecision::Held);
    assert_eq!(removals(&named(&left), &site(24), now()).decision, RemovalsDecision::Allowed);
}

#[test]
fn a_clock_that_was_set_back_forgets_no_removal() {
    let names = numbered(0..12);
    let there: Vec<_> =
        names.iter().enumerate().map(|(n, name)| (name.as_str(), (n < 2).then_some(0))).collect();
    let left: Vec<_> = names.iter().skip(3).map(String::as_str).collect();
    let before = now() - Duration::from_hours(100);
    assert_eq!(removals(&named(&left), &cluster(&there), before).decision, RemovalsDecision::Held);
}

#[test]
fn a_confirmation_stands_for_exactly_the_accounts_that_vanished() {
    let names = numbered(0..8);
    let there: Vec<_> = names.iter().map(|name| (name.as_str(), None)).collect();
    let left: Vec<_> = names.iter().skip(3).map(String::as_str).collect();
    let confirmed = |word: &str| {
        let mut observed = cluster(&there);
        let metadata = json!({
            "name": names::USERS_NAMESPACE,
            "labels": { names::MANAGED_BY: names::MANAGER },
            "annotations": { "spur.amd.com/confirm-removals": word },
        });
        observed.insert(Kind::Namespace, json!({ "metadata": metadata }));
        observed
    };
    let held = removals(&named(&left), &confirmed("000000000000"), now());
    assert_eq!(held.decision, RemovalsDecision::Held);
    let observed = confirmed(&held.digest);
    assert_eq!(removals(&named(&left), &observed, now()).decision, RemovalsDecision::Confirmed);
    let fewer = left.get(1..).unwrap_or_default();
    assert_eq!(removals(&named(fewer), &observed, now()).decision, RemovalsDecision::Held);
}

#[test]
fn nothing_vanishes_from_a_source_that_was_not_read_in_full() {
    let mut projection = named(&["a"]);
    projection.completeness = Completeness::Partial;
    let removals = removals(&projection, &cluster(&[("a", None), ("b", None)]), now());
    assert_eq!(removals.decision, RemovalsDecision::NotReadInFull);
    assert!(!removals.allowed());
}

#[test]
fn a_namespace_that_is_not_ours_or_has_another_name_never_vanishes() {
    let mut observed = cluster(&[("a", None)]);
    observed.insert(Kind::Namespace, json!({ "metadata": { "name": "spur-acct-foreign" } }));
    let label = json!({ names::MANAGED_BY: names::MANAGER });
    observed.insert(Kind::Namespace, json!({ "metadata": { "name": "kube-system", "labels": label } }));
    assert_eq!(removals(&named(&["a"]), &observed, now()).vanished, Vec::<String>::new());
}

#[test]
fn with_a_scope_only_what_was_in_it_vanishes() {
    let scope = vec!["physics".parse().unwrap_or_else(|error| unreachable!("{error}"))];
    let policy = Policy { scope, ..Policy::default() };
    let left = projection(&[("physics", None), ("optics", Some("physics")), ("bio", None)], &policy);
    let mut observed = Observed::default();
    for (name, parent) in [("laser", "optics"), ("beam", "laser"), ("cell", "bio"), ("orphan", "nobody")] {
        let metadata = json!({
            "name": format!("spur-acct-{name}"),
            "labels": { names::MANAGED_BY: names::MANAGER },
            "annotations": { "spur.amd.com/account-name": name, "spur.amd.com/parent": parent },
        });
        observed.insert(Kind::Namespace, json!({ "metadata": metadata }));
    }
    let vanished = removals(&left, &observed, now()).vanished;
    assert_eq!(vanished, ["spur-acct-beam", "spur-acct-laser"]);
}

#[test]
fn retiring_marks_the_namespace_first_and_closes_every_cap_but_the_count_of_quotas() {
    let mut observed = cluster(&[("gone", None)]);
    let object = |name: &str| json!({ "namespace": "spur-acct-gone", "name": name, "uid": "u", "resourceVersion": "1" });
    let hard = json!({ "pods": "500", "requests.cpu": "4", "resourcequotas": "10" });
    let quota = json!({ "metadata": object(names::QUOTA), "spec": { "hard": hard } });
    observed.insert(Kind::ResourceQuota, quota);
    observed.insert(Kind::RoleBinding, json!({ "metadata": object(names::MEMBERS) }));
    let projection = named(&["a"]);
    let desired = Desired::new(&projection);
    let plan = desired.retire("spur-acct-gone", &observed, &PlanOptions::default(), now());
    let plan = plan.unwrap_or_else(|skipped| unreachable!("{skipped:?}"));
    let kinds: Vec<_> = plan.restrict.iter().map(|step| step.target.kind).collect();
    assert_eq!(kinds, [Kind::Namespace, Kind::RoleBinding, Kind::ResourceQuota]);
    let closed = plan.restrict.iter().find_map(|step| match &step.action {
        Action::Update { object, .. } if step.target.kind == Kind::ResourceQuota => {
            object.pointer("/spec/hard")
        }
        _ => None,
    });
    assert_eq!(closed, Some(&json!({ "pods": "0", "requests.cpu": "0", "resourcequotas": "10" })));
}
