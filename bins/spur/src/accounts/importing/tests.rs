//! What an import changes.

use spur_sdk::rpc::messages::slurm::{AccountInfo, UserInfo};
use spur_sdk_quota::source::{ReadOptions, read};

use super::*;

fn model(text: &str) -> Model {
    read(text, "accounts.toml", ReadOptions::default()).unwrap()
}

fn words(import: &Import) -> Vec<&str> {
    import.steps.iter().map(|step| step.words.as_str()).collect()
}

const SITE: &str = r#"
[[qos]]
name = "high"
preempt = "low"
grace_time = "60"
[[qos]]
name = "low"
[[account]]
name = "alpha"
parent = "science"
max_wall = 60
qos = ["high"]
[[account]]
name = "science"
grp_tres = "cpu=64,mem=1000"
grp_jobs = 7
[[user]]
name = "alice"
accounts = ["alpha", "science"]
default_account = "science"
wckeys = ["k1"]
[[association]]
account = "alpha"
user = "alice"
partition = "gpu"
max_jobs = 3
[[association]]
account = "alpha"
user = "alice"
max_jobs = 4
qos = ["gpu"]
"#;

#[test]
fn what_depends_on_another_comes_after_it_and_what_is_not_kept_is_said() {
    let import = plan(&model(SITE), &Records::default(), false);
    assert_eq!(
        words(&import),
        [
            "qos high: create",
            "qos low: create",
            "qos gpu: create, as members name it",
            "account science: create with max_running_jobs, grp_tres",
            "account alpha: create with parent",
            "user alice in account science: create with default account",
            "user alice in account alpha: create with allowed_qos, max_running_jobs",
            "qos high: change preempt",
        ]
    );
    assert_eq!(
        import.notes,
        [
            "qos high: not kept, as there is no field for it: grace_time=60",
            "qos gpu is named and not defined: it is created without limits",
            "account alpha: not kept, as there is no field for it: max_wall=60; qos=high (members without a list of \
             their own may use every QoS)",
            "user alice in account alpha on partition gpu: not kept, as memberships hold on all partitions",
            "user alice: not kept, as there is no field for it: wckeys=k1",
        ]
    );
}

#[test]
fn limits_of_the_cluster_and_of_root_are_one() {
    let text = "[cluster]\nname = \"c\"\ngrp_tres = \"cpu=8,mem=100\"\n[[account]]\nname = \"root\"\ngrp_tres = \"cpu=4,gres/gpu=1\"\n";
    let import = plan(&model(text), &Records::default(), false);
    let [Step { change: Change::CreateAccount(request), .. }] = import.steps.as_slice() else {
        panic!("{import:?}")
    };
    assert_eq!(request.grp_tres.as_deref(), Some("cpu=4,mem=100,gres/gpu=1"));
}

#[test]
fn root_of_a_dump_needs_no_account_and_no_user() {
    let text = "Cluster - 'alpha':Fairshare=1:QOS='normal'\nParent - 'root'\n\
        User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1\n";
    let import = plan(&model(text), &Records::default(), false);
    assert_eq!(words(&import), [""; 0]);
}

#[test]
fn what_is_so_already_is_left_alone() {
    let account = AccountInfo {
        name: "science".to_owned(),
        fairshare_weight: 1.0,
        max_running_jobs: NO_LIMIT,
        grp_tres: "mem=1000,cpu=64".to_owned(),
        ..AccountInfo::default()
    };
    let member = UserInfo {
        name: "alice".to_owned(),
        account: "science".to_owned(),
        default_account: "science".to_owned(),
        admin_level: "none".to_owned(),
        max_running_jobs: NO_LIMIT,
        max_submit_jobs: NO_LIMIT,
        grp_submit_jobs: NO_LIMIT,
        max_wall_minutes: NO_LIMIT,
        ..UserInfo::default()
    };
    let other = UserInfo { name: "bob".to_owned(), ..member.clone() };
    let records = Records::of(vec![account], vec![member, other], Vec::new(), false);
    let text = "[[account]]\nname = \"science\"\ngrp_tres = \"cpu=64,mem=1000\"\n[[user]]\nname = \"alice\"\naccounts = [\"science\"]\n";
    let import = plan(&model(text), &records, false);
    assert_eq!(words(&import), [""; 0]);
    assert_eq!(import.left, ["user bob"]);
    assert_eq!(words(&plan(&model(text), &records, true)), ["user bob: delete"]);
}

#[test]
fn what_cannot_be_read_is_not_touched() {
    let text = "[[account]]\nname = \"bad\"\ngrp_tres = \"nodes=1\"\n[[account]]\nname = \"below\"\nparent = \"bad\"\n\
        [[account]]\nname = \"good\"\n[[user]]\nname = \"alice\"\naccounts = [\"below\", \"good\"]\n";
    let import = plan(&model(text), &Records::default(), false);
    assert_eq!(words(&import), ["account good: create", "user alice in account good: create"]);
}
