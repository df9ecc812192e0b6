//! What the tests share: cases read from their folders, and texts to compare.

// Each test file uses a part of it.
#![allow(dead_code, reason = "compiled into every test that names it")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use spur_sdk::fs::read_text;
use spur_sdk_quota::k8s::Object;
use spur_sdk_quota::source::{Format, ReadOptions, SourceError, read};
use spur_sdk_quota::{Model, Policy, Problem, Projection, QuotaProjector};

/// The folder of this crate's tests.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

pub(crate) fn text(path: &Path) -> String {
    read_text(path, 1 << 20).unwrap()
}

/// Files one and two folders below `tests/NAME`, sorted.
pub(crate) fn files(name: &str) -> Vec<PathBuf> {
    let list = |folder: &Path| -> Vec<PathBuf> {
        let mut paths: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let folders = list(&folder().join(name));
    folders.iter().filter(|path| path.is_dir()).flat_map(|folder| list(folder)).collect()
}

/// The last part of a path.
pub(crate) fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// The format that a file's name says.
pub(crate) fn format(path: &Path) -> Format {
    match path.extension().unwrap().to_str().unwrap() {
        "toml" => Format::Toml,
        "yaml" => Format::Yaml,
        "dump" => Format::Dump,
        other => panic!("no format {other}"),
    }
}

/// Reads a file of accounts by the format that its name says; messages call it by its name alone.
pub(crate) fn accounts(path: &Path) -> Result<Model, SourceError> {
    read(&text(path), name(path), ReadOptions::default().format(Some(format(path))))
}

/// The policy beside a file of accounts, or the default.
pub(crate) fn policy_beside(path: &Path) -> Policy {
    let policy = path.with_file_name("policy.toml");
    if policy.exists() { Policy::read(&text(&policy), name(&policy)).unwrap() } else { Policy::default() }
}

pub(crate) fn project(model: &Model, policy: &Policy) -> Projection {
    QuotaProjector::new(policy).project(model)
}

/// Objects as YAML, a document each.
pub(crate) fn yaml<'o>(objects: impl Iterator<Item = &'o Object>) -> String {
    objects.map(|object| serde_saphyr::to_string(object).unwrap()).collect::<Vec<_>>().join("---\n")
}

/// Problems, a line each.
pub(crate) fn problems(problems: &[Problem]) -> String {
    lines(problems.iter())
}

pub(crate) fn lines<T: std::fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.fold(String::new(), |mut text, item| {
        writeln!(text, "{item}").unwrap();
        text
    })
}

/// A quota's cap, such as `requests.cpu`, of an account's namespace.
pub(crate) fn cap(projection: &Projection, account: &str, key: &str) -> Option<String> {
    let account = projection.accounts.iter().find(|projected| projected.account.as_str() == account)?;
    account.objects.iter().find_map(|object| match object {
        Object::ResourceQuota(quota) if object.name() == "spur-quota" => {
            quota.spec.as_ref()?.hard.as_ref()?.get(key).map(|quantity| quantity.0.clone())
        }
        _ => None,
    })
}

/// Says that what the environment asks for is to be written anew instead of compared.
pub(crate) fn update_docs() -> bool {
    std::env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1")
}
