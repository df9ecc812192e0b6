//! What of a model SPUR's accounting keeps a field for.

use std::collections::BTreeMap;

use spur_sdk::{Limit, TresLimits};
use spur_sdk_quota::{CountLimit, Fairshare, Limits, QosSelection, Sourced, Terms, TresLimit};

use crate::accounts::values::{NO_LIMIT, spelled};

/// What of some terms has no field, in words.
pub(super) fn unkept(
    terms: &Terms,
    counts: &[CountLimit],
    amounts: &[TresLimit],
    qos: bool,
    share: bool,
) -> Vec<String> {
    let mut found = unkept_limits(&terms.limits, counts, amounts);
    match terms.fairshare.as_ref().map(|share| share.value) {
        Some(Fairshare::Parent) => found.push("fairshare=parent".to_owned()),
        Some(Fairshare::Shares(shares)) if !share && shares != 1 => found.push(format!("fairshare={shares}")),
        _ => {}
    }
    match terms.qos.as_ref().map(|qos| &qos.value) {
        Some(QosSelection::Changed { add, remove }) => {
            let add = add.iter().map(|name| format!("+{name}"));
            let names: Vec<_> = add.chain(remove.iter().map(|name| format!("-{name}"))).collect();
            found.push(format!("qos {} (a change of the account's)", names.join(",")));
        }
        Some(QosSelection::Only(names)) if names.is_empty() => found.push("an empty list of qos".to_owned()),
        Some(QosSelection::Only(names)) if !qos => {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            found.push(format!(
                "qos={} (members without a list of their own may use every QoS)",
                names.join(",")
            ));
        }
        _ => {}
    }
    if let Some(name) = terms.default_qos.as_ref().filter(|_| !qos) {
        found.push(format!("default_qos={}", name.value));
    }
    found
}

pub(super) fn unkept_limits(limits: &Limits, counts: &[CountLimit], amounts: &[TresLimit]) -> Vec<String> {
    let counted = limits.counts.iter().filter_map(|(limit, value)| {
        let value = value.value.value()?;
        let kept = counts.contains(limit) && value < u64::from(NO_LIMIT);
        (!kept).then(|| format!("{}={value}", limit.spec().key))
    });
    let summed =
        limits.tres.iter().filter(|(limit, _)| !amounts.contains(limit)).filter_map(|(limit, set)| {
            let set = valued(set);
            (!set.is_empty()).then(|| format!("{}={}", limit.spec().key, spelled(&set)))
        });
    counted.chain(summed).collect()
}

pub(super) fn valued(amounts: &BTreeMap<spur_sdk::Tres, Sourced<Limit<u64>>>) -> TresLimits {
    let set = amounts.iter().filter(|(_, limit)| limit.value.value().is_some());
    set.map(|(tres, limit)| (tres.clone(), limit.value)).collect()
}

pub(super) fn tres(limits: &Limits, limit: TresLimit) -> TresLimits {
    limits.tres.get(&limit).map(valued).unwrap_or_default()
}

pub(super) fn count(limits: &Limits, limit: CountLimit) -> u32 {
    let value = limits.counts.get(&limit).and_then(|value| value.value.value());
    value.and_then(|value| u32::try_from(value).ok()).unwrap_or(NO_LIMIT)
}

pub(super) fn text(text: Option<&Sourced<String>>) -> String {
    text.map(|text| text.value.clone()).unwrap_or_default()
}
