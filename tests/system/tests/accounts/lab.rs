//! A controller of its own, and what is asked of it by `spur`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use spur_sdk::rpc::{Client, ClientOptions, Target};
use spur_sdk_quota::Model;
use spur_sdk_quota::source::{Source, SpurSource};
use spur_system_tests::program::{Program, spur, spurctld};

/// A controller in a folder of its own; gone with the value.
pub(crate) struct Lab {
    _daemon: Program,
    folder: tempfile::TempDir,
}

/// What `spur` said, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Lab {
    /// A site named as Slurm's cluster is.
    pub(crate) fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path();
        let (config, here) = (path.join("spurctld.toml"), path.display());
        std::fs::write(
            &config,
            format!(
                "site = \"alpha\"\n[controller]\nname = \"head1\"\nlisten = \"127.0.0.1:0\"\n\
                 socket = \"{here}/run/s\"\nstate = \"{here}/state\"\n"
            ),
        )?;
        let init = Command::new(spurctld()?).arg("--config").arg(&config).arg("init").output()?;
        ensure!(init.status.success(), "{init:?}");
        let arguments = ["--config".into(), config.into_os_string(), "run".into()];
        let daemon = Program::run(spurctld()?, arguments, &path.join("spurctld.log"))?;
        let start = Instant::now();
        while !path.join("run/s").exists() {
            ensure!(start.elapsed() < Duration::from_secs(20), "{}", daemon.said());
            std::thread::sleep(Duration::from_millis(10));
        }
        let lab = Self { _daemon: daemon, folder };
        while lab.spur(&["account", "list"])?.code != 0 {
            ensure!(start.elapsed() < Duration::from_secs(20), "{:?}", lab.spur(&["account", "list"])?);
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(lab)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("run/s")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `spur`, whether it succeeds or not.
    pub(crate) fn spur(&self, arguments: &[&str]) -> Result<Said> {
        run(&format!("unix:{}", self.socket().display()), arguments, "")
    }

    /// Runs `spur` with an input.
    pub(crate) fn spur_reading(&self, arguments: &[&str], input: &str) -> Result<Said> {
        run(&format!("unix:{}", self.socket().display()), arguments, input)
    }

    /// Runs `spur`, which must succeed.
    pub(crate) fn done(&self, arguments: &[&str]) -> Result<Said> {
        let said = self.spur(arguments)?;
        ensure!(said.code == 0, "spur {arguments:?}: {said:#?}");
        Ok(said)
    }

    /// What `spur … -o json` shows.
    pub(crate) fn json(&self, arguments: &[&str]) -> Result<serde_json::Value> {
        let said = self.done(&[arguments, &["-o", "json"]].concat())?;
        serde_json::from_str(&said.stdout).with_context(|| said.stdout.clone())
    }

    /// The accounts as the reconciler gets them.
    pub(crate) fn model(&self) -> Result<Model> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = Client::new(&Target::Socket(self.socket()), ClientOptions::default())?;
            Ok(SpurSource::new(client).read().await?)
        })
    }

    /// A number that grows with each change.
    pub(crate) fn revision(&self) -> Result<u64> {
        self.json(&["site", "status"])?["revision"].as_u64().context("a revision")
    }
}

/// Runs `spur` against a controller.
pub(crate) fn run(controller: &str, arguments: &[&str], input: &str) -> Result<Said> {
    let mut command = Command::new(spur()?);
    command.args(arguments).env("SPUR_CONTROLLER_ADDR", controller);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("start spur")?;
    // A command that reads nothing may be gone already.
    let _ = child.stdin.take().context("its input")?.write_all(input.as_bytes());
    let output = child.wait_with_output()?;
    Ok(Said {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Splits words at blanks, but for what stands between double quotes.
pub(crate) fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in text.chars() {
        match letter {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            letter => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
