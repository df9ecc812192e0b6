//! Each way in which a watch can break, at each watch, just when it would tell of a change by hand.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use spur_sdk_quota::cluster::{ControllerOptions, Key, Kind};
use spur_sdk_quota::{Model, Policy, names};
use spur_system_tests::model;
use spur_system_tests::proxy::{Fault, Proxy};
use spur_system_tests::reconciler::{Running, Store};
use spur_system_tests::witness::Witness;
use spur_test_control_plane::ControlPlane;
use tokio::time::sleep;

use super::{Armed, event_of, hasty};

/// A file of as many accounts as there are places, so that each place has its own.
fn text(places: usize) -> String {
    (0..places).fold(String::new(), |mut text, number| {
        let _ = write!(text, "[[account]]\nname = \"a{number}\"\ngrp_tres = \"cpu=4\"\n");
        let _ = writeln!(text, "coordinators = [\"c{number}\"]");
        let _ = write!(text, "[[user]]\nname = \"m{number}\"\naccounts = [\"a{number}\"]\n");
        text
    })
}

/// What becomes of the event, and of what is asked next.
#[derive(Debug, Clone, Copy)]
enum Break {
    /// Nothing more.
    Event(Fault),
    /// Of the watch that is begun anew.
    AndWatch(Fault, Fault),
    /// The moment is forgotten, and something becomes of the list that is read then.
    AndList(Fault),
}

const BREAKS: [Break; 12] = [
    Break::Event(Fault::End),
    Break::Event(Fault::Cut),
    Break::Event(Fault::Expired),
    Break::Event(Fault::Silent),
    Break::Event(Fault::Slow(Duration::from_millis(300))),
    Break::AndWatch(Fault::End, Fault::Status(410)),
    Break::AndWatch(Fault::Cut, Fault::Status(500)),
    Break::AndWatch(Fault::End, Fault::Hang),
    Break::AndWatch(Fault::Cut, Fault::Overloaded),
    Break::AndList(Fault::Cut),
    Break::AndList(Fault::Status(500)),
    Break::AndList(Fault::Hang),
];

/// A watch, and what a hand does that it tells.
struct Place {
    watch: &'static str,
    key: Key,
    hand: Hand,
    /// What is put right then.
    mended: Key,
}

enum Hand {
    Edits(Value),
    Makes(Value),
    /// And takes away the next time.
    MakesOrRemoves(Value),
}

/// An edit of an object in the namespace of an account of its own.
fn edits_inside(number: usize, watch: &'static str, kind: Kind, name: &str, patch: &Value) -> Place {
    let key = Key::namespaced(kind, &names::NAMESPACES.map(&format!("a{number}")), name);
    Place { watch, mended: key.clone(), key, hand: Hand::Edits(patch.clone()) }
}

/// An edit of an object that stands in no namespace.
fn edits(watch: &'static str, kind: Kind, name: &str, patch: &Value) -> Place {
    let key = Key::cluster(kind, name);
    Place { watch, mended: key.clone(), key, hand: Hand::Edits(patch.clone()) }
}

fn label() -> Value {
    json!({ "metadata": { "labels": { names::MANAGED_BY: "somebody" } } })
}

/// A group beside a user.
fn two_subjects(user: &str) -> Value {
    let user = names::SERVICE_ACCOUNTS.map(user);
    json!({ "subjects": [
        { "kind": "ServiceAccount", "name": user, "namespace": names::USERS_NAMESPACE },
        { "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated" },
    ]})
}

/// Watches of what accounts have.
fn places_of_accounts() -> Vec<Place> {
    let level = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "privileged" } } });
    let pods = json!({ "spec": { "hard": { "pods": "1000" } } });
    let token = json!({ "automountServiceAccountToken": true });
    let user = names::SERVICE_ACCOUNTS.map("m7");
    let user = Key::namespaced(Kind::ServiceAccount, names::USERS_NAMESPACE, &user);
    let closing = Key::namespaced(Kind::ResourceQuota, &names::NAMESPACES.map("a8"), names::CLOSING_QUOTA);
    let quota = json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": { "name": names::CLOSING_QUOTA },
        "spec": { "hard": { "pods": "0" } },
    });
    let (quotas, bindings) = (Kind::ResourceQuota, Kind::RoleBinding);
    vec![
        edits("/api/v1/namespaces", Kind::Namespace, &names::NAMESPACES.map("a0"), &level),
        edits_inside(1, "/api/v1/resourcequotas=spur-quota", quotas, names::QUOTA, &pods),
        edits_inside(2, "/api/v1/resourcequotas=spur-priority", quotas, names::PRIORITY_QUOTA, &pods),
        edits_inside(3, "/api/v1/limitranges=spur-defaults", Kind::LimitRange, names::DEFAULTS, &label()),
        edits_inside(4, "/api/v1/serviceaccounts=default", Kind::ServiceAccount, "default", &token),
        edits_inside(5, RBAC[0], bindings, names::MEMBERS, &two_subjects("m5")),
        edits_inside(6, RBAC[1], bindings, names::COORDINATORS, &two_subjects("c6")),
        Place {
            watch: "/api/v1/namespaces/spur-users/serviceaccounts",
            mended: user.clone(),
            key: user,
            hand: Hand::Edits(label()),
        },
        Place {
            watch: "/api/v1/resourcequotas=spur-closing",
            mended: closing.clone(),
            key: closing,
            hand: Hand::Makes(quota),
        },
    ]
}

const RBAC: [&str; 4] = [
    "/apis/rbac.authorization.k8s.io/v1/rolebindings=spur-members",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings=spur-coordinators",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles=spur-tenant",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles=spur-coordinator",
];

/// Watches of what all accounts share, and of the PriorityClasses that the guard depends on.
fn shared_places() -> Vec<Place> {
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": { "name": "usual" },
        "value": 5,
        "globalDefault": true,
    });
    let guard = "spur-guard-services";
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
    vec![
        edits(RBAC[2], Kind::ClusterRole, names::TENANT_ROLE, &json!({ "rules": [] })),
        edits(RBAC[3], Kind::ClusterRole, names::COORDINATOR_ROLE, &label()),
        edits(policies, Kind::ValidatingAdmissionPolicy, guard, &label()),
        edits(bindings, Kind::ValidatingAdmissionPolicyBinding, guard, &label()),
        Place {
            watch: "/apis/scheduling.k8s.io/v1/priorityclasses",
            key: Key::cluster(Kind::PriorityClass, "usual"),
            hand: Hand::MakesOrRemoves(class),
            mended: Key::cluster(Kind::ValidatingAdmissionPolicy, names::GUARD_OF_PODS),
        },
    ]
}

impl Place {
    /// The requests for the list and for its watch.
    fn lines(&self) -> [String; 2] {
        match self.watch.split_once('=') {
            Some((path, name)) => {
                let field = format!("fieldSelector=metadata.name={name}");
                [format!("GET {path} {field}"), format!("GET {path} watch=true {field}")]
            }
            None => [format!("GET {}", self.watch), format!("GET {} watch=true", self.watch)],
        }
    }

    /// Arms a break; what has to strike.
    fn arm(&self, armed: &Armed, breaks: Break) -> Vec<String> {
        let [list, watch] = self.lines();
        let faults = match breaks {
            Break::Event(fault) => vec![(event_of(&watch), fault)],
            Break::AndWatch(fault, next) => vec![(event_of(&watch), fault), (watch, next)],
            Break::AndList(next) => vec![(event_of(&watch), Fault::Expired), (list, next)],
        };
        for (line, fault) in &faults {
            armed.arm(line.clone(), 0, *fault);
        }
        faults.into_iter().map(|(line, _)| line).collect()
    }

    /// Does what the hand does.
    async fn change(&self, witness: &Witness) -> Result<()> {
        // Whether it is there, the witness hears by a watch of its own, which may be behind.
        for _ in 0..200 {
            let done = match &self.hand {
                Hand::Edits(patch) => witness.edit(&self.key, patch.clone()).await?,
                Hand::MakesOrRemoves(_) if witness.get(&self.key).is_some() => {
                    witness.remove(&self.key).await?
                }
                Hand::Makes(_) if witness.get(&self.key).is_some() => true,
                Hand::Makes(object) | Hand::MakesOrRemoves(object) => {
                    witness.create(&self.key, object.clone()).await?
                }
            };
            if done {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("{} cannot be changed by hand", self.key)
    }

    /// Goes through all breaks; where to begin differs, so that not all watches are silent at the same time.
    async fn outlasts(&self, number: usize, site: &Site) -> Result<()> {
        let Site { armed, witness, model, count } = site;
        for at in 0..BREAKS.len() {
            let breaks = BREAKS[(at + number) % BREAKS.len()];
            let lines = self.arm(armed, breaks);
            self.change(witness).await?;
            let (start, mut again) = (Instant::now(), Duration::from_secs(3));
            loop {
                let struck = armed.have_struck(&lines);
                let plan = witness.to_do(model).await?;
                let mended =
                    struck && plan.refused.is_empty() && plan.steps().all(|step| step.target != self.mended);
                if mended {
                    break;
                }
                // A list that was read anew meanwhile has told it, and the watch had nothing to tell.
                if !struck && start.elapsed() > again {
                    again += Duration::from_secs(3);
                    self.change(witness).await?;
                }
                let left = || format!("{breaks:?} at {}: struck: {struck}; still to do:\n{plan}", self.watch);
                ensure!(start.elapsed() < Duration::from_secs(30), left());
                sleep(Duration::from_millis(150)).await;
            }
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Where the places are.
struct Site {
    armed: Armed,
    witness: Witness,
    model: Model,
    count: AtomicUsize,
}

impl Site {
    /// Has all breaks happen at these places at the same time.
    async fn outlasts(&self, places: &[Place]) -> Result<()> {
        let all = places.iter().enumerate().map(|(number, place)| place.outlasts(number, self));
        futures::future::try_join_all(all).await.map(drop)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_breaks_when_it_would_tell_of_an_edit_only_delays_that_it_is_put_back() -> Result<()> {
    let control_plane = ControlPlane::start().await?;
    let policy = Policy::read("coordinators = true", "policy.toml")?;
    let proxy = Proxy::start(control_plane.client().await?).await?;
    let (of_accounts, shared) = (places_of_accounts(), shared_places());
    let text = text(of_accounts.len());
    let site = Site {
        armed: Armed::default(),
        witness: Witness::start(&control_plane.client().await?, &policy).await?,
        model: model(&text)?,
        count: AtomicUsize::new(0),
    };
    site.armed.over(&proxy);
    site.witness.hears(&site.model).await?;
    let store = Store::of(&text)?;
    let mut running = Running::start_on(store, hasty(proxy.client()?), &policy, ControllerOptions::default());
    site.witness.in_step(&site.model, Duration::from_secs(30)).await?;
    running.settled().await?;
    let begin = Instant::now();
    // One after the other, since nobody is let in while what all share is not in step.
    for places in [of_accounts, shared] {
        let ended = site.outlasts(&places).await;
        ended.with_context(|| format!("{:#?}", running.status()))?;
    }
    println!("{} pairs of break and watch, {:?}", site.count.load(Ordering::Relaxed), begin.elapsed());
    let wrong = site.witness.verdict().await?;
    ensure!(wrong.is_empty(), "{wrong:#?}");
    site.witness.in_step(&site.model, Duration::from_secs(30)).await?;
    running.stop().await?;
    control_plane.stop().await
}
