//! Sources: a file, and one of a host's own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::future::{Future, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use spur_sdk::{Classify, ErrorKind, error_chain};
use spur_sdk_quota::source::{FileSource, ReadOptions, Source, SourceError};
use spur_sdk_quota::{Completeness, Model, Origin, Policy, QuotaProjector};

/// The result of a future that waits for nothing.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn a_file_is_read_anew_each_time_and_its_path_stands_in_the_problems() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("accounts.toml");
    let source = FileSource::new(&path, ReadOptions::default());
    std::fs::write(&path, b"[[account]]\nname = \"a\"\n").unwrap();
    assert_eq!(now(source.read()).unwrap().accounts.len(), 1);
    std::fs::write(&path, b"Account - 'b':Foo=1\n").unwrap();
    let model = now(source.read()).unwrap();
    assert_eq!(model.completeness, Completeness::Partial);
    let problem = model.problems[0].to_string();
    assert!(problem.starts_with(&format!("{}:1: account b: Foo: is no key", path.display())), "{problem}");
    assert_eq!(source.name(), path.display().to_string());
}

#[test]
fn a_file_that_is_missing_or_no_text_is_an_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("accounts.toml");
    let source = FileSource::new(&path, ReadOptions::default());
    let error = now(source.read()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error_chain(&error).starts_with(&format!("read accounts: read {}: ", path.display())));
    std::fs::write(&path, b"\xff\xfe").unwrap();
    assert_eq!(now(source.read()).unwrap_err().kind(), ErrorKind::Invalid);
}

/// A host's own database.
struct Database {
    up: bool,
}

impl Source for Database {
    fn name(&self) -> String {
        "the scheduler's database".to_owned()
    }

    fn read(&self) -> impl Future<Output = Result<Model, SourceError>> + Send {
        let read = || {
            if !self.up {
                let source = "connection refused".into();
                return Err(SourceError::Store { store: self.name(), source });
            }
            let origin = Origin::store(&self.name());
            let mut model = Model::default();
            model.add_account(&origin, "physics", None, "cpu=4").unwrap();
            model.completeness = Completeness::Full;
            Ok(model)
        };
        ready(read())
    }
}

#[test]
fn a_host_brings_its_own_source() {
    let model = now(Database { up: true }.read()).unwrap();
    let policy = Policy::default();
    let projection = QuotaProjector::new(&policy).project(&model);
    assert_eq!(
        projection.accounts[0].caps.values().next().unwrap().origin.to_string(),
        "the scheduler's database"
    );
    let error = now(Database { up: false }.read()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error_chain(&error), "read accounts from the scheduler's database: connection refused");
}

#[test]
fn a_model_built_by_hand_refuses_what_it_cannot_read() {
    let origin = Origin::store("test");
    let mut model = Model::default();
    for (name, parent, tres) in [("", None, ""), ("a", Some(" "), ""), ("a", None, "cpus=4")] {
        let error = model.add_account(&origin, name, parent, tres).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    assert!(model.add_member(&origin, "a", "\n").is_err());
    assert_eq!(model, Model::default());
}
