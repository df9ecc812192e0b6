//! What the API server was asked by the operator, compared with the operator's rights.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use spur_test_control_plane::Options;

use super::caller::Caller;
use super::{RBAC, USER, text};

/// One verb on one resource, perhaps on one name, perhaps in one namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    /// Where; `None` is everywhere.
    pub(crate) namespace: Option<String>,
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) resource: String,
    /// On which; `None` is all.
    pub(crate) name: Option<String>,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        write!(f, "{} {}{group}", self.verb, self.resource)?;
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        write!(f, " in {}", self.namespace.as_deref().unwrap_or("the cluster"))
    }
}

impl Right {
    /// Whether this right allows what was done.
    fn allows(&self, done: &Self) -> bool {
        let fits = |mine: &Option<String>, its: &Option<String>| mine.is_none() || mine == its;
        (&self.verb, &self.group, &self.resource) == (&done.verb, &done.group, &done.resource)
            && fits(&self.namespace, &done.namespace)
            && fits(&self.name, &done.name)
    }

    /// Whether the API server says that the operator has it.
    pub(crate) async fn is_given(&self, admin: &Caller) -> Result<bool> {
        let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": USER,
            "groups": ["system:serviceaccounts", "system:serviceaccounts:spur-system", "system:authenticated"],
            "resourceAttributes": {
                "namespace": self.namespace, "verb": self.verb, "group": self.group, "resource": self.resource,
                "name": self.name,
            },
        } });
        let answer = admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await?;
        Ok(answer["status"]["allowed"] == true)
    }
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Every right that any binding gives the operator by its name.
pub(crate) async fn rights(admin: &Caller) -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    for kind in ["clusterrolebindings", "rolebindings"] {
        let bindings = admin.get(&format!("{RBAC}/{kind}")).await?;
        for binding in bindings["items"].as_array().into_iter().flatten() {
            let mut subjects = binding["subjects"].as_array().into_iter().flatten();
            let ours = |subject: &Value| {
                let account = text(subject, "/name") == "spur-operator";
                account && text(subject, "/namespace") == "spur-system" || text(subject, "/name") == USER
            };
            if !subjects.any(ours) {
                continue;
            }
            let namespace = binding["metadata"]["namespace"].as_str();
            let role = text(binding, "/roleRef/name");
            let path = match (text(binding, "/roleRef/kind"), namespace) {
                ("Role", Some(namespace)) => format!("{RBAC}/namespaces/{namespace}/roles/{role}"),
                _ => format!("{RBAC}/clusterroles/{role}"),
            };
            let role = admin.get(&path).await?;
            let rules = role["rules"].as_array().into_iter().flatten();
            rights.extend(rules.flat_map(|rule| rights_of(rule, namespace)));
        }
    }
    Ok(rights)
}

/// The rights of one rule, each by itself.
fn rights_of(rule: &Value, namespace: Option<&str>) -> Vec<Right> {
    let objects = match &rule["resourceNames"] {
        Value::Null => vec![None],
        some => texts(some).into_iter().map(Some).collect(),
    };
    let mut rights = Vec::new();
    for group in texts(&rule["apiGroups"]) {
        for resource in texts(&rule["resources"]) {
            for verb in texts(&rule["verbs"]) {
                rights.extend(objects.iter().map(|name| Right {
                    namespace: namespace.map(str::to_owned),
                    verb: verb.to_owned(),
                    group: group.to_owned(),
                    resource: resource.to_owned(),
                    name: name.map(str::to_owned),
                }));
            }
        }
    }
    rights
}

/// The audit log of a control plane, of the operator's requests alone.
pub(crate) struct Audit {
    log: PathBuf,
    /// What was read already, in bytes.
    read: usize,
}

impl Audit {
    /// Has the API server write it into the folder.
    pub(crate) fn of(folder: &Path, options: Options) -> Result<(Self, Options)> {
        let (policy, log) = (folder.join("audit-policy.json"), folder.join("audit.log"));
        let rules = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [{ "level": "Metadata", "users": [USER] }, { "level": "None" }],
        });
        std::fs::write(&policy, rules.to_string())?;
        let options = options
            .api_server_arg(format!("--audit-policy-file={}", policy.display()))
            .api_server_arg(format!("--audit-log-path={}", log.display()));
        Ok((Self { log, read: 0 }, options))
    }

    /// The requests since this was last called.
    pub(crate) fn take(&mut self) -> Result<Vec<Request>> {
        let log = std::fs::read_to_string(&self.log).context("read the audit log")?;
        let new = log.get(self.read..).context("the audit log is shorter than before")?;
        // A line that is being written is for the next time.
        let whole = new.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole;
        let lines = new.get(..whole).unwrap_or_default().lines();
        lines.map(|line| Ok(Request(serde_json::from_str(line).with_context(|| line.to_owned())?))).collect()
    }
}

/// One request, as the audit log has it.
#[derive(Debug)]
pub(crate) struct Request(Value);

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (uri, status) = (text(&self.0, "/requestURI"), &self.0["responseStatus"]);
        write!(f, "{} {uri}: {} {}", text(&self.0, "/verb"), status["code"], text(status, "/message"))
    }
}

impl Request {
    fn code(&self) -> u64 {
        self.0["responseStatus"]["code"].as_u64().unwrap_or(0)
    }

    /// Whether the API server said no.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.code(), 401 | 403)
    }

    /// Whether it was the question whether the guard is in force, answered by a policy or by an admission plugin,
    /// not for want of a right.
    pub(crate) fn is_probe(&self) -> bool {
        let field = |pointer| text(&self.0, pointer);
        let asked = [field("/verb"), field("/objectRef/resource"), field("/objectRef/namespace")];
        asked == ["create", "pods", "spur-users"]
            && field("/requestURI").contains("dryRun=All")
            && field("/annotations/authorization.k8s.io~1decision") == "allow"
            && [
                "the tenant guard is in force, version ",
                "error looking up service account spur-users/default",
            ]
            .iter()
            .any(|answer| field("/responseStatus/message").contains(answer))
    }

    /// The rights that it took. To apply what is not there takes one more, which the log does not show.
    fn took(&self) -> Vec<Right> {
        let field = |pointer| Some(text(&self.0, pointer).to_owned()).filter(|text| !text.is_empty());
        let resource = field("/objectRef/resource").unwrap_or_default();
        let verb = field("/verb").unwrap_or_default();
        let right = |verb: &str| Right {
            namespace: field("/objectRef/namespace"),
            verb: verb.to_owned(),
            group: field("/objectRef/apiGroup").unwrap_or_default(),
            resource: match field("/objectRef/subresource") {
                Some(sub) => format!("{resource}/{sub}"),
                None => resource.clone(),
            },
            name: field("/objectRef/name"),
        };
        let mut took = vec![right(&verb)];
        if verb == "patch" && self.code() == 201 {
            took.push(right("create"));
        }
        took
    }
}

/// How requests compare with rights.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// Rights without which a request would have been refused.
    pub(crate) used: BTreeSet<Right>,
    /// Requests that some right outside of these allowed.
    pub(crate) foreign: BTreeSet<Right>,
}

impl Comparison {
    /// Takes in what was asked.
    pub(crate) fn add(&mut self, rights: &BTreeSet<Right>, requests: &[Request]) {
        for took in requests
            .iter()
            .filter(|request| !request.is_refused() || request.is_probe())
            .flat_map(Request::took)
        {
            let mut allowing = rights.iter().filter(|right| right.allows(&took));
            match (allowing.next(), allowing.next()) {
                (None, _) => drop(self.foreign.insert(took)),
                (Some(right), None) => drop(self.used.insert(right.clone())),
                // Of two that allow it, one is superfluous, and stays unused.
                (Some(_), Some(_)) => {}
            }
        }
    }
}
