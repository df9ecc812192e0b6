//! JSON Schemas of our two files, made from the tables that the readers use.

use serde_json::{Map, Value, json};

use super::fields::{Kind, Table};
use crate::policy::GuardRule;
use crate::policy::file::{GUARD_KEYS, KEYS, OBJECT_KEYS};

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

fn kind(kind: Kind) -> Value {
    let limit_text = json!({ "type": "string" });
    let count = json!({ "anyOf": [{ "type": "integer", "minimum": -1 }, limit_text] });
    match kind {
        Kind::Name => json!({ "type": "string", "minLength": 1, "maxLength": 1024 }),
        Kind::Text => json!({ "type": "string" }),
        Kind::Names => json!({ "type": "array", "items": { "type": "string", "minLength": 1 } }),
        Kind::Count | Kind::Minutes | Kind::Fairshare => count,
        Kind::Tres => json!({
            "anyOf": [
                limit_text,
                { "type": "object", "additionalProperties": { "type": ["integer", "number", "string"] } },
            ],
        }),
        Kind::AdminLevel => json!({ "enum": ["none", "operator", "administrator", "admin"] }),
        Kind::Setting => json!({
            "anyOf": [
                { "type": ["string", "integer", "number", "boolean"] },
                { "type": "array", "items": { "type": ["string", "integer", "number"] } },
            ],
        }),
    }
}

fn table(table: Table) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in table.fields() {
        let mut schema = kind(field.kind);
        if let Value::Object(schema) = &mut schema {
            schema.insert("description".to_owned(), field.doc.into());
        }
        properties.insert(field.key.to_owned(), schema);
        if field.required {
            required.push(field.key);
        }
    }
    let entry = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
        "required": required,
    });
    let mut schema = if table == Table::Cluster { entry } else { json!({ "type": "array", "items": entry }) };
    if let Value::Object(schema) = &mut schema {
        schema.insert("description".to_owned(), table.doc().into());
    }
    schema
}

/// The JSON Schema of a file of accounts. It is shipped as `schemas/accounts.schema.json`.
#[must_use]
pub fn accounts_schema() -> Value {
    let tables: Map<String, Value> =
        Table::ALL.into_iter().map(|name| (name.key().to_owned(), table(name))).collect();
    json!({
        "$schema": DRAFT,
        "title": "Accounts of a batch scheduler",
        "type": "object",
        "additionalProperties": false,
        "properties": tables,
    })
}

/// The JSON Schema of a policy file. It is shipped as `schemas/policy.schema.json`.
#[must_use]
pub fn policy_schema() -> Value {
    let names = json!({ "type": "array", "items": { "type": "string" } });
    let amount = json!({ "type": ["integer", "number", "string"] });
    let requests = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": { "cpu": amount, "memory": amount, "ephemeral-storage": amount },
    });
    let caps: Map<String, Value> =
        OBJECT_KEYS.iter().map(|key| ((*key).to_owned(), amount.clone())).collect();
    let rules: Map<String, Value> = GuardRule::ALL
        .into_iter()
        .map(|rule| (rule.name().to_owned(), json!({ "type": "boolean" })))
        .collect();
    let guard: Map<String, Value> = GUARD_KEYS
        .iter()
        .map(|key| {
            let schema = match *key {
                "max_grace_period_seconds" => json!({ "type": "integer", "minimum": 1, "maximum": 86400 }),
                "rules" => json!({ "type": "object", "additionalProperties": false, "properties": rules }),
                _ => names.clone(),
            };
            ((*key).to_owned(), schema)
        })
        .collect();
    let properties: Map<String, Value> = KEYS
        .iter()
        .map(|key| {
            let schema = match *key {
                "prefix" => json!({ "type": "string", "default": "spur.amd.com" }),
                "pod_security" => json!({ "enum": ["baseline", "restricted"], "default": "baseline" }),
                "no_allocation" => json!({ "enum": ["closed", "open"], "default": "closed" }),
                "unset_dimension" => json!({ "enum": ["closed", "open"], "default": "open" }),
                "burst" => json!({ "enum": ["free", "limited"], "default": "free" }),
                "coordinators" => json!({ "type": "boolean", "default": false }),
                "resources" => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
                "objects" => json!({
                    "type": "object",
                    "properties": caps,
                    "patternProperties": { "^count/": amount },
                    "additionalProperties": false,
                }),
                "limit_range" => json!({
                    "type": "object",
                    "additionalProperties": false,
                    "properties": { "default_request": requests, "min": requests },
                }),
                "guard" => json!({ "type": "object", "additionalProperties": false, "properties": guard }),
                _ => names.clone(),
            };
            ((*key).to_owned(), schema)
        })
        .collect();
    json!({
        "$schema": DRAFT,
        "title": "How accounts are projected onto Kubernetes",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}
