//! What is written of a model, and what a dump cannot hold of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use spur_sdk_quota::source::{Format, ReadOptions, read, to_accounts_toml, to_dump};
use spur_sdk_quota::{Model, Policy, QosSelection};

use support::{cap, project};

fn toml(text: &str) -> Model {
    read(text, "f", ReadOptions::default().format(Some(Format::Toml))).unwrap()
}

fn dump(text: &str) -> Model {
    read(text, "f", ReadOptions::default().format(Some(Format::Dump))).unwrap()
}

#[test]
fn a_dump_has_accounts_before_what_stands_below_and_users_before_accounts() {
    let model = toml(
        "[cluster]\nname = \"alpha\"\nqos = [\"normal\"]\n\
         [[account]]\nname = \"optics\"\nparent = \"science\"\nfairshare = \"parent\"\nqos = [\"+gpu\", \"-normal\"]\n\
         [[account]]\nname = \"science\"\ndescription = \"a: 'b' # \\\\c\"\ncoordinators = [\"bob\"]\n\
         grp_tres = { cpu = 1.5, mem = \"10Gi\", \"gres/gpu:mi300x\" = 2 }\nmax_wall = \"1-00:00\"\n\
         [[user]]\nname = \"bob\"\naccounts = [\"science\", \"optics\"]\ndefault_account = \"optics\"\n\
         admin_level = \"operator\"\nwckeys = [\"k\", \"l\"]\n",
    );
    let (text, notes) = to_dump(&model);
    assert_eq!(
        text,
        "Cluster - 'alpha':QOS='normal'\n\
         Parent - 'root'\n\
         Account - 'science':Description='a: `b` \\# \\\\c':GrpTRES='cpu=1,mem=10240M,gres/gpu:mi300x=2':\
         MaxWallDurationPerJob=1440\n\
         Parent - 'science'\n\
         User - 'bob':DefaultAccount='optics':AdminLevel='Operator':Coordinator='science':WCKeys='k,l'\n\
         Account - 'optics':Fairshare=parent:QOS+='gpu':QOS-='normal'\n\
         Parent - 'optics'\n\
         User - 'bob':DefaultAccount='optics'\n"
    );
    assert_eq!(
        notes,
        [
            "account science: quotes and line breaks become ` and blanks, as Slurm keeps none",
            "account science: grp_tres = cpu=1500m is rounded down to cpu=1",
        ]
    );
}

#[test]
fn a_dump_says_what_has_no_place_in_it() {
    let model = toml(
        "[cluster]\ngrp_tres = \"cpu=9\"\n[[account]]\nname = \"root\"\ngrp_tres = \"cpu=5,mem=1048576\"\n\
         [[account]]\nname = \"Lab\"\ncoordinators = [\"zoe\"]\nqos = [\"a,b\", \"c\"]\nmin_prio_threshold = 3\n\
         [[account]]\nname = \"lab\"\ndescription = \"The Lab\"\n\
         [[user]]\nname = \"Bob\"\naccounts = [\"lab\"]\ncomment = \"x\"\n\
         [[user]]\nname = \"idle\"\n\
         [[qos]]\nname = \"c\"\n",
    );
    let (text, notes) = to_dump(&model);
    assert!(
        text.starts_with("Cluster - 'cluster':GrpTRES='cpu=5,mem=1000000M'\nParent - 'root'\n"),
        "{text}"
    );
    assert_eq!(
        notes,
        [
            "QoS are left out, create them first: c (Slurm before 25.05 refuses a file with QOS lines)",
            "limits of the cluster and of account root stand on one line: of two the smaller is written, and beside a \
             count without a type those by type are its breakdown",
            "account Lab: Slurm 22.05 takes MinPrioThresh and does not dump it again",
            "account Lab: QOS lacks \"a,b\", since a list cannot hold its comma",
            "user Bob in account lab: the comment is left out, sacctmgr load takes none",
            "user idle is left out, as a member of no account",
            "account Lab: coordinator zoe is left out, as a member of no account",
            "accounts Lab and lab are one to Slurm, which keeps neither upper case nor quotes",
            "sacctmgr load turns upper case to lower case: in 1 names of accounts, 1 of users (unless PreserveCaseUser \
             is set), 1 descriptions and organisations",
        ]
    );
}

#[test]
fn a_line_that_slurm_would_cut_is_told() {
    let long = "x".repeat(5000);
    let (_, notes) = to_dump(&toml(&format!("[[account]]\nname = \"a\"\ndescription = \"{long}\"\n")));
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0].starts_with("a line has 5028 bytes, sacctmgr reads 4096: Account - 'a'"),
        "{}",
        notes[0]
    );
}

#[test]
fn what_a_problem_stops_is_written_nowhere() {
    let model = toml(
        "[[account]]\nname = \"good\"\ngrp_tres = \"cpu=1\"\n\
         [[account]]\nname = \"bad\"\ngrp_tres = \"cpus=1\"\n\
         [[account]]\nname = \"below\"\nparent = \"bad\"\n\
         [[user]]\nname = \"alice\"\naccounts = [\"good\", \"bad\", \"nowhere\"]\n\
         [[user]]\nname = \"bob\"\naccounts = [\"good\"]\nadmin_level = \"king\"\n\
         [[association]]\naccount = \"good\"\nuser = \"carol\"\nmax_jobs = \"x\"\n\
         [[qos]]\nname = \"gpu\"\ngrp_tres = \"gpus=1\"\n",
    );
    assert_eq!(
        to_accounts_toml(&model),
        "[[account]]\nname = \"good\"\ngrp_tres = \"cpu=1\"\n\n\
         [[user]]\nname = \"alice\"\naccounts = [\"good\"]\n\n\
         [[user]]\nname = \"carol\"\n"
    );
    let (text, notes) = to_dump(&model);
    assert_eq!(
        text,
        "Cluster - 'cluster'\nParent - 'root'\nAccount - 'good':GrpTRES='cpu=1'\nParent - 'good'\nUser - 'alice'\n"
    );
    for left_out in
        ["account bad is", "user alice in account nowhere is", "user bob is", "user carol in account good is"]
    {
        assert!(notes.iter().any(|note| note.starts_with(&format!("{left_out} left out: f:"))), "{notes:#?}");
    }
}

#[test]
fn nothing_is_written_of_a_source_that_is_refused() {
    let model = toml("[[account]]\nname = \"a\"\n[[account]]\ngrp_tres = \"cpu=1\"\n");
    assert_eq!(to_accounts_toml(&model), "");
    let (text, notes) = to_dump(&model);
    assert_eq!((text.as_str(), notes.len()), ("", 1));
    assert!(notes[0].starts_with("nothing is written: f:3: account.name: is missing"), "{}", notes[0]);
}

#[test]
fn a_default_account_on_one_partition_alone_is_kept() {
    let text = "Cluster - 'c'\nAccount - 'a'\nParent - 'a'\nUser - 'u':Partition='p':DefaultAccount='a'\n";
    let written = to_accounts_toml(&dump(text));
    assert_eq!(toml(&written).problems, [], "{written}");
}

#[test]
fn a_user_may_coordinate_root() {
    let model = dump("Cluster - 'c'\nUser - 'u':Coordinator='root'\nAccount - 'a':GrpTRES=cpu=1\n");
    assert_eq!(model.problems, []);
    assert_eq!(cap(&project(&model, &Policy::default()), "a", "requests.cpu").as_deref(), Some("1"));
    let (text, _) = to_dump(&model);
    assert!(text.contains("User - 'u':Coordinator='root'\n"), "{text}");
}

#[test]
fn lists_of_nothing_and_limits_of_nothing_are_kept_apart_from_what_is_not_given() {
    let text = "[[account]]\nname = \"a\"\nqos = []\ngrp_tres = \"\"\n[[user]]\nname = \"u\"\nwckeys = []\n";
    let model = toml(text);
    let account = model.accounts.values().next().unwrap();
    assert_eq!(account.terms.qos.as_ref().map(|qos| &qos.value), Some(&QosSelection::Only([].into())));
    assert!(account.terms.limits.is_empty() && account.terms.limits.tres.is_empty());
    let written = to_accounts_toml(&model);
    assert!(
        written.contains("qos = []") && written.contains("wckeys = []") && !written.contains("grp_tres"),
        "{written}"
    );
}
