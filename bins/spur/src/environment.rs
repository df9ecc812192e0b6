//! Variables of the environment that the program reads.

use std::path::PathBuf;

use anyhow::Context;

/// Which controller is asked.
pub(crate) const CONTROLLER: &str = "SPUR_CONTROLLER_ADDR";
/// The file of credentials.
pub(crate) const CREDENTIALS: &str = "SPUR_CREDENTIALS";

fn folder(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Where `spur login` puts what it gets.
pub(crate) fn login_file() -> anyhow::Result<PathBuf> {
    let config = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")));
    let config = config.context("neither XDG_CONFIG_HOME nor HOME is set: name a file with --credentials")?;
    Ok(config.join("spur").join("credentials.pem"))
}

/// Where tokens are kept: a folder that goes with the session, and one that stays.
pub(crate) fn token_folders() -> (Option<PathBuf>, Option<PathBuf>) {
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    (folder("XDG_RUNTIME_DIR"), cache)
}

/// Which process asks for a token, where that is client-go: it asks a second time when a token was refused.
pub(crate) fn asker() -> Option<String> {
    std::env::var_os("KUBERNETES_EXEC_INFO")?;
    let parent = std::os::unix::process::parent_id();
    let stat = spur_sdk::fs::read_text(std::path::Path::new(&format!("/proc/{parent}/stat")), 4096).ok()?;
    // The start time is the 22nd field; the name before it, in parentheses, may hold spaces.
    let started = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.to_owned();
    Some(format!("{parent} {started}"))
}
