//! The built program.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::until;

/// The program, built once as it stands.
pub(crate) fn path() -> Result<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf>> = OnceLock::new();
    match PROGRAM.get_or_init(build) {
        Ok(path) => Ok(path),
        Err(error) => bail!("build spur-operator: {error:#}"),
    }
}

fn build() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).context("the folder of the profile")?;
    let target = profile.parent().context("the target folder")?;
    let name = profile.file_name().context("the profile")?.to_str().context("the profile")?;
    let name = if name == "debug" { "dev" } else { name };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = std::process::Command::new(cargo);
    build
        .args(["build", "--quiet", "--package", "spur-operator", "--profile", name, "--target-dir"])
        .arg(target);
    // What cargo tells this test of its package is not meant for others, and would have some of them built anew.
    for (name, _) in std::env::vars_os() {
        let own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(own) {
            build.env_remove(name);
        }
    }
    // The workspace's own cargo configuration is found from there.
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    ensure!(build.status().context("run cargo")?.success(), "cargo build");
    Ok(profile.join("spur-operator"))
}

/// A run that ends by itself: its code, and what it says.
pub(crate) async fn ends(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(Option<i32>, String)> {
    let mut command = Command::new(path()?);
    command
        .args(arguments)
        .envs(environment.iter().copied())
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent");
    let ended = timeout(Duration::from_secs(20), command.kill_on_drop(true).output()).await;
    let ended = ended.with_context(|| format!("{arguments:?} does not end"))??;
    Ok((ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned()))
}

/// A run of the program; killed with the value.
pub(crate) struct Operator {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

impl Operator {
    /// Starts one that logs JSON and listens on a free port.
    pub(crate) async fn start(kubeconfig: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(path()?);
        command
            .args(["--listen=127.0.0.1:0", "--log-format=json"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(arguments)
            .env("SPUR_LOG", "info")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().context("start spur-operator")?;
        let mut lines = BufReader::new(child.stderr.take().context("standard error")?).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        let mut operator = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), log };
        let log = Arc::clone(&operator.log);
        let started = until("the first line of the log", || async {
            let lines = log.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let line = lines
                .iter()
                .find(|line| line.contains("\"started\""))
                .with_context(|| format!("{lines:?}"))?;
            Ok(serde_json::from_str::<Value>(line)?)
        });
        let address = started.await?["listen"].as_str().context("the address")?.parse()?;
        operator.address = address;
        Ok(operator)
    }

    /// The log, one object for each line.
    pub(crate) fn log(&self) -> Result<Vec<Value>> {
        let lines = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(|line| serde_json::from_str(line).with_context(|| line.clone())).collect()
    }

    /// How many lines of the log have one of these messages.
    pub(crate) fn logged(&self, messages: &[&str]) -> usize {
        let lines = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let said = |line: &&String| {
            messages.iter().any(|message| line.contains(&format!("\"message\":\"{message}\"")))
        };
        lines.iter().filter(said).count()
    }

    /// A page: its code and its text.
    pub(crate) async fn page(&self, path: &str) -> Result<(u16, String)> {
        let ask = async {
            let mut stream = TcpStream::connect(self.address).await?;
            let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            anyhow::Ok(answer)
        };
        let answer = timeout(Duration::from_secs(5), ask).await.with_context(|| format!("GET {path}"))??;
        let (head, body) = answer.split_once("\r\n\r\n").with_context(|| answer.clone())?;
        let code =
            head.split(' ').nth(1).and_then(|code| code.parse().ok()).with_context(|| head.to_owned())?;
        Ok((code, body.to_owned()))
    }

    /// What `/status` says.
    pub(crate) async fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.page("/status").await?.1)?)
    }

    /// Waits until a page has this code; gives its text.
    pub(crate) async fn answers(&self, path: &str, code: u16) -> Result<String> {
        let wait = until(path, || async {
            let (found, text) = self.page(path).await?;
            ensure!(found == code, "{path}: {found} {text}");
            Ok(text)
        });
        wait.await
    }

    /// Waits until `/status` is as a test wants it.
    pub(crate) async fn stands(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let wait = until(what, || async {
            let status = self.status().await?;
            ensure!(wanted(&status), "{status:#}");
            Ok(status)
        });
        wait.await
    }

    /// What to add to the failure of a test: its state, and the end of its log.
    pub(crate) async fn diagnosis(&self) -> String {
        let status = self.page("/status").await.map_or_else(|error| format!("{error:#}"), |(_, text)| text);
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let last: Vec<_> = log.iter().rev().take(30).rev().map(String::as_str).collect();
        format!("the operator's state: {status}\nthe end of its log:\n{}", last.join("\n"))
    }

    /// Sends SIGTERM; gives how it ended and after which time.
    pub(crate) async fn stop(mut self) -> Result<(ExitStatus, Duration)> {
        let id = self.child.id().context("it has ended already")?.to_string();
        let start = Instant::now();
        ensure!(Command::new("kill").args(["-TERM", &id]).status().await?.success(), "kill");
        let ended = timeout(Duration::from_secs(15), self.child.wait()).await;
        Ok((ended.context("it does not end")??, start.elapsed()))
    }
}
