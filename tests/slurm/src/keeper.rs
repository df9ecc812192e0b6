//! The shell that outlives the test process for as long as it takes to clean up after it.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::programs::Programs;

const SCRIPT: &str = include_str!("keeper.sh");
const STEP: Duration = Duration::from_millis(10);

/// Starts daemons, and kills them when it is dropped or this process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Keeper {
    shell: Child,
    /// `None` once the shell has been told to end.
    input: Option<ChildStdin>,
    /// Last, so that it is dropped after the shell has removed it: for where the shell couldn't.
    folder: tempfile::TempDir,
}

impl Keeper {
    /// Makes the folder of a lab and the shell that removes it.
    pub(crate) fn start(programs: &Programs) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("slurm-").tempdir().context("make a lab's folder")?;
        for name in ["etc", "run", "log", "db", "files"] {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        }
        let mut shell = Command::new(&programs.sh)
            .args(["-c", SCRIPT, "keeper"])
            .arg(folder.path())
            .args([&programs.setsid, &programs.install_db, &programs.mariadbd, &programs.slurmdbd])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C in the terminal is for the test; its end is what tells this shell.
            .process_group(0)
            .spawn()
            .with_context(|| format!("run {}", programs.sh.display()))?;
        let input = shell.stdin.take();
        Ok(Self { shell, input, folder })
    }

    /// The lab's folder. Only root can look into it.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the daemon that the script knows as `name`, and returns its process id.
    pub(crate) fn start_daemon(&mut self, name: &str) -> Result<u32> {
        let file = self.folder().join(format!("run/{name}.pid"));
        if let Err(error) = std::fs::remove_file(&file)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("remove {}", file.display()));
        }
        let input = self.input.as_mut().context("the lab's shell has ended")?;
        writeln!(input, "{name}").context("write to the lab's shell")?;
        wait_until(Duration::from_secs(10), || file.exists()).with_context(|| format!("fork {name}"))?;
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        text.trim().parse().with_context(|| format!("a process id in {}: {text:?}", file.display()))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.input.take());
        let ended = wait_until(Duration::from_secs(20), || !matches!(self.shell.try_wait(), Ok(None)));
        if ended.is_err() {
            let _ = self.shell.kill();
            let _ = self.shell.wait();
        }
    }
}

/// Waits until `done`.
///
/// # Errors
/// Where that takes longer than `patience`.
pub(crate) fn wait_until(patience: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !done() {
        ensure!(start.elapsed() < patience, "not within {} s", patience.as_secs());
        std::thread::sleep(STEP);
    }
    Ok(())
}

/// Whether the process `pid` lives, a zombie not counted.
pub(crate) fn lives(pid: u32) -> bool {
    // The state follows the name, which stands in parentheses and may hold any character.
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}
