//! What always holds, whatever happens: judged over the record of a run.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use spur_sdk_quota::cluster::{Key, Kind};
use spur_sdk_quota::names;
use spur_sdk_quota::testing::Record;

use crate::facts::{
    Facts, caps, is_ours, is_replica, is_retired, label, retired_at, retires, retires_anew, subjects, text,
};
use crate::world::World;

/// How long a Lease holds.
const LEASE: Duration = Duration::from_secs(15);

/// How long it may take from the look into a namespace to its deletion.
const LOOK: Duration = Duration::from_mins(1);

/// A rule, and whether a change by a replica keeps it.
type Rule = (&'static str, fn(&World, &Facts, &Record) -> bool);

/// The first thing that should never have happened.
pub(crate) fn violation(world: &World) -> Option<String> {
    let mut facts = Facts::new(world);
    for record in world.cluster.audit() {
        if is_replica(&record.who) {
            let rules: [Rule; 11] = [
                ("I1: nobody is let in before the quota binds", lets_in_only_behind_a_quota),
                ("I2: only a full reading takes an account away", retires_only_what_is_gone),
                ("I2: only a full reading takes a member out", takes_out_only_who_is_gone),
                ("I3: no namespace is deleted without a grace period", deletes_only_after_grace),
                ("I4: no cap is above what a source allowed", caps_are_allowed),
                ("I5: no more vanish at once than may", few_are_retired),
                ("I6: who writes leads", leads),
                ("I7: what is not ours stays as it is", touches_only_ours),
                (
                    "I8: a user's ServiceAccount stays while any account holds the user",
                    removes_only_users_gone,
                ),
                ("I11: nobody is let in before the tenant guard is in force", lets_in_only_behind_the_guard),
                ("I9: what is paused stays as it is", honours_pause),
            ];
            for (rule, holds) in rules {
                if !holds(world, &facts, &record) {
                    return Some(format!("{rule}\n{record}"));
                }
            }
        }
        facts.take(&record);
    }
    taken_early(&facts)
}

/// A Lease that was taken from another who had just written it.
fn taken_early(facts: &Facts) -> Option<String> {
    facts.leases.windows(2).find_map(|pair| {
        let [before, after] = pair else { return None };
        let changes = !before.holder.is_empty() && !after.holder.is_empty() && before.holder != after.holder;
        let early = changes && after.at < before.at + LEASE;
        early.then(|| format!("I10: a Lease is taken only when it has run out\n{before:?}\n{after:?}"))
    })
}

fn namespace_of(record: &Record) -> &str {
    match &record.key.namespace {
        Some(namespace) => namespace,
        None if record.key.kind == Kind::Namespace => &record.key.name,
        None => "",
    }
}

fn is_members(key: &Key) -> bool {
    key.kind == Kind::RoleBinding && key.name == names::MEMBERS
}

/// Whether a change of the members' binding lets anybody in.
fn lets_in(record: &Record) -> bool {
    let (before, after) = (subjects(record.before.as_deref()), subjects(record.after.as_deref()));
    is_members(&record.key) && !after.is_subset(&before)
}

fn lets_in_only_behind_the_guard(_: &World, facts: &Facts, record: &Record) -> bool {
    !lets_in(record) || facts.was_guarded(record.at)
}

fn lets_in_only_behind_a_quota(_: &World, facts: &Facts, record: &Record) -> bool {
    if !lets_in(record) {
        return true;
    }
    let quota = Key::namespaced(Kind::ResourceQuota, namespace_of(record), names::QUOTA);
    match facts.unbound.get(&quota) {
        // Somebody else has just deleted or changed it, and the replica cannot know yet.
        Some((since, hands)) => !hands.contains(&record.who) && *since + facts.lag >= record.at,
        None => facts.objects.contains_key(&quota),
    }
}

fn retires_only_what_is_gone(_: &World, facts: &Facts, record: &Record) -> bool {
    let takes_away = match record.key.kind {
        Kind::Namespace => retires(record),
        Kind::RoleBinding => {
            // One that binds another role is made anew. A namespace that says it is retired is taken at its word.
            let role = record.before.as_deref().map(|before| text(before, "/roleRef/name").to_owned());
            let namespace = facts.objects.get(&Key::cluster(Kind::Namespace, namespace_of(record)));
            let said = namespace.is_some_and(|namespace| is_retired(namespace));
            let ours = is_members(&record.key) && role.as_deref() == Some(names::TENANT_ROLE);
            ours && record.after.is_none() && !said
        }
        _ => false,
    };
    !takes_away
        || facts.known(&record.who, record.at).any(|reading| reading.lacks_account(namespace_of(record)))
}

fn takes_out_only_who_is_gone(_: &World, facts: &Facts, record: &Record) -> bool {
    if !is_members(&record.key) || record.after.is_none() {
        return true;
    }
    let (before, after) = (subjects(record.before.as_deref()), subjects(record.after.as_deref()));
    before.difference(&after).all(|text_of| {
        let subject: Value = serde_json::from_str(text_of).unwrap();
        let (namespace, name) = (text(&subject, "/namespace"), text(&subject, "/name"));
        let user = namespace == names::USERS_NAMESPACE && name.starts_with("spur-user-");
        let gone = |reading: &crate::site::Reading| reading.lacks_member(Some(namespace_of(record)), name);
        let known = || facts.known(&record.who, record.at).any(gone);
        !user || known() || facts.was_just_let_in(&record.key, text_of, record.at)
    })
}

fn deletes_only_after_grace(world: &World, facts: &Facts, record: &Record) -> bool {
    let going = |value: &Option<std::sync::Arc<Value>>| {
        value.as_deref().is_some_and(|value| value.pointer("/metadata/deletionTimestamp").is_some())
    };
    if record.key.kind != Kind::Namespace
        || (record.after.is_some() && !going(&record.after))
        || going(&record.before)
    {
        return true;
    }
    let Some(grace) = world.grace else { return false };
    let Some(before) = record.before.as_deref() else { return false };
    let since = retired_at(before).unwrap_or(SystemTime::UNIX_EPOCH);
    let age = world.clock.at(record.at).duration_since(since).unwrap_or_default();
    // Somebody may make a claim between the look and the deletion.
    let claims = facts.claims.get(&record.key.name).is_some_and(|since| *since + LOOK < record.at);
    let gone = facts.known(&record.who, record.at).any(|reading| reading.lacks_account(&record.key.name));
    is_retired(before) && age + Duration::from_secs(1) >= grace && gone && !claims
}

fn caps_are_allowed(_: &World, facts: &Facts, record: &Record) -> bool {
    let (Kind::ResourceQuota, names::QUOTA, Some(after)) =
        (record.key.kind, record.key.name.as_str(), record.after.as_deref())
    else {
        return true;
    };
    let namespace = namespace_of(record);
    let (before, after) = (record.before.as_deref().map(caps).unwrap_or_default(), caps(after));
    let closed = after.get("pods") == Some(&0);
    let raised = after.iter().filter(|(key, cap)| before.get(*key).is_none_or(|before| before < cap));
    let opened = before.keys().filter(|key| !after.contains_key(*key) && !closed);
    raised.clone().all(|(key, cap)| {
        facts.allows(namespace, key, *cap, record.at) || (closed && key == "resourcequotas")
    }) && opened.clone().all(|key| facts.allows(namespace, key, u128::MAX, record.at))
}

fn few_are_retired(world: &World, facts: &Facts, record: &Record) -> bool {
    if !retires_anew(record) {
        return true;
    }
    let now = world.clock.at(record.at);
    let age = |since: &SystemTime| now.duration_since(*since).unwrap_or_default();
    let gone = facts.retired.values().filter(|since| age(since) < Duration::from_hours(24)).count() + 1;
    let accounts = facts.most_accounts(record.at);
    let many = gone > 10 || (gone >= 3 && gone * 5 > accounts);
    !many || facts.was_confirmed(record.at)
}

fn leads(_: &World, facts: &Facts, record: &Record) -> bool {
    let written = facts.leases.iter().filter(|lease| lease.at <= record.at);
    let holds = written.clone().next_back().is_some_and(|lease| lease.holder == *record.who);
    let own = written.rev().find(|lease| lease.who == record.who && lease.holder == *record.who);
    holds || own.is_some_and(|own| own.at + LEASE > record.at)
}

/// The labels or annotations that are none of ours.
fn foreign(value: &Value, part: &str) -> Map<String, Value> {
    let all = value.pointer(part).and_then(Value::as_object).cloned().unwrap_or_default();
    let ours = ["spur.amd.com/", "pod-security.kubernetes.io/", names::MANAGED_BY];
    all.into_iter().filter(|(key, _)| !ours.iter().any(|ours| key.starts_with(ours))).collect()
}

fn touches_only_ours(_: &World, facts: &Facts, record: &Record) -> bool {
    let key = &record.key;
    let account = |name: &str| name.starts_with("spur-acct-");
    let users = names::USERS_NAMESPACE;
    let in_account = key.namespace.as_deref().is_some_and(account);
    let named = match key.kind {
        Kind::Namespace => account(&key.name) || key.name == users,
        Kind::ResourceQuota => {
            in_account
                && [names::QUOTA, names::PRIORITY_QUOTA, names::CLOSING_QUOTA].contains(&key.name.as_str())
        }
        Kind::LimitRange => in_account && key.name == names::DEFAULTS,
        Kind::ServiceAccount if in_account => key.name == "default",
        Kind::ServiceAccount => key.namespace.as_deref() == Some(users) && key.name.starts_with("spur-user-"),
        Kind::RoleBinding => in_account && [names::MEMBERS, names::COORDINATORS].contains(&key.name.as_str()),
        Kind::ClusterRole => [names::TENANT_ROLE, names::COORDINATOR_ROLE].contains(&key.name.as_str()),
        Kind::ValidatingAdmissionPolicy | Kind::ValidatingAdmissionPolicyBinding => {
            key.name.starts_with(names::GUARD)
        }
        _ => false,
    };
    let ours = match (&key.namespace, &record.before) {
        (Some(namespace), _) => {
            facts.objects.get(&Key::cluster(Kind::Namespace, namespace)).is_some_and(|value| is_ours(value))
        }
        (None, before) => before.as_deref().is_none_or(is_ours),
    };
    let kept = match (record.before.as_deref(), record.after.as_deref()) {
        (Some(before), Some(after)) => ["/metadata/labels", "/metadata/annotations"]
            .iter()
            .all(|part| foreign(before, part) == foreign(after, part)),
        _ => true,
    };
    let labelled =
        record.after.as_deref().is_none_or(|after| label(after, names::MANAGED_BY) == names::MANAGER);
    // A merge patch takes away and leaves the label to the apply that follows.
    let labelled = labelled || record.verb == spur_sdk_quota::testing::Verb::Merge || record.after.is_none();
    named && ours && kept && labelled
}

fn removes_only_users_gone(_: &World, facts: &Facts, record: &Record) -> bool {
    let key = &record.key;
    let user = key.kind == Kind::ServiceAccount && key.namespace.as_deref() == Some(names::USERS_NAMESPACE);
    if !user || record.after.is_some() {
        return true;
    }
    facts.known(&record.who, record.at).any(|reading| reading.lacks_member(None, &key.name))
}

fn honours_pause(_: &World, facts: &Facts, record: &Record) -> bool {
    let since = facts.paused.get(namespace_of(record));
    since.is_none_or(|since| *since + facts.lag >= record.at)
}

/// The first change by a replica after a moment.
pub(crate) fn write_since(world: &World, moment: Duration) -> Option<Record> {
    world.cluster.audit().into_iter().find(|record| record.at > moment && is_replica(&record.who))
}
