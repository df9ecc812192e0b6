//! The check finds what is put wrong into a projection that was right.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;

use spur_sdk_quota::k8s::Object;
use spur_sdk_quota::k8s::k8s_openapi::api::core::v1::LimitRangeItem;
use spur_sdk_quota::k8s::k8s_openapi::api::rbac::v1::Subject;
use spur_sdk_quota::k8s::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use spur_sdk_quota::k8s::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use spur_sdk_quota::{Model, Origin, Policy, Projection, check};

use support::{lines, project};

/// `science` with `physics` below it.
fn projection() -> Projection {
    let origin = Origin::store("test");
    let mut model = Model::default();
    model.add_account(&origin, "science", None, "cpu=8,mem=8000,gres/gpu=4").unwrap();
    model.add_account(&origin, "physics", Some("science"), "cpu=4").unwrap();
    model.add_member(&origin, "physics", "alice").unwrap();
    let projection = project(&model, &Policy::default());
    assert_eq!(check(&projection), []);
    projection
}

/// An object of account `physics` by its kind and, where there are several, its name.
fn object<'p>(projection: &'p mut Projection, title: &str) -> &'p mut Object {
    let physics =
        projection.accounts.iter_mut().find(|account| account.account.as_str() == "physics").unwrap();
    physics.objects.iter_mut().find(|object| object.title().starts_with(title)).unwrap()
}

fn metadata(object: &mut Object) -> &mut ObjectMeta {
    match object {
        Object::Namespace(object) => &mut object.metadata,
        Object::ResourceQuota(object) => &mut object.metadata,
        Object::LimitRange(object) => &mut object.metadata,
        Object::RoleBinding(object) => &mut object.metadata,
        other => panic!("not needed for {}", other.title()),
    }
}

fn set_cap(projection: &mut Projection, key: &str, amount: &str) {
    let Object::ResourceQuota(quota) = object(projection, "ResourceQuota spur-acct-physics/spur-quota")
    else {
        panic!()
    };
    quota.spec.as_mut().unwrap().hard.as_mut().unwrap().insert(key.to_owned(), Quantity(amount.to_owned()));
}

fn range(projection: &mut Projection) -> &mut LimitRangeItem {
    let Object::LimitRange(range) = object(projection, "LimitRange") else { panic!() };
    range.spec.as_mut().unwrap().limits.first_mut().unwrap()
}

fn amounts(key: &str, amount: &str) -> BTreeMap<String, Quantity> {
    BTreeMap::from([(key.to_owned(), Quantity(amount.to_owned()))])
}

/// What is found after a change.
fn found(change: impl FnOnce(&mut Projection)) -> String {
    let mut projection = projection();
    change(&mut projection);
    lines(check(&projection).iter())
}

#[test]
fn an_object_that_stands_there_twice_is_found() {
    let found = found(|projection| {
        let copy = object(projection, "LimitRange").clone();
        projection.accounts[0].objects.push(copy);
    });
    assert_eq!(found, "account physics: LimitRange spur-acct-physics/spur-defaults: stands there twice\n");
}

#[test]
fn an_object_in_another_namespace_is_found() {
    let found = found(|projection| {
        metadata(object(projection, "LimitRange")).namespace = Some("kube-system".to_owned());
    });
    assert_eq!(
        found,
        "account physics: LimitRange kube-system/spur-defaults: stands outside the account's namespace\n"
    );
}

#[test]
fn a_namespace_of_another_name_is_found() {
    let found = found(|projection| {
        metadata(object(projection, "Namespace")).name = Some("default".to_owned());
    });
    assert_eq!(found, "account physics: Namespace default: is not the account's namespace\n");
}

#[test]
fn a_name_that_is_no_label_is_found() {
    let found = found(|projection| {
        metadata(object(projection, "LimitRange")).name = Some("Spur_Defaults".to_owned());
    });
    assert_eq!(
        found,
        "account physics: LimitRange spur-acct-physics/Spur_Defaults: its name is no DNS label\n"
    );
}

#[test]
fn an_object_without_our_labels_is_found() {
    let found = found(|projection| metadata(object(projection, "RoleBinding")).labels = None);
    assert_eq!(
        found,
        "account physics: RoleBinding spur-acct-physics/spur-members: lacks the label of its account\n\
         account physics: RoleBinding spur-acct-physics/spur-members: lacks the label that makes it ours\n"
    );
}

#[test]
fn a_label_that_is_too_long_is_found() {
    let found = found(|projection| {
        let labels = metadata(object(projection, "Namespace")).labels.as_mut().unwrap();
        labels.insert("spur.amd.com/account".to_owned(), "x".repeat(64));
    });
    assert_eq!(
        found,
        "account physics: Namespace spur-acct-physics: the label spur.amd.com/account has more than 63 characters\n"
    );
}

#[test]
fn annotations_that_are_too_long_are_found() {
    let found = found(|projection| {
        let annotations = metadata(object(projection, "Namespace")).annotations.as_mut().unwrap();
        annotations.insert("spur.amd.com/description".to_owned(), "x".repeat(256 << 10));
    });
    assert_eq!(
        found,
        "account physics: Namespace spur-acct-physics: annotations exceed 262144 bytes; shorten the description\n"
    );
}

#[test]
fn a_list_of_members_that_is_too_long_is_found() {
    let found = found(|projection| {
        let Object::RoleBinding(binding) = object(projection, "RoleBinding") else { panic!() };
        binding.subjects = Some(vec![
            Subject {
                kind: "ServiceAccount".to_owned(),
                name: format!("spur-user-{}", "x".repeat(50)),
                namespace: Some("spur-users".to_owned()),
                api_group: None,
            };
            20_000
        ]);
    });
    assert_eq!(
        found,
        "account physics: RoleBinding spur-acct-physics/spur-members: is larger than 1507328 bytes; split the account\n"
    );
}

#[test]
fn a_cap_above_the_parents_or_without_one_is_found() {
    for (key, amount) in
        [("requests.cpu", "8001m"), ("requests.memory", "8G1"), ("requests.amd.com/gpu", "5")]
    {
        let found = found(|projection| set_cap(projection, key, amount));
        assert!(found.contains(&format!("{key} exceeds the parent's")), "{found}");
    }
    let found = found(|projection| {
        let Object::ResourceQuota(quota) = object(projection, "ResourceQuota spur-acct-physics/spur-quota")
        else {
            panic!()
        };
        quota.spec.as_mut().unwrap().hard.as_mut().unwrap().remove("requests.amd.com/gpu");
    });
    assert_eq!(
        found,
        "account physics: ResourceQuota of spur-acct-physics: requests.amd.com/gpu exceeds the parent's\n"
    );
}

#[test]
fn an_amount_that_kubernetes_does_not_take_is_found() {
    for amount in ["-1", "1.5.5", "many", "", "9223372036854775808", "9Ei"] {
        let found = found(|projection| set_cap(projection, "secrets", amount));
        let wanted = format!("secrets = {amount} is no quantity that Kubernetes takes\n");
        assert_eq!(found, format!("account physics: ResourceQuota spur-acct-physics/spur-quota: {wanted}"));
    }
    for amount in ["0", "9223372036854775807", "1e3", "7Ei"] {
        assert_eq!(found(|projection| set_cap(projection, "secrets", amount)), "");
    }
}

#[test]
fn a_limit_range_that_the_quota_refuses_is_found() {
    let title = "account physics: LimitRange spur-acct-physics/spur-defaults:";
    for (change, wanted) in [
        (
            (|range| range.default_request = Some(amounts("cpu", "5"))) as fn(&mut LimitRangeItem),
            "the default request of cpu exceeds the quota",
        ),
        (
            |range| range.default_request = Some(amounts("cpu", "1m")),
            "the default request of cpu is below its minimum",
        ),
        (
            |range| range.default_request = Some(amounts("cpu", "x")),
            "the default request of cpu is below its minimum",
        ),
        (
            |range| range.min = Some(amounts("memory", "9G")),
            "the default request of memory is below its minimum",
        ),
        (
            |range| range.default = Some(amounts("cpu", "1")),
            "sets a default or largest limit, which refuses pods that ask for more",
        ),
        (
            |range| range.max = Some(amounts("cpu", "1")),
            "sets a default or largest limit, which refuses pods that ask for more",
        ),
    ] {
        let found = found(|projection| change(range(projection)));
        assert!(found.starts_with(&format!("{title} {wanted}\n")), "{found}");
    }
    let found = found(|projection| {
        range(projection).default_request = None;
        range(projection).min = Some(amounts("memory", "9G"));
    });
    assert_eq!(found, format!("{title} the minimum of memory exceeds the quota\n"));
}

#[test]
fn a_zero_by_which_policy_closes_the_parent_does_not_bind_the_child() {
    let origin = Origin::store("test");
    let mut model = Model::default();
    model.add_account(&origin, "science", None, "cpu=8").unwrap();
    model.add_account(&origin, "physics", Some("science"), "gres/gpu=4").unwrap();
    let mut policy = Policy::default();
    policy.unset_dimension = spur_sdk_quota::Unlimited::Closed;
    assert_eq!(check(&project(&model, &policy)), []);
    // A zero that the parent has been given does.
    let mut projection = project(&model, &Policy::default());
    let science =
        projection.accounts.iter_mut().find(|account| account.account.as_str() == "science").unwrap();
    for object in &mut science.objects {
        if let Object::ResourceQuota(quota) = object {
            let hard = quota.spec.as_mut().unwrap().hard.as_mut().unwrap();
            hard.insert("requests.cpu".to_owned(), Quantity("0".to_owned()));
        }
    }
    assert!(check(&projection).iter().any(|finding| finding.message == "requests.cpu exceeds the parent's"));
}
