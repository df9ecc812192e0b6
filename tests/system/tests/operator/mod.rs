//! What the tests of `spur-operator` stand on: the built program, its manifests, what the API server was asked.

pub(crate) mod audit;
pub(crate) mod caller;
pub(crate) mod fence;
pub(crate) mod lab;
pub(crate) mod life;
pub(crate) mod pages;
pub(crate) mod program;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use spur_test_control_plane::ControlPlane;
use tokio::io::AsyncWriteExt;

use self::caller::Caller;

/// Who the operator is to the API server.
pub(crate) const USER: &str = "system:serviceaccount:spur-system:spur-operator";

pub(crate) const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
pub(crate) const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// Coordinators have a role.
pub(crate) const COORDINATORS: &str = "coordinators = true\n";

/// The folder of the manifests.
pub(crate) fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bins/spur-operator/deploy")
}

/// Runs kubectl with this standard input; gives its standard output.
pub(crate) async fn kubectl(control_plane: &ControlPlane, arguments: &[&str], input: &str) -> Result<String> {
    let mut command = control_plane.kubectl().await?;
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().context("start kubectl")?;
    let mut stdin = child.stdin.take().context("standard input")?;
    stdin.write_all(input.as_bytes()).await?;
    drop(stdin);
    let ended = child.wait_with_output().await?;
    ensure!(ended.status.success(), "kubectl {arguments:?}: {}", ended.status);
    Ok(String::from_utf8(ended.stdout)?)
}

/// Applies a kustomization.
pub(crate) async fn apply(control_plane: &ControlPlane, folder: &Path) -> Result<()> {
    let folder = folder.to_str().context("the folder's name")?;
    kubectl(control_plane, &["apply", "-k", folder], "").await.map(drop)
}

/// Writes a kubeconfig of the operator's ServiceAccount, with a token for an hour.
pub(crate) async fn kubeconfig(
    control_plane: &ControlPlane,
    admin: &Caller,
    folder: &Path,
) -> Result<PathBuf> {
    let request = json!({ "spec": { "expirationSeconds": 3600 } });
    let path = "/api/v1/namespaces/spur-system/serviceaccounts/spur-operator/token";
    let answer = admin.post(path, &request).await?;
    let certificate = folder.join("ca.crt");
    std::fs::write(&certificate, control_plane.ca_pem())?;
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{ "name": "test", "cluster": {
            "server": control_plane.url(), "certificate-authority": certificate,
        } }],
        "users": [{ "name": "operator", "user": { "token": answer["status"]["token"] } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "operator" } }],
    });
    let path = folder.join("kubeconfig");
    std::fs::write(&path, kubeconfig.to_string())?;
    Ok(path)
}

/// Tries until it goes well, for a minute at most.
pub(crate) async fn until<T, F: Future<Output = Result<T>>>(
    what: &str,
    mut attempt: impl FnMut() -> F,
) -> Result<T> {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        match attempt().await {
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("not within a minute: {what}")));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            done => return done,
        }
    }
}

/// Text at a place in JSON; empty when there is none.
pub(crate) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A file with these accounts, of so many CPUs, and one member each; `a` has a coordinator.
pub(crate) fn accounts(names: &str, cpu: u32) -> String {
    let mut text = String::new();
    for name in names.split(' ') {
        let coordinators = if name == "a" { "coordinators = [\"chief\"]\n" } else { "" };
        let _ = write!(
            text,
            "[[account]]\nname = \"{name}\"\ngrp_tres = \"cpu={cpu}\"\n{coordinators}\
            [[user]]\nname = \"{name}-user\"\naccounts = [\"{name}\"]\n"
        );
    }
    text
}

/// The path of something in a namespace.
pub(crate) fn in_namespace(namespace: &str, rest: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{rest}")
}
