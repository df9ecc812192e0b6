//! Judges a plan by itself; shares no code with the planner.

use super::{Action, Plan, Step};
use crate::check::Finding;
use crate::cluster::Kind;
use crate::project::names;

/// Judges a plan by itself: what restricts comes before what admits, every object written is labelled ours,
/// nothing is deleted that is not made anew or named for it.
#[must_use]
pub fn check_plan(plan: &Plan) -> Vec<Finding> {
    let mut findings = Vec::new();
    for account in &plan.accounts {
        let mut say = |step: &Step, message: &str| {
            findings.push(Finding {
                account: Some(account.account.clone()),
                object: step.target.to_string(),
                message: message.to_owned(),
            });
        };
        for step in account.restrict.iter().chain(&account.admit) {
            let own = match step.target.kind {
                Kind::Namespace => step.target.name == account.namespace,
                _ => step.target.namespace.as_ref() == Some(&account.namespace),
            };
            if !own {
                say(step, "stands outside the account's namespace");
            }
            if let Action::Create { object } | Action::Update { object, .. } | Action::Replace { object, .. } =
                &step.action
                && object.pointer("/metadata/labels/app.kubernetes.io~1managed-by").is_none()
            {
                say(step, "is written without the label that makes it ours");
            }
        }
        for step in &account.restrict {
            let binding = step.target.kind == Kind::RoleBinding;
            if binding && adds_subjects(&step.action) {
                say(step, "admits before the quota binds");
            }
            if !binding && matches!(step.action, Action::Delete { .. }) {
                say(step, "deletes what restricts");
            }
        }
        for step in &account.admit {
            let closing = step.target.name == names::CLOSING_QUOTA;
            if step.target.kind != Kind::RoleBinding && !closing {
                say(step, "restricts after somebody is let in");
            }
        }
    }
    for step in &plan.shared {
        // A user's ServiceAccount is one user's alone.
        let one_users = step.target.kind == Kind::ServiceAccount
            && step.target.namespace.as_deref() == Some(names::USERS_NAMESPACE);
        let guard = step.target.name.starts_with(names::GUARD);
        if matches!(step.action, Action::Delete { .. }) && !guard && !one_users {
            findings.push(Finding {
                account: None,
                object: step.target.to_string(),
                message: "is deleted, and all accounts share it".to_owned(),
            });
        }
    }
    findings
}

/// Whether a write of a RoleBinding lets anyone in who was not in before.
fn adds_subjects(action: &Action) -> bool {
    let names = |value: &serde_json::Value| -> std::collections::BTreeSet<String> {
        let subjects = value.as_array().into_iter().flatten();
        subjects.filter_map(|subject| Some(subject.get("name")?.as_str()?.to_owned())).collect()
    };
    match action {
        Action::Update { changed, .. } => changed
            .iter()
            .filter(|change| change.path == "subjects")
            .any(|change| !names(&change.to).is_subset(&names(&change.from))),
        Action::Create { .. } | Action::Replace { .. } => true,
        Action::Remove { .. } | Action::Delete { .. } => false,
    }
}
