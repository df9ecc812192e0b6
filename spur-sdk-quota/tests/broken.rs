//! Each file of `broken` has something that cannot be understood. Its snapshot holds the exact error and what is
//! projected all the same. Every file of accounts holds an account `good` without fault; `bad` mostly is what its name
//! says, and `below` stands below it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fmt::Write as _;
use std::path::Path;

use spur_sdk_quota::{Model, Policy, Projection, check};

use support::{accounts, cap, files, lines, name, problems, project, text};

/// Files of accounts, and those of policies, by their folder.
fn broken(policies: bool) -> impl Iterator<Item = std::path::PathBuf> {
    let of_policy = |path: &Path| path.parent().is_some_and(|folder| folder.ends_with("policy"));
    files("broken").into_iter().filter(move |path| {
        path.extension().is_some_and(|extension| extension != "snap") && of_policy(path) == policies
    })
}

/// Compares a text with `NAME.snap` beside the file, NAME being that of the file with its ending.
fn assert_beside(path: &Path, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(path.parent().unwrap());
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.remove_snapshot_suffix();
    settings.bind(|| insta::assert_snapshot!(name(path), text));
}

fn outcome(model: &Model, projection: &Projection) -> String {
    let mut text = problems(&projection.problems);
    let names = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let projected = names(projection.accounts.iter().map(|account| account.account.as_str()).collect());
    let stopped = names(projection.stopped.iter().map(|stopped| stopped.account.as_str()).collect());
    write!(text, "\nprojected: {projected}\nstopped: {stopped}\n").unwrap();
    for account in projection.accounts.iter().filter(|account| !account.members.is_empty()) {
        let members = account.members.iter().map(spur_sdk::UserName::as_str).collect();
        writeln!(text, "members of {}: {}", account.account, names(members)).unwrap();
    }
    writeln!(text, "read in full: {:?}", model.completeness).unwrap();
    text
}

#[test]
fn every_broken_file_of_accounts_gives_the_error_of_its_snapshot() {
    insta::glob!("broken/{toml,yaml,dump}/*.{toml,yaml,dump}", |path| {
        let outcome = match accounts(path) {
            Ok(model) => outcome(&model, &project(&model, &Policy::default())),
            Err(error) => format!("{}\n\nnothing is read\n", spur_sdk::error_chain(&error)),
        };
        assert_beside(path, &outcome);
    });
}

#[test]
fn every_broken_policy_gives_the_error_of_its_snapshot() {
    insta::glob!("broken/policy/*.{toml,yaml}", |path| {
        let error = Policy::read(&text(path), name(path)).unwrap_err();
        assert_beside(path, &error.to_string());
    });
}

#[test]
fn every_broken_file_has_a_problem_that_names_the_file_and_a_line() {
    for path in broken(false) {
        let lines = match accounts(&path) {
            Ok(model) => lines(project(&model, &Policy::default()).problems.iter()),
            Err(error) => error.to_string(),
        };
        assert!(!lines.is_empty(), "{} has no problem", path.display());
        let place = format!("{}:", name(&path));
        for line in lines.lines() {
            let line = line.strip_prefix(&place).unwrap_or_else(|| panic!("{line} names no file"));
            assert!(line.starts_with(|c: char| ('1'..='9').contains(&c)), "{line} names no line");
        }
    }
    for path in broken(true) {
        let error = Policy::read(&text(&path), name(&path)).unwrap_err();
        assert!(error.problems.iter().all(|problem| problem.line > 0), "{error}");
    }
}

#[test]
fn no_broken_file_turns_a_limit_into_none() {
    // Also where accounts without an allocation are open.
    let mut open = Policy::default();
    open.no_allocation = spur_sdk_quota::Unlimited::Open;
    for path in broken(false) {
        let Ok(model) = accounts(&path) else { continue };
        let projection = project(&model, &open);
        assert_eq!(check(&projection), [], "{}", path.display());
        for account in &projection.accounts {
            let most = if account.account.as_str() == "bad" { "2" } else { "1" };
            let cpu = cap(&projection, account.account.as_str(), "requests.cpu");
            assert_eq!(cpu.as_deref(), Some(most), "{} in {}", account.account, path.display());
        }
    }
}

#[test]
fn what_a_problem_stops_is_the_account_and_what_stands_below_it() {
    for path in broken(false) {
        let Ok(model) = accounts(&path) else { continue };
        let projection = project(&model, &Policy::default());
        let projected =
            |name: &str| projection.accounts.iter().any(|account| account.account.as_str() == name);
        let whole = projection.refused().is_some();
        assert_ne!(projected("good"), whole, "{}: either all are stopped or good is not", path.display());
        assert!(projected("bad") || !projected("below"), "{}: below goes on without bad", path.display());
        if whole {
            assert_eq!(projection.objects().count(), 0, "{}", path.display());
        }
    }
}
