//! How a live object differs from the wanted one, within what is ours of it.

use serde_json::{Map, Value, json};

use super::Kind;
use super::plan::Change;
use crate::project::names;
use crate::quantity::parse_quantity;

/// What has to be done to an object.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Difference {
    /// Fields of ours with another value, or without one.
    pub(super) changed: Vec<Change>,
    /// Fields that do not belong there, as the merge patch that removes them.
    pub(super) foreign: Map<String, Value>,
    /// Their paths.
    pub(super) foreign_paths: Vec<String>,
}

/// Annotations that we set; one that is no longer wanted is taken away.
pub(super) const ANNOTATIONS: [&str; 6] =
    ["account-name", "description", "parent", "organization", "user-name", names::RETIRED_AT];

/// Maps that server-side apply replaces whole (`x-kubernetes-map-type: atomic`): what is foreign in them
/// goes with the change.
const ATOMIC: [&str; 3] = ["scopeSelector", "namespaceSelector", "objectSelector"];

/// Compares within what is ours: our labels and annotations, and of each kind the part that decides.
pub(super) fn difference(kind: Kind, prefix: &str, wanted: &Value, live: &Value) -> Difference {
    let mut difference = Difference::default();
    metadata(kind, prefix, wanted, live, &mut difference);
    let owned: &[&str] = match kind {
        Kind::Namespace | Kind::PriorityClass | Kind::Pod | Kind::PersistentVolumeClaim => &[],
        Kind::ResourceQuota
        | Kind::LimitRange
        | Kind::ValidatingAdmissionPolicy
        | Kind::ValidatingAdmissionPolicyBinding => &["spec"],
        Kind::ServiceAccount => &["automountServiceAccountToken"],
        Kind::ClusterRole => &["rules", "aggregationRule"],
        Kind::RoleBinding => &["subjects"],
    };
    for key in owned {
        let patch = field(key, key, wanted.get(key), live.get(key), &mut difference);
        if let Some(patch) = patch {
            difference.foreign.insert((*key).to_owned(), patch);
        }
    }
    difference
}

fn metadata(kind: Kind, prefix: &str, wanted: &Value, live: &Value, difference: &mut Difference) {
    let mut patch = Map::new();
    for part in ["labels", "annotations"] {
        let get = |object: &Value| object.pointer(&format!("/metadata/{part}")).cloned().unwrap_or_default();
        let (wanted, live) = (get(wanted), get(live));
        let empty = Map::new();
        let wanted = wanted.as_object().unwrap_or(&empty);
        let live = live.as_object().unwrap_or(&empty);
        for (key, value) in wanted {
            compare(&format!("metadata.{part}.{key}"), Some(value), live.get(key), difference);
        }
        let behind = |key: &str| {
            let name = key.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/'));
            name.map(str::to_owned)
        };
        let ours = |key: &str| match part {
            "labels" => {
                kind == Kind::Namespace
                    && (key.starts_with(names::POD_SECURITY) || behind(key).as_deref() == Some(names::STATE))
            }
            _ => behind(key).is_some_and(|name| ANNOTATIONS.contains(&name.as_str())),
        };
        let mut removed = Map::new();
        for key in live.keys().filter(|key| !wanted.contains_key(*key) && ours(key)) {
            difference.foreign_paths.push(format!("metadata.{part}.{key}"));
            removed.insert(key.clone(), Value::Null);
        }
        if !removed.is_empty() {
            patch.insert(part.to_owned(), Value::Object(removed));
        }
    }
    if !patch.is_empty() {
        difference.foreign.insert("metadata".to_owned(), Value::Object(patch));
    }
}

/// Compares a field that is all ours; gives the merge patch that removes what is foreign in it.
fn field(
    key: &str,
    path: &str,
    wanted: Option<&Value>,
    live: Option<&Value>,
    difference: &mut Difference,
) -> Option<Value> {
    match (wanted, live) {
        (Some(Value::Object(wanted)), Some(Value::Object(live))) if !ATOMIC.contains(&key) => {
            let mut removed = Map::new();
            let mut keys: Vec<_> = wanted.keys().chain(live.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let path = format!("{path}.{key}");
                if let Some(inner) = field(key, &path, wanted.get(key), live.get(key), difference) {
                    removed.insert(key.clone(), inner);
                }
            }
            (!removed.is_empty()).then_some(Value::Object(removed))
        }
        // A set, in which server-side apply keeps what others have put beside ours, and which may not be emptied:
        // the one value that is set rather than removed. It is the same in every version, so owning it twice is
        // no harm.
        (Some(wanted), Some(live)) if key == "validationActions" && wanted != live => {
            difference.foreign_paths.push(path.to_owned());
            Some(wanted.clone())
        }
        (None, Some(live)) if !is_empty(live) => {
            difference.foreign_paths.push(path.to_owned());
            Some(Value::Null)
        }
        (None, _) => None,
        (wanted, live) => {
            compare(path, wanted, live, difference);
            None
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn compare(path: &str, wanted: Option<&Value>, live: Option<&Value>, difference: &mut Difference) {
    let same = match (wanted, live) {
        (Some(wanted), Some(live)) => equal(path, wanted, live),
        (Some(wanted), None) => is_empty(wanted),
        (None, live) => live.is_none_or(is_empty),
    };
    if !same {
        difference.changed.push(Change {
            path: path.to_owned(),
            from: live.cloned().unwrap_or_default(),
            to: wanted.cloned().unwrap_or_default(),
        });
    }
}

/// Equality with quantities as numbers, and with lists of subjects as sets.
fn equal(path: &str, wanted: &Value, live: &Value) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => {
            wanted.len() == live.len()
                && wanted.iter().all(|(key, value)| {
                    live.get(key).is_some_and(|live| equal(&format!("{path}.{key}"), value, live))
                })
        }
        (Value::Array(wanted), Value::Array(live)) if path == "subjects" => {
            let sorted = |items: &[Value]| {
                let mut items: Vec<_> = items.iter().map(Value::to_string).collect();
                items.sort();
                items
            };
            sorted(wanted) == sorted(live)
        }
        (Value::Array(wanted), Value::Array(live)) => {
            wanted.len() == live.len()
                && wanted.iter().zip(live).all(|(wanted, live)| equal(path, wanted, live))
        }
        (Value::String(wanted), Value::String(live)) => {
            wanted == live || (is_quantity(path) && same_quantity(wanted, live))
        }
        _ => wanted == live,
    }
}

/// Whether the path is one of quantities: a quota's `spec.hard`, a LimitRange's amounts.
fn is_quantity(path: &str) -> bool {
    path.starts_with("spec.hard.") || path.starts_with("spec.limits.")
}

fn same_quantity(a: &str, b: &str) -> bool {
    parse_quantity(a).is_some_and(|a| Some(a) == parse_quantity(b))
}

/// Whether a quota's status holds what its spec asks for: only then does it restrict.
pub(super) fn binds(wanted: &Value, live: &Value) -> bool {
    let hard = wanted.pointer("/spec/hard").and_then(Value::as_object);
    let status = live.pointer("/status/hard").and_then(Value::as_object);
    hard.is_some_and(|hard| {
        hard.iter().all(|(key, value)| {
            let status = status.and_then(|status| status.get(key)).and_then(Value::as_str);
            value.as_str().zip(status).is_some_and(|(wanted, status)| same_quantity(wanted, status))
        })
    })
}

/// Dimensions in which more is used than the wanted quota allows: key, used, hard.
pub(super) fn over(wanted: &Value, live: &Value) -> Vec<(String, String, String)> {
    let hard = wanted.pointer("/spec/hard").and_then(Value::as_object).into_iter().flatten();
    hard.filter_map(|(key, hard)| {
        let used = live.pointer("/status/used")?.get(key)?.as_str()?;
        let hard = hard.as_str()?;
        (parse_quantity(used)? > parse_quantity(hard)?)
            .then(|| (key.clone(), used.to_owned(), hard.to_owned()))
    })
    .collect()
}

/// The merge patch that removes what is foreign, valid only for the version that was seen. It sets nothing:
/// a value that an update sets would be co-owned for ever.
pub(super) fn removal(mut foreign: Map<String, Value>, resource_version: &str) -> Value {
    let metadata = foreign.entry("metadata").or_insert_with(|| json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("resourceVersion".to_owned(), resource_version.into());
    }
    Value::Object(foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(hard: &Value) -> Value {
        json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "hard": hard } })
    }

    #[test]
    fn another_spelling_of_a_quantity_is_no_difference() {
        let wanted = quota(&json!({ "requests.memory": "4000M", "pods": "10" }));
        let live = quota(&json!({ "requests.memory": "4G", "pods": "10" }));
        assert_eq!(difference(Kind::ResourceQuota, "p", &wanted, &live), Difference::default());
    }

    #[test]
    fn a_changed_a_missing_and_a_foreign_field_are_told_apart() {
        let wanted = quota(&json!({ "pods": "10", "services": "1" }));
        let mut live = quota(&json!({ "pods": "11", "count/jobs.batch": "0" }));
        live["spec"]["scopes"] = json!(["Terminating"]);
        let found = difference(Kind::ResourceQuota, "p", &wanted, &live);
        let changed: Vec<_> = found.changed.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(changed, ["spec.hard.pods", "spec.hard.services"]);
        assert_eq!(found.foreign_paths, ["spec.hard.count/jobs.batch", "spec.scopes"]);
        let patch = removal(found.foreign, "7");
        let expected = json!({
            "metadata": { "resourceVersion": "7" },
            "spec": { "hard": { "count/jobs.batch": null }, "scopes": null },
        });
        assert_eq!(patch, expected);
    }

    #[test]
    fn foreign_pod_security_labels_go_and_other_labels_stay() {
        let wanted =
            json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "baseline" } } });
        let live = json!({ "metadata": {
            "labels": {
                "pod-security.kubernetes.io/enforce": "privileged",
                "pod-security.kubernetes.io/enforce-version": "v1.0",
                "team": "x",
            },
            "annotations": { "p/description": "old", "p/paused": "true", "other": "y" },
        } });
        let found = difference(Kind::Namespace, "p", &wanted, &live);
        assert_eq!(found.changed.len(), 1);
        assert_eq!(
            found.foreign_paths,
            [
                "metadata.labels.pod-security.kubernetes.io/enforce-version",
                "metadata.annotations.p/description"
            ]
        );
    }

    #[test]
    fn a_quota_binds_when_its_status_holds_every_cap() {
        let wanted = quota(&json!({ "pods": "10", "requests.memory": "4000M" }));
        let with = |status: &Value| json!({ "status": { "hard": status } });
        assert!(binds(&wanted, &with(&json!({ "pods": "10", "requests.memory": "4G" }))));
        assert!(!binds(&wanted, &with(&json!({ "pods": "10" }))));
        assert!(!binds(&wanted, &with(&json!({ "pods": "9", "requests.memory": "4G" }))));
        assert!(!binds(&wanted, &json!({})));
    }
}
