//! Each folder of `cases` holds a source, perhaps a policy, and what becomes of them: one rule a folder, and the name
//! says which.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fmt::Write as _;
use std::path::Path;

use spur_sdk_quota::k8s::Object;
use spur_sdk_quota::source::{Format, ReadOptions, read, to_accounts_toml};
use spur_sdk_quota::{Completeness, Model, Policy, Projection, check, explain};

use support::{accounts, files, format, lines, name, policy_beside, problems, project, text, yaml};

/// The case whose snapshot also holds what does not depend on the accounts.
const SHARED: &str = "what_all_accounts_share";

fn cases() -> impl Iterator<Item = std::path::PathBuf> {
    files("cases").into_iter().filter(|path| name(path).starts_with("accounts."))
}

/// Compares a text with the snapshot `NAME.snap` in the folder of a case.
fn assert_beside(source: &Path, name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(source.parent().unwrap());
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.remove_snapshot_suffix();
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// A section of a snapshot, unless it is empty.
fn section(snapshot: &mut String, title: &str, body: &str) {
    if !body.is_empty() {
        let gap = if snapshot.is_empty() { "" } else { "\n" };
        writeln!(snapshot, "{gap}===== {title}\n{}", body.trim_end()).unwrap();
    }
}

fn snapshot(model: &Model, policy: &Policy, projection: &Projection, format: Format) -> String {
    let mut snapshot = String::new();
    // Of our own files the source says it already.
    if format != Format::Toml {
        section(&mut snapshot, "read as", &to_accounts_toml(model));
    }
    for account in &projection.accounts {
        let title = format!("account {}", account.account);
        section(&mut snapshot, &title, &explain(model, policy, &account.account).unwrap().to_string());
    }
    section(&mut snapshot, "stopped", &lines(projection.stopped.iter().map(|stopped| &stopped.account)));
    section(&mut snapshot, "problems", &problems(&projection.problems));
    section(&mut snapshot, "report", &projection.report.to_string());
    let users = projection.shared.iter().filter(|object| matches!(object, Object::ServiceAccount(_)));
    let accounts = projection.accounts.iter().flat_map(|account| &account.objects);
    section(&mut snapshot, "objects", &yaml(users.chain(accounts)));
    snapshot
}

#[test]
fn every_case_gives_the_objects_and_the_report_of_its_snapshot() {
    insta::glob!("cases/*/accounts.*", |path| {
        let model = accounts(path).unwrap();
        let policy = policy_beside(path);
        let projection = project(&model, &policy);
        assert_eq!(check(&projection), [], "{}", path.display());
        assert_beside(path, "projection", &snapshot(&model, &policy, &projection, format(path)));
        if path.parent().is_some_and(|folder| folder.ends_with(SHARED)) {
            let users = |object: &&Object| !matches!(object, Object::ServiceAccount(_));
            assert_beside(path, "shared", &yaml(projection.shared.iter().filter(users)));
        }
    });
}

#[test]
fn carriage_returns_and_a_byte_order_mark_change_nothing_and_no_last_line_end_takes_nobody_out() {
    for path in cases() {
        let (text, options) = (text(&path), ReadOptions::default().format(Some(format(&path))));
        let model = read(&text, "a", options).unwrap();
        let returns = text.replace('\n', "\r\n");
        // A quoted text of TOML that goes over lines keeps its carriage returns; no case has one.
        assert_eq!(read(&returns, "a", options).unwrap(), model, "{}", path.display());
        assert_eq!(read(&format!("\u{feff}{text}"), "a", options).unwrap(), model, "{}", path.display());
        if format(&path) != Format::Dump {
            let mut unended = read(text.trim_end(), "a", options).unwrap();
            assert_eq!(unended.completeness, Completeness::Partial, "{}", path.display());
            unended.completeness = model.completeness;
            assert_eq!(unended, model, "{}", path.display());
        }
    }
}

#[test]
fn the_format_is_told_by_the_content() {
    for path in cases() {
        assert_eq!(Format::detect(&text(&path)), format(&path), "{}", path.display());
    }
    for (text, format) in [
        ("", Format::Toml),
        ("# only a comment\n", Format::Toml),
        ("\"a:b\" = 1\n", Format::Toml),
        ("'gres/gpu:x' = \"amd.com/gpu\"\n", Format::Toml),
        ("account: [{name: \"a=b\"}]\n", Format::Yaml),
        ("---\naccount:\n", Format::Yaml),
        ("{account: [{name: a}]}\n", Format::Yaml),
        ("machine - 'x'\n", Format::Dump),
        ("QOS - 'x':Priority=1\n", Format::Dump),
    ] {
        assert_eq!(Format::detect(text), format, "{text}");
    }
}

#[test]
fn what_is_written_back_as_our_file_is_projected_alike() {
    for path in cases() {
        let model = accounts(&path).unwrap();
        if !model.problems.is_empty() {
            continue;
        }
        let policy = policy_beside(&path);
        let written = to_accounts_toml(&model);
        let again = read(&written, "again.toml", ReadOptions::default()).unwrap();
        let (before, after) = (project(&model, &policy), project(&again, &policy));
        assert_eq!(yaml(before.objects()), yaml(after.objects()), "{}", path.display());
        assert_eq!(to_accounts_toml(&again), written, "{}", path.display());
    }
}

#[test]
fn toml_and_yaml_of_the_same_shape_give_the_same_objects() {
    let toml = "[[account]]\nname = \"a\"\ngrp_tres = { cpu = 1.5, mem = \"2Gi\" }\nmax_wall = 60\n\
                [[user]]\nname = \"u\"\naccounts = [\"a\"]\n";
    let yaml_text = "account:\n- name: a\n  grp_tres: {cpu: 1.5, mem: 2Gi}\n  max_wall: 60\n\
                     user:\n- name: u\n  accounts: [a]\n";
    let project = |text: &str| project(&read(text, "a", ReadOptions::default()).unwrap(), &Policy::default());
    assert_eq!(yaml(project(toml).objects()), yaml(project(yaml_text).objects()));
    // A scalar without quotes is a text where one is wanted.
    let named_by_a_number = project("account:\n- name: 5\n  description: true\n");
    assert_eq!(named_by_a_number.accounts[0].namespace, "spur-acct-5");
}

#[test]
fn a_dump_counts_as_whole_only_when_the_caller_says_so_and_an_empty_source_never() {
    use Completeness::{Full, Partial};
    let dump = "Cluster - 'c'\nAccount - 'a':GrpTRES=cpu=1\n";
    let read = |text: &str, format, complete| {
        let options = ReadOptions::default().format(Some(format)).complete(complete);
        read(text, "a", options).unwrap().completeness
    };
    assert_eq!(read(dump, Format::Dump, false), Partial);
    assert_eq!(read(dump, Format::Dump, true), Full);
    assert_eq!(read("", Format::Dump, true), Partial);
    assert_eq!(read("Cluster - 'c'\n", Format::Dump, true), Partial);
    // A line that is not understood may have been an account.
    assert_eq!(read(&format!("{dump}Acount - 'b'\n"), Format::Dump, true), Partial);
    // A problem of one account leaves no doubt about which accounts there are.
    assert_eq!(read(&format!("{dump}Account - 'b':Foo=1\n"), Format::Dump, true), Full);
    for format in [Format::Toml, Format::Yaml] {
        assert_eq!(read("", format, true), Partial);
    }
    assert_eq!(read("[[account]]\nname = \"a\"\n", Format::Toml, false), Full);
    assert_eq!(read("account:\n- name: a\n", Format::Yaml, false), Full);
    assert_eq!(read("[[account]]\nname = \"a\"\n[[account]]\nnam = \"b\"\n", Format::Toml, true), Partial);
    assert_eq!(read("[[user]]\nname = \"a\"\n", Format::Toml, true), Partial);
}

#[test]
fn two_sources_are_taken_together_and_what_both_define_is_told() {
    let read = |text: &str, name: &str| read(text, name, ReadOptions::default()).unwrap();
    let mut model = read(
        "[cluster]\nname = \"c\"\n[[account]]\nname = \"a\"\ngrp_tres = \"cpu=4\"\n\
                          [[user]]\nname = \"u\"\naccounts = [\"a\"]\n[[user]]\nname = \"v\"\ncomment = \"x\"\n",
        "1",
    );
    model.merge(read(
        "[cluster]\nname = \"c\"\n[[account]]\nname = \"b\"\nparent = \"a\"\n\
                      [[user]]\nname = \"u\"\naccounts = [\"b\"]\ncomment = \"x\"\n",
        "2",
    ));
    assert_eq!(model.problems, []);
    let projection = project(&model, &Policy::default());
    assert_eq!(support::cap(&projection, "b", "requests.cpu").as_deref(), Some("4"));
    assert_eq!(projection.accounts.iter().map(|account| account.members.len()).collect::<Vec<_>>(), [1, 1]);

    model.merge(read(
        "[cluster]\nname = \"d\"\n[[account]]\nname = \"a\"\ngrp_tres = \"cpu=9\"\n\
                      [[user]]\nname = \"v\"\ncomment = \"y\"\n[[qos]]\nname = \"q\"\n",
        "3",
    ));
    model.merge(read("[[qos]]\nname = \"q\"\n", "4"));
    assert_eq!(
        problems(&model.problems),
        "3:2: cluster: is already defined at 1:2; remove one of the two\n\
         3:3: account a: is already defined at 1:3; remove one of the two\n\
         3:6: user v: is already defined at 1:9; remove one of the two\n\
         4:1: qos q: is already defined at 3:9; remove one of the two\n"
    );
}
