//! Two processes that are killed at random points, while hands edit the cluster and the source changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use spur_sdk_quota::cluster::{Key, Kind};
use spur_sdk_quota::{Model, Policy, names};
use spur_system_tests::model;
use spur_system_tests::program::Program;
use spur_system_tests::witness::Witness;
use spur_test_control_plane::ControlPlane;
use tokio::time::sleep;

/// Accounts that there can be.
const ACCOUNTS: usize = 20;

/// So few are away at a time that nobody has to confirm it.
const MOST_AWAY: usize = 3;

/// Users that there can be.
const USERS: usize = 8;

/// Small numbers that look random and are the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % u64::try_from(end.max(1)).unwrap_or(1)).unwrap_or(0)
    }

    fn milliseconds(&mut self, from: u64, to: u64) -> Duration {
        let span = usize::try_from(to.saturating_sub(from)).unwrap_or(0);
        Duration::from_millis(from + u64::try_from(self.below(span)).unwrap_or(0))
    }
}

fn account(number: usize) -> String {
    format!("c{number:02}")
}

fn user(number: usize) -> String {
    format!("u{number}")
}

/// What the file says: the cap and the members of each account, and who is away.
#[derive(Clone)]
struct Site {
    caps: Vec<usize>,
    members: Vec<BTreeSet<usize>>,
    away: BTreeSet<usize>,
}

impl Site {
    fn new(random: &mut Random) -> Self {
        let members = (0..ACCOUNTS).map(|_| BTreeSet::from([random.below(USERS), random.below(USERS)]));
        Self { members: members.collect(), caps: vec![4; ACCOUNTS], away: BTreeSet::new() }
    }

    /// Something else from now on.
    fn change(&mut self, random: &mut Random) {
        let at = random.below(ACCOUNTS);
        match random.below(4) {
            0 => self.caps[at] = [2, 4, 8, 16][random.below(4)],
            1 => {
                let user = random.below(USERS);
                if !self.members[at].remove(&user) {
                    self.members[at].insert(user);
                }
            }
            _ if self.away.remove(&at) => {}
            _ if self.away.len() < MOST_AWAY => drop(self.away.insert(at)),
            _ => drop(self.away.pop_first()),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut accounts: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for at in (0..ACCOUNTS).filter(|at| !self.away.contains(at)) {
            let _ = write!(
                text,
                "[[account]]\nname = \"{}\"\ngrp_tres = \"cpu={}\"\n",
                account(at),
                self.caps[at]
            );
            for user in &self.members[at] {
                accounts.entry(*user).or_default().push(format!("{:?}", account(at)));
            }
        }
        for (number, accounts) in accounts {
            let _ =
                write!(text, "[[user]]\nname = \"{}\"\naccounts = [{}]\n", user(number), accounts.join(", "));
        }
        text
    }
}

/// The file, and what it says.
struct Source {
    path: PathBuf,
    site: Site,
}

impl Source {
    /// Writes the file anew and renames it, as a site would.
    async fn write(&self, witness: &Witness) -> Result<Model> {
        let model = model(&self.site.text())?;
        witness.hears(&model).await?;
        let new = self.path.with_extension("new");
        std::fs::write(&new, self.site.text())?;
        std::fs::rename(&new, &self.path)?;
        Ok(model)
    }
}

/// Two processes of which any may be dead.
struct Processes {
    running: [Program; 2],
    folder: PathBuf,
    kubeconfig: PathBuf,
    source: PathBuf,
    kills: usize,
}

impl Processes {
    fn start(folder: &Path, kubeconfig: &Path, source: &Path) -> Result<Self> {
        let start = |number| launch(number, folder, kubeconfig, source);
        Ok(Self {
            running: [start(0)?, start(1)?],
            folder: folder.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            source: source.to_owned(),
            kills: 0,
        })
    }

    fn kill(&mut self, number: usize) -> Result<()> {
        let process = &mut self.running[number];
        if !process.runs()? {
            bail!("process {number} has ended by itself:\n{}", end_of(&process.said()));
        }
        process.kill();
        self.kills += 1;
        Ok(())
    }

    fn restart(&mut self, number: usize) -> Result<()> {
        self.running[number] = launch(number, &self.folder, &self.kubeconfig, &self.source)?;
        Ok(())
    }
}

fn launch(number: usize, folder: &Path, kubeconfig: &Path, source: &Path) -> Result<Program> {
    let arguments = ["quota", "watch", "--lease-duration", "3", "--kubeconfig"].map(OsString::from);
    let arguments = arguments.into_iter().chain([kubeconfig.into(), source.into()]);
    Program::start(arguments, &folder.join(format!("process-{number}.log")))
}

fn end_of(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Kills until it is time, then has both run.
async fn killing(mut processes: Processes, mut random: Random, until: Instant) -> Result<Processes> {
    while Instant::now() < until {
        sleep(random.milliseconds(100, 4000)).await;
        let victims = [vec![0], vec![1], vec![0], vec![1], vec![0, 1]];
        let victims = &victims[random.below(5)];
        for victim in victims {
            processes.kill(*victim)?;
        }
        if random.below(2) == 0 {
            sleep(random.milliseconds(0, 800)).await;
        }
        for victim in victims {
            processes.restart(*victim)?;
        }
    }
    Ok(processes)
}

/// Changes the source until it is time; how often, and what it says in the end.
async fn changing(
    mut source: Source,
    witness: Arc<Witness>,
    mut random: Random,
    until: Instant,
) -> Result<(usize, Model)> {
    let mut changes = 0;
    loop {
        sleep(random.milliseconds(300, 2500)).await;
        for _ in 0..=random.below(3) {
            source.site.change(&mut random);
        }
        changes += 1;
        let model = source.write(&witness).await?;
        if Instant::now() >= until {
            return Ok((changes, model));
        }
    }
}

/// Edits what is ours until it is time; how often.
async fn editing(witness: Arc<Witness>, mut random: Random, until: Instant) -> Result<usize> {
    let mut edits = 0;
    while Instant::now() < until {
        sleep(random.milliseconds(50, 400)).await;
        let namespace = names::NAMESPACES.map(&account(random.below(ACCOUNTS)));
        let user = names::SERVICE_ACCOUNTS.map(&user(random.below(USERS)));
        let inside = |kind, name: &str| Key::namespaced(kind, &namespace, name);
        let objects = [
            inside(Kind::ResourceQuota, names::QUOTA),
            inside(Kind::RoleBinding, names::MEMBERS),
            inside(Kind::ResourceQuota, names::PRIORITY_QUOTA),
            inside(Kind::LimitRange, names::DEFAULTS),
            inside(Kind::ServiceAccount, "default"),
            Key::namespaced(Kind::ServiceAccount, names::USERS_NAMESPACE, &user),
            Key::cluster(Kind::ClusterRole, names::TENANT_ROLE),
            Key::cluster(Kind::ValidatingAdmissionPolicy, names::GUARD_OF_PODS),
            Key::cluster(Kind::ValidatingAdmissionPolicyBinding, names::GUARD_OF_PODS),
        ];
        let done = match random.below(40) {
            // Namespaces take a while to go, and hold everything else up.
            0 => witness.remove(&Key::cluster(Kind::Namespace, &namespace)).await?,
            1..3 => replaced(&witness, &objects[0]).await?,
            3..8 => witness.remove(&objects[random.below(objects.len())]).await?,
            8..14 => witness.edit(&Key::cluster(Kind::Namespace, &namespace), label(&mut random)).await?,
            14..18 => witness.edit(&objects[random.below(objects.len())], label(&mut random)).await?,
            18..29 => witness.edit(&objects[0], caps(&mut random)).await?,
            _ => witness.edit(&objects[1], subjects(&mut random)).await?,
        };
        edits += usize::from(done);
    }
    Ok(edits)
}

/// Puts a quota in the place of ours that cannot be made ours by an edit.
async fn replaced(witness: &Witness, quota: &Key) -> Result<bool> {
    let other = json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": { "name": quota.name },
        "spec": { "hard": { "pods": "1000" }, "scopes": ["Terminating"] },
    });
    Ok(witness.remove(quota).await? && witness.create(quota, other).await?)
}

fn label(random: &mut Random) -> Value {
    let labels = [
        json!({ names::MANAGED_BY: null }),
        json!({ names::MANAGED_BY: "somebody" }),
        json!({ "spur.amd.com/account": "another" }),
        json!({ "spur.amd.com/state": "retired" }),
        json!({ "pod-security.kubernetes.io/enforce": "privileged" }),
        json!({ "pod-security.kubernetes.io/warn": null, "of-somebody-else": "stays" }),
    ];
    json!({ "metadata": { "labels": labels[random.below(labels.len())] } })
}

fn caps(random: &mut Random) -> Value {
    let caps = [
        json!({ "requests.cpu": "1000" }),
        json!({ "requests.cpu": null }),
        json!({ "requests.cpu": "1", "pods": "0" }),
        json!({ "count/jobs.batch": "7" }),
        json!(null),
    ];
    json!({ "spec": { "hard": caps[random.below(caps.len())] } })
}

fn subjects(random: &mut Random) -> Value {
    let group =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated" });
    let name = names::SERVICE_ACCOUNTS.map(&user(random.below(USERS)));
    let user = json!({ "kind": "ServiceAccount", "namespace": names::USERS_NAMESPACE, "name": name });
    let subjects = [json!(null), json!([group]), json!([user]), json!([user, group])];
    json!({ "subjects": subjects[random.below(subjects.len())] })
}

/// Waits until whoever is in no account any more is gone, and every account that is away retired, where its namespace
/// is still there.
async fn taken_away(witness: &Witness, model: &Model) -> Result<()> {
    let begin = Instant::now();
    loop {
        let left = witness.still_there(model);
        if left.is_empty() {
            return Ok(());
        }
        ensure!(begin.elapsed() < Duration::from_mins(1), "not taken away: {left:#?}");
        sleep(Duration::from_millis(100)).await;
    }
}

fn setting(name: &str) -> Result<Option<u64>> {
    let text = std::env::var(name).ok();
    text.map(|text| text.parse().with_context(|| format!("{name}={text}"))).transpose()
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_are_killed_at_any_moment_do_no_harm_and_get_there() -> Result<()> {
    let time = Duration::from_secs(setting("SPUR_CHAOS_SECONDS")?.unwrap_or(120));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let seed = setting("SPUR_CHAOS_SEED")?.unwrap_or(now.as_secs());
    println!("SPUR_CHAOS_SEED={seed} SPUR_CHAOS_SECONDS={}", time.as_secs());
    let random = |place: u64| Random(seed.wrapping_mul(4).wrapping_add(place));
    let control_plane = ControlPlane::start().await?;
    let folder = tempfile::tempdir()?;
    let witness = Arc::new(Witness::start(&control_plane.client().await?, &Policy::default()).await?);
    let source = Source { path: folder.path().join("accounts.toml"), site: Site::new(&mut random(0)) };
    let model = source.write(&witness).await?;
    let processes = Processes::start(folder.path(), control_plane.kubeconfig(), &source.path)?;
    witness.in_step(&model, Duration::from_mins(1)).await?;

    let until = Instant::now() + time;
    let done = tokio::try_join!(
        killing(processes, random(1), until),
        changing(source, Arc::clone(&witness), random(2), until),
        editing(Arc::clone(&witness), random(3), until),
    );
    let begin = Instant::now();
    let wrong = witness.verdict().await?;
    ensure!(wrong.is_empty(), "{wrong:#?}");
    let (processes, (changes, model), edits) = done?;
    println!("{} kills, {edits} edits by hand, {changes} changes of the source", processes.kills);
    witness.in_step(&model, Duration::from_mins(1)).await?;
    taken_away(&witness, &model).await?;
    println!("in step {:?} after the last; {} versions seen", begin.elapsed(), witness.versions());
    let wrong = witness.verdict().await?;
    ensure!(wrong.is_empty(), "{wrong:#?}");
    let terms =
        processes.running.iter().map(|process| process.said().matches("leading").count()).sum::<usize>();
    println!("{terms} terms of leadership");
    control_plane.stop().await
}
