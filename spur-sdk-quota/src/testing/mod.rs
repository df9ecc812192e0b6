//! For tests of projects that build on this crate: snapshots of a projection, and with feature `apply` a cluster in
//! memory, `ModelCluster`.
//!
//! # Snapshots
//!
//! They pin a projection, one file per account, so that a project sees what a change of its accounts, of its policy or
//! of this crate does to a cluster.
//!
//! ```no_run
//! # // A doctest has no place to keep snapshots in.
//! use spur_sdk_quota::source::{ReadOptions, read};
//! use spur_sdk_quota::{Policy, QuotaProjector, assert_projection_snapshots};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // In a file tests/projection.rs, within a function marked #[test].
//! let accounts = "[[account]]\nname = \"physics\"\ngrp_tres = \"cpu=16,mem=32768\"\n";
//! let model = read(accounts, "accounts.toml", ReadOptions::default())?;
//! let projection = QuotaProjector::new(&Policy::default()).project(&model);
//! assert_projection_snapshots!("snapshots/projection", projection);
//! # Ok(())
//! # }
//! ```
//!
//! This compares with `tests/snapshots/projection/spur-acct-physics.snap` and two more files, see [`documents`].
//! Where one is missing or differs, insta writes `….snap.new` beside it and the test fails; `cargo insta review`
//! shows and takes the difference, as does a run with `INSTA_UPDATE=always`.

#[cfg(feature = "apply")]
mod model_cluster;
#[cfg(feature = "apply")]
mod random;

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

pub use insta;

#[cfg(feature = "apply")]
pub use model_cluster::{Delays, Faults, LeaseRecord, ModelClient, ModelClock, ModelCluster, Record, Verb};
#[cfg(feature = "apply")]
pub use random::Random;

use crate::k8s::Object;
use crate::project::{AccountProjection, Projection, StoppedAccount};

/// Compares a projection with the snapshots in a folder, see [`testing`](crate::testing).
///
/// The first argument is the folder, relative to the file that the macro stands in; the second the
/// [`Projection`], or a reference to one. Settings of insta that are bound when it runs hold, but for
/// the path and the names.
///
/// # Panics
/// When snapshots differ or are missing, with the names of all of them.
#[macro_export]
macro_rules! assert_projection_snapshots {
    ($folder:expr, $projection:expr $(,)?) => {{
        // Expanded where it is called: insta takes the folder and the name of the project from there.
        let differing = $crate::testing::differing(
            ::std::convert::AsRef::<::std::path::Path>::as_ref(&$folder),
            ::std::borrow::Borrow::<$crate::Projection>::borrow(&$projection),
            |name, text| $crate::testing::insta::assert_snapshot!(name, text),
        );
        ::std::assert!(differing.is_empty(), "snapshots that differ: {}", differing.join(", "));
    }};
}

/// The texts that pin a projection, by the name of their snapshot, sorted:
///
/// - `accounts`: a line for each account with its namespace, members, and why it is closed or stopped, so that an
///   account that comes, goes or can no longer be read shows;
/// - `shared`: the objects that all accounts share;
/// - one by the namespace of each account, such as `spur-acct-physics`: its objects.
///
/// Objects are YAML as `kubectl apply` takes it, one document each. No text of a projected account depends on the
/// places in the source.
#[must_use]
pub fn documents(projection: &Projection) -> Vec<(String, String)> {
    let mut documents = vec![("accounts".to_owned(), overview(projection))];
    documents.push(("shared".to_owned(), yaml(&projection.shared)));
    documents.extend(
        projection.accounts.iter().map(|account| (account.namespace.clone(), yaml(&account.objects))),
    );
    documents.sort();
    documents
}

/// Hands each of the [`documents`] to `assert` and gives the names of those at which it panicked. What
/// [`assert_projection_snapshots`] does, for a comparison of one's own.
#[must_use]
pub fn differing(folder: &Path, projection: &Projection, assert: impl Fn(&str, &str)) -> Vec<String> {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(folder);
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.remove_snapshot_suffix();
    settings.bind(|| {
        let mut documents = documents(projection);
        // Going on after a difference shows all of them at once.
        documents.retain(|(name, text)| catch_unwind(AssertUnwindSafe(|| assert(name, text))).is_err());
        documents.into_iter().map(|(name, _)| name).collect()
    })
}

fn overview(projection: &Projection) -> String {
    let mut text = String::new();
    // Writing to a String never fails.
    for AccountProjection { account, namespace, closed, members, .. } in &projection.accounts {
        let _ = write!(text, "{account}: {namespace}, members: {}", members.len());
        let _ = match closed {
            Some(closed) => writeln!(text, ", closed: {closed}"),
            None => writeln!(text),
        };
    }
    for StoppedAccount { account, problem } in &projection.stopped {
        let field = if problem.field.is_empty() { "" } else { ": " };
        let _ = writeln!(text, "{account}: stopped: {}{field}{}", problem.field, problem.message);
    }
    text
}

fn yaml(objects: &[Object]) -> String {
    let document = |object: &Object| {
        // An object is a tree of maps, lists and texts; nothing of it can fail to be written.
        serde_saphyr::to_string(object).unwrap_or_else(|error| format!("{}: {error}\n", object.title()))
    };
    objects.iter().map(document).collect::<Vec<_>>().join("---\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, Origin, Policy, Problem, QuotaProjector, Subject};

    fn projection() -> Projection {
        let origin = Origin::store("test");
        let mut model = Model::default();
        model.add_account(&origin, "physics", None, "cpu=16,mem=32768").unwrap();
        model.add_account(&origin, "Optics", Some("physics"), "").unwrap();
        model.add_account(&origin, "broken", None, "").unwrap();
        model.add_member(&origin, "Optics", "alice").unwrap();
        model.problems.push(Problem {
            origin,
            subject: Subject::Account("broken".parse().unwrap()),
            field: "grp_tres".to_owned(),
            message: "is no TRES".to_owned(),
        });
        QuotaProjector::new(&Policy::default()).project(&model)
    }

    #[test]
    fn each_account_has_a_text_and_stopped_ones_are_named() {
        let documents = documents(&projection());
        let names: Vec<_> = documents.iter().map(|(name, _)| name.as_str()).collect();
        let hashed = crate::names::NAMESPACES.map("Optics");
        assert_eq!(names, ["accounts", "shared", hashed.as_str(), "spur-acct-physics"]);
        assert_eq!(
            documents[0].1,
            format!(
                "Optics: {hashed}, members: 1\nphysics: spur-acct-physics, members: 0\n\
                 broken: stopped: grp_tres: is no TRES\n"
            )
        );
        let physics = &documents[3].1;
        assert!(physics.starts_with("apiVersion: v1\nkind: Namespace\n"), "{physics}");
        assert!(physics.contains("requests.memory: 32768M\n"), "{physics}");
        assert_eq!(physics.matches("---\n").count(), 5);
    }

    #[test]
    fn every_text_that_differs_is_named() {
        let differing = differing(Path::new("x"), &projection(), |name, text| {
            assert!(!text.contains("32768M"), "{name}");
        });
        assert_eq!(differing.len(), 2, "{differing:?}");
        assert!(differing.contains(&"spur-acct-physics".to_owned()));
    }

    #[test]
    fn each_text_is_handed_over_once() {
        let taken = std::cell::Cell::new(0);
        let differing = differing(Path::new("x"), &projection(), |_, _| taken.set(taken.get() + 1));
        assert!(differing.is_empty());
        assert_eq!(taken.get(), 4);
    }
}
