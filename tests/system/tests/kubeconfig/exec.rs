//! The form without a secret, with a script in the place of `spur kube-token`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use spur_sdk_quota::kubeconfig::{ExecPlugin, Issued};

use crate::lab::{Lab, request};

/// A plugin that answers with the files `NAME-1`, `NAME-2`, ... in turn, the last one again and again, and notes how
/// it was called.
struct Plugin {
    path: PathBuf,
    calls: PathBuf,
}

impl Plugin {
    fn new(lab: &Lab, name: &str, answers: &[&Issued]) -> Result<Self> {
        let (path, calls) = (lab.path(name), lab.path(&format!("{name}-calls")));
        for (number, issued) in answers.iter().enumerate() {
            let file = lab.path(&format!("{name}-{}", number + 1));
            std::fs::write(file, issued.token.exec_credential().as_bytes())?;
        }
        let script = format!(
            "#!/bin/sh\n\
            echo \"$* stdin=$(readlink /proc/self/fd/0) info=$(echo $KUBERNETES_EXEC_INFO) parent=$PPID\" >>{calls}\n\
            number=$(wc -l <{calls})\n\
            [ -e {path}-$number ] || number={last}\n\
            cat {path}-$number\n",
            calls = calls.display(),
            path = path.display(),
            last = answers.len(),
        );
        std::fs::write(&path, script)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(Self { path, calls })
    }

    fn exec(&self) -> Result<ExecPlugin> {
        let path = self.path.to_str().context("the path")?;
        Ok(ExecPlugin::new(path).argument("kube-token").argument("--cluster").argument("site"))
    }

    fn calls(&self) -> Result<Vec<String>> {
        Ok(std::fs::read_to_string(&self.calls)?.lines().map(str::to_owned).collect())
    }
}

pub(crate) async fn kubectl_takes_what_the_plugin_says(lab: &Lab) -> Result<()> {
    let issued = lab.minter.issue(&request("alice"), None).await?;
    let plugin = Plugin::new(lab, "plugin", &[&issued])?;
    let minted = lab.exec("alice", plugin.exec()?).await?;
    assert_eq!((minted.session.as_ref(), minted.expires), (None, None));
    let file = lab.write(&minted)?;
    let text = std::fs::read_to_string(&file)?;
    ensure!(!text.contains(issued.token.bearer.expose()) && !text.contains("token:"), "{text}");
    lab.kubectl(Some(&file), &["create", "configmap", "by-plugin"], "").await?;
    let calls = plugin.calls()?;
    assert_eq!(calls.len(), 1, "{calls:?}");
    // No terminal is asked for, and what the arguments say is not said again.
    let call = &calls[0];
    ensure!(call.starts_with("kube-token --cluster site stdin=/dev/null "), "{call}");
    ensure!(call.contains("\"interactive\":false") && !call.contains("\"cluster\""), "{call}");
    ensure!(call.contains("\"apiVersion\":\"client.authentication.k8s.io/v1\""), "{call}");
    // Standard input is kubectl's.
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"by-input"}}"#;
    lab.kubectl(Some(&file), &["apply", "-f", "-"], object).await?;
    lab.refused(&file, &["-n", "spur-acct-chemistry", "get", "pods"], "orbidden").await?;

    let missing = ExecPlugin::new("spur-is-not-here").install_hint("Ask the site for it.");
    let file = lab.write(&lab.exec("alice", missing).await?)?;
    lab.refused(&file, &["get", "pods"], "Ask the site for it.").await
}

/// What the cache on disk stands on: one process asks again before its token ends only if it was refused.
pub(crate) async fn kubectl_asks_again_for_a_token_that_is_refused(lab: &Lab) -> Result<()> {
    let first = lab.minter.mint(&request("alice")).await?;
    let second = lab.minter.mint(&request("alice")).await?;
    lab.minter.revoke_session(&first.session).await?;
    let plugin = Plugin::new(lab, "again", &[&first, &second])?;
    let file = lab.write(&lab.exec("alice", plugin.exec()?).await?)?;
    // The request that was refused is not sent again, but the plugin is asked: the next process has a good token.
    lab.refused(&file, &["get", "configmaps"], "Unauthorized").await?;
    let parent = |call: &String| call.rsplit("parent=").next().unwrap().to_owned();
    let calls = plugin.calls()?;
    ensure!(calls.len() == 2 && parent(&calls[0]) == parent(&calls[1]), "{calls:?}");
    // A token that is taken is asked for once, however many requests a process makes.
    lab.kubectl(Some(&file), &["get", "pods,configmaps,secrets,deployments,jobs"], "").await?;
    let calls = plugin.calls()?;
    ensure!(calls.len() == 3 && parent(&calls[2]) != parent(&calls[1]), "{calls:?}");
    Ok(())
}

pub(crate) async fn a_kuberc_may_forbid_plugins(lab: &Lab) -> Result<()> {
    let issued = lab.minter.issue(&request("alice"), None).await?;
    let plugin = Plugin::new(lab, "spur", &[&issued])?;
    let minted = lab.exec("alice", plugin.exec()?).await?;
    let file = lab.write(&minted)?;
    let get = async |policy: &str| {
        let kuberc = lab.path("kuberc");
        let text = format!("apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\n{policy}");
        std::fs::write(&kuberc, text)?;
        let kuberc = kuberc.to_str().context("the path")?;
        lab.kubectl(Some(&file), &["--kuberc", kuberc, "get", "configmaps"], "").await
    };
    let name = |path: &Path| path.display().to_string();
    get("").await?;
    let denied = get("credentialPluginPolicy: DenyAll\n").await.err().context("it is denied")?;
    ensure!(format!("{denied:#}").contains("plugin"), "{denied:#}");
    // kubectl 1.35 calls it a name, 1.36 a command; what either does not know it passes over.
    let listed = |command: &str| {
        format!(
            "credentialPluginPolicy: Allowlist\n\
            credentialPluginAllowlist:\n- command: {command}\n  name: {command}\n"
        )
    };
    ensure!(get(&listed("/usr/bin/other")).await.is_err());
    get(&listed(&name(&plugin.path))).await?;
    Ok(())
}
