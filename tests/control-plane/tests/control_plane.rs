//! A control plane is what it says it is, and leaves nothing behind.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ResourceQuota, ServiceAccount};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use spur_test_control_plane::{Component, ControlPlane, Options, Progress};
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// Set where this program runs itself as the process that is killed.
const CHILD: &str = "SPUR_TEST_CONTROL_PLANE_CHILD";

async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("{what}: not within 30 s")
}

fn parse<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> Result<T> {
    Ok(serde_json::from_value(value)?)
}

async fn make_namespace(client: &Client, name: &str) -> Result<()> {
    let namespace = parse(serde_json::json!({
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "baseline"}},
    }))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    Ok(())
}

fn pod(host_network: bool) -> Result<Pod> {
    parse(serde_json::json!({
        "metadata": {"name": "pod"},
        "spec": {
            "hostNetwork": host_network,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}],
        },
    }))
}

/// Whether a process whose command line names this folder runs.
fn runs_in(folder: &Path) -> Result<bool> {
    let needle = folder.join("").into_os_string().into_encoded_bytes();
    for entry in std::fs::read_dir("/proc")? {
        let command_line = std::fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        if command_line.windows(needle.len()).any(|window| window == needle) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn gone(folder: &Path) -> Result<()> {
    let renamed = PathBuf::from(format!("{}.gone", folder.display()));
    eventually("the control plane is gone", async || {
        Ok((!folder.exists() && !renamed.exists() && !runs_in(folder)?).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_namespace_gets_what_the_controller_manager_makes() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    println!("started in {:.2} s", control_plane.start_time().as_secs_f64());
    let client = control_plane.client().await?;
    make_namespace(&client, "tenant").await?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "tenant");
    eventually("the default ServiceAccount", async || Ok(accounts.get_opt("default").await?)).await?;

    let quotas = Api::<ResourceQuota>::namespaced(client.clone(), "tenant");
    let quota = parse(
        serde_json::json!({"metadata": {"name": "quota"}, "spec": {"hard": {"requests.cpu": "1500m"}}}),
    )?;
    quotas.create(&PostParams::default(), &quota).await?;
    eventually("the quota binds", async || {
        Ok(quotas.get("quota").await?.status.and_then(|status| status.hard).filter(|hard| !hard.is_empty()))
    })
    .await?;
    let pods = Api::<Pod>::namespaced(client, "tenant");
    pods.create(&PostParams::default(), &pod(false)?).await.context("the first pod is within the quota")?;
    let mut second = pod(false)?;
    second.metadata.name = Some("second".into());
    let refused = pods.create(&PostParams::default(), &second).await;
    assert!(format!("{refused:?}").contains("exceeded quota"), "{refused:?}");

    eventually("the scheduler looks at the pod", async || {
        let pod = pods.get("pod").await?;
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        Ok(conditions.into_iter().find(|condition| condition.reason.as_deref() == Some("Unschedulable")))
    })
    .await?;
    control_plane.stop().await
}

#[tokio::test]
async fn identities_have_the_rights_that_rbac_gives_them() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let admin = control_plane.client().await?;
    make_namespace(&admin, "tenant").await?;
    let bindings = Api::<k8s_openapi::api::rbac::v1::RoleBinding>::namespaced(admin.clone(), "tenant");
    let binding = parse(serde_json::json!({
        "metadata": {"name": "readers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "editors"}],
    }))?;
    bindings.create(&PostParams::default(), &binding).await?;

    let groups = ["first", "second", "third", "editors", "fifth"];
    let alice = control_plane.client_for("alice", &groups).await?;
    let review = Api::<SelfSubjectReview>::all(alice.clone())
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await?;
    let who = review.status.and_then(|status| status.user_info).context("no user")?;
    assert_eq!(who.username.as_deref(), Some("alice"));
    let seen = who.groups.unwrap_or_default();
    assert!(groups.iter().all(|group| seen.iter().any(|seen| seen == group)), "{seen:?}");

    let list = ListParams::default();
    let maps = Api::<ConfigMap>::namespaced(alice.clone(), "tenant");
    // The role is aggregated by the controller manager, and the API server takes a binding in after it is written.
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(error) = maps.list(&list).await {
        if Instant::now() > deadline {
            return Err(error).context("an editor may read");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (client, whose) in [
        (alice.clone(), "an editor of another namespace"),
        (control_plane.client_for("mallory", &[]).await?, "an unknown user"),
        (anonymous(&control_plane)?, "nobody"),
    ] {
        let refused = Api::<ConfigMap>::namespaced(client, "default").list(&list).await;
        assert!(
            matches!(&refused, Err(kube::Error::Api(status)) if status.code == 403),
            "{whose}: {refused:?}"
        );
    }

    let pods = Api::<Pod>::namespaced(alice, "tenant");
    let refused = pods.create(&PostParams::default(), &pod(true)?).await;
    assert!(format!("{refused:?}").contains("violates PodSecurity"), "{refused:?}");

    // A node may write only its own object, which NodeRestriction sees to beyond what the authorizer can.
    let node = control_plane.client_for("system:node:one", &["system:nodes"]).await?;
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(node);
    nodes.create(&PostParams::default(), &parse(serde_json::json!({"metadata": {"name": "one"}}))?).await?;
    let other = parse(serde_json::json!({"metadata": {"name": "two"}}))?;
    let refused = nodes.create(&PostParams::default(), &other).await;
    assert!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 403), "{refused:?}");
    control_plane.stop().await
}

fn anonymous(control_plane: &ControlPlane) -> Result<Client> {
    let mut config = kube::Config::new(control_plane.url().parse()?);
    let body: String = control_plane.ca_pem().lines().filter(|line| !line.starts_with('-')).collect();
    config.root_cert = Some(vec![base64::Engine::decode(&base64::prelude::BASE64_STANDARD, body)?]);
    Ok(Client::try_from(config)?)
}

#[tokio::test]
async fn two_at_once_are_two() -> Result<()> {
    let small = || Options::default().controller_manager(false).scheduler(false);
    let (one, two) = tokio::try_join!(ControlPlane::start_with(small()), ControlPlane::start_with(small()))?;
    assert_ne!(one.url(), two.url());
    make_namespace(&one.client().await?, "only-in-one").await?;
    let there = Api::<Namespace>::all(two.client().await?).get_opt("only-in-one").await?;
    assert!(there.is_none());
    let (first, second) = (one.dir().to_owned(), two.dir().to_owned());
    one.stop().await?;
    gone(&first).await?;
    ensure!(runs_in(&second)?, "stopping one stopped the other");
    drop(two);
    gone(&second).await
}

#[tokio::test]
async fn kubectl_metrics_and_a_paused_server() -> Result<()> {
    let options = Options::default().controller_manager(false).scheduler(false).progress(Progress::stderr());
    let control_plane = ControlPlane::start_with(options).await?;
    let output = control_plane.kubectl().await?.args(["get", "namespaces", "-o", "name"]).output().await?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.lines().any(|line| line == "namespace/default"), "{output:?}");
    assert!(control_plane.metrics().await?.contains("apiserver_request_total{"));

    control_plane.pause(Component::ApiServer)?;
    let namespaces = Api::<Namespace>::all(control_plane.client().await?);
    let silent = tokio::time::timeout(Duration::from_secs(1), namespaces.get("default")).await;
    assert!(silent.is_err(), "a paused server answered: {silent:?}");
    control_plane.resume(Component::ApiServer)?;
    namespaces.get("default").await?;
    assert!(control_plane.pause(Component::Scheduler).is_err(), "this one has no scheduler");
    control_plane.stop().await
}

#[tokio::test]
async fn kept_it_runs_on_until_its_script_stops_it() -> Result<()> {
    let options = Options::default().controller_manager(false).scheduler(false);
    let control_plane = ControlPlane::start_with(options).await?;
    let (folder, client) = (control_plane.dir().to_owned(), control_plane.client().await?);
    let namespaces = Api::<Namespace>::all(client);
    let kept = control_plane.keep()?;
    namespaces.get("default").await?;
    ensure!(kept.kubeconfig.is_file(), "the kubeconfig is gone");
    let status = tokio::process::Command::new(&kept.stop).status().await?;
    ensure!(status.success(), "{status}");
    gone(&folder).await
}

#[tokio::test]
async fn a_program_that_ends_is_named_with_its_log() -> Result<()> {
    let options = Options::default().api_server_arg("--no-such-flag=1");
    let error = ControlPlane::start_with(options).await.err().context("it started")?;
    let text = format!("{error:#}");
    assert!(text.contains("kube-apiserver ended") && text.contains("unknown flag: --no-such-flag"), "{text}");
    let logs =
        text.split_once("logs: ").and_then(|(_, rest)| rest.split_once(": ")).context("names no logs")?.0;
    ensure!(Path::new(logs).join("kube-apiserver.log").is_file(), "{logs} holds no log");
    std::fs::remove_dir_all(logs)?;
    Ok(())
}

/// Not a test of its own: what [`gone_after_the_test_process_is_killed`] kills.
#[tokio::test]
async fn child_that_is_killed() -> Result<()> {
    if std::env::var_os(CHILD).is_none() {
        return Ok(());
    }
    let control_plane = ControlPlane::start().await?;
    make_namespace(&control_plane.client().await?, "busy").await?;
    println!("\nFOLDER {}", control_plane.dir().display());
    std::future::pending().await
}

#[tokio::test]
async fn gone_after_the_test_process_is_killed() -> Result<()> {
    let mut child = tokio::process::Command::new(std::env::current_exe()?)
        .args(["--exact", "child_that_is_killed", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let folder = loop {
        let line = lines.next_line().await?.context("the child ended")?;
        if let Some(folder) = line.strip_prefix("FOLDER ") {
            break PathBuf::from(folder);
        }
    };
    ensure!(runs_in(&folder)?, "nothing runs in {}", folder.display());
    child.kill().await?;
    gone(&folder).await
}

#[tokio::test]
async fn gone_after_a_panic_with_its_logs_kept() -> Result<()> {
    let said = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = {
        let said = said.clone();
        Progress::new(move |line| said.lock().expect("no holder panics").push(line.to_owned()))
    };
    let options = Options::default().controller_manager(false).scheduler(false).progress(sink);
    let control_plane = ControlPlane::start_with(options).await?;
    let folder = control_plane.dir().to_owned();
    let task = tokio::spawn(async move {
        let _held = control_plane;
        panic!("on purpose");
    });
    ensure!(task.await.is_err_and(|error| error.is_panic()), "it did not panic");
    gone(&folder).await?;
    let lines = said.lock().expect("no holder panics").clone();
    let logs = lines.iter().find_map(|line| line.strip_prefix("Logs of the control plane: "));
    let logs = Path::new(logs.with_context(|| format!("{lines:?}"))?);
    ensure!(logs.join("etcd.log").is_file(), "{} holds no log of etcd", logs.display());
    std::fs::remove_dir_all(logs)?;
    Ok(())
}

#[tokio::test]
async fn deleting_a_namespace_deletes_what_is_in_it() -> Result<()> {
    let control_plane = ControlPlane::start_with(Options::default().scheduler(false)).await?;
    let client = control_plane.client().await?;
    make_namespace(&client, "tenant").await?;
    let namespaces = Api::<Namespace>::all(client);
    namespaces.delete("tenant", &DeleteParams::default()).await?;
    eventually("the namespace is gone", async || {
        Ok(namespaces.get_opt("tenant").await?.is_none().then_some(()))
    })
    .await?;
    control_plane.stop().await
}
