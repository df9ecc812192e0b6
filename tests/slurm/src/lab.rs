//! One lab: its daemons, and what a test asks of it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow, ensure};

use crate::command::{Output, PATIENCE, limited, run};
use crate::keeper::{Keeper, lives, wait_until};
use crate::port::{free_port, listens};
use crate::programs::Programs;
use crate::settings;
use crate::skip::skip;

/// The cluster that a lab has from the start.
pub const CLUSTER: &str = "alpha";

/// Lines of each log that an error shows.
const LOG_LINES: usize = 15;

/// A running Slurm accounting database with one cluster, [`CLUSTER`].
///
/// Dropping it kills its daemons and removes its folder, which takes a few hundredths of a second.
#[derive(Debug)]
pub struct Slurm {
    keeper: Keeper,
    programs: Programs,
    /// Number of the next file for `sacctmgr`.
    next_file: AtomicU32,
}

impl Slurm {
    /// Whether this machine can run a lab.
    ///
    /// # Errors
    /// The reason why not, in one sentence: no root, or which programs are missing, with their packages.
    pub fn available() -> Result<(), String> {
        Programs::find().map(drop)
    }

    /// Starts a lab, or [skips](skip) the test `name` where [`available`](Self::available) says that none can run.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_or_skip(name: &str) -> Result<Option<Self>> {
        match Self::available() {
            Ok(()) => Self::start().map(Some),
            Err(reason) => {
                skip(name, &reason);
                Ok(None)
            }
        }
    }

    /// Starts a lab, which takes about 2.5 seconds.
    ///
    /// # Errors
    /// Where a program is missing, fails, or isn't ready within a minute; with the end of the daemons' logs.
    pub fn start() -> Result<Self> {
        let programs = Programs::find().map_err(anyhow::Error::msg)?;
        let keeper = Keeper::start(&programs)?;
        let mut lab = Self { keeper, programs, next_file: AtomicU32::new(0) };
        lab.bring_up().map_err(|error| error.context(format!("start Slurm{}", lab.logs())))?;
        Ok(lab)
    }

    /// Runs `sacctmgr -i` with `args` and returns what it said, whether it succeeded or not.
    ///
    /// # Errors
    /// Where it could not be run.
    pub fn sacctmgr(&self, args: &[&str]) -> Result<Output> {
        let mut command = self.program(&self.programs.sacctmgr);
        command.arg("-i").args(args);
        run(command)
    }

    /// Loads a dump as `sacctmgr load` does: what the text says is added or changed, the rest stays.
    ///
    /// Slurm 22.05 refuses a new user with `WCKeys` in a text that also nests new accounts; loading it a second time
    /// then succeeds.
    ///
    /// # Errors
    /// Where `sacctmgr` fails or complains, with what it said. It complains of some bad numbers and takes them all
    /// the same, as 0 or cut; and where it fails, part of the text may have been loaded.
    pub fn load(&self, dump_text: &str) -> Result<Output> {
        let file = self.new_file("load");
        write(&file, dump_text)?;
        let output = self.sacctmgr(&["load", &format!("file={}", file.display())])?;
        let complaint = output.stderr.lines().any(|line| line.contains("error:"));
        ensure!(output.status.success() && !complaint, "sacctmgr load: {}", output.message());
        Ok(output)
    }

    /// What `sacctmgr dump` writes of [`CLUSTER`], with the comment lines at its top.
    ///
    /// # Errors
    /// Where `sacctmgr` fails, with what it said.
    pub fn dump(&self) -> Result<String> {
        self.dump_of(CLUSTER)
    }

    /// What `sacctmgr dump` writes of `cluster`, which a [load](Self::load) may have made.
    ///
    /// # Errors
    /// Where `sacctmgr` fails, with what it said; so for an unknown cluster.
    pub fn dump_of(&self, cluster: &str) -> Result<String> {
        let file = self.new_file("dump");
        let args = ["dump", cluster, &format!("file={}", file.display())];
        let output = self.sacctmgr(&args)?.succeeded("sacctmgr dump")?;
        let bytes = std::fs::read(&file)
            .with_context(|| format!("read {} after sacctmgr dump: {}", file.display(), output.message()))?;
        // Slurm keeps bytes: one that is cut in the middle of a character comes back as it is.
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn bring_up(&mut self) -> Result<()> {
        settings::check_folder(self.keeper.folder())?;
        self.start_database()?;
        self.start_slurmdbd()?;
        self.sacctmgr(&["add", "cluster", CLUSTER])?.succeeded("sacctmgr add cluster")?;
        self.sql(settings::TRES)
    }

    fn start_database(&mut self) -> Result<()> {
        let folder = self.keeper.folder();
        let file = folder.join("etc/my.cnf");
        write(&file, &settings::database(folder))?;
        let socket = settings::socket(folder);
        let daemon = self.keeper.start_daemon("mariadbd")?;
        // Making the database takes a second: the time for what needs none.
        self.build_loopback()?;
        wait_for("mariadbd", daemon, || Ok(UnixStream::connect(&socket).is_ok()))?;
        self.sql("create database slurm")
    }

    fn build_loopback(&self) -> Result<()> {
        let folder = self.keeper.folder();
        let source = folder.join("etc/loopback.c");
        write(&source, settings::LOOPBACK)?;
        let mut compile = self.program(&self.programs.cc);
        compile.args(["-shared", "-fPIC", "-o"]).arg(folder.join("etc/loopback.so")).arg(source);
        run(compile)?.succeeded("compile the host name for slurmdbd").map(drop)
    }

    /// A port that was free a moment ago may be taken by now: then the daemon ends, and another port is tried.
    fn start_slurmdbd(&mut self) -> Result<()> {
        let mut last = anyhow!("no port was tried");
        for _ in 0..5 {
            let folder = self.keeper.folder();
            let port = free_port()?;
            let file = folder.join("etc/slurmdbd.conf");
            write(&file, &settings::slurmdbd(folder, port))?;
            // slurmdbd refuses to start where others can read its password for the database.
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))
                .with_context(|| format!("protect {}", file.display()))?;
            write(&folder.join("etc/slurm.conf"), &settings::slurm(folder, port))?;
            let daemon = self.keeper.start_daemon("slurmdbd")?;
            match wait_for("slurmdbd", daemon, || listens(daemon, port)) {
                Ok(()) => return Ok(()),
                Err(error) if lives(daemon) => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn sql(&self, statement: &str) -> Result<()> {
        let mut client = self.program(&self.programs.mariadb);
        let socket = settings::socket(self.keeper.folder());
        client.arg("--no-defaults").arg(format!("--socket={}", socket.display()));
        client.args(["--user=root", "--execute", statement]);
        run(client)?.succeeded(statement).map(drop)
    }

    fn program(&self, program: &Path) -> Command {
        let mut command = limited(&self.programs.timeout, program);
        command.env("SLURM_CONF", self.keeper.folder().join("etc/slurm.conf"));
        command
    }

    fn new_file(&self, purpose: &str) -> PathBuf {
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        self.keeper.folder().join(format!("files/{purpose}-{number}"))
    }

    /// The end of each log that has one, for an error; the folder is gone by the time somebody reads it.
    fn logs(&self) -> String {
        let folder = self.keeper.folder().join("log");
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        files.sort();
        let mut text = Vec::new();
        for file in files {
            let log = String::from_utf8_lossy(&std::fs::read(&file).unwrap_or_default()).into_owned();
            let skipped = log.lines().count().saturating_sub(LOG_LINES);
            let name = file.file_name().unwrap_or_default().display().to_string();
            text.extend(log.lines().skip(skipped).map(|line| format!("\n  {name}: {line}")));
        }
        text.concat()
    }

    #[cfg(test)]
    pub(crate) fn folder(&self) -> &Path {
        self.keeper.folder()
    }
}

/// Waits until `ready`, as long as the daemon lives.
fn wait_for(name: &str, daemon: u32, ready: impl Fn() -> Result<bool>) -> Result<()> {
    let mut failure = None;
    let done = || match ready() {
        Ok(false) if lives(daemon) => false,
        Ok(true) => true,
        Ok(false) => {
            failure = Some(anyhow!("{name} ended by itself"));
            true
        }
        Err(error) => {
            failure = Some(error);
            true
        }
    };
    wait_until(PATIENCE, done).with_context(|| format!("wait for {name}"))?;
    failure.map_or(Ok(()), Err)
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("write {}", file.display()))
}
