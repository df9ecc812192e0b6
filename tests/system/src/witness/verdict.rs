//! What a controller may do, in terms of what its source has said: written anew, sharing nothing with the library.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use spur_sdk_quota::cluster::{Key, Kind};
use spur_sdk_quota::{Policy, names};

use super::{Said, Seen, Version, caps, subjects, text};

/// Everything that was done and may not be.
pub(super) fn of(seen: &Seen, policy: &Policy) -> Vec<String> {
    let mut history: Vec<&Version> = seen.history.iter().collect();
    history.sort_by_key(|version| version.at);
    let mut judge = Judge { seen, policy, state: BTreeMap::new(), hand: BTreeSet::new(), wrong: Vec::new() };
    for version in history {
        judge.see(version);
    }
    judge.wrong
}

struct Judge<'a> {
    seen: &'a Seen,
    policy: &'a Policy,
    state: BTreeMap<Key, &'a Value>,
    /// Quotas whose caps were last set, or taken away, by hand.
    hand: BTreeSet<Key>,
    wrong: Vec<String>,
}

impl<'a> Judge<'a> {
    fn see(&mut self, version: &'a Version) {
        let by_hand = match &version.object {
            Some(_) => self.seen.by_hand.contains(&version.at),
            None => {
                self.seen.deleted_by_hand.contains(&version.uid)
                    || self.is_going(version.key.namespace.as_deref())
            }
        };
        if !version.first {
            let key = &version.key;
            match key.kind {
                Kind::Namespace if !by_hand => self.namespace(version),
                Kind::ResourceQuota => self.quota(version, by_hand),
                Kind::RoleBinding if !by_hand => self.binding(version),
                Kind::ServiceAccount if !by_hand => self.user(version),
                Kind::LimitRange
                | Kind::ClusterRole
                | Kind::ValidatingAdmissionPolicy
                | Kind::ValidatingAdmissionPolicyBinding
                    if !by_hand && version.object.is_none() =>
                {
                    self.say(version, "was deleted");
                }
                _ => {}
            }
        }
        match &version.object {
            Some(object) => drop(self.state.insert(version.key.clone(), object)),
            None => drop(self.state.remove(&version.key)),
        }
    }

    fn say(&mut self, version: &Version, what: &str) {
        self.wrong.push(format!("version {} of {}: {what}", version.at, version.key));
    }

    /// Whether a namespace is being deleted or gone, and with it what is in it. That is judged at the namespace.
    fn is_going(&self, namespace: Option<&str>) -> bool {
        let Some(namespace) = namespace else { return false };
        let live = self.state.get(&Key::cluster(Kind::Namespace, namespace));
        live.is_none_or(|live| live.pointer("/metadata/deletionTimestamp").is_some())
    }

    /// What the source has said before a version.
    fn said(&self, version: u64) -> impl Iterator<Item = &'a Said> {
        self.seen.said.iter().filter(move |(at, _)| *at < version).map(|(_, said)| said)
    }

    fn namespace(&mut self, version: &Version) {
        let key = &version.key;
        if !names::NAMESPACES.is_mapped(&key.name) && key.name != names::USERS_NAMESPACE {
            return;
        }
        let Some(object) = &version.object else { return };
        let before = self.state.get(key).copied();
        let going = |live: &Value| live.pointer("/metadata/deletionTimestamp").is_some();
        let by_hand = self.seen.deleted_by_hand.contains(&version.uid);
        if going(object) && !before.is_some_and(going) && !by_hand {
            self.say(version, "was deleted");
        }
        let label = format!("/metadata/labels/{}~1{}", self.policy.prefix, names::STATE);
        let retired = |live: &Value| text(live, &label) == names::RETIRED;
        let now = retired(object) && !before.is_some_and(retired);
        if now && self.said(version.at).all(|said| said.named.contains(&key.name)) {
            self.say(version, "was retired, and the source has always named its account");
        }
    }

    fn quota(&mut self, version: &Version, by_hand: bool) {
        let key = &version.key;
        if ![names::QUOTA, names::PRIORITY_QUOTA].contains(&key.name.as_str()) {
            return;
        }
        let before = self.state.get(key).map(|live| caps(live));
        let Some(object) = &version.object else {
            if by_hand {
                self.hand.insert(key.clone());
            } else if !self.is_closed(key.namespace.as_deref()) {
                self.say(version, "was deleted, and nothing closes the namespace");
            }
            return;
        };
        let now = caps(object);
        if before.as_ref() == Some(&now) {
            return;
        }
        if by_hand {
            self.hand.insert(key.clone());
            return;
        }
        self.hand.remove(key);
        let before = before.unwrap_or_default();
        for (cap, amount) in &now {
            let most = self.said(version.at).filter_map(|said| said.caps.get(key)?.get(cap));
            let most = most.filter_map(|most| amount_of(most)).max_by(f64::total_cmp);
            let is = amount_of(amount).unwrap_or(f64::INFINITY);
            if before.get(cap) != Some(amount) && is > most.unwrap_or(0.0) {
                self.say(
                    version,
                    &format!("{cap} was opened to {amount}; the source has said at most {most:?}"),
                );
            }
        }
        let always = |cap: &&String| {
            let mut said = self.said(version.at).filter_map(|said| said.caps.get(key)).peekable();
            said.peek().is_some() && said.all(|caps| caps.contains_key(*cap))
        };
        let lost: Vec<_> =
            before.keys().filter(|cap| !now.contains_key(*cap)).filter(always).cloned().collect();
        for cap in lost {
            self.say(version, &format!("the cap on {cap} was taken away"));
        }
    }

    /// Whether the quota that closes a namespace binds.
    fn is_closed(&self, namespace: Option<&str>) -> bool {
        let closing =
            Key::namespaced(Kind::ResourceQuota, namespace.unwrap_or_default(), names::CLOSING_QUOTA);
        self.state.get(&closing).is_some_and(|live| binds(live))
    }

    fn binding(&mut self, version: &Version) {
        let key = &version.key;
        if ![names::MEMBERS, names::COORDINATORS].contains(&key.name.as_str()) {
            return;
        }
        let before = self.state.get(key).map(|live| subjects(live)).unwrap_or_default();
        let now = version.object.as_ref().map(subjects).unwrap_or_default();
        let named =
            |said: &Said, who: &String| said.subjects.get(key).is_some_and(|named| named.contains(who));
        for lost in before.difference(&now) {
            if self.said(version.at).all(|said| named(said, lost)) {
                self.say(version, &format!("{lost} lost access, and the source has always named them"));
            }
        }
        for new in now.difference(&before) {
            if !self.said(version.at).any(|said| named(said, new)) {
                self.say(version, &format!("{new} was let in, and the source has never named them"));
            }
        }
        if now.is_subset(&before) {
            return;
        }
        for name in [names::QUOTA, names::PRIORITY_QUOTA] {
            let quota =
                Key::namespaced(Kind::ResourceQuota, key.namespace.as_deref().unwrap_or_default(), name);
            let wanted = self.said(version.at).last().is_some_and(|said| said.caps.contains_key(&quota));
            let bound = self.state.get(&quota).is_some_and(|live| binds(live));
            // What a hand has done since the controller looked is not the controller's.
            if wanted && !bound && !self.hand.contains(&quota) && !self.is_closed(key.namespace.as_deref()) {
                self.say(version, &format!("somebody was let in while {name} did not bind"));
            }
        }
    }

    fn user(&mut self, version: &Version) {
        let key = &version.key;
        let users = key.namespace.as_deref() == Some(names::USERS_NAMESPACE);
        if version.object.is_some() || !users || !names::SERVICE_ACCOUNTS.is_mapped(&key.name) {
            return;
        }
        if self.said(version.at).all(|said| said.users.contains(&key.name)) {
            self.say(version, "was deleted, and the source has always known the user");
        }
    }
}

/// Whether a quota's status holds every cap of its spec.
fn binds(quota: &Value) -> bool {
    let status = quota.pointer("/status/hard").and_then(Value::as_object);
    caps(quota).iter().all(|(key, cap)| {
        let held = status.and_then(|status| status.get(key)).and_then(Value::as_str);
        held.is_some_and(|held| amount_of(held) == amount_of(cap))
    })
}

/// A quantity as a number, near enough to compare.
fn amount_of(quantity: &str) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    for (suffix, factor) in SUFFIXES {
        if let Some(digits) = quantity.strip_suffix(suffix) {
            return digits.parse::<f64>().ok().map(|number| number * factor);
        }
    }
    quantity.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NAMESPACE: &str = "spur-acct-a";

    /// A source that has always said: an account with four CPUs and one member.
    fn seen() -> Seen {
        let quota = Key::namespaced(Kind::ResourceQuota, NAMESPACE, names::QUOTA);
        let members = Key::namespaced(Kind::RoleBinding, NAMESPACE, names::MEMBERS);
        let said = Said {
            named: BTreeSet::from([NAMESPACE.to_owned()]),
            users: BTreeSet::from(["spur-user-u".to_owned()]),
            caps: BTreeMap::from([(quota, BTreeMap::from([("requests.cpu".to_owned(), "4".to_owned())]))]),
            subjects: BTreeMap::from([(members, BTreeSet::from(["spur-user-u".to_owned()]))]),
        };
        Seen { said: vec![(0, said)], ..Seen::default() }
    }

    impl Seen {
        fn then(mut self, kind: Kind, object: &Value) -> Self {
            let version = u64::try_from(self.history.len()).unwrap() + 1;
            let mut object = object.clone();
            object["metadata"]["resourceVersion"] = version.to_string().into();
            object["metadata"]["uid"] = "uid".into();
            self.take(kind, object, false, false);
            self
        }

        fn wrong(&self) -> Vec<String> {
            of(self, &Policy::default())
        }
    }

    fn namespace() -> Value {
        json!({ "metadata": { "name": NAMESPACE } })
    }

    fn quota(hard: &str, status: &str) -> Value {
        json!({
            "metadata": { "name": names::QUOTA, "namespace": NAMESPACE },
            "spec": { "hard": { "requests.cpu": hard } },
            "status": { "hard": { "requests.cpu": status } },
        })
    }

    fn members(users: &[&str]) -> Value {
        let subject =
            |name| json!({ "kind": "ServiceAccount", "namespace": names::USERS_NAMESPACE, "name": name });
        json!({
            "metadata": { "name": names::MEMBERS, "namespace": NAMESPACE },
            "subjects": users.iter().map(subject).collect::<Vec<_>>(),
        })
    }

    #[track_caller]
    fn assert_wrong(seen: &Seen, what: &str) {
        let wrong = seen.wrong();
        assert!(wrong.len() == 1 && wrong[0].contains(what), "{wrong:#?}");
    }

    #[test]
    fn what_the_source_has_said_is_right() {
        let seen = seen()
            .then(Kind::Namespace, &namespace())
            .then(Kind::ResourceQuota, &quota("4", ""))
            .then(Kind::ResourceQuota, &quota("4", "4000m"))
            .then(Kind::RoleBinding, &members(&["spur-user-u"]))
            .then(Kind::ResourceQuota, &quota("2", "4"));
        assert!(seen.wrong().is_empty(), "{:#?}", seen.wrong());
    }

    #[test]
    fn a_quota_above_what_was_said_is_wrong_unless_a_hand_has_set_it() {
        let mut opened =
            seen().then(Kind::Namespace, &namespace()).then(Kind::ResourceQuota, &quota("5", ""));
        assert_wrong(&opened, "requests.cpu was opened to 5");
        opened.by_hand.insert(2);
        assert!(opened.wrong().is_empty());
    }

    #[test]
    fn somebody_who_is_let_in_before_the_quota_binds_is_wrong() {
        let bound = |status| {
            seen()
                .then(Kind::Namespace, &namespace())
                .then(Kind::ResourceQuota, &quota("4", status))
                .then(Kind::RoleBinding, &members(&["spur-user-u"]))
        };
        assert!(bound("4").wrong().is_empty());
        assert_wrong(&bound("2"), "let in while spur-quota did not bind");
    }

    #[test]
    fn taking_away_what_is_named_is_wrong() {
        let mut retired = namespace();
        retired["metadata"]["labels"] = json!({ "spur.amd.com/state": "retired" });
        let both = seen().then(Kind::Namespace, &namespace()).then(Kind::Namespace, &retired);
        assert_wrong(&both, "was retired");
        let mut going = namespace();
        going["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z".into();
        let both = seen().then(Kind::Namespace, &namespace()).then(Kind::Namespace, &going);
        assert_wrong(&both, "was deleted");
        let out = seen()
            .then(Kind::Namespace, &namespace())
            .then(Kind::ResourceQuota, &quota("4", "4"))
            .then(Kind::RoleBinding, &members(&["spur-user-u"]))
            .then(Kind::RoleBinding, &members(&[]));
        assert_wrong(&out, "spur-user-u lost access");
    }

    #[test]
    fn a_stranger_who_is_let_in_is_wrong() {
        let stranger = seen()
            .then(Kind::Namespace, &namespace())
            .then(Kind::ResourceQuota, &quota("4", "4"))
            .then(Kind::RoleBinding, &members(&["spur-user-stranger"]));
        assert_wrong(&stranger, "has never named them");
    }
}
