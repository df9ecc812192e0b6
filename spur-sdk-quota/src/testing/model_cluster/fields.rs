//! Objects by their fields: who owns which, and how a patch changes them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::cluster::Kind;

/// The way to a field.
pub(super) type Path = Vec<String>;

/// Maps that are replaced whole (`x-kubernetes-map-type: atomic`).
const ATOMIC: [&str; 3] = ["scopeSelector", "namespaceSelector", "objectSelector"];

/// Metadata that the server keeps itself.
const SERVER: [&str; 7] =
    ["name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp", "managedFields"];

/// The fields that managers own, with their values: scalars, lists, and maps that are replaced whole.
pub(super) fn leaves(object: &Value) -> BTreeMap<Path, &Value> {
    let mut leaves = BTreeMap::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            ("apiVersion" | "kind" | "status", _) => {}
            ("metadata", Value::Object(metadata)) => {
                for (name, value) in metadata.iter().filter(|(name, _)| !SERVER.contains(&name.as_str())) {
                    collect(value, vec![key.clone(), name.clone()], &mut leaves);
                }
            }
            _ => collect(value, vec![key.clone()], &mut leaves),
        }
    }
    leaves
}

fn collect<'v>(value: &'v Value, path: Path, leaves: &mut BTreeMap<Path, &'v Value>) {
    let atomic = path.last().is_some_and(|key| ATOMIC.contains(&key.as_str()));
    match value {
        Value::Object(map) if !map.is_empty() && !atomic => {
            for (key, value) in map {
                let mut path = path.clone();
                path.push(key.clone());
                collect(value, path, leaves);
            }
        }
        _ => drop(leaves.insert(path, value)),
    }
}

/// The value at a path.
pub(super) fn at<'v>(object: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(object, |value, key| value.get(key))
}

/// Sets the value at a path; what stands in its way goes.
pub(super) fn set(object: &mut Value, path: &[String], value: Value) {
    let Some((key, rest)) = path.split_first() else {
        *object = value;
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    if let Some(map) = object.as_object_mut() {
        set(map.entry(key.clone()).or_insert(Value::Null), rest, value);
    }
}

/// Takes the value at a path away, and maps that become empty by it.
pub(super) fn remove(object: &mut Value, path: &[String]) {
    let (Some((key, rest)), Some(map)) = (path.split_first(), object.as_object_mut()) else { return };
    if rest.is_empty() {
        map.remove(key);
        return;
    }
    let Some(inner) = map.get_mut(key) else { return };
    remove(inner, rest);
    if inner.as_object().is_some_and(Map::is_empty) {
        map.remove(key);
    }
}

/// Changes a value as a JSON merge patch says (RFC 7386).
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(map) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Who owns the fields of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Owners {
    /// Those that manager `spur-quota` has applied.
    pub(super) applied: BTreeSet<Path>,
    /// Those that anybody has updated, `spur-quota` by its merge patches among them.
    pub(super) updated: BTreeSet<Path>,
}

impl Owners {
    /// Takes the wanted fields into an object, by force: those that were applied earlier and are not any more go,
    /// unless somebody else owns them too.
    pub(super) fn apply(&mut self, object: &mut Value, wanted: &BTreeMap<Path, &Value>) {
        for path in self.applied.iter().filter(|path| !wanted.contains_key(*path)) {
            if !self.updated.contains(path) {
                remove(object, path);
            }
        }
        for (path, value) in wanted {
            if at(object, path) != Some(value) {
                set(object, path, (*value).clone());
                self.updated.remove(path);
            }
        }
        self.applied = wanted.keys().cloned().collect();
    }

    /// Takes in that an update has made one object of another: what it has set is its, what it has removed is
    /// nobody's.
    pub(super) fn update(&mut self, before: &Value, after: &Value) {
        let (before, after) = (leaves(before), leaves(after));
        for path in before.keys().filter(|path| !after.contains_key(*path)) {
            self.applied.remove(path);
            self.updated.remove(path);
        }
        for (path, value) in &after {
            if before.get(path) != Some(value) {
                self.applied.remove(path);
                self.updated.insert(path.clone());
            }
        }
    }
}

/// Puts an object as the server keeps it: nothing for `null` and empty lists, amounts in their shortest spelling.
pub(super) fn tidy(kind: Kind, object: &mut Value) {
    if let Some(map) = object.as_object_mut() {
        // The items of a list come without them.
        map.remove("apiVersion");
        map.remove("kind");
    }
    drop_empty(object);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|_, value| value.as_object().is_none_or(|map| !map.is_empty()));
    }
    match kind {
        Kind::ResourceQuota => object.pointer_mut("/spec/hard").into_iter().for_each(shorten),
        Kind::LimitRange => {
            let limits = object.pointer_mut("/spec/limits").and_then(Value::as_array_mut);
            for item in limits.into_iter().flatten().filter_map(Value::as_object_mut) {
                item.values_mut().filter(|value| value.is_object()).for_each(shorten);
            }
        }
        _ => {}
    }
    if kind == Kind::RoleBinding
        && let Some(subjects) = object.get_mut("subjects").and_then(Value::as_array_mut)
    {
        for subject in subjects.iter_mut().filter_map(Value::as_object_mut) {
            subject.retain(|key, value| key != "apiGroup" || value != "");
        }
    }
}

fn drop_empty(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|items| !items.is_empty()));
        map.values_mut().for_each(drop_empty);
    }
}

fn shorten(amounts: &mut Value) {
    for amount in amounts.as_object_mut().into_iter().flat_map(Map::values_mut) {
        if let Some(short) = amount.as_str().and_then(canonical) {
            *amount = short.into();
        }
    }
}

/// A whole amount with the largest suffix of its own system of suffixes that keeps it whole, as
/// `k8s.io/apimachinery/pkg/api/resource/quantity.go` spells it. What it cannot read stays as it is.
fn canonical(text: &str) -> Option<String> {
    const DECIMAL: [&str; 8] = ["m", "", "k", "M", "G", "T", "P", "E"];
    const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let mut number: u64 = number.parse().ok()?;
    if number == 0 {
        return Some("0".to_owned());
    }
    let (system, factor) =
        if suffix.ends_with('i') { (BINARY.as_slice(), 1024) } else { (DECIMAL.as_slice(), 1000) };
    let mut suffixes = system.iter().skip_while(|known| **known != suffix);
    let mut suffix = suffixes.next()?;
    for larger in suffixes {
        if number.checked_rem(factor) != Some(0) {
            break;
        }
        number = number.checked_div(factor)?;
        suffix = larger;
    }
    Some(format!("{number}{suffix}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_spelled_as_the_server_does() {
        for (given, kept) in [
            ("4000M", "4G"),
            ("32768M", "32768M"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("2048Ki", "2Mi"),
            ("16", "16"),
            ("1000", "1k"),
            ("0", "0"),
        ] {
            assert_eq!(canonical(given).as_deref(), Some(kept), "{given}");
        }
        for text in ["1.5", "", "x", "1e3"] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }

    #[test]
    fn a_merge_patch_sets_and_removes() {
        let mut value = json!({ "a": { "b": 1, "c": 2 }, "d": [1, 2] });
        merge(&mut value, &json!({ "a": { "b": null, "e": { "f": 3 } }, "d": [3], "g": null }));
        assert_eq!(value, json!({ "a": { "c": 2, "e": { "f": 3 } }, "d": [3] }));
    }

    #[test]
    fn leaves_are_scalars_lists_and_maps_that_are_replaced_whole() {
        let object = json!({
            "kind": "ResourceQuota",
            "metadata": { "name": "n", "labels": { "a": "b" } },
            "spec": { "hard": { "pods": "1" }, "scopeSelector": { "matchExpressions": [] }, "scopes": ["x"] },
            "status": { "hard": {} },
        });
        let paths: Vec<String> = leaves(&object).keys().map(|path| path.join(".")).collect();
        assert_eq!(paths, ["metadata.labels.a", "spec.hard.pods", "spec.scopeSelector", "spec.scopes"]);
    }
}
