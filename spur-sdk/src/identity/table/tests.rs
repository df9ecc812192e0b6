use std::collections::BTreeSet;

use super::*;

#[test]
fn each_rpc_stands_in_the_table_once() {
    let names: BTreeSet<_> = TABLE.iter().map(|rule| rule.rpc).collect();
    assert_eq!(names.len(), TABLE.len());
    for rule in TABLE {
        let both: Vec<_> = rule.allow.iter().filter(|role| rule.own.contains(role)).collect();
        assert!(both.is_empty(), "{}: {both:?}", rule.rpc);
        assert!(!rule.allow.is_empty() || !rule.own.is_empty(), "{}", rule.rpc);
        assert!(rule.own.is_empty() || rule.why.starts_with("Own: "), "{}", rule.rpc);
    }
}

/// The services in the files of the protocol, and the health service that every server has.
#[test]
fn each_rpc_of_the_protocol_stands_in_the_table() {
    for (package, text) in [
        ("slurm", include_str!("../../../proto/slurm.proto")),
        ("spur.v1", include_str!("../../../proto/site.proto")),
    ] {
        let mut service = "";
        let mut count = 0;
        for line in text.lines() {
            let mut words = line.split([' ', '(']).filter(|word| !word.is_empty());
            match (words.next(), words.next()) {
                (Some("service"), Some(name)) => service = name,
                (Some("rpc"), Some(name)) => {
                    assert!(find(&format!("{package}.{service}/{name}")).is_some(), "{service}/{name}");
                    count += 1;
                }
                _ => {}
            }
        }
        assert!(count > 10, "{package}: {count}");
    }
}

#[test]
fn what_is_not_in_the_table_is_denied_to_all() {
    for rpc in
        ["", "/", "slurm.SlurmController/Reboot", "slurm.SlurmController", "grpc.reflection.v1/x", "//x"]
    {
        assert_eq!(decide(rpc, &Role::ALL), Access::Deny, "{rpc}");
    }
    for rule in TABLE {
        assert_eq!(decide(rule.rpc, &[]), Access::Deny, "{}", rule.rpc);
        assert_eq!(decide(&rule.rpc.to_uppercase(), &Role::ALL), Access::Deny, "{}", rule.rpc);
        assert_eq!(decide(&format!("{}/", rule.rpc), &Role::ALL), Access::Deny, "{}", rule.rpc);
    }
}

#[test]
fn a_stranger_may_only_enrol() {
    let open: Vec<_> = TABLE
        .iter()
        .filter(|rule| rule.access(Role::Anonymous) != Access::Deny)
        .map(|rule| rule.rpc)
        .collect();
    assert_eq!(open, ["spur.v1.Site/Enrol"]);
}

#[test]
fn only_controllers_order_agents_about() {
    for rule in TABLE.iter().filter(|rule| rule.rpc.starts_with("slurm.SlurmAgent/")) {
        assert_eq!((rule.allow, rule.own), (CONTROLLER, NOBODY), "{}", rule.rpc);
    }
}

#[test]
fn who_is_more_may_not_do_less() {
    for rule in TABLE {
        let [user, coordinator, operator, admin] =
            [Role::User, Role::Coordinator, Role::Operator, Role::Admin].map(|role| rule.access(role));
        assert!(user <= coordinator && user <= operator && operator <= admin, "{}", rule.rpc);
    }
}

#[test]
fn the_most_that_a_role_may_counts() {
    assert_eq!(decide("/slurm.SlurmAccounting/AddUser", &[Role::User]), Access::Deny);
    assert_eq!(decide("slurm.SlurmAccounting/AddUser", &[Role::User, Role::Coordinator]), Access::Own);
    assert_eq!(
        decide("slurm.SlurmAccounting/AddUser", &[Role::Coordinator, Role::Operator, Role::User]),
        Access::Allow
    );
    assert_eq!(decide("slurm.SlurmController/ClusterKubeconfig", &[Role::User]), Access::Own);
    assert_eq!(decide("slurm.SlurmController/ClusterKubeconfig", &[Role::Node]), Access::Deny);
    assert_eq!(decide("slurm.SlurmController/ClusterUp", &[Role::Controller]), Access::Deny);
    assert_eq!(decide("spur.v1.Site/LoginFor", &[Role::Admin, Role::User]), Access::Deny);
}

#[test]
fn the_page_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/authorization.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, markdown()).unwrap();
    }
    // The package alone comes without the book.
    if let Ok(page) = std::fs::read_to_string(path) {
        assert!(page == markdown(), "{path} is not the table: run this with UPDATE_DOCS=1");
    }
}
