//! What the record of a run says: the cluster at each moment, and what the replicas knew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use spur_sdk_quota::cluster::{Key, Kind};
use spur_sdk_quota::k8s::Object;
use spur_sdk_quota::k8s::k8s_openapi::jiff::Timestamp;
use spur_sdk_quota::testing::{LeaseRecord, Record};
use spur_sdk_quota::{Policy, QuotaProjector, names};

use crate::site::Reading;
use crate::world::World;

/// A quota's caps.
pub(crate) type Caps = BTreeMap<String, u128>;

/// The cluster while its record is gone through.
pub(crate) struct Facts {
    pub(crate) objects: BTreeMap<Key, Arc<Value>>,
    /// Since when each paused namespace is.
    pub(crate) paused: BTreeMap<String, Duration>,
    /// Since when a namespace holds a PersistentVolumeClaim.
    pub(crate) claims: BTreeMap<String, Duration>,
    /// When a replica let somebody in, by binding and subject.
    let_in: BTreeMap<(Key, String), Duration>,
    /// Since when a quota does not bind, and which replicas have had a hand in it since then.
    pub(crate) unbound: BTreeMap<Key, (Duration, BTreeSet<Arc<str>>)>,
    /// Namespaces that a replica has marked as retired, and since when it says that they are. The clock may have been set
    /// while it wrote.
    pub(crate) retired: BTreeMap<String, SystemTime>,
    /// Confirmations that stood, and until when; `None` while they do.
    confirmations: Vec<Option<Duration>>,
    /// How many accounts there were.
    accounts: VecDeque<(Duration, usize)>,
    pub(crate) readings: Vec<Reading>,
    caps: Vec<Arc<BTreeMap<String, Caps>>>,
    pub(crate) leases: Vec<LeaseRecord>,
    /// When the tenant guard that is wanted was in force, and when it was not.
    guards: Vec<(Duration, bool)>,
    /// How old what a replica knows may be.
    pub(crate) lag: Duration,
}

pub(crate) fn is_replica(who: &str) -> bool {
    who.starts_with("replica-")
}

pub(crate) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn label<'v>(value: &'v Value, key: &str) -> &'v str {
    value.pointer("/metadata/labels").and_then(|labels| labels.get(key)?.as_str()).unwrap_or_default()
}

pub(crate) fn annotation<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.pointer("/metadata/annotations")?.get(key)?.as_str()
}

pub(crate) fn is_retired(namespace: &Value) -> bool {
    label(namespace, "spur.amd.com/state") == names::RETIRED
}

/// Since when a namespace is retired, as it says.
pub(crate) fn retired_at(namespace: &Value) -> Option<SystemTime> {
    annotation(namespace, "spur.amd.com/retired-at")?.parse::<Timestamp>().ok().map(SystemTime::from)
}

/// Whether a change marks a namespace as retired that was not.
pub(crate) fn retires(record: &Record) -> bool {
    let marked = |value: &Option<Arc<Value>>| value.as_deref().is_some_and(is_retired);
    record.key.kind == Kind::Namespace && !marked(&record.before) && marked(&record.after)
}

/// Whether it does so anew: one that says since when it is retired has only lost the mark.
pub(crate) fn retires_anew(record: &Record) -> bool {
    let since = record.before.as_deref().and_then(|before| annotation(before, "spur.amd.com/retired-at"));
    retires(record) && since.is_none()
}

/// Whether an object is ours, as everybody can see.
pub(crate) fn is_ours(value: &Value) -> bool {
    let managers = value.pointer("/metadata/managedFields").and_then(Value::as_array);
    let applied = managers
        .into_iter()
        .flatten()
        .any(|manager| text(manager, "/manager") == names::MANAGER && text(manager, "/operation") == "Apply");
    applied || label(value, names::MANAGED_BY) == names::MANAGER
}

/// The ServiceAccounts and groups that a binding lets in, as text.
pub(crate) fn subjects(binding: Option<&Value>) -> BTreeSet<String> {
    let subjects = binding.and_then(|binding| binding.get("subjects")?.as_array());
    subjects.into_iter().flatten().map(ToString::to_string).collect()
}

/// An amount as the model spells it, in thousandths.
pub(crate) fn amount(text: &str) -> u128 {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let factor = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        other => panic!("amount with suffix {other}"),
    };
    number.parse::<u128>().unwrap() * factor
}

pub(crate) fn caps(quota: &Value) -> Caps {
    let hard = quota.pointer("/spec/hard").and_then(Value::as_object);
    hard.into_iter().flatten().map(|(key, cap)| (key.clone(), amount(cap.as_str().unwrap()))).collect()
}

/// Whether a quota restricts by all that it asks for, and perhaps by more that it asked for earlier.
pub(crate) fn binds(quota: &Value) -> bool {
    let hard = |pointer| quota.pointer(pointer).and_then(Value::as_object);
    hard("/spec/hard")
        .zip(hard("/status/hard"))
        .is_some_and(|(wanted, status)| wanted.iter().all(|(key, cap)| status.get(key) == Some(cap)))
}

/// The caps of a reading, by namespace.
fn caps_of(reading: &Reading, policy: &Policy) -> BTreeMap<String, Caps> {
    let projection = QuotaProjector::new(policy).project(&reading.model);
    let quota = |objects: &[Object]| {
        let quota = objects.iter().find(|object| object.name() == names::QUOTA)?;
        Some(caps(&serde_json::to_value(quota).unwrap()))
    };
    let accounts = projection.accounts.iter();
    accounts.filter_map(|account| Some((account.namespace.clone(), quota(&account.objects)?))).collect()
}

/// When the tenant guard that is wanted was in force, and when it was not.
fn guards(world: &World) -> Vec<(Duration, bool)> {
    let projection = QuotaProjector::new(&world.policy).project(&world.site.model());
    let policy = projection
        .shared
        .iter()
        .find(|object| object.kind() == "ValidatingAdmissionPolicy" && object.name() == names::GUARD_OF_PODS);
    let wanted = serde_json::to_value(policy.unwrap()).unwrap();
    let wanted = text(&wanted, "/spec/validations/0/message");
    let answers = world.cluster.guard_answers().into_iter();
    answers.map(|(at, answer)| (at, answer.as_deref() == Some(wanted))).collect()
}

impl Facts {
    pub(crate) fn new(world: &World) -> Self {
        let readings = world.site.readings();
        let mut caps: Vec<Arc<BTreeMap<String, Caps>>> = Vec::new();
        for (at, reading) in readings.iter().enumerate() {
            // Readings repeat themselves, and projecting takes long.
            let same = readings.iter().take(at).rposition(|other| other.model == reading.model);
            let same = same.map(|same| Arc::clone(&caps[same]));
            caps.push(same.unwrap_or_else(|| Arc::new(caps_of(reading, &world.policy))));
        }
        let lag = if world.calm { Duration::from_secs(5) } else { Duration::from_mins(4) };
        Self {
            objects: BTreeMap::new(),
            paused: BTreeMap::new(),
            claims: BTreeMap::new(),
            let_in: BTreeMap::new(),
            unbound: BTreeMap::new(),
            retired: BTreeMap::new(),
            confirmations: Vec::new(),
            accounts: VecDeque::new(),
            readings,
            caps,
            leases: world.cluster.leases(),
            guards: guards(world),
            lag,
        }
    }

    /// Takes a change in that has been judged.
    pub(crate) fn take(&mut self, record: &Record) {
        match &record.after {
            Some(after) => drop(self.objects.insert(record.key.clone(), Arc::clone(after))),
            None => drop(self.objects.remove(&record.key)),
        }
        match record.key.kind {
            Kind::ResourceQuota if record.key.name == names::QUOTA => {
                if record.after.as_deref().is_some_and(binds) {
                    self.unbound.remove(&record.key);
                } else {
                    let unbound = self.unbound.entry(record.key.clone());
                    let (_, hands) = unbound.or_insert_with(|| (record.at, BTreeSet::new()));
                    hands.insert(Arc::clone(&record.who));
                }
            }
            Kind::RoleBinding if is_replica(&record.who) => {
                let (before, after) = (subjects(record.before.as_deref()), subjects(record.after.as_deref()));
                for subject in after.difference(&before) {
                    self.let_in.insert((record.key.clone(), subject.clone()), record.at);
                }
            }
            Kind::PersistentVolumeClaim => {
                let namespace = record.key.namespace.clone().unwrap_or_default();
                match &record.after {
                    Some(_) => drop(self.claims.entry(namespace).or_insert(record.at)),
                    None => drop(self.claims.remove(&namespace)),
                }
            }
            Kind::Namespace => self.take_namespace(record),
            _ => {}
        }
    }

    fn take_namespace(&mut self, record: &Record) {
        let name = &record.key.name;
        if !record.after.as_deref().is_some_and(is_retired) {
            self.retired.remove(name);
        } else if retires_anew(record) && is_replica(&record.who) {
            let since = record.after.as_deref().and_then(retired_at);
            // One that does not say so would be forgotten.
            self.retired.insert(name.clone(), since.unwrap());
        }
        let paused = record.after.as_deref().and_then(|after| annotation(after, "spur.amd.com/paused"));
        match paused {
            Some(value) if value != "false" => drop(self.paused.entry(name.clone()).or_insert(record.at)),
            _ => drop(self.paused.remove(name)),
        }
        if name == names::USERS_NAMESPACE {
            let of = |value: &Option<Arc<Value>>| {
                let value =
                    value.as_deref().and_then(|value| annotation(value, "spur.amd.com/confirm-removals"));
                value.map(str::to_owned).filter(|value| value != "000000000000")
            };
            let (before, after) = (of(&record.before), of(&record.after));
            if before != after {
                if let Some(None) = self.confirmations.last() {
                    self.confirmations.push(Some(record.at));
                }
                if after.is_some() {
                    self.confirmations.push(None);
                }
            }
        }
        let ours = |(key, value): &(&Key, &Arc<Value>)| {
            key.kind == Kind::Namespace && key.name.starts_with("spur-acct-") && is_ours(value)
        };
        let count = self.objects.iter().filter(ours).count();
        self.accounts.push_back((record.at, count));
    }

    /// Whether removals were confirmed a short while ago.
    pub(crate) fn was_confirmed(&self, at: Duration) -> bool {
        let recent = |until: &Option<Duration>| until.is_none_or(|until| until + self.lag >= at);
        self.confirmations.last().is_some_and(recent)
    }

    /// The most accounts that a replica may know of.
    pub(crate) fn most_accounts(&self, at: Duration) -> usize {
        let recent = self.accounts.iter().rev();
        let mut most = 0;
        for (since, count) in recent {
            most = most.max(*count);
            if *since + self.lag < at {
                break;
            }
        }
        most
    }

    /// The readings that a replica may act on at a moment.
    pub(crate) fn known(&self, who: &str, at: Duration) -> impl Iterator<Item = &Reading> {
        let own = self.readings.iter().filter(move |reading| reading.who == who && reading.at <= at);
        let own: Vec<&Reading> = own.collect();
        let lag = self.lag / 2;
        let old = own.iter().rposition(|reading| reading.at + lag < at && !reading.is_useless());
        own.into_iter().skip(old.unwrap_or(0))
    }

    /// Whether somebody was let in so recently that another replica, or the same one if the answer was lost, may not
    /// know: what it then writes as new replaces what is there.
    pub(crate) fn was_just_let_in(&self, binding: &Key, subject: &str, at: Duration) -> bool {
        let since = self.let_in.get(&(binding.clone(), subject.to_owned()));
        since.is_some_and(|since| *since + Duration::from_secs(20) > at)
    }

    /// Whether the tenant guard was in force a short while ago.
    pub(crate) fn was_guarded(&self, at: Duration) -> bool {
        let so_far = self.guards.iter().filter(|(since, _)| *since <= at);
        let mut until = at;
        for (since, guarded) in so_far.rev() {
            if *guarded {
                return until + self.lag >= at;
            }
            until = *since;
        }
        false
    }

    /// Whether some reading so far lets a cap be as high.
    pub(crate) fn allows(&self, namespace: &str, key: &str, cap: u128, at: Duration) -> bool {
        let so_far = self.readings.iter().zip(&self.caps).filter(|(reading, _)| reading.at <= at);
        let mut caps = so_far.filter_map(|(_, caps)| caps.get(namespace));
        caps.any(|caps| caps.get(key).is_none_or(|most| cap <= *most))
    }
}
