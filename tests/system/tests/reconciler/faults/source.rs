//! A source that is gone, cut, empty, garbage or hung: what it said before stays in force, and nothing is taken away.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use spur_sdk_quota::cluster::{ControllerOptions, Key, Kind, Report};
use spur_sdk_quota::source::{FileSource, ReadOptions, Source, SourceError};
use spur_sdk_quota::{Completeness, Model, Policy, names};
use spur_system_tests::model;
use spur_system_tests::proxy::Proxy;
use spur_system_tests::reconciler::{Running, Store, quick_lease};
use spur_system_tests::witness::Witness;
use spur_test_control_plane::ControlPlane;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::{accounts, timed};

/// A store that can hang.
#[derive(Clone)]
struct Hanging {
    store: Store,
    hangs: Arc<watch::Sender<bool>>,
}

impl Source for Hanging {
    fn name(&self) -> String {
        self.store.name()
    }

    async fn read(&self) -> Result<Model, SourceError> {
        if *self.hangs.borrow() {
            std::future::pending::<()>().await;
        }
        self.store.read().await
    }

    async fn changed(&self) {
        let mut hangs = self.hangs.subscribe();
        tokio::select! {
            () = self.store.changed() => {}
            _ = hangs.changed() => {}
        }
    }
}

/// Three accounts; the last has another cap each time, so that a reading shows.
fn text(caps: usize) -> String {
    format!("{}[[account]]\nname = \"third\"\ngrp_tres = \"cpu={caps}\"\n", accounts(&["first", "second"]))
}

/// A site whose source is to fall ill.
struct Scene {
    witness: Witness,
    running: Running,
    caps: usize,
}

impl Scene {
    async fn up(control_plane: &ControlPlane, source: impl Source + 'static) -> Result<Self> {
        let policy = Policy::default();
        let witness = Witness::start(&control_plane.client().await?, &policy).await?;
        witness.hears(&model(&text(1))?).await?;
        let options = ControllerOptions::default().lease(None).source_timeout(Duration::from_millis(500));
        let running = Running::start_with(source, &control_plane.client().await?, &policy, options);
        witness.in_step(&model(&text(1))?, Duration::from_secs(30)).await?;
        Ok(Self { witness, running, caps: 1 })
    }

    /// While the source is ill, which the controller has told, edits are put back and nothing else happens.
    async fn is_ill(&self, how: &str) -> Result<()> {
        let before = self.witness.versions();
        for account in ["first", "second", "third"] {
            let namespace = names::NAMESPACES.map(account);
            let quota = Key::namespaced(Kind::ResourceQuota, &namespace, names::QUOTA);
            self.witness.edit(&quota, json!({ "spec": { "hard": { "pods": "1000" } } })).await?;
            let level = json!({ "pod-security.kubernetes.io/enforce": "privileged" });
            let level = json!({ "metadata": { "labels": level } });
            self.witness.edit(&Key::cluster(Kind::Namespace, &namespace), level).await?;
        }
        let said = model(&text(self.caps))?;
        self.witness.in_step(&said, Duration::from_secs(10)).await.with_context(|| how.to_owned())?;
        ensure!(self.witness.versions() > before);
        sleep(Duration::from_millis(700)).await;
        let left = self.witness.to_do(&said).await?;
        ensure!(left.is_empty() && left.unlisted.is_empty(), "{how}: {left}");
        println!("{how}: edits are put back, nothing is taken away");
        Ok(())
    }

    /// Something else that the source says once it is well again.
    async fn says_next(&mut self) -> Result<String> {
        self.caps += 1;
        let text = text(self.caps);
        self.witness.hears(&model(&text)?).await?;
        Ok(text)
    }

    async fn is_well(&mut self, how: &str) -> Result<()> {
        self.witness
            .in_step(&model(&text(self.caps))?, Duration::from_secs(10))
            .await
            .with_context(|| format!("after {how}"))?;
        // What was told of the illness is passed over.
        self.running.reports();
        Ok(())
    }

    async fn fails(&mut self, how: &str) -> Result<()> {
        let failed = |report: &Report| matches!(report, Report::SourceFailed { .. }).then_some(());
        self.running.wait_for(failed).await.with_context(|| how.to_owned())
    }

    async fn ends(self) -> Result<()> {
        let wrong = self.witness.verdict().await?;
        ensure!(wrong.is_empty(), "{wrong:#?}");
        self.running.stop().await
    }
}

/// Makes a file anew beside the old one, and renames it.
fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, content)?;
    Ok(std::fs::rename(new, path)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_at_fault_leaves_in_force_what_it_said_before() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    timed(
        "a file that is gone, empty, cut or garbage changes nothing",
        a_file_that_is_gone_empty_cut_or_garbage_changes_nothing(&control_plane),
    )
    .await?;
    timed(
        "a store that fails, hangs or says only a part takes nothing away",
        a_store_that_fails_hangs_or_says_only_a_part_takes_nothing_away(&control_plane),
    )
    .await?;
    timed(
        "a controller that starts without its source writes nothing",
        a_controller_that_starts_without_its_source_writes_nothing(&control_plane),
    )
    .await?;
    control_plane.stop().await
}

async fn a_file_that_is_gone_empty_cut_or_garbage_changes_nothing(
    control_plane: &ControlPlane,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("accounts.toml");
    replace(&path, text(1).as_bytes())?;
    let mut scene = Scene::up(control_plane, FileSource::new(&path, ReadOptions::default())).await?;
    let whole = text(1);
    let cut = &whole.as_bytes()[..whole.len() - 5];
    let illnesses: [(&str, Option<&[u8]>); 6] = [
        ("gone", None),
        ("empty", Some(b"")),
        ("cut in a line", Some(cut)),
        ("no text", Some(b"\x00\xff\xfe[[account]]")),
        ("another text", Some(b"<html><body>502 Bad Gateway</body></html>\n")),
        ("of the right kind, and empty", Some(b"# nothing yet\n")),
    ];
    scene.running.reports();
    for (how, content) in illnesses {
        match content {
            Some(content) => replace(&path, content)?,
            None => std::fs::remove_file(&path)?,
        }
        scene.fails(how).await?;
        scene.is_ill(how).await?;
        replace(&path, scene.says_next().await?.as_bytes())?;
        scene.is_well(how).await?;
    }
    scene.ends().await
}

async fn a_store_that_fails_hangs_or_says_only_a_part_takes_nothing_away(
    control_plane: &ControlPlane,
) -> Result<()> {
    let store = Store::of(&text(1))?;
    let source = Hanging { store: store.clone(), hangs: Arc::new(watch::Sender::new(false)) };
    let mut scene = Scene::up(control_plane, source.clone()).await?;
    scene.running.reports();

    store.fail("the database is being upgraded");
    scene.fails("fails").await?;
    scene.is_ill("fails").await?;
    store.say(&scene.says_next().await?)?;
    scene.is_well("failing").await?;

    source.hangs.send_replace(true);
    scene.fails("hangs").await?;
    scene.is_ill("hangs").await?;
    store.say(&scene.says_next().await?)?;
    source.hangs.send_replace(false);
    scene.is_well("hanging").await?;

    // A part: without an account, and without a member of another.
    let part = text(scene.caps).replace("accounts = [\"first\"]", "accounts = []");
    let part = part.split("[[account]]\nname = \"third\"").next().context("a part")?.to_owned();
    let mut part = model(&part)?;
    part.completeness = Completeness::Partial;
    scene.witness.hears(&part).await?;
    store.set(part);
    let read = |report: &Report| matches!(report, Report::SourceRead { full: false, .. }).then_some(());
    scene.running.wait_for(read).await?;
    let whole = model(&text(scene.caps))?;
    sleep(Duration::from_secs(1)).await;
    let left = scene.witness.to_do(&whole).await?;
    ensure!(left.is_empty(), "a part has changed something: {left}");
    store.say(&scene.says_next().await?)?;
    scene.is_well("a part").await?;
    scene.ends().await
}

async fn a_controller_that_starts_without_its_source_writes_nothing(
    control_plane: &ControlPlane,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("accounts.toml");
    replace(&path, text(1).as_bytes())?;
    let scene = Scene::up(control_plane, FileSource::new(&path, ReadOptions::default())).await?;
    scene.ends().await?;
    let witness = Witness::start(&control_plane.client().await?, &Policy::default()).await?;
    witness.hears(&model(&text(1))?).await?;
    for content in [None, Some(""), Some("[[account]]\nname = ")] {
        match content {
            Some(content) => replace(&path, content.as_bytes())?,
            None => std::fs::remove_file(&path)?,
        }
        let proxy = Proxy::start(control_plane.client().await?).await?;
        let source = FileSource::new(&path, ReadOptions::default());
        let options = ControllerOptions::default().lease(Some(quick_lease()));
        let mut running = Running::start_with(source, &proxy.client()?, &Policy::default(), options);
        let failed = |report: &Report| matches!(report, Report::SourceFailed { .. }).then_some(());
        running.wait_for(failed).await?;
        sleep(Duration::from_secs(2)).await;
        let asked = proxy.asked();
        let wrote: Vec<_> =
            asked.iter().filter(|asked| asked.request.is_write() && !asked.request.is_of_lease()).collect();
        ensure!(wrote.is_empty(), "{content:?}: {wrote:#?}");
        ensure!(!running.status().has_source && !running.status().is_ready());
        running.stop().await?;
    }
    let wrong = witness.verdict().await?;
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}
