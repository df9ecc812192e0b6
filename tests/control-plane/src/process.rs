//! One running program of a control plane.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::components::Component;

/// A program with its log.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) component: Component,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts `program` with its output in `folder/logs` and its process id in `folder/pids`.
    pub(crate) fn start(
        folder: &Path,
        component: Component,
        program: &Path,
        arguments: &[String],
    ) -> Result<Self> {
        let log = folder.join("logs").join(format!("{component}.log"));
        let out = File::options().create(true).append(true).open(&log);
        let out = out.with_context(|| format!("open {}", log.display()))?;
        let child = Command::new("sh")
            .args(["-c", include_str!("run.sh"), "sh"])
            .arg(folder.join("pids").join(format!("{component}.pid")))
            .arg(program)
            .args(arguments)
            .current_dir(folder)
            // Starting takes a tenth less with fewer collections of the small heaps that there are then.
            .env("GOGC", "400")
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {component}"))?;
        Ok(Self { component, child, log })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("look after {}", self.component))
    }

    /// The last `count` lines of its log.
    pub(crate) fn last_lines(&self, count: usize) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join("\n")
    }

    /// Sends it a signal by name.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        let status = Command::new("sh")
            .args(["-c", "kill -s \"$1\" \"$2\"", "sh", name])
            .arg(self.pid().to_string())
            .status()
            .context("start sh")?;
        ensure!(status.success(), "{} did not take {name}: {status}", self.component);
        Ok(())
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
