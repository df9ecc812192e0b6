//! One run: a site, a cluster, two replicas, and what happens to them.

use std::collections::BTreeSet;
use std::time::Duration;

use spur_sdk_quota::cluster::{Key, Kind};
use spur_sdk_quota::testing::{Delays, Faults, ModelCluster, Random};
use spur_sdk_quota::{GuardRule, Policy, names};
use tokio::time::sleep;

use crate::replica::{Replica, Settings, SkewedClock};
use crate::site::{Account, Site, SourceFault};

/// Names of accounts; the last two are no labels as they are.
pub(crate) const ACCOUNTS: [&str; 16] =
    ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "b0", "b1", "b2", "b3", "Big_One", "x@y"];

/// Names of users.
pub(crate) const USERS: [&str; 7] = ["u0", "u1", "u2", "u3", "u4", "u5", "User_6"];

/// An account whose namespace is somebody else's.
pub(crate) const FOREIGN: &str = "foreign";

/// Who edits by hand.
pub(crate) const SOMEBODY: &str = "somebody";

/// Everything that one run consists of.
pub(crate) struct World {
    pub(crate) cluster: ModelCluster,
    pub(crate) site: Site,
    pub(crate) policy: Policy,
    pub(crate) clock: SkewedClock,
    pub(crate) replicas: [Replica; 2],
    pub(crate) random: Random,
    /// Whether the API server and the replicas have no faults.
    pub(crate) calm: bool,
    pub(crate) grace: Option<Duration>,
    /// What happened, for whoever has to find out why.
    pub(crate) story: Vec<String>,
}

pub(crate) fn namespace_of(account: &str) -> String {
    names::NAMESPACES.map(account)
}

pub(crate) fn namespace_key(account: &str) -> Key {
    Key::cluster(Kind::Namespace, &namespace_of(account))
}

/// A policy with the least of a guard, since long policies take long to copy.
fn policy() -> Policy {
    let mut policy = Policy::default();
    policy.guard.disabled = GuardRule::ALL.into_iter().skip(1).collect();
    policy
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let cluster = ModelCluster::new(random.number());
        let site = Site::new(cluster.clone(), random.split());
        let (policy, clock) = (policy(), SkewedClock::new(&cluster));
        let grace = random.happens(250).then_some(Duration::from_hours(24));
        let settings = Settings {
            site: site.clone(),
            cluster: cluster.clone(),
            policy: policy.clone(),
            clock: clock.clone(),
            grace,
            concurrency: usize::try_from(random.below(6)).unwrap() + 1,
        };
        let replicas = [Replica::new("a", settings.clone()), Replica::new("b", settings)];
        let calm = random.happens(300);
        let mut world =
            Self { cluster, site, policy, clock, replicas, random, calm, grace, story: Vec::new() };
        world.prepare();
        world
    }

    fn prepare(&mut self) {
        if self.random.happens(300) {
            self.cluster.remember(20);
        }
        if self.random.happens(200) {
            let most = Duration::from_secs(30);
            self.cluster.set_delays(Delays::default().quota(Duration::from_millis(50)..=most));
        }
        // Few, since each costs time; and sometimes so many that more than ten can vanish.
        let most = if self.random.happens(100) { 16 } else { 5 };
        let some = self.random.below(most) + 2;
        for _ in 0..some {
            self.add_account();
        }
        if self.random.happens(8) {
            // So many that ten of them are less than a fifth.
            for number in 0..60 {
                let account = Account { cpu: 1, gpu: None, parent: None, members: BTreeSet::new() };
                self.site.change(|accounts| accounts.insert(format!("many-{number}"), account));
            }
        }
        if self.random.happens(300) {
            // It is in the source, and its namespace was made by somebody else.
            let account = self.draw_account();
            self.site.change(|accounts| accounts.insert(FOREIGN.to_owned(), account));
            let labels = serde_json::json!({ "metadata": { "labels": { "team": "theirs" } } });
            self.cluster.put(SOMEBODY, &namespace_key(FOREIGN), labels).unwrap();
            let theirs = Key::namespaced(Kind::ResourceQuota, &namespace_of(FOREIGN), names::QUOTA);
            let quota = serde_json::json!({ "spec": { "hard": { "pods": "1000" } } });
            self.cluster.put(SOMEBODY, &theirs, quota).unwrap();
        }
        self.story.clear();
    }

    pub(crate) fn tell(&mut self, what: impl std::fmt::Display) {
        self.story.push(format!("{:?} {what}", self.cluster.elapsed()));
    }

    fn draw_account(&mut self) -> Account {
        let mut members = BTreeSet::new();
        for _ in 0..self.random.below(4) {
            members.insert((*self.random.pick(&USERS).unwrap()).to_owned());
        }
        let gpu = self.random.happens(500).then(|| self.random.below(8) + 1);
        let parent = self.random.happens(300).then(|| "a0".to_owned());
        Account { cpu: self.random.below(64) + 1, gpu, parent, members }
    }

    /// Adds an account that is not there, perhaps one that was.
    pub(crate) fn add_account(&mut self) {
        let name = *self.random.pick(&ACCOUNTS).unwrap();
        let mut account = self.draw_account();
        account.parent = account.parent.filter(|parent| parent != name);
        let added = self.site.change(|accounts| {
            let new = !accounts.contains_key(name);
            if new {
                accounts.insert(name.to_owned(), account.clone());
            }
            new
        });
        if added {
            self.tell(format_args!("account {name} is added: {account:?}"));
        }
    }

    /// One of the names that accounts have.
    fn some_name(&mut self) -> String {
        (*self.random.pick(&ACCOUNTS).unwrap()).to_owned()
    }

    /// One of the accounts that the site has.
    pub(crate) fn some_account(&mut self) -> Option<String> {
        let names: Vec<String> = self.site.accounts().into_keys().filter(|name| name != FOREIGN).collect();
        self.random.pick(&names).cloned()
    }

    fn change_source(&mut self) {
        let user = (*self.random.pick(&USERS).unwrap()).to_owned();
        let Some(name) = self.some_account() else { return self.add_account() };
        let amount = self.random.below(64) + 1;
        let what = match self.random.below(12) {
            0 | 1 => return self.add_account(),
            2 | 3 => {
                self.site.change(|accounts| accounts.remove(&name));
                format!("account {name} is removed")
            }
            _ if self.is_big() && self.random.happens(200) => {
                self.site.change(|accounts| {
                    for _ in 0..12 {
                        accounts.pop_last();
                    }
                });
                "twelve accounts are removed".to_owned()
            }
            4 if self.random.happens(300) => {
                let keep = usize::try_from(self.random.below(3)).unwrap();
                self.site.change(|accounts| {
                    while accounts.len() > keep {
                        accounts.pop_last();
                    }
                });
                format!("all accounts but {keep} are removed")
            }
            4..=6 => {
                self.site.change(|accounts| {
                    accounts.entry(name.clone()).and_modify(|account| {
                        account.members.insert(user.clone());
                    });
                });
                format!("user {user} gets into {name}")
            }
            7 | 8 => {
                self.site.change(|accounts| {
                    accounts.entry(name.clone()).and_modify(|account| {
                        account.members.pop_first();
                    });
                });
                format!("the first user of {name} is taken out")
            }
            9 => {
                self.site.change(|accounts| {
                    accounts.entry(name.clone()).and_modify(|account| account.gpu = account.gpu.xor(Some(3)));
                });
                format!("account {name} gets or loses its cap on GPUs")
            }
            _ => {
                self.site.change(|accounts| {
                    accounts.entry(name.clone()).and_modify(|account| account.cpu = amount);
                });
                format!("account {name} gets {amount} cpus")
            }
        };
        self.tell(what);
    }

    fn is_big(&self) -> bool {
        self.site.accounts().len() > 60
    }

    fn break_source(&mut self) {
        let faults = [
            SourceFault::Fails,
            SourceFault::Hangs,
            SourceFault::Partial,
            SourceFault::Garbage,
            SourceFault::Empty,
            SourceFault::Unclear,
        ];
        let fault = *self.random.pick(&faults).unwrap();
        let fault = self.random.happens(600).then_some(fault);
        self.site.set_fault(fault);
        self.tell(format_args!("the source: {fault:?}"));
    }

    async fn trouble_replicas(&mut self) {
        let which = usize::try_from(self.random.below(2)).unwrap();
        let kind = self.random.below(if self.calm { 2 } else { 8 });
        let replica = &mut self.replicas[which];
        let Some(who) = replica.who().map(str::to_owned) else {
            replica.start();
            let who = replica.who().unwrap_or_default().to_owned();
            return self.tell(format_args!("{who} starts"));
        };
        match kind {
            0 => {
                replica.shut_down().await;
                self.tell(format_args!("{who} has shut down"));
            }
            1..=3 => {
                replica.crash().await;
                self.tell(format_args!("{who} crashes"));
            }
            4..=6 => {
                let still = !replica.still;
                replica.stand_still(still);
                self.tell(format_args!("{who} {}", if still { "stands still" } else { "goes on" }));
            }
            _ => {
                let cut = self.random.happens(500);
                self.cluster.cut_off(&who, cut);
                self.tell(format_args!("{who} is cut off: {cut}"));
            }
        }
    }

    async fn trouble_server(&mut self) {
        match self.random.below(if self.calm { 3 } else { 8 }) {
            0 => {
                let stop = self.random.happens(500);
                self.cluster.stop_controllers(stop);
                self.tell(format_args!("the controller manager is stopped: {stop}"));
            }
            1 => {
                self.cluster.forget();
                self.tell("the server forgets its history");
            }
            2 => {
                self.cluster.disconnect();
                self.tell("the server starts anew");
                for _ in 0..self.random.below(3) {
                    self.edit_by_hand().await;
                }
                if self.random.happens(500) {
                    self.cluster.forget();
                    self.tell("and has forgotten its history");
                }
            }
            _ => {
                let rate = *self.random.pick(&[0, 0, 10, 50, 200, 500]).unwrap();
                self.cluster.set_faults(Faults::all(rate));
                self.tell(format_args!("faults in {rate} of 1000 requests"));
            }
        }
    }

    fn jump_clock(&mut self) {
        // Further where something waits for it.
        if self.grace.is_some() || self.random.happens(300) {
            let hours = if self.grace.is_some() { 20 + self.random.below(10) } else { self.random.below(30) };
            if self.random.happens(300) {
                let claim =
                    Key::namespaced(Kind::PersistentVolumeClaim, &namespace_of(&self.some_name()), "data");
                // It may be there already, or its namespace not.
                let _ = self.cluster.put(SOMEBODY, &claim, serde_json::json!({}));
            }
            self.clock.jump(Duration::from_hours(hours));
            self.tell(format_args!("the clock is set {hours} h forward"));
        }
    }

    /// A while in which things happen.
    pub(crate) async fn live(&mut self) {
        self.replicas[0].start();
        if self.random.happens(800) {
            self.replicas[1].start();
        }
        for _ in 0..self.random.below(40) + 10 {
            let most = *self.random.pick(&[100, 2_000, 10_000, 30_000]).unwrap();
            sleep(Duration::from_millis(self.random.below(most))).await;
            match self.random.below(20) {
                0..=6 => self.change_source(),
                7..=12 => self.edit_by_hand().await,
                13 | 14 => self.break_source(),
                15..=17 => self.trouble_replicas().await,
                18 => self.trouble_server().await,
                _ => self.jump_clock(),
            }
        }
    }

    /// Ends all faults, and leaves one healthy replica.
    pub(crate) async fn heal(&mut self) {
        self.cluster.set_faults(Faults::default());
        self.cluster.set_delays(Delays::default());
        self.cluster.stop_controllers(false);
        self.site.set_fault(None);
        for which in 0..2 {
            if let Some(who) = self.replicas[which].who().map(str::to_owned) {
                self.cluster.cut_off(&who, false);
            }
            self.replicas[which].stand_still(false);
        }
        self.replicas[0].crash().await;
        if !self.replicas[1].is_running() {
            self.replicas[1].start();
        }
        self.unpause();
        self.tell("all is well from here on");
    }
}
