//! Readers of accounts: each turns what a site has into a [`Model`].

mod accounts;
mod dump;
pub(crate) mod fields;
mod file;
#[cfg(any(feature = "accounting", feature = "source-spur"))]
pub(crate) mod lists;
mod merged;
pub(crate) mod node;
mod schema;
#[cfg(feature = "source-spur")]
mod spur;
mod write;

use std::future::Future;
use std::sync::Arc;

use spur_sdk::fs::FileError;
use spur_sdk::{Classify, ErrorKind};

use crate::model::{Completeness, Model};

pub use dump::dump_keys;
pub use file::FileSource;
pub use merged::Merged;
pub use schema::{accounts_schema, policy_schema};
#[cfg(feature = "source-spur")]
pub use spur::SpurSource;
pub use write::{to_accounts_toml, to_dump};

/// Where accounts come from. A host implements it over its own store.
pub trait Source: Send + Sync {
    /// What the source is called in messages, such as a path.
    fn name(&self) -> String;

    /// Reads everything anew.
    ///
    /// What concerns single accounts and cannot be understood belongs into [`Model::problems`], so that it
    /// stops those alone. [`Completeness::Full`] is said only of a source that was read to its end.
    ///
    /// # Errors
    /// [`SourceError`] when nothing can be said about any account.
    ///
    /// # Cancellation
    /// Nothing is left behind. After one that was dropped or has failed, read again in a while:
    /// [`changed`](Self::changed) need not tell.
    fn read(&self) -> impl Future<Output = Result<Model, SourceError>> + Send;

    /// Ends when the source may have changed since the last [`read`](Self::read) began; a change that came in between
    /// must not be missed. It may end without a change. By default never: then the source is read once.
    ///
    /// # Cancellation
    /// It is dropped and called again at any time, and must lose no change by that.
    fn changed(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// A source could not be read at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The file cannot be read.
    #[error("read accounts")]
    File(#[from] FileError),
    /// The text is no TOML or YAML.
    #[error("{file}:{line}: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u32,
        /// What is wrong.
        message: String,
    },
    /// The file changes all the time; what is read of it may be a part.
    #[error("{file} changes while it is read; write it beside and rename it")]
    Unsteady {
        /// The file.
        file: String,
    },
    /// A service changes all the time; what is read of it may not belong together.
    #[error("{service} changes while it is read: tried {attempts} times")]
    Restless {
        /// What the service is called.
        service: String,
        /// How often it was read.
        attempts: u32,
    },
    /// A service shows this caller only a part.
    #[error("{service} shows only a part of the accounts: ask as an operator or an admin")]
    Part {
        /// What the service is called.
        service: String,
    },
    /// A host's own store cannot be read.
    #[error("read accounts from {store}")]
    Store {
        /// What the store is called.
        store: String,
        /// Its error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Classify for SourceError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::File(error) => error.kind(),
            Self::Syntax { .. } => ErrorKind::Invalid,
            Self::Part { .. } => ErrorKind::Denied,
            Self::Unsteady { .. } | Self::Restless { .. } | Self::Store { .. } => ErrorKind::Unavailable,
        }
    }
}

/// The format of a file of accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Our own file as TOML.
    Toml,
    /// Our own file as YAML.
    Yaml,
    /// What `sacctmgr dump` writes.
    Dump,
}

impl Format {
    /// Tells the format by the content.
    #[must_use]
    pub fn detect(text: &str) -> Self {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let first = lines.next().unwrap_or("");
        if dump::is_dump_line(first) {
            return Self::Dump;
        }
        // `key: value`, `- item` or `---` is YAML; `[[table]]` or `key = value` is TOML, also with a quoted key.
        let mut quote = None;
        let separator = first.chars().find(|c| {
            let outside = quote.is_none();
            match quote {
                Some(open) if open == *c => quote = None,
                None if matches!(c, '\'' | '"') => quote = Some(*c),
                _ => {}
            }
            outside && matches!(c, '=' | ':')
        });
        let toml = first.starts_with('[') || separator == Some('=');
        if toml || first.is_empty() { Self::Toml } else { Self::Yaml }
    }
}

/// How a text is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReadOptions {
    /// The format; `None` is told by the content.
    pub format: Option<Format>,
    /// The caller vouches that a dump is whole. It cannot be seen: a cut file parses.
    pub complete: bool,
}

impl ReadOptions {
    /// Sets the format.
    #[must_use]
    pub fn format(mut self, format: Option<Format>) -> Self {
        self.format = format;
        self
    }

    /// Vouches that a dump is whole.
    #[must_use]
    pub fn complete(mut self, complete: bool) -> Self {
        self.complete = complete;
        self
    }
}

/// Reads a text. `name` is what messages call it.
///
/// A file of our own counts as read in full, a dump only if the options vouch for it, and neither when it
/// holds no account or an entry whose name cannot be read.
///
/// # Errors
/// [`SourceError::Syntax`] for TOML and YAML. A dump has no syntax that could fail as a whole; what is wrong
/// in it is among the model's problems.
pub fn read(text: &str, name: &str, options: ReadOptions) -> Result<Model, SourceError> {
    let file: Arc<str> = Arc::from(name);
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let tree = match options.format.unwrap_or_else(|| Format::detect(text)) {
        Format::Toml => node::parse_toml(text),
        Format::Yaml => node::parse_yaml(text),
        Format::Dump => {
            let mut model = dump::read(text, &file);
            model.completeness = settle(&model, options.complete);
            return Ok(model);
        }
    };
    let tree = tree.map_err(|error| SourceError::Syntax {
        file: name.to_owned(),
        line: error.line,
        message: error.message,
    })?;
    let (mut model, understood) = accounts::read(&tree, &file);
    // A file that ends in the middle of a line may have been cut, and what follows may be missing.
    model.completeness = settle(&model, understood && text.ends_with('\n'));
    Ok(model)
}

fn settle(model: &Model, vouched: bool) -> Completeness {
    let stopped = model.problems.iter().any(|problem| problem.subject == crate::model::Subject::Source);
    if vouched && !stopped && !model.accounts.is_empty() { Completeness::Full } else { Completeness::Partial }
}
