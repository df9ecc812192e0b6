//! What goes to the terminal.

use std::io::{ErrorKind, Write};

use anstyle::{AnsiColor, Style};
use anyhow::Context;
use serde::Serialize;

const RED: Style = AnsiColor::Red.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default().bold();
const GREEN: Style = AnsiColor::Green.on_default();

/// A machine's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

/// Writes to standard output. That nobody reads it to its end, as in `spur … | head`, is no failure.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    let mut out = anstream::stdout().lock();
    match write!(out, "{text}{end}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("write to standard output"),
    }
}

pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<String> {
    serde_json::to_string_pretty(value).context("write JSON")
}

pub(crate) fn yaml(value: &impl Serialize) -> anyhow::Result<String> {
    serde_saphyr::to_string(value).context("write YAML")
}

/// Prints a value in a machine's format, or the text for people.
pub(crate) fn value(
    format: Format,
    value: &impl Serialize,
    table: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let text = match format {
        Format::Table => table(),
        Format::Yaml => yaml(value)?,
        Format::Json => json(value)?,
    };
    print(&text)
}

/// A table for people, without lines.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(head);
    for row in rows {
        table.add_row(row);
    }
    table.to_string()
}

fn stderr(text: &str) {
    // Nothing can be done about a terminal that is gone.
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Says why the command failed, with all causes.
pub(crate) fn error(error: &anyhow::Error) {
    stderr(&format!("{RED}error:{RED:#} {}", spur_sdk::error_chain(error.as_ref())));
}

/// Says what concerns one thing; the command goes on.
pub(crate) fn problem(text: &str) {
    stderr(&format!("{RED}error:{RED:#} {text}"));
}

pub(crate) fn warning(text: &str) {
    stderr(&format!("{YELLOW}warning:{YELLOW:#} {text}"));
}

pub(crate) fn note(text: &str) {
    stderr(&format!("{GREEN}note:{GREEN:#} {text}"));
}

/// Says something about the course of a command.
pub(crate) fn status(text: &str) {
    stderr(text);
}

/// A list for a message: not more than a person reads.
pub(crate) fn shorten(names: &[&str]) -> String {
    const SHOWN: usize = 10;
    match names.len() {
        0 => "none".to_owned(),
        1..=SHOWN => names.join(", "),
        more => format!("{} and {} more", names.get(..SHOWN).unwrap_or_default().join(", "), more - SHOWN),
    }
}

/// Colours a plan's lines by their first character.
pub(crate) fn coloured(plan: &str) -> String {
    let colour = |line: &str| match line.chars().next() {
        Some('+') => GREEN,
        Some('~' | '*') => AnsiColor::Yellow.on_default(),
        Some('-' | '!') => AnsiColor::Red.on_default(),
        _ if line.starts_with("refused") => RED,
        _ => Style::new(),
    };
    let lines = plan.lines().map(|line| {
        let style = colour(line);
        format!("{style}{line}{style:#}\n")
    });
    lines.collect::<Vec<_>>().concat()
}
