//! What a run tells, and how it ends.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use spur_test_control_plane::{Component, ControlPlane, Options};
use tempfile::TempDir;

use super::caller::Caller;
use super::program::{Operator, ends};
use super::{accounts, text};

const GUIDE: &str = include_str!("../../../../docs/guides/operator.md");

/// Arguments, environment, exit code, and what is said.
type Case<'c> = (&'c [&'c str], &'c [(&'c str, &'c str)], i32, &'c str);

#[tokio::test(flavor = "multi_thread")]
async fn what_it_cannot_run_with_is_named_with_the_way_out() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let write = |name: &str, text: &str| -> Result<String> {
        let path = folder.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.to_str().context("a path")?.to_owned())
    };
    let policy = write("policy.toml", "burst = \"fre\"\n")?;
    let kubeconfig = write(
        "kubeconfig",
        r#"{ "clusters": [{ "name": "c", "cluster": { "server": "https://127.0.0.1:1" } }], "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }], "users": [{ "name": "u" }] }"#,
    )?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let kubeconfig = &*kubeconfig;
    let cases: [Case<'_>; 13] = [
        (&[], &[], 64, "<SOURCE>..."),
        (&["a", "--delete-retired-after", "3h"], &[], 64, "at least 24h"),
        (&["a"], &[("SPUR_OPERATOR_DELETE_RETIRED_AFTER", "soon")], 64, "write it like 30d"),
        (&["a", "--lease-duration", "0"], &[], 64, "--lease-duration"),
        (&["a", "--concurrency", "1000"], &[], 64, "1..=256"),
        (&["a", "--listen", "8080"], &[], 64, "--listen"),
        (&["a"], &[("SPUR_OPERATOR_COMPLETE", "perhaps")], 64, "--complete"),
        (&["a"], &[("SPUR_LOG", "a=b=c")], 64, "SPUR_LOG=a=b=c"),
        (&["a"], &[], 1, "name a cluster with --kubeconfig FILE"),
        (&["a", "--kubeconfig", "/nonexistent/k"], &[], 1, "read kubeconfig /nonexistent/k"),
        (&["a", "--kubeconfig", kubeconfig, "--context", "other"], &[], 1, "other"),
        (
            &["a", "--policy", &policy],
            &[("SPUR_LOG", "off")],
            1,
            "policy.toml:1: burst: \"fre\" is no choice",
        ),
        (&["a", "--kubeconfig", kubeconfig, "--listen", &address], &[], 1, "--listen names another address"),
    ];
    for (arguments, environment, code, expected) in cases {
        let (ended, said) = ends(arguments, environment).await?;
        assert_eq!(ended, Some(code), "{arguments:?} {environment:?}: {said}");
        assert!(said.contains(expected), "{arguments:?} {environment:?}: no {expected:?} in {said}");
    }
    let (ended, said) = ends(&["a"], &[("SPUR_OPERATOR_POLICY", "/nonexistent/p")]).await?;
    assert_eq!((ended, said.contains("read /nonexistent/p")), (Some(1), true), "{said}");
    Ok(())
}

/// The value of a metric. Every line must be one, or a comment.
async fn metric(operator: &Operator, name: &str) -> Result<String> {
    let (code, text) = operator.page("/metrics").await?;
    ensure!(code == 200 && text.ends_with("# EOF\n"), "{code} {text}");
    let mut found = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (sample, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
        let plain = sample.split('{').next().unwrap_or_default();
        ensure!(plain.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
        value.parse::<f64>().with_context(|| line.to_owned())?;
        if sample == name {
            found = Some(value.to_owned());
        }
    }
    found.with_context(|| format!("{name}: {text}"))
}

/// A control plane, and a file of accounts that is not there yet.
struct Place {
    control_plane: ControlPlane,
    admin: Caller,
    folder: TempDir,
}

impl Place {
    async fn up() -> Result<Self> {
        let control_plane = ControlPlane::start_with(Options::default().scheduler(false)).await?;
        let admin = Caller(control_plane.client().await?);
        Ok(Self { control_plane, admin, folder: tempfile::tempdir()? })
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("accounts.toml")
    }

    fn write(&self, text: &str) -> Result<()> {
        let beside = self.folder.path().join("beside");
        std::fs::write(&beside, text)?;
        Ok(std::fs::rename(&beside, self.source())?)
    }

    async fn start(&self, arguments: &[&str]) -> Result<Operator> {
        let source = self.source();
        let mut all = vec![source.to_str().context("a path")?];
        all.extend(arguments);
        Operator::start(self.control_plane.kubeconfig(), &all).await
    }

    async fn holder(&self, lease: &str) -> Result<String> {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{lease}");
        Ok(text(&self.admin.get(&path).await?, "/spec/holderIdentity").to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_missing_or_wrong_is_named_and_waited_for() -> Result<()> {
    let place = Place::up().await?;
    let operator = place.start(&[]).await?;
    let waits = |status: &Value| status["synced"] == true && status["source_error"].is_string();
    operator.stands("it knows the cluster and no source", waits).await?;
    assert_eq!(operator.page("/healthz").await?.0, 200);
    let (code, why) = operator.page("/readyz").await?;
    assert_eq!((code, why.contains("has not read the source yet")), (503, true), "{why}");
    assert_eq!(metric(&operator, "spur_quota_ready").await?, "0");
    let path = place.source().display().to_string();
    let named = |line: &Value| line["level"] == "WARN" && text(line, "/error").contains(&path);
    ensure!(operator.log()?.iter().any(named), "{:#?}", operator.log()?);

    place.write(&accounts("a b", 1))?;
    operator.answers("/readyz", 200).await?;
    operator.stands("two accounts are in step", |status| status["counts"]["in_step"] == 2).await?;
    assert_eq!(metric(&operator, "spur_quota_ready").await?, "1");
    assert_eq!(metric(&operator, "spur_quota_leading").await?, "1");
    assert_eq!(metric(&operator, "spur_quota_accounts{kind=\"in-step\"}").await?, "2");

    // One that cannot be read keeps in force what it said last.
    place.write("[[account]\n")?;
    let wrong = |status: &Value| text(status, "/source_error").contains("accounts.toml");
    operator.stands("the source is wrong", wrong).await?;
    assert_eq!(operator.page("/readyz").await?.0, 200);
    assert_eq!(metric(&operator, "spur_quota_source_in_force").await?, "0");
    place.write(&accounts("a b", 1))?;
    operator.stands("the source is right", |status| status["source_error"].is_null()).await?;

    // Every family stands in the guide, with its type.
    let (_, text) = operator.page("/metrics").await?;
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').context("a type")?;
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        ensure!(GUIDE.contains(&format!("| `{name}` | {kind} |")), "{name}, a {kind}, is not in operator.md");
    }
    operator.stop().await?;
    place.control_plane.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_it_gives_the_lease_back() -> Result<()> {
    let place = Place::up().await?;
    place.write(&accounts("a", 1))?;
    // Another one follows, and leads at once when the first is told to stop: not after a minute.
    let leader = place.start(&["--lease-duration=60"]).await?;
    leader.answers("/readyz", 200).await?;
    let follower = place.start(&["--lease-duration=60"]).await?;
    follower.answers("/readyz", 200).await?;
    assert_eq!(metric(&follower, "spur_quota_leading").await?, "0");
    let first = place.holder("spur-quota").await?;
    let (ended, took) = leader.stop().await?;
    assert_eq!(ended.code(), Some(0));
    ensure!(took < Duration::from_secs(5), "{took:?}");
    let begin = Instant::now();
    follower.stands("it leads", |status| status["leading"] == true).await?;
    ensure!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    let second = place.holder("spur-quota").await?;
    ensure!(first != second && !second.is_empty(), "{first}, then {second}");

    // While the API server hangs the Lease cannot be given back, and that is not waited for.
    place.control_plane.pause(Component::ApiServer)?;
    let stopped = follower.stop().await;
    place.control_plane.resume(Component::ApiServer)?;
    let (ended, took) = stopped?;
    assert_eq!(ended.code(), Some(0));
    ensure!(took < Duration::from_secs(8), "{took:?}");

    // The last one leaves a Lease that nobody holds.
    let lone = place.start(&["--lease-name=lone", "--identity=me"]).await?;
    lone.answers("/readyz", 200).await?;
    assert_eq!(place.holder("lone").await?, "me");
    lone.stop().await?;
    assert_eq!(place.holder("lone").await?, "");
    place.control_plane.stop().await
}
