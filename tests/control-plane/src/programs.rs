//! Where the programs of a control plane come from.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Command;

use crate::options::Progress;

/// The folder that holds what is made once and used by every run:
/// `${SPUR_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/spur-sdk}`.
pub fn cache_dir() -> Result<PathBuf> {
    if let Some(folder) = set("SPUR_TEST_CACHE") {
        return Ok(folder);
    }
    let base = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    Ok(base.context("no folder for the cache: set SPUR_TEST_CACHE or HOME")?.join("spur-sdk"))
}

fn set(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Finds and, where missing, builds programs of one version.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// As `build.sh` takes it.
    version: String,
    /// `KUBEBUILDER_ASSETS`, and whether its Kubernetes programs may be used.
    assets: Option<(PathBuf, bool)>,
    progress: Progress,
}

impl Programs {
    /// Takes what the environment says where `version` is `None`.
    pub(crate) async fn new(version: Option<&str>, progress: Progress) -> Result<Self> {
        let chosen = match version {
            Some(version) => Some(version.to_owned()),
            None => std::env::var("SPUR_TEST_KUBERNETES").ok().filter(|version| !version.is_empty()),
        };
        Self::choose(chosen, set("KUBEBUILDER_ASSETS"), progress).await
    }

    async fn choose(chosen: Option<String>, assets: Option<PathBuf>, progress: Progress) -> Result<Self> {
        let Some(assets) = assets else {
            return Ok(Self {
                version: chosen.unwrap_or_else(|| "default".to_owned()),
                assets: None,
                progress,
            });
        };
        ensure!(assets.is_dir(), "KUBEBUILDER_ASSETS names {}, which is no folder", assets.display());
        let given = minor_version_of(&assets.join("kube-apiserver")).await?;
        let usable = match (&given, &chosen) {
            (Some(given), Some(chosen)) if minor(chosen) != *given => {
                progress.say(&format!(
                    "KUBEBUILDER_ASSETS holds Kubernetes {given}, {chosen} was asked for: taking it from the cache."
                ));
                false
            }
            // Without an API server there is nothing to match other programs with.
            (given, _) => given.is_some(),
        };
        let version = chosen.or(given).unwrap_or_else(|| "default".to_owned());
        Ok(Self { version, assets: Some((assets, usable)), progress })
    }

    /// The paths of these programs, in order.
    pub(crate) async fn find(&self, tools: &[&str]) -> Result<Vec<PathBuf>> {
        let missing: Vec<&str> = tools.iter().copied().filter(|tool| self.given(tool).is_none()).collect();
        let built = if missing.is_empty() { Vec::new() } else { self.build(&missing).await? };
        ensure!(built.len() == missing.len(), "build.sh named {} programs of {missing:?}", built.len());
        let mut built = built.into_iter();
        let found = tools.iter().filter_map(|tool| self.given(tool).or_else(|| built.next()));
        // Programs run in another working directory.
        found.map(|path| path.canonicalize().with_context(|| format!("find {}", path.display()))).collect()
    }

    fn given(&self, tool: &str) -> Option<PathBuf> {
        let (folder, usable) = self.assets.as_ref()?;
        let path = folder.join(tool);
        ((*usable || tool == "etcd") && path.is_file()).then_some(path)
    }

    async fn build(&self, tools: &[&str]) -> Result<Vec<PathBuf>> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.sh");
        let mut child = Command::new("bash")
            .arg(&script)
            .arg(cache_dir()?)
            .arg(&self.version)
            .args(tools)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start bash")?;
        let (Some(mut out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
            bail!("no pipes to bash");
        };
        let mut paths = String::new();
        let mut lines = BufReader::new(err).lines();
        let told = async {
            let mut last = String::new();
            while let Some(line) = lines.next_line().await? {
                self.progress.say(&line);
                last = line;
            }
            anyhow::Ok(last)
        };
        let (last, _) = tokio::try_join!(told, async { Ok(out.read_to_string(&mut paths).await?) })?;
        let status = child.wait().await.context("wait for build.sh")?;
        ensure!(status.success(), "{} failed: {last}", script.display());
        Ok(paths.lines().map(PathBuf::from).collect())
    }
}

/// `1.36` of `1.36.3`.
fn minor(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// The minor version that an API server says it has; `None` where there is no such program.
async fn minor_version_of(api_server: &Path) -> Result<Option<String>> {
    if !api_server.is_file() {
        return Ok(None);
    }
    let output = Command::new(api_server).arg("--version").stdin(Stdio::null()).output().await;
    let output = output.with_context(|| format!("run {} --version", api_server.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.trim().strip_prefix("Kubernetes v");
    let version = version.with_context(|| format!("{} --version says {text:?}", api_server.display()))?;
    Ok(Some(minor(version)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn assets(version: &str) -> Result<tempfile::TempDir> {
        let folder = tempfile::tempdir()?;
        for tool in ["etcd", "kube-apiserver"] {
            let path = folder.path().join(tool);
            std::fs::write(&path, format!("#!/bin/sh\necho Kubernetes v{version}\n"))?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        }
        Ok(folder)
    }

    fn silent() -> Progress {
        Progress::new(|_| {})
    }

    #[tokio::test]
    async fn what_the_assets_lack_has_their_minor_version() -> Result<()> {
        let folder = assets("1.35.2")?;
        let programs = Programs::choose(None, Some(folder.path().to_owned()), silent()).await?;
        assert_eq!(programs.version, "1.35");
        assert_eq!(programs.given("kube-apiserver"), Some(folder.path().join("kube-apiserver")));
        assert_eq!(programs.given("kube-scheduler"), None);
        Ok(())
    }

    #[tokio::test]
    async fn assets_of_another_minor_version_than_asked_for_give_etcd_alone() -> Result<()> {
        let folder = assets("1.35.2")?;
        let chosen = Some("1.36.3".to_owned());
        let programs = Programs::choose(chosen, Some(folder.path().to_owned()), silent()).await?;
        assert_eq!(programs.version, "1.36.3");
        assert_eq!(programs.given("kube-apiserver"), None);
        assert_eq!(programs.given("etcd"), Some(folder.path().join("etcd")));
        Ok(())
    }
}
