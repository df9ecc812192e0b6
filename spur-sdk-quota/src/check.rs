//! Judges a projection by its objects alone. It shares no code with what made them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::core::v1::{LimitRange, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use spur_sdk::{AccountName, is_dns_label};

use crate::k8s::Object;
use crate::project::{Dimension, Projection};
use crate::quantity::parse_quantity;

/// The most that annotations of one object hold together, in bytes
/// (`k8s.io/apimachinery/pkg/api/validation`, `TotalAnnotationSizeLimitB`).
const MAX_ANNOTATIONS: usize = 256 << 10;

/// The largest object that etcd takes by default, in bytes (`--max-request-bytes`), with room for what the
/// API server adds.
const MAX_OBJECT: usize = (1536 << 10) - (64 << 10);

/// Kubernetes keeps quantities in an `int64`; in billionths, as the parser has them.
const MAX_QUANTITY: i128 = (i64::MAX as i128) * 1_000_000_000;

/// Something in a projection that must not be written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Finding {
    /// The account that it stops; `None` stops everything.
    pub account: Option<AccountName>,
    /// The object.
    pub object: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(account) = &self.account {
            write!(f, "account {account}: ")?;
        }
        write!(f, "{}: {}", self.object, self.message)
    }
}

/// Judges a projection: names legal and unique, labels there, quantities in range, children at most their
/// parents, defaults at most the quota, sizes that the API server takes. Empty: nothing to object to.
#[must_use]
pub fn check(projection: &Projection) -> Vec<Finding> {
    let mut judge = Judge { findings: Vec::new(), seen: BTreeSet::new() };
    for object in &projection.shared {
        judge.object(None, object);
    }
    let mut hard: BTreeMap<&AccountName, BTreeMap<&str, i128>> = BTreeMap::new();
    for account in &projection.accounts {
        let name = Some(&account.account);
        for object in &account.objects {
            judge.object(name, object);
            match object {
                Object::Namespace(_) if object.name() != account.namespace => {
                    judge.say(name, object, "is not the account's namespace".to_owned());
                }
                Object::Namespace(_) => {}
                _ if object.namespace() != Some(&account.namespace) => {
                    judge.say(name, object, "stands outside the account's namespace".to_owned());
                }
                _ => {}
            }
        }
        let quotas = account.objects.iter().filter_map(|object| match object {
            Object::ResourceQuota(quota)
                if quota.spec.as_ref().is_some_and(|s| s.scope_selector.is_none()) =>
            {
                Some((object, quota))
            }
            _ => None,
        });
        let quotas: Vec<_> = quotas.collect();
        if quotas.len() != 1 {
            judge.findings.push(Finding {
                account: name.cloned(),
                object: format!("Namespace {}", account.namespace),
                message: format!("has {} ResourceQuotas for all pods, not one", quotas.len()),
            });
        }
        let mut amounts = BTreeMap::new();
        for (object, quota) in quotas {
            amounts.extend(judge.quota(name, object, quota));
        }
        for object in &account.objects {
            if let Object::LimitRange(range) = object {
                judge.limit_range(name, object, range, &amounts);
            }
        }
        hard.insert(&account.account, amounts);
    }
    let caps: BTreeMap<&AccountName, BTreeSet<String>> = projection
        .accounts
        .iter()
        .map(|account| (&account.account, account.caps.keys().map(Dimension::quota_key).collect()))
        .collect();
    for account in &projection.accounts {
        let Some(parent) = &account.parent else { continue };
        let (Some(own), Some(above), Some(caps)) =
            (hard.get(&account.account), hard.get(parent), caps.get(parent))
        else {
            continue;
        };
        // A zero that stands for no cap, where policy closes what is not set, does not bind what is below.
        let binds = |key: &str, limit: i128| is_allocation(key) && (limit > 0 || caps.contains(key));
        for (key, limit) in above.iter().filter(|(key, limit)| binds(key, **limit)) {
            if own.get(key).is_none_or(|own| own > limit) {
                judge.findings.push(Finding {
                    account: Some(account.account.clone()),
                    object: format!("ResourceQuota of {}", account.namespace),
                    message: format!("{key} exceeds the parent's"),
                });
            }
        }
    }
    judge.findings.sort();
    judge.findings
}

/// Whether a key is an allocation, which narrows from parent to child, rather than a policy's object count.
fn is_allocation(key: &str) -> bool {
    key.strip_prefix("requests.").is_some_and(|resource| !resource.ends_with("storage"))
}

struct Judge<'a> {
    findings: Vec<Finding>,
    seen: BTreeSet<(&'static str, Option<&'a str>, &'a str)>,
}

impl<'a> Judge<'a> {
    fn say(&mut self, account: Option<&AccountName>, object: &Object, message: String) {
        self.findings.push(Finding { account: account.cloned(), object: object.title(), message });
    }

    fn object(&mut self, account: Option<&AccountName>, object: &'a Object) {
        if !self.seen.insert((object.kind(), object.namespace(), object.name())) {
            self.say(account, object, "stands there twice".to_owned());
        }
        if !is_dns_label(object.name()) || object.namespace().is_some_and(|name| !is_dns_label(name)) {
            self.say(account, object, "its name is no DNS label".to_owned());
        }
        let metadata = object.metadata();
        let labels = metadata.labels.iter().flatten().collect::<BTreeMap<_, _>>();
        let managed = labels.iter().any(|(k, v)| *k == "app.kubernetes.io/managed-by" && *v == "spur-quota");
        if !managed {
            self.say(account, object, "lacks the label that makes it ours".to_owned());
        }
        if account.is_some() && !labels.keys().any(|key| key.ends_with("/account")) {
            self.say(account, object, "lacks the label of its account".to_owned());
        }
        for (key, value) in labels {
            if value.len() > 63 {
                self.say(account, object, format!("the label {key} has more than 63 characters"));
            }
        }
        let annotations = metadata.annotations.iter().flatten();
        if annotations.map(|(k, v)| k.len().saturating_add(v.len())).sum::<usize>() > MAX_ANNOTATIONS {
            self.say(
                account,
                object,
                format!("annotations exceed {MAX_ANNOTATIONS} bytes; shorten the description"),
            );
        }
        // Only objects with a list of unknown length can be too large, and writing all of them out twice is slow.
        if let Object::RoleBinding(binding) = object
            && binding.subjects.as_ref().is_some_and(|subjects| subjects.len() > 1000)
            && serde_json::to_string(object).map_or(usize::MAX, |text| text.len()) > MAX_OBJECT
        {
            self.say(account, object, format!("is larger than {MAX_OBJECT} bytes; split the account"));
        }
    }

    fn quota(
        &mut self,
        account: Option<&AccountName>,
        object: &Object,
        quota: &'a ResourceQuota,
    ) -> BTreeMap<&'a str, i128> {
        let mut amounts = BTreeMap::new();
        for (key, Quantity(text)) in quota.spec.iter().flat_map(|spec| spec.hard.iter().flatten()) {
            match parse_quantity(text) {
                Some(amount) if (0..=MAX_QUANTITY).contains(&amount) => {
                    amounts.insert(key.as_str(), amount);
                }
                _ => {
                    self.say(account, object, format!("{key} = {text} is no quantity that Kubernetes takes"));
                }
            }
        }
        amounts
    }

    fn limit_range(
        &mut self,
        account: Option<&AccountName>,
        object: &Object,
        range: &LimitRange,
        quota: &BTreeMap<&str, i128>,
    ) {
        for item in range.spec.iter().flat_map(|spec| &spec.limits) {
            let amount = |map: &Option<BTreeMap<String, Quantity>>, key: &str| {
                map.as_ref().and_then(|map| map.get(key)).and_then(|quantity| parse_quantity(&quantity.0))
            };
            if item.default.is_some() || item.max.is_some() {
                self.say(
                    account,
                    object,
                    "sets a default or largest limit, which refuses pods that ask for more".to_owned(),
                );
            }
            for key in item.default_request.iter().flatten().map(|(key, _)| key) {
                let request = amount(&item.default_request, key);
                if request.is_none() || request < amount(&item.min, key) {
                    self.say(account, object, format!("the default request of {key} is below its minimum"));
                }
                let capped = quota.get(format!("requests.{key}").as_str());
                if capped.is_some_and(|capped| request > Some(*capped)) {
                    self.say(account, object, format!("the default request of {key} exceeds the quota"));
                }
            }
            for key in item.min.iter().flatten().map(|(key, _)| key) {
                let capped = quota.get(format!("requests.{key}").as_str());
                if capped.is_some_and(|capped| amount(&item.min, key) > Some(*capped)) {
                    self.say(account, object, format!("the minimum of {key} exceeds the quota"));
                }
            }
        }
    }
}
