//! A foreign scheduler embeds the projection: its own database becomes a `Source`, and the objects come back as
//! typed Kubernetes values that it may apply itself.
//!
//! ```text
//! cargo run --example embed
//! ```

use std::future::{Future, ready};

use anyhow::Result;
use spur_sdk_quota::k8s::Object;
use spur_sdk_quota::source::{Source, SourceError};
use spur_sdk_quota::{Completeness, Model, ModelError, Origin, Policy, QuotaProjector, check};

/// What the scheduler has: projects with shares of the machine, and who works in them.
struct Database {
    projects: Vec<(&'static str, Option<&'static str>, u32, u32)>,
    people: Vec<(&'static str, &'static str)>,
}

impl Database {
    fn model(&self) -> Result<Model, ModelError> {
        let origin = Origin::store("projects database");
        let mut model = Model::default();
        for (name, parent, cores, gpus) in &self.projects {
            // SPUR's spelling of an allocation: memory in MB.
            let allocation = format!("cpu={cores},mem={},gres/gpu={gpus}", cores * 4000);
            model.add_account(&origin, name, *parent, &allocation)?;
        }
        for (person, project) in &self.people {
            model.add_member(&origin, project, person)?;
        }
        // Everything was read: a project that is missing now is one that was closed.
        model.completeness = Completeness::Full;
        Ok(model)
    }
}

impl Source for Database {
    fn name(&self) -> String {
        "projects database".to_owned()
    }

    fn read(&self) -> impl Future<Output = Result<Model, SourceError>> + Send {
        let store = self.name();
        ready(self.model().map_err(|error| SourceError::Store { store, source: Box::new(error) }))
    }
}

#[expect(clippy::print_stdout, reason = "this is a program")]
fn main() -> Result<()> {
    let database = Database {
        projects: vec![
            ("climate", None, 512, 16),
            ("ocean", Some("climate"), 128, 32),
            ("Ice_Sheets", None, 64, 0),
        ],
        people: vec![("alice", "ocean"), ("bob", "ocean"), ("carol", "Ice_Sheets")],
    };
    let model = futures::executor::block_on(database.read())?;
    let policy = Policy::default();
    let projection = QuotaProjector::new(&policy).project(&model);
    for problem in &projection.problems {
        println!("not understood: {problem}");
    }
    for finding in check(&projection) {
        println!("not safe to apply: {finding}");
    }
    for account in &projection.accounts {
        println!("{} -> namespace {}", account.account, account.namespace);
        for (dimension, cap) in &account.caps {
            let amount = dimension.display_amount(cap.amount);
            println!("  {} = {amount}, set by {}", dimension.quota_key(), cap.holder);
        }
        // Typed objects: hand them to your own client, or use `spur_sdk_quota::cluster` (feature `apply`).
        let bindings = account.objects.iter().filter_map(|object| match object {
            Object::RoleBinding(binding) => binding.subjects.as_ref(),
            _ => None,
        });
        for subject in bindings.flatten() {
            println!("  member {}", subject.name);
        }
    }
    Ok(())
}
