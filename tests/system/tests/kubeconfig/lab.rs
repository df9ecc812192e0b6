//! A site whose users get kubeconfigs, by an identity with the rights of the book.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use spur_sdk::{Clock, Deadlines, SystemClock, UserName};
use spur_sdk_quota::cluster::ControllerOptions;
use spur_sdk_quota::k8s::KubeAccess;
use spur_sdk_quota::kubeconfig::{
    Directory, ExecPlugin, Form, KubeconfigPolicy, Membership, Memberships, MintRequest, Minted, Minter,
    mint_scoped_kubeconfig,
};
use spur_sdk_quota::{Policy, QuotaProjector};
use spur_system_tests::model;
use spur_system_tests::reconciler::{Running, Store, quick_lease};
use spur_test_control_plane::{ControlPlane, Options};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;

const GUIDE: &str = include_str!("../../../../docs/guides/kubeconfig.md");

/// No guard: it takes seconds to be in force, and nothing here is about it.
pub(crate) const POLICY: &str = "[guard.rules]\nnode_name = false\nscheduler = false\npriority_class = false\ngrace_period = false\n\
    pod_resources = false\nresource_claims = false\ntolerations = false\ncross_namespace_affinity = false\n\
    volumes = false\nfinalizers = false\nforce_delete = false\nforce_evict = false\nexternal_ips = false\n";

/// The longest life that the API server gives a token.
pub(crate) const LONGEST: Duration = Duration::from_hours(2);

/// A block of YAML behind a mark in the guide.
pub(crate) fn block(mark: &str) -> Result<&'static str> {
    let (_, after) = GUIDE.split_once(&format!("<!-- {mark} -->")).with_context(|| format!("mark {mark}"))?;
    let (_, after) = after.split_once("```yaml\n").context("the block")?;
    Ok(after.split_once("\n```").context("the end of the block")?.0)
}

/// What the host knows: a directory that can be replaced, and answers of the test's own.
#[derive(Clone)]
pub(crate) struct View(Arc<Mutex<Directory>>);

impl Memberships for View {
    async fn membership(&self, user: &UserName) -> Membership {
        self.0.lock().unwrap().of(user)
    }
}

pub(crate) type TestMinter = Minter<KubeAccess, View>;

pub(crate) struct Lab {
    pub(crate) control_plane: ControlPlane,
    pub(crate) admin: Client,
    pub(crate) folder: TempDir,
    pub(crate) access: KubeAccess,
    pub(crate) view: View,
    pub(crate) minter: TestMinter,
    store: Store,
}

/// alice is in all accounts but chemistry; each of the others in one, so that one test takes one away.
pub(crate) fn accounts(without: &[&str]) -> String {
    let mut text = String::new();
    for account in ["physics", "optics", "Quantum Lab", "chemistry"] {
        let _ = write!(text, "[[account]]\nname = \"{account}\"\ngrp_tres = \"cpu=4,mem=4Gi\"\n");
    }
    for (user, accounts) in [
        ("alice", "\"optics\", \"physics\", \"Quantum Lab\""),
        ("bob", "\"physics\""),
        ("Carol@AD", "\"chemistry\""),
        ("dave", "\"chemistry\""),
        ("Erin@AD", "\"chemistry\""),
        ("late", "\"optics\""),
    ] {
        if !without.contains(&user) {
            let _ = write!(text, "[[user]]\nname = \"{user}\"\naccounts = [{accounts}]\n");
        }
    }
    text.replace("\"alice\"\n", "\"alice\"\ndefault_account = \"physics\"\n")
}

pub(crate) fn request(user: &str) -> MintRequest {
    MintRequest::new(user.parse().unwrap()).client("system tests")
}

impl Lab {
    /// With the reconciler, which goes on until it is stopped.
    pub(crate) async fn up() -> Result<(Self, Running)> {
        let longest = format!("--service-account-max-token-expiration={}s", LONGEST.as_secs());
        let options = Options::default().scheduler(false).api_server_arg(longest);
        let control_plane = ControlPlane::start_with(options).await?;
        let admin = control_plane.client().await?;
        let folder = tempfile::tempdir()?;
        let access = folder.path().join("minter");
        let access = KubeAccess::file(access, None, Deadlines::default());
        let view = View(Arc::new(Mutex::new(directory(&accounts(&[]))?)));
        let minter = minter(&access, &view, KubeconfigPolicy::new("site"), Arc::new(SystemClock))?;
        let store = Store::of(&accounts(&[]))?;
        let options = ControllerOptions::default().lease(Some(quick_lease()));
        let policy = Policy::read(POLICY, "p")?;
        let mut running = Running::start_with(store.clone(), &admin, &policy, options);
        running.settled().await?;
        let lab = Self { control_plane, admin, folder, access, view, minter, store };
        lab.kubectl(None, &["apply", "-f", "-"], block("kubeconfig-rbac")?).await?;
        // The identity that mints: a token of its ServiceAccount, which the library reads from a file.
        let token = ["-n", "spur-system", "create", "token", "spurctld", "--duration=1h"];
        let token = lab.kubectl(None, &token, "").await?;
        let mut kubeconfig: serde_json::Value =
            serde_json::to_value(Kubeconfig::read_from(lab.control_plane.kubeconfig())?)?;
        kubeconfig["users"][0]["user"] = serde_json::json!({ "token": token.trim() });
        std::fs::write(lab.path("minter"), kubeconfig.to_string())?;
        lab.ready().await?;
        Ok((lab, running))
    }

    /// The API server takes in roles a moment after they are written.
    async fn ready(&self) -> Result<()> {
        spur_system_tests::eventually(|| async { Ok(self.minter.sessions(None).await?) }).await?;
        for (user, account) in [("alice", "physics"), ("alice", "optics"), ("Carol@AD", "chemistry")] {
            let minted = self.mint(user).await?;
            let path = self.write(&minted)?;
            let context = format!("site/{account}");
            let pods = ["--context", &context, "get", "pods"];
            spur_system_tests::eventually(|| self.kubectl(Some(&path), &pods, "")).await?;
        }
        Ok(())
    }

    /// What the host and the reconciler know from now on.
    pub(crate) fn say(&self, accounts: &str) -> Result<()> {
        *self.view.0.lock().unwrap() = directory(accounts)?;
        self.store.say(accounts)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) async fn mint(&self, user: &str) -> Result<Minted> {
        Ok(mint_scoped_kubeconfig(&self.minter, &request(user), Form::Static).await?)
    }

    pub(crate) async fn exec(&self, user: &str, plugin: ExecPlugin) -> Result<Minted> {
        Ok(mint_scoped_kubeconfig(&self.minter, &request(user), Form::Exec(plugin)).await?)
    }

    pub(crate) fn write(&self, minted: &Minted) -> Result<PathBuf> {
        let file = tempfile::Builder::new().prefix("kubeconfig-").tempfile_in(self.folder.path())?;
        let (_, path) = file.keep()?;
        std::fs::write(&path, minted.kubeconfig.to_yaml()?.as_bytes())?;
        Ok(path)
    }

    /// Runs kubectl with a kubeconfig, the administrator's if there is none. Fails with what kubectl says.
    pub(crate) async fn kubectl(
        &self,
        kubeconfig: Option<&Path>,
        arguments: &[&str],
        input: &str,
    ) -> Result<String> {
        self.kubectl_with(kubeconfig, arguments, input, &[]).await
    }

    pub(crate) async fn kubectl_with(
        &self,
        kubeconfig: Option<&Path>,
        arguments: &[&str],
        input: &str,
        variables: &[(&str, &str)],
    ) -> Result<String> {
        let mut command = self.control_plane.kubectl().await?;
        if let Some(path) = kubeconfig {
            command.arg("--kubeconfig").arg(path);
        }
        command.args(arguments).envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("start kubectl")?;
        let mut stdin = child.stdin.take().context("standard input")?;
        stdin.write_all(input.as_bytes()).await?;
        drop(stdin);
        let ended = child.wait_with_output().await?;
        let said = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success(), "kubectl {arguments:?}: {said}");
        Ok(String::from_utf8(ended.stdout)?)
    }

    /// Asserts that kubectl fails with this text.
    pub(crate) async fn refused(&self, kubeconfig: &Path, arguments: &[&str], text: &str) -> Result<()> {
        let error = self.kubectl(Some(kubeconfig), arguments, "").await.err();
        let error = error.with_context(|| format!("kubectl {arguments:?} went well"))?;
        ensure!(format!("{error:#}").contains(text), "{error:#}");
        Ok(())
    }
}

pub(crate) fn minter(
    access: &KubeAccess,
    view: &View,
    policy: KubeconfigPolicy,
    clock: Arc<dyn Clock>,
) -> Result<TestMinter> {
    let policy = policy.max_staleness(Duration::from_hours(100)).account_wait(Duration::from_secs(2));
    Ok(Minter::new(access.clone(), view.clone(), policy)?.clock(clock))
}

fn directory(accounts: &str) -> Result<Directory> {
    let model = model(accounts)?;
    let projection = QuotaProjector::new(&Policy::read(POLICY, "p")?).project(&model);
    Ok(Directory::new(&model, &projection, SystemTime::now()))
}

/// A client by a kubeconfig, which is read as kubectl would.
pub(crate) async fn client(minted: &Minted) -> Result<Client> {
    let kubeconfig = Kubeconfig::from_yaml(&minted.kubeconfig.to_yaml()?)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
