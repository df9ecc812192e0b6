//! What others rely on: the schemas of the two files, the reference of dumps, the dependencies.
//!
//! `UPDATE_DOCS=1` writes the files anew instead of comparing them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value};
use spur_sdk_quota::Policy;
use spur_sdk_quota::source::{Format, accounts_schema, dump_keys, policy_schema};

use support::{accounts, files, folder, format, lines, name, text, update_docs};

/// The most crates that this one may pull in without features.
const MOST_DEPENDENCIES: usize = 60;

/// Crates that only a feature may pull in.
const NEVER: [&str; 6] = ["kube", "kube-client", "tonic", "zbus", "tokio", "reqwest"];

/// Compares a file with what it should hold, or writes it.
fn assert_file(path: &Path, wanted: &str) {
    if update_docs() {
        std::fs::write(path, wanted).unwrap();
    }
    let there = if path.exists() { text(path) } else { String::new() };
    assert_eq!(there, wanted, "{} is out of date: run this test with UPDATE_DOCS=1", path.display());
}

fn schema_file(name: &str) -> PathBuf {
    folder().with_file_name("schemas").join(name)
}

/// With the keys of each object sorted, also where another crate has serde_json keep their order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let entries: BTreeMap<_, _> =
                entries.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        value => value,
    }
}

fn json_of_toml(value: toml::de::DeValue<'_>) -> Value {
    use toml::de::DeValue;
    match value {
        DeValue::String(text) => text.into_owned().into(),
        DeValue::Integer(number) => number.as_str().parse::<i64>().unwrap().into(),
        DeValue::Float(number) => number.as_str().parse::<f64>().unwrap().into(),
        DeValue::Boolean(truth) => truth.into(),
        DeValue::Datetime(time) => time.to_string().into(),
        DeValue::Array(items) => items.into_iter().map(|item| json_of_toml(item.into_inner())).collect(),
        DeValue::Table(table) => json_of_table(table),
    }
}

fn json_of_table(table: toml::de::DeTable<'_>) -> Value {
    let entries = table
        .into_iter()
        .map(|(key, value)| (key.into_inner().into_owned(), json_of_toml(value.into_inner())));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// A file of ours as a schema sees it.
fn json(path: &Path) -> Value {
    match format(path) {
        Format::Toml => json_of_table(toml::de::DeTable::parse(&text(path)).unwrap().into_inner()),
        Format::Yaml => serde_saphyr::from_str(&text(path)).unwrap(),
        _ => panic!("{} is no file of ours", path.display()),
    }
}

/// What a schema has against a file.
fn objections(schema: &Value, path: &Path) -> String {
    let validator = jsonschema::validator_for(schema).unwrap();
    let json = json(path);
    let errors = validator.iter_errors(&json).map(|error| format!("{}: {error}", error.instance_path()));
    errors.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_schemas_are_those_of_the_readers() {
    for (name, schema) in
        [("accounts.schema.json", accounts_schema()), ("policy.schema.json", policy_schema())]
    {
        jsonschema::meta::validate(&schema).unwrap();
        let text = serde_json::to_string_pretty(&sorted(schema)).unwrap();
        assert_file(&schema_file(name), &format!("{text}\n"));
    }
}

#[test]
fn what_is_read_without_a_problem_is_valid() {
    let mut seen = 0;
    for path in files("cases") {
        if name(&path) == "policy.toml" {
            assert_eq!(objections(&policy_schema(), &path), "", "{}", path.display());
        } else if name(&path).starts_with("accounts.")
            && format(&path) != Format::Dump
            && accounts(&path).is_ok_and(|model| model.problems.is_empty())
        {
            assert_eq!(objections(&accounts_schema(), &path), "", "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} files");
}

#[test]
fn a_file_with_an_unknown_key_is_invalid() {
    let mut seen = 0;
    for path in files("broken") {
        if !name(&path).starts_with("unknown_")
            || path.extension().is_some_and(|extension| extension == "snap")
        {
            continue;
        }
        let schema = match path.parent().unwrap() {
            folder if folder.ends_with("toml") || folder.ends_with("yaml") => accounts_schema(),
            folder if folder.ends_with("policy") => policy_schema(),
            _ => continue,
        };
        let objections = objections(&schema, &path);
        assert!(objections.contains("dditional"), "{}: {objections}", path.display());
        seen += 1;
    }
    assert!(seen >= 8, "{seen} files");
}

#[test]
fn the_schema_of_the_policy_has_the_default_of_each_choice() {
    // What the schema calls the default is what an empty file gives.
    let schema = policy_schema();
    let mut text = String::new();
    for (key, schema) in schema["properties"].as_object().unwrap() {
        if let Some(default) = schema.get("default") {
            writeln!(text, "{key} = {default}").unwrap();
        }
    }
    assert!(text.lines().count() >= 6, "{text}");
    assert_eq!(Policy::read(&text, "policy.toml").unwrap(), Policy::default());
}

#[test]
fn the_reference_of_dumps_lists_every_key() {
    let path = folder().join("../../docs/reference/slurm-dump.md");
    if !path.exists() {
        // The book is not part of the package.
        return;
    }
    let page = text(&path);
    let (begin, end) = ("<!-- dump keys: begin -->\n", "<!-- dump keys: end -->\n");
    let (before, rest) = page.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let rows = dump_keys().into_iter().map(|(key, place, read)| format!("| `{key}` | {place} | {read} |\n"));
    let table = format!("| key | on lines | read as |\n|---|---|---|\n{}", rows.collect::<String>());
    assert_file(&path, &format!("{before}{begin}\n{table}\n{end}{after}"));
}

#[test]
fn the_crate_pulls_in_what_is_listed_and_no_client_of_a_cluster() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--package", "spur-sdk-quota", "--edges", "normal", "--prefix", "none"])
        // The same on every machine.
        .args(["--target", "x86_64-unknown-linux-gnu", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(crates.contains("k8s-openapi"), "{tree}");
    assert!(crates.len() <= MOST_DEPENDENCIES, "{} crates", crates.len());
    assert!(!NEVER.iter().any(|never| crates.contains(never)), "{crates:?}");
    assert_file(&folder().join("dependencies.txt"), &lines(crates.iter()));
}
