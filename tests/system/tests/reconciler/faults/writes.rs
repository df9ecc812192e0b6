//! Each fault at each request that an account has made for it, from its beginning to its return.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use spur_sdk_quota::cluster::{ControllerOptions, Key, Kind, Report};
use spur_sdk_quota::{Policy, names};
use spur_system_tests::model;
use spur_system_tests::proxy::{Fault, Proxy};
use spur_system_tests::reconciler::{Running, Store};
use spur_system_tests::witness::Witness;
use spur_test_control_plane::ControlPlane;

use super::{Armed, REQUEST_FAULTS, impatient};

/// The account whose requests are counted.
const REFERENCE: &str = "reference";

/// What happens to accounts, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The source names them.
    Begin,
    /// Somebody edits all that is theirs.
    Edit,
    /// The source says something else of them.
    Change,
    /// The source names them no more.
    Vanish,
    /// The source names them again.
    Return,
}

const PHASES: [Phase; 5] = [Phase::Begin, Phase::Edit, Phase::Change, Phase::Vanish, Phase::Return];

impl Phase {
    /// The file of accounts.
    fn text(self, accounts: &[String]) -> String {
        let (cpu, second) = match self {
            Self::Begin | Self::Edit => (4, false),
            Self::Change => (8, true),
            Self::Vanish | Self::Return => (2, false),
        };
        let user =
            |name: &str, which| format!("[[user]]\nname = \"{name}-{which}\"\naccounts = [\"{name}\"]\n");
        let mut text = "[[account]]\nname = \"base\"\ngrp_tres = \"cpu=1\"\n".to_owned();
        for name in accounts.iter().filter(|_| self != Self::Vanish) {
            let _ = write!(text, "[[account]]\nname = \"{name}\"\ngrp_tres = \"cpu={cpu}\"\n");
            let _ = write!(text, "coordinators = [\"{name}-first\"]\n{}", user(name, "first"));
            if second {
                text += &user(name, "second");
            }
        }
        text
    }
}

/// Changes by somebody else, one of each kind of an account's objects.
fn edits(account: &str) -> Vec<(Key, Value)> {
    let namespace = names::NAMESPACES.map(account);
    let namespace = namespace.as_str();
    let user = names::SERVICE_ACCOUNTS.map(&format!("{account}-first"));
    let label = json!({ "metadata": { "labels": { names::MANAGED_BY: "somebody" } } });
    let group =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated" });
    vec![
        (
            Key::cluster(Kind::Namespace, namespace),
            json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "privileged" } } }),
        ),
        (
            Key::namespaced(Kind::ResourceQuota, namespace, names::QUOTA),
            json!({ "spec": { "hard": { "requests.cpu": "1000", "pods": null } } }),
        ),
        (
            Key::namespaced(Kind::ResourceQuota, namespace, names::PRIORITY_QUOTA),
            json!({ "spec": { "hard": { "pods": "1000" } } }),
        ),
        (Key::namespaced(Kind::LimitRange, namespace, names::DEFAULTS), label.clone()),
        (
            Key::namespaced(Kind::ServiceAccount, namespace, "default"),
            json!({ "automountServiceAccountToken": true }),
        ),
        (Key::namespaced(Kind::ServiceAccount, names::USERS_NAMESPACE, &user), label),
        (Key::namespaced(Kind::RoleBinding, namespace, names::MEMBERS), json!({ "subjects": [group] })),
        (Key::namespaced(Kind::RoleBinding, namespace, names::COORDINATORS), json!({ "subjects": null })),
    ]
}

/// A site that goes through the phases.
struct Scene {
    witness: Witness,
    proxy: Proxy,
    store: Store,
    running: Running,
    armed: Armed,
}

impl Scene {
    async fn up(control_plane: &ControlPlane, policy: &Policy) -> Result<Self> {
        let witness = Witness::start(&control_plane.client().await?, policy).await?;
        let proxy = Proxy::start(control_plane.client().await?).await?;
        let armed = Armed::default();
        armed.over(&proxy);
        let base = Phase::Vanish.text(&[]);
        witness.hears(&model(&base)?).await?;
        let store = Store::of(&base)?;
        let api = impatient(proxy.client()?);
        let running = Running::start_on(store.clone(), api, policy, ControllerOptions::default());
        witness.in_step(&model(&base)?, Duration::from_secs(30)).await?;
        Ok(Self { witness, proxy, store, running, armed })
    }

    /// Goes through a phase with all of these accounts, of which the first so many are edited.
    async fn go(&mut self, phase: Phase, accounts: &[String], edited: usize) -> Result<()> {
        let model = model(&phase.text(accounts))?;
        self.witness.hears(&model).await?;
        if phase == Phase::Edit {
            self.edit(accounts.iter().take(edited)).await?;
        }
        if phase != Phase::Edit {
            self.store.set(model.clone());
        }
        if phase == Phase::Vanish && accounts.len() > 2 {
            let held = |report: &Report| match report {
                Report::RemovalsHeld(removals) => Some(removals.digest.clone()),
                _ => None,
            };
            let digest = self.running.wait_for(held).await?;
            let users = Key::cluster(Kind::Namespace, names::USERS_NAMESPACE);
            let annotation =
                json!({ "metadata": { "annotations": { "spur.amd.com/confirm-removals": digest } } });
            self.witness.edit(&users, annotation).await?;
        }
        self.witness.in_step(&model, Duration::from_secs(40)).await?;
        if phase == Phase::Vanish {
            self.gone(accounts).await?;
        }
        Ok(())
    }

    /// Edits all that is of some accounts.
    async fn edit(&self, accounts: impl Iterator<Item = &String>) -> Result<()> {
        for account in accounts {
            let edits = edits(account);
            let edits = edits.iter().map(|(key, patch)| self.witness.edit(key, patch.clone()));
            for there in futures::future::try_join_all(edits).await? {
                ensure!(there, "something of {account} is not there");
            }
        }
        Ok(())
    }

    /// Edits accounts anew for which a fault still waits. What many edits at once make the controller ask depends on
    /// how many of them it sees at the same time, and of their Events it drops some.
    async fn edit_again(&self, accounts: &[String]) -> Result<()> {
        for _ in 0..20 {
            // Events come last.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let lines = self.armed.lines();
            let waits = |account: &&String| lines.iter().any(|line| line.contains(account.as_str()));
            let waiting: Vec<&String> = accounts.iter().filter(waits).collect();
            if waiting.is_empty() {
                break;
            }
            self.edit(waiting.into_iter()).await?;
            self.witness.in_step(&model(&Phase::Edit.text(accounts))?, Duration::from_secs(40)).await?;
        }
        Ok(())
    }

    /// Waits until the accounts are retired and their users gone.
    async fn gone(&self, accounts: &[String]) -> Result<()> {
        let user = |account: &String, which: &str| {
            let name = names::SERVICE_ACCOUNTS.map(&format!("{account}-{which}"));
            self.witness.get(&Key::namespaced(Kind::ServiceAccount, names::USERS_NAMESPACE, &name))
        };
        let start = Instant::now();
        for account in accounts {
            while !self.witness.is_retired(&names::NAMESPACES.map(account))
                || user(account, "first").is_some()
                || user(account, "second").is_some()
            {
                ensure!(start.elapsed() < Duration::from_secs(40), "{account} is not taken away in full");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Ok(())
    }

    /// What is asked for the reference account in each phase, and how often.
    async fn reference(&mut self) -> Result<Vec<BTreeMap<String, usize>>> {
        let mut phases = Vec::new();
        for phase in PHASES {
            let before = self.proxy.asked().len();
            self.go(phase, &[REFERENCE.to_owned()], 1).await?;
            // Events come last.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let mut lines = BTreeMap::new();
            for asked in self.proxy.asked().split_off(before) {
                // A leader reads its Lease before it deletes something.
                let before_delete = asked.request.is_of_lease() && asked.request.method == "GET";
                if asked.request.path.contains(REFERENCE) || before_delete {
                    *lines.entry(asked.request.line()).or_default() += 1;
                }
            }
            phases.push(lines);
        }
        Ok(phases)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_at_any_request_for_an_account_delays_it_and_does_no_harm() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let policy = Policy::read("coordinators = true", "policy.toml")?;
    let mut scene = Scene::up(&control_plane, &policy).await?;
    let phases = scene.reference().await?;
    let pairs: Vec<Vec<(&String, usize, Fault)>> = phases
        .iter()
        .map(|lines| {
            let requests = lines.iter().flat_map(|(line, count)| (0..*count).map(move |after| (line, after)));
            requests.flat_map(|(line, after)| REQUEST_FAULTS.map(move |fault| (line, after, fault))).collect()
        })
        .collect();
    let most = pairs.iter().map(Vec::len).max().unwrap_or_default();
    let mut accounts: Vec<String> = (0..most).map(|number| format!("acc{number:03}")).collect();
    accounts.push(REFERENCE.to_owned());
    let mut total = 0;
    for (phase, pairs) in PHASES.into_iter().zip(&pairs) {
        let start = Instant::now();
        for ((line, after, fault), account) in pairs.iter().zip(&accounts) {
            scene.armed.arm(line.replace(REFERENCE, account), *after, *fault);
        }
        scene.go(phase, &accounts, pairs.len()).await?;
        if phase == Phase::Edit {
            scene.edit_again(&accounts).await?;
        }
        // Events come last.
        let late = Instant::now();
        while !scene.armed.have_struck_all() && late.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (struck, waiting) = scene.armed.disarm();
        println!("{phase:?}: {struck} of {} pairs of fault and request, {:?}", pairs.len(), start.elapsed());
        ensure!(waiting.is_empty(), "{waiting:#?}");
        total += struck;
    }
    println!("{total} pairs of fault and request; {} versions seen", scene.witness.versions());
    let wrong = scene.witness.verdict().await?;
    ensure!(wrong.is_empty(), "{wrong:#?}");
    scene.running.stop().await?;
    control_plane.stop().await
}
