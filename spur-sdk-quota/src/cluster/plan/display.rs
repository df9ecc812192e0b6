//! A plan as an operator reads it before saying yes.

use std::fmt;

use serde_json::Value;

use super::{Action, Change, OverQuota, Plan, Step};

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mark, reason) = match &self.action {
            Action::Create { .. } => ('+', String::new()),
            Action::Update { .. } | Action::Remove { .. } => ('~', String::new()),
            Action::Delete { .. } => ('-', format!("  ({})", self.reason)),
            Action::Replace { .. } => ('!', format!("  ({})", self.reason)),
        };
        write!(f, "{mark} {}{reason}", self.target)?;
        match &self.action {
            Action::Update { changed, .. } => {
                for Change { path, from, to } in changed {
                    write!(f, "\n    {path}: {} -> {}", short(from), short(to))?;
                }
            }
            Action::Remove { fields, .. } => {
                for field in fields {
                    write!(f, "\n    {field}: removed")?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Step {
    /// The step in a few words: `ResourceQuota spur-acct-a/spur-quota: spec.hard.pods: 9 -> 5`.
    pub(in crate::cluster) fn summary(&self) -> String {
        match &self.action {
            Action::Create { .. } => format!("{} was not there", self.target),
            Action::Update { changed, .. } => {
                let changes: Vec<_> = changed
                    .iter()
                    .take(3)
                    .map(|Change { path, from, to }| format!("{path}: {} -> {}", short(from), short(to)))
                    .collect();
                let more = if changed.len() > changes.len() { ", …" } else { "" };
                format!("{}: {}{more}", self.target, changes.join(", "))
            }
            Action::Remove { fields, .. } => format!("{}: {} removed", self.target, fields.join(", ")),
            Action::Delete { .. } | Action::Replace { .. } => format!("{}: {}", self.target, self.reason),
        }
    }
}

/// A value on one line; long ones are cut.
fn short(value: &Value) -> String {
    const LONG: usize = 80;
    let text = match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.chars().count() <= LONG {
        return text;
    }
    text.chars().take(LONG).chain(['…']).collect()
}

/// What an operator reads before saying yes.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.shared {
            writeln!(f, "{step}")?;
        }
        for account in &self.accounts {
            for step in &account.restrict {
                writeln!(f, "{step}")?;
            }
            if account.wait {
                writeln!(f, "* {}: wait until the quota binds", account.namespace)?;
            }
            for step in &account.admit {
                writeln!(f, "{step}")?;
            }
        }
        for over in &self.over_quota {
            let OverQuota { account, key, used, hard } = over;
            writeln!(f, "over quota: account {account} uses {key} {used} of {hard}; nothing is evicted")?;
        }
        for refusal in &self.refused {
            match &refusal.account {
                Some(account) => writeln!(f, "refused: account {account}: {}", refusal.reason)?,
                None => writeln!(f, "refused: {}", refusal.reason)?,
            }
        }
        for namespace in &self.unlisted {
            writeln!(
                f,
                "left alone: Namespace {namespace} is ours and the source does not name its account"
            )?;
        }
        for account in &self.paused {
            writeln!(
                f,
                "paused: account {account}, by an annotation of its namespace; nothing is done in it"
            )?;
        }
        let changed = self.accounts.len();
        write!(
            f,
            "{} steps: {} accounts to change, {} in step, {} refused",
            self.steps().count(),
            changed,
            self.unchanged,
            self.refused.len()
        )
    }
}
