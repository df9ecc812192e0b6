//! Commands that need no cluster.

use std::path::PathBuf;

use anyhow::{Context, bail};
use comfy_table::{Table, presets};
use serde_json::json;
use spur_sdk::AccountName;
use spur_sdk_quota::source::{accounts_schema, policy_schema, to_accounts_toml, to_dump};
use spur_sdk_quota::{
    Dimension, Model, Policy, Projection, QuotaProjector, check, explain as explain_account,
};

use super::sources::{model, read, tell_problems};
use super::{ConvertTo, Input, Reading, Schema};
use crate::exit::Exit;
use crate::output::{self, Format};

pub(super) fn render(sources: &[PathBuf], input: &Input, format: Format) -> anyhow::Result<Exit> {
    let (policy, model) = read(sources, input)?;
    let projection = QuotaProjector::new(&policy).project(&model);
    let mut exit = tell_problems(&projection);
    if exit == Exit::Failed {
        return Ok(exit);
    }
    for finding in check(&projection) {
        output::problem(&format!("not safe to apply: {finding}"));
        exit = Exit::Partly;
    }
    match format {
        Format::Yaml => {
            let mut text = String::new();
            for object in projection.objects() {
                text.push_str("---\n");
                text.push_str(&output::yaml(object)?);
                if !text.ends_with('\n') {
                    text.push('\n');
                }
            }
            output::print(&text)?;
        }
        Format::Json => {
            let items: Vec<_> = projection.objects().collect();
            output::print(&output::json(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))?)?;
        }
        Format::Table => output::print(&overview(&projection, &policy))?,
    }
    tell_closed(&projection);
    Ok(exit)
}

/// Says how many accounts are closed, since a site that sets few GrpTRES would wonder.
pub(super) fn tell_closed(projection: &Projection) {
    if let Some(note) = projection.report.closed_note() {
        output::note(note);
    }
}

fn overview(projection: &Projection, policy: &Policy) -> String {
    let resources: std::collections::BTreeSet<_> = policy.resources.values().cloned().collect();
    let dimensions: Vec<_> = [Dimension::Cpu, Dimension::Memory]
        .into_iter()
        .chain(resources.into_iter().map(Dimension::Extended))
        .collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let mut header = vec!["ACCOUNT".to_owned(), "NAMESPACE".to_owned()];
    header.extend(dimensions.iter().map(|dimension| dimension.to_string().to_uppercase()));
    header.extend(["MEMBERS".to_owned(), "STATE".to_owned()]);
    table.set_header(header);
    for account in &projection.accounts {
        let mut row = vec![account.account.to_string(), account.namespace.clone()];
        row.extend(dimensions.iter().map(|dimension| {
            account.caps.get(dimension).map_or("-".to_owned(), |cap| dimension.display_amount(cap.amount))
        }));
        row.push(account.members.len().to_string());
        row.push(if account.closed.is_some() { "closed" } else { "open" }.to_owned());
        table.add_row(row);
    }
    for stopped in &projection.stopped {
        let mut row = vec![stopped.account.to_string()];
        row.resize(dimensions.len() + 3, "-".to_owned());
        row.push("stopped".to_owned());
        table.add_row(row);
    }
    table.trim_fmt()
}

pub(super) fn explain(
    sources: &[PathBuf],
    account: &str,
    input: &Input,
    format: Format,
) -> anyhow::Result<Exit> {
    let (policy, model) = read(sources, input)?;
    let name: AccountName = account.parse().context("account")?;
    let Some(explanation) = explain_account(&model, &policy, &name) else {
        if Model::is_root(&name) {
            bail!("root gets no namespace; its limits bind every account");
        }
        let known: Vec<_> = model.accounts.keys().map(AccountName::as_str).collect();
        bail!("there is no account {account} in the sources; they have {}", output::shorten(&known));
    };
    output::value(format, &explanation, || explanation.to_string())?;
    Ok(if explanation.stopped.is_some() { Exit::Failed } else { Exit::Done })
}

pub(super) fn report(sources: &[PathBuf], input: &Input, format: Format) -> anyhow::Result<Exit> {
    let (policy, model) = read(sources, input)?;
    let projection = QuotaProjector::new(&policy).project(&model);
    let exit = tell_problems(&projection);
    output::value(format, &projection.report, || projection.report.to_string())?;
    Ok(exit)
}

pub(super) fn convert(sources: &[PathBuf], reading: &Reading, to: ConvertTo) -> anyhow::Result<Exit> {
    let model = model(sources, reading)?;
    // A file that lacks what could not be read would pass for the whole.
    let problems = QuotaProjector::new(&Policy::default()).project(&model).problems;
    for problem in &problems {
        output::problem(&problem.to_string());
    }
    if !problems.is_empty() {
        bail!("nothing is written: what could not be read would be missing from it");
    }
    match to {
        ConvertTo::Spur => output::print(&to_accounts_toml(&model))?,
        ConvertTo::Dump => {
            let (text, notes) = to_dump(&model);
            for note in notes {
                output::note(&note);
            }
            output::print(&text)?;
        }
    }
    Ok(Exit::Done)
}

pub(super) fn schema(of: Schema) -> anyhow::Result<Exit> {
    let schema = match of {
        Schema::Accounts => accounts_schema(),
        Schema::Policy => policy_schema(),
    };
    output::print(&output::json(&schema)?)?;
    Ok(Exit::Done)
}
