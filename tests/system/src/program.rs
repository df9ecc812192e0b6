//! The programs, built as they stand, as processes that tests stop, let go on and kill.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow, ensure};

/// The program `spur`, built once.
///
/// # Errors
/// It cannot be built.
pub fn spur() -> Result<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    once(&PROGRAM, "spur")
}

/// The program `spurctld`, built once.
///
/// # Errors
/// It cannot be built.
pub fn spurctld() -> Result<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    once(&PROGRAM, "spurctld")
}

fn once(program: &'static OnceLock<Result<PathBuf, String>>, name: &str) -> Result<&'static Path> {
    let built = program.get_or_init(|| build(name).map_err(|error| format!("{error:#}")));
    built.as_deref().map_err(|error| anyhow!("build {name}: {error}"))
}

fn build(package: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).context("the folder of the profile")?;
    let target = profile.parent().context("the target folder")?;
    let name = profile.file_name().context("the profile")?.to_str().context("the profile")?;
    let name = if name == "debug" { "dev" } else { name };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", package, "--profile", name, "--target-dir"]).arg(target);
    // What cargo tells this test of its package is not meant for others, and would have some of them built anew.
    for (name, _) in std::env::vars_os() {
        let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(of_package) {
            build.env_remove(name);
        }
    }
    // The workspace's own cargo configuration is found from there.
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    ensure!(build.status().context("run cargo")?.success(), "cargo build");
    Ok(profile.join(package))
}

/// A run of a program; killed with the value.
#[derive(Debug)]
pub struct Program {
    child: Child,
    log: PathBuf,
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Program {
    /// Starts `spur`; what it says is added to `log`.
    ///
    /// # Errors
    /// It cannot be built or started.
    pub fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, log: &Path) -> Result<Self> {
        Self::run(spur()?, arguments, log)
    }

    /// Starts a program; what it says is added to `log`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        log: &Path,
    ) -> Result<Self> {
        let out = File::options().create(true).append(true).open(log);
        let out = out.with_context(|| format!("open {}", log.display()))?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// Sends it a signal by name, such as `STOP`.
    ///
    /// # Errors
    /// It does not run.
    pub fn signal(&mut self, name: &str) -> Result<()> {
        ensure!(self.runs()?, "it has ended: {}", self.said());
        let mut kill = Command::new("sh");
        kill.args(["-c", "kill -s \"$1\" \"$2\"", "sh", name]).arg(self.child.id().to_string());
        ensure!(kill.status().context("start sh")?.success(), "spur did not take {name}");
        Ok(())
    }

    /// Whether it runs.
    ///
    /// # Errors
    /// It cannot be looked after.
    pub fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("look after spur")?.is_none())
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it and those before it with the same log have said.
    #[must_use]
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}
