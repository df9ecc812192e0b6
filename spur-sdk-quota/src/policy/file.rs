//! The policy file.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use spur_sdk::{Bytes, Classify, ErrorKind, Limit, MemorySpelling, Millicores, Tres};

use super::{Burst, ContainerRequests, GuardRule, PodSecurity, Policy, Unlimited};
use crate::source::Format;
use crate::source::fields::unknown_key;
use crate::source::node::{Entry, Node, parse_toml, parse_yaml};

/// One thing that is wrong in a policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyProblem {
    /// The line, from 1.
    pub line: u32,
    /// The key, with its tables, such as `limit_range.min.cpu`.
    pub field: String,
    /// What is wrong, and the way out.
    pub message: String,
}

/// A policy file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct PolicyError {
    /// The file.
    pub file: String,
    /// All that is wrong, in the order of the file.
    pub problems: Vec<PolicyProblem>,
}

/// One line per problem: `policy.toml:3: burst: ...`.
impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.problems.iter().map(|problem| {
            let PolicyProblem { line, field, message } = problem;
            let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
            format!("{}:{line}: {field}{message}", self.file)
        });
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

impl Classify for PolicyError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

pub(crate) const KEYS: [&str; 11] = [
    "prefix",
    "pod_security",
    "no_allocation",
    "unset_dimension",
    "burst",
    "coordinators",
    "scope",
    "resources",
    "objects",
    "limit_range",
    "guard",
];

pub(crate) const GUARD_KEYS: [&str; 8] = [
    "priority_classes",
    "schedulers",
    "taints",
    "finalizers",
    "max_grace_period_seconds",
    "exempt_users",
    "exempt_groups",
    "rules",
];

/// Keys of a ResourceQuota that the policy may set, beside `count/RESOURCE.GROUP`.
pub(crate) const OBJECT_KEYS: [&str; 11] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.ephemeral-storage",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

/// Counts of kinds that we write into a namespace ourselves; for quotas there is `resourcequotas`.
const OWN_KINDS: [&str; 4] = [
    "count/limitranges",
    "count/resourcequotas",
    "count/rolebindings.rbac.authorization.k8s.io",
    "count/serviceaccounts",
];

/// Groups that every tenant is in: an exemption for them would be one for everybody.
const EVERYBODY: [&str; 3] =
    ["system:authenticated", "system:serviceaccounts", "system:serviceaccounts:spur-users"];

/// ResourceQuotas that we make in a namespace, the closing one included.
const OWN_QUOTAS: u64 = 3;

/// Whether a cap is an amount of storage rather than a count.
pub(crate) fn is_storage(key: &str) -> bool {
    key.ends_with("storage") && !key.starts_with("count/")
}

pub(super) fn read(text: &str, name: &str) -> Result<Policy, PolicyError> {
    let fail = |problems| PolicyError { file: name.to_owned(), problems };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let tree = match Format::detect(text) {
        Format::Yaml => parse_yaml(text),
        Format::Toml | Format::Dump => parse_toml(text),
    };
    let tree = tree.map_err(|error| {
        fail(vec![PolicyProblem { line: error.line, field: String::new(), message: error.message }])
    })?;
    let mut reader = Reader { policy: Policy::default(), problems: Vec::new() };
    reader.document(&tree);
    if reader.problems.is_empty() { Ok(reader.policy) } else { Err(fail(reader.problems)) }
}

struct Reader {
    policy: Policy,
    problems: Vec<PolicyProblem>,
}

impl Reader {
    fn problem(&mut self, line: u32, field: &str, message: String) {
        self.problems.push(PolicyProblem { line, field: field.to_owned(), message });
    }

    fn entries<'n>(&mut self, node: &'n Node, field: &str) -> &'n [Entry] {
        node.map().unwrap_or_else(|message| {
            self.problem(node.line, field, message);
            &[]
        })
    }

    fn document(&mut self, tree: &Node) {
        let entries = self.entries(tree, "");
        for entry in entries {
            let key = entry.key.as_str();
            let result = match key {
                "resources" => self.resources(&entry.node),
                "objects" => self.objects(&entry.node),
                "limit_range" => self.limit_range(&entry.node),
                "guard" => self.guard(&entry.node),
                _ => self.scalar(key, &entry.node),
            };
            if let Err(message) = result {
                self.problem(entry.line, key, message);
            }
        }
        let limit_range = entries.iter().find(|entry| entry.key == "limit_range");
        let line = limit_range.map_or(tree.line, |entry| entry.line);
        let (default, min) = (self.policy.default_request, self.policy.min_request);
        for (what, default, min) in [
            ("cpu", Some(default.cpu), Some(min.cpu)),
            ("memory", Some(default.memory), Some(min.memory)),
            ("ephemeral-storage", default.ephemeral_storage, min.ephemeral_storage),
        ] {
            if min.is_some() && default < min {
                let field = format!("limit_range.default_request.{what}");
                self.problem(
                    line,
                    &field,
                    "is below limit_range.min; raise it or lower the minimum".to_owned(),
                );
            }
        }
    }

    fn scalar(&mut self, key: &str, node: &Node) -> Result<(), String> {
        let policy = &mut self.policy;
        match key {
            "prefix" => policy.prefix = prefix(node.text()?)?,
            "pod_security" => {
                policy.pod_security = one_of(
                    node,
                    [("baseline", PodSecurity::Baseline), ("restricted", PodSecurity::Restricted)],
                )?;
            }
            "no_allocation" => policy.no_allocation = unlimited(node)?,
            "unset_dimension" => policy.unset_dimension = unlimited(node)?,
            "burst" => policy.burst = one_of(node, [("free", Burst::Free), ("limited", Burst::Limited)])?,
            "coordinators" => policy.coordinators = node.boolean()?,
            "scope" => policy.scope = list(node)?,
            _ => return Err(unknown_key(key, KEYS.into_iter())),
        }
        Ok(())
    }

    fn resources(&mut self, node: &Node) -> Result<(), String> {
        // A table that is given replaces the default: a site without AMD GPUs should not keep that entry.
        self.policy.resources.clear();
        for entry in node.map()? {
            let field = format!("resources.{}", entry.key);
            let read = || -> Result<(Tres, String), String> {
                let tres: Tres = entry.key.parse().map_err(|error: spur_sdk::TresError| error.to_string())?;
                if !matches!(tres, Tres::Gres { .. }) {
                    return Err("only a gres/NAME or gres/NAME:TYPE has an extended resource".to_owned());
                }
                Ok((tres, extended_resource(entry.node.text()?)?))
            };
            match read() {
                Ok((tres, resource)) => drop(self.policy.resources.insert(tres, resource)),
                Err(message) => self.problem(entry.line, &field, message),
            }
        }
        Ok(())
    }

    fn objects(&mut self, node: &Node) -> Result<(), String> {
        for entry in node.map()? {
            let key = entry.key.as_str();
            let counted = key.strip_prefix("count/").is_some_and(is_qualified);
            let read = || -> Result<Limit<u64>, String> {
                if OWN_KINDS.contains(&key) {
                    return Err("would count objects of our own, which could then not be written".to_owned());
                }
                if !counted && !OBJECT_KEYS.contains(&key) {
                    return Err(format!(
                        "{} (count/RESOURCE.GROUP is taken as well)",
                        unknown_key(key, OBJECT_KEYS.into_iter())
                    ));
                }
                match (is_storage(key), entry.node.scalar()?) {
                    (_, "-1") => Ok(Limit::Unset),
                    (true, text) => bytes(text).map(Limit::Value),
                    (false, _) => entry.node.count(),
                }
            };
            match read() {
                Ok(Limit::Value(0..OWN_QUOTAS)) if key == "resourcequotas" => {
                    let message = format!("must leave room for our own: at least {OWN_QUOTAS}");
                    self.problem(entry.line, "objects.resourcequotas", message);
                }
                Ok(Limit::Value(cap)) => drop(self.policy.objects.insert(key.to_owned(), cap)),
                Ok(Limit::Unset) => drop(self.policy.objects.remove(key)),
                Ok(Limit::Parent) => {
                    self.problem(
                        entry.line,
                        &format!("objects.{key}"),
                        "has no parent; -1 is no cap".to_owned(),
                    );
                }
                Err(message) => self.problem(entry.line, &format!("objects.{key}"), message),
            }
        }
        Ok(())
    }

    fn limit_range(&mut self, node: &Node) -> Result<(), String> {
        for entry in node.map()? {
            let requests = match entry.key.as_str() {
                "default_request" => &mut self.policy.default_request,
                "min" => &mut self.policy.min_request,
                key => {
                    let message = unknown_key(key, ["default_request", "min"].into_iter());
                    self.problem(entry.line, &format!("limit_range.{key}"), message);
                    continue;
                }
            };
            let problems = container_requests(requests, &entry.node);
            for (line, key, message) in problems {
                let dot = if key.is_empty() { "" } else { "." };
                self.problem(line, &format!("limit_range.{}{dot}{key}", entry.key), message);
            }
        }
        Ok(())
    }

    fn guard(&mut self, node: &Node) -> Result<(), String> {
        for entry in node.map()? {
            let guard = &mut self.policy.guard;
            let node = &entry.node;
            let result = match entry.key.as_str() {
                "priority_classes" => set(node).map(|names| guard.priority_classes = names),
                "schedulers" => set(node).map(|names| guard.schedulers = names),
                "taints" => set_but(node, |name| {
                    let every = name.starts_with("node.kubernetes.io/");
                    every.then(|| format!("{name} is tolerated by every DaemonSet; name taints of your own"))
                })
                .map(|names| guard.taints = names),
                "finalizers" => set(node).map(|names| guard.finalizers = names),
                "exempt_users" => set(node).map(|names| guard.exempt_users = names),
                "exempt_groups" => set_but(node, |name| {
                    let everybody = EVERYBODY.contains(&name);
                    everybody.then(|| format!("every tenant is in {name}; name a group of administrators"))
                })
                .map(|names| guard.exempt_groups = names),
                "max_grace_period_seconds" => node.count().and_then(|limit| match limit {
                    Limit::Value(seconds @ 1..=86_400) => {
                        guard.max_grace_period_seconds = u32::try_from(seconds).unwrap_or(86_400);
                        Ok(())
                    }
                    _ => Err("is a number of seconds from 1 to 86400".to_owned()),
                }),
                "rules" => {
                    self.rules(node);
                    Ok(())
                }
                key => Err(unknown_key(key, GUARD_KEYS.into_iter())),
            };
            if let Err(message) = result {
                self.problem(entry.line, &format!("guard.{}", entry.key), message);
            }
        }
        Ok(())
    }

    fn rules(&mut self, node: &Node) {
        for entry in self.entries(node, "guard.rules") {
            let rule = entry.key.parse::<GuardRule>();
            match (rule, entry.node.boolean()) {
                (Ok(rule), Ok(true)) => drop(self.policy.guard.disabled.remove(&rule)),
                (Ok(rule), Ok(false)) => drop(self.policy.guard.disabled.insert(rule)),
                (Err(_), _) => {
                    let message = unknown_key(&entry.key, GuardRule::ALL.into_iter().map(GuardRule::name));
                    self.problem(entry.line, &format!("guard.rules.{}", entry.key), message);
                }
                (_, Err(message)) => {
                    self.problem(entry.line, &format!("guard.rules.{}", entry.key), message);
                }
            }
        }
    }
}

fn container_requests(requests: &mut ContainerRequests, node: &Node) -> Vec<(u32, String, String)> {
    let entries = match node.map() {
        Ok(entries) => entries,
        Err(message) => return vec![(node.line, String::new(), message)],
    };
    let mut problems = Vec::new();
    for entry in entries {
        let amount = entry.node.scalar();
        let result = match entry.key.as_str() {
            "cpu" => amount.and_then(millicores).map(|cpu| requests.cpu = cpu),
            "memory" => amount.and_then(bytes).map(|memory| requests.memory = memory),
            "ephemeral-storage" => {
                amount.and_then(bytes).map(|storage| requests.ephemeral_storage = Some(storage))
            }
            key => Err(unknown_key(key, ["cpu", "memory", "ephemeral-storage"].into_iter())),
        };
        problems.extend(result.err().map(|message| (entry.line, entry.key.clone(), message)));
    }
    problems
}

fn millicores(text: &str) -> Result<u64, String> {
    Millicores::parse(text).map(|cpu| cpu.0).map_err(|error| error.to_string())
}

fn bytes(text: &str) -> Result<u64, String> {
    Bytes::parse(text, MemorySpelling::Spur).map(|bytes| bytes.0).map_err(|error| error.to_string())
}

fn one_of<T: Copy, const N: usize>(node: &Node, choices: [(&'static str, T); N]) -> Result<T, String> {
    let text = node.text()?;
    let found = choices.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| format!("\"{text}\" is no choice: {}", choices.map(|(name, _)| name).join(" or ")))
}

fn unlimited(node: &Node) -> Result<Unlimited, String> {
    one_of(node, [("closed", Unlimited::Closed), ("open", Unlimited::Open)])
}

fn list<T: FromStr<Err: fmt::Display>>(node: &Node) -> Result<Vec<T>, String> {
    node.list()?.iter().map(|node| node.text()?.parse().map_err(|error: T::Err| error.to_string())).collect()
}

fn set(node: &Node) -> Result<BTreeSet<String>, String> {
    let names: BTreeSet<String> = list(node)?.into_iter().collect();
    if names.contains("") { Err("holds an empty name".to_owned()) } else { Ok(names) }
}

/// A set of names, of which `objection` finds something to say against none.
fn set_but(node: &Node, objection: impl Fn(&str) -> Option<String>) -> Result<BTreeSet<String>, String> {
    let names = set(node)?;
    match names.iter().find_map(|name| objection(name)) {
        Some(message) => Err(message),
        None => Ok(names),
    }
}

fn prefix(text: &str) -> Result<String, String> {
    let labels = || text.split('.').all(spur_sdk::is_dns_label);
    let reserved = text == "kubernetes.io"
        || text == "k8s.io"
        || text.ends_with(".kubernetes.io")
        || text.ends_with(".k8s.io");
    if text.len() > 253 || !labels() {
        return Err(format!("\"{text}\" is no domain name, such as spur.amd.com (no slash)"));
    }
    if reserved {
        return Err(format!("{text} is reserved for Kubernetes itself"));
    }
    Ok(text.to_owned())
}

/// A name part of up to 63 letters, digits, `-`, `_`, `.`, alphanumeric at both ends.
fn is_qualified(name: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Source: `pkg/apis/core/v1/helper/helpers.go`, `IsExtendedResourceName`.
fn extended_resource(text: &str) -> Result<String, String> {
    let legal = text.split_once('/').is_some_and(|(domain, name)| {
        domain.len() <= 244 && domain.split('.').all(spur_sdk::is_dns_label) && is_qualified(name)
    });
    let native = text.contains("kubernetes.io/") || text.starts_with("requests.");
    if legal && !native {
        Ok(text.to_owned())
    } else {
        Err(format!("\"{text}\" is no extended resource, such as amd.com/gpu"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(Policy::read("", "policy.toml").unwrap(), Policy::default());
    }

    #[test]
    fn the_object_keys_are_those_of_the_default() {
        assert!(Policy::default().objects.keys().eq(OBJECT_KEYS));
    }

    #[test]
    fn every_problem_of_a_file_is_told_with_its_line_and_field() {
        let text = "burst = \"fre\"\nprefx = \"x\"\n[objects]\npod = 3\npods = -1\n[limit_range]\nmin = { cpu = \"1\" }\n\
                    [guard]\nmax_grace_period_seconds = 0\n[guard.rules]\nnodename = false\n[resources]\ncpu = \"a/b\"\n";
        let error = Policy::read(text, "policy.toml").unwrap_err();
        let lines: Vec<_> = error.problems.iter().map(|p| (p.line, p.field.as_str())).collect();
        assert_eq!(
            lines,
            [
                (1, "burst"),
                (2, "prefx"),
                (4, "objects.pod"),
                (9, "guard.max_grace_period_seconds"),
                (11, "guard.rules.nodename"),
                (13, "resources.cpu"),
                (6, "limit_range.default_request.cpu"),
            ]
        );
        assert!(
            error.to_string().contains("policy.toml:2: prefx: is no key here; did you mean prefix?"),
            "{error}"
        );
    }

    #[test]
    fn yaml_reads_as_toml_does() {
        let toml = Policy::read("pod_security = \"restricted\"\n[objects]\npods = 7\n", "p").unwrap();
        let yaml = Policy::read("pod_security: restricted\nobjects:\n  pods: 7\n", "p").unwrap();
        assert_eq!(toml, yaml);
        assert_eq!(toml.objects["pods"], 7);
    }
}
