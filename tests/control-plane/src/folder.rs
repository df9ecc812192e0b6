//! The folder of a control plane and the script that removes it, and all that runs in it, whatever becomes of the test.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};

use crate::programs::cache_dir;

/// A folder that goes away with this value or with this process, whichever comes first.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Runs `stop` when its standard input, which only this process holds open, ends.
    keeper: Option<Child>,
}

impl Folder {
    pub(crate) fn new() -> Result<Self> {
        let path =
            tempfile::Builder::new().prefix("spur-control-plane-").tempdir().context("make a folder")?.keep();
        let mut folder = Self { path, keeper: None };
        let stop = folder.stop_script();
        std::fs::write(&stop, include_str!("stop.sh"))
            .with_context(|| format!("write {}", stop.display()))?;
        std::fs::set_permissions(&stop, std::fs::Permissions::from_mode(0o755))?;
        for name in ["pids", "logs"] {
            std::fs::create_dir(folder.path.join(name)).with_context(|| format!("make {name}"))?;
        }
        let keeper = Command::new("sh")
            .arg(&stop)
            .arg("--when-input-ends")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of reach of what a terminal or a test runner sends to the test's group.
            .process_group(0)
            .spawn()
            .context("start sh")?;
        folder.keeper = Some(keeper);
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn stop_script(&self) -> PathBuf {
        self.path.join("stop")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// Copies the logs to the cache folder and says where they are.
    pub(crate) fn save_logs(&self) -> Result<PathBuf> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let name = format!("{}-{}-{}", since.as_secs(), std::process::id(), since.subsec_micros());
        let target = cache_dir()?.join("logs").join(name);
        std::fs::create_dir_all(&target).with_context(|| format!("make {}", target.display()))?;
        for entry in std::fs::read_dir(self.logs())? {
            let entry = entry?;
            std::fs::copy(entry.path(), target.join(entry.file_name()))?;
        }
        Ok(target)
    }

    /// Leaves the folder and what runs in it.
    pub(crate) fn keep(&mut self) -> Result<()> {
        if let Some(mut keeper) = self.keeper.take() {
            if let Some(mut input) = keeper.stdin.take() {
                input.write_all(b"keep\n").context("tell the control plane's keeper")?;
            }
            keeper.wait().context("wait for the control plane's keeper")?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            // An error leaves nothing to do: the keeper goes on by itself.
            let _ = keeper.wait();
        }
    }
}
