//! Callers of a real API server, what it answers them, and a node without a kubelet.
//!
//! Requests are raw, since the tests are about what stands in them and what status comes back.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};

/// How long the controllers may take to get somewhere.
const PATIENCE: Duration = Duration::from_mins(1);

/// What the API server answered.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// The HTTP status of an error, 200 for any success.
    pub(crate) code: u16,
    /// The object, or the error's Status.
    pub(crate) body: Value,
}

impl Answer {
    /// Whether the request was let in.
    pub(crate) fn is_ok(&self) -> bool {
        self.code == 200
    }

    /// The text of a refusal.
    pub(crate) fn message(&self) -> &str {
        self.body.get("message").and_then(Value::as_str).unwrap_or_default()
    }

    /// The items of a list.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Value> {
        self.body.get("items").and_then(Value::as_array).into_iter().flatten()
    }
}

/// Somebody who talks to the API server.
#[derive(Clone)]
pub(crate) struct Caller {
    client: Client,
    impersonated: Vec<(&'static str, String)>,
}

impl Caller {
    /// Whoever the client's credentials belong to.
    pub(crate) fn new(client: Client) -> Self {
        Self { client, impersonated: Vec::new() }
    }

    /// Another user in these groups, impersonated by this caller, who must be allowed to.
    pub(crate) fn as_user(&self, user: &str, groups: &[&str]) -> Self {
        let mut impersonated = vec![("Impersonate-User", user.to_owned())];
        impersonated.extend(groups.iter().map(|&group| ("Impersonate-Group", group.to_owned())));
        Self { client: self.client.clone(), impersonated }
    }

    async fn send(&self, method: Method, path: &str, kind: &str, body: Option<&Value>) -> Result<Answer> {
        let mut request = Request::builder().method(method).uri(path).header("Content-Type", kind);
        for (name, value) in &self.impersonated {
            request = request.header(*name, value);
        }
        let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        match self.client.request_text(request.body(body)?).await {
            // A log is no JSON.
            Ok(text) => {
                Ok(Answer { code: 200, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) })
            }
            Err(kube::Error::Api(status)) => Ok(Answer {
                code: status.code,
                body: json!({ "message": status.message, "reason": status.reason }),
            }),
            Err(error) => Err(error).with_context(|| format!("request of {path}")),
        }
    }

    /// Reads an object or a collection.
    pub(crate) async fn get(&self, path: &str) -> Result<Answer> {
        self.send(Method::GET, path, "application/json", None).await
    }

    /// Creates an object in a collection.
    pub(crate) async fn create(&self, collection: &str, object: &Value) -> Result<Answer> {
        self.send(Method::POST, collection, "application/json", Some(object)).await
    }

    /// Asks whether an object could be created.
    pub(crate) async fn try_create(&self, collection: &str, object: &Value) -> Result<Answer> {
        self.create(&format!("{collection}?dryRun=All"), object).await
    }

    /// Changes an object by a merge patch.
    pub(crate) async fn merge(&self, path: &str, change: &Value) -> Result<Answer> {
        self.send(Method::PATCH, path, "application/merge-patch+json", Some(change)).await
    }

    /// Changes an object by a JSON patch.
    pub(crate) async fn patch(&self, path: &str, changes: &Value) -> Result<Answer> {
        self.send(Method::PATCH, path, "application/json-patch+json", Some(changes)).await
    }

    /// Creates or changes an object by server-side apply, and gets a refusal of its content or not.
    pub(crate) async fn try_apply(&self, path: &str, object: &Value) -> Result<Answer> {
        let path = format!("{path}?fieldManager=test&dryRun=All");
        self.send(Method::PATCH, &path, "application/apply-patch+yaml", Some(object)).await
    }

    /// Replaces an object.
    pub(crate) async fn replace(&self, path: &str, object: &Value) -> Result<Answer> {
        self.send(Method::PUT, path, "application/json", Some(object)).await
    }

    /// Deletes an object or a collection; options by query.
    pub(crate) async fn delete(&self, path: &str) -> Result<Answer> {
        self.send(Method::DELETE, path, "application/json", None).await
    }

    /// Deletes an object or a collection; options by body.
    pub(crate) async fn delete_with(&self, path: &str, options: &Value) -> Result<Answer> {
        self.send(Method::DELETE, path, "application/json", Some(options)).await
    }

    /// Whether RBAC lets this caller do something; `resource` as `group/resource` or `group/resource/subresource`
    /// with an empty group for the core, in a namespace or, when it is empty, in the cluster.
    pub(crate) async fn may(&self, verb: &str, resource: &str, namespace: &str) -> Result<bool> {
        let mut parts = resource.splitn(3, '/');
        let (group, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": {
                "verb": verb, "group": group, "resource": name, "namespace": namespace,
                "subresource": parts.next().unwrap_or_default(),
            }},
        });
        let answer = self.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await?;
        answer
            .body
            .pointer("/status/allowed")
            .and_then(Value::as_bool)
            .with_context(|| format!("no answer whether to {verb} {resource}: {answer:?}"))
    }
}

/// The steps of a test: each has a name, all are taken, and the test fails at the end if one went wrong.
pub(crate) struct Steps {
    taken: usize,
    names: BTreeSet<String>,
    failures: String,
    last: Instant,
}

impl Default for Steps {
    fn default() -> Self {
        Self { taken: 0, names: BTreeSet::new(), failures: String::new(), last: Instant::now() }
    }
}

impl Steps {
    /// Notes a step, and prints it with the seconds since the one before.
    #[expect(
        clippy::print_stdout,
        reason = "the test harness shows it when the test fails, or on --nocapture"
    )]
    pub(crate) fn check(&mut self, name: &str, ok: bool, seen: &str) {
        self.taken += 1;
        println!("{:6.2} {} {name}", self.last.elapsed().as_secs_f64(), if ok { "ok  " } else { "FAIL" });
        self.last = Instant::now();
        if !self.names.insert(name.to_owned()) {
            let _ = writeln!(self.failures, "{name}: a step of this name was taken before");
        }
        if !ok {
            let _ = writeln!(self.failures, "{name}: {seen}");
        }
    }

    /// The request was let in.
    pub(crate) fn allowed(&mut self, name: &str, answer: &Answer) {
        self.check(name, answer.is_ok(), &format!("{} {}", answer.code, answer.message()));
    }

    /// The request was answered with 403 and a text that holds `sentence`.
    pub(crate) fn refused(&mut self, name: &str, answer: &Answer, sentence: &str) {
        let ok = answer.code == 403 && answer.message().contains(sentence);
        self.check(name, ok, &format!("no 403 with \"{sentence}\": {} {}", answer.code, answer.message()));
    }

    /// Waits until `reached` says true.
    pub(crate) async fn reached(
        &mut self,
        name: &str,
        reached: impl AsyncFnMut() -> Result<bool>,
    ) -> Result<()> {
        let ok = poll(reached).await?;
        self.check(name, ok, "not reached in time");
        Ok(())
    }

    /// Takes in the steps of another list.
    pub(crate) fn append(&mut self, other: Self) {
        self.taken += other.taken;
        self.names.extend(other.names);
        self.failures.push_str(&other.failures);
    }

    /// Ends the test.
    pub(crate) fn finish(self) -> Result<()> {
        if !self.failures.is_empty() {
            bail!("of {} steps, some went wrong:\n{}", self.taken, self.failures);
        }
        Ok(())
    }
}

/// Asks until the answer is true or patience is at its end.
pub(crate) async fn poll(mut reached: impl AsyncFnMut() -> Result<bool>) -> Result<bool> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if reached().await? {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(false)
}

/// A node that the scheduler and the controllers take for a real one: it is ready, "runs" the pods that are bound to
/// it, and ends those that are being deleted. A pod with the label `test/ends` succeeds as soon as it runs; one with
/// the label `test/deaf` outlives its deletion.
pub(crate) struct Node {
    /// The node's own identity.
    pub(crate) kubelet: Caller,
    /// Its name.
    pub(crate) name: &'static str,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Node {
    /// Brings a node up.
    pub(crate) async fn up(admin: &Caller, name: &'static str) -> Result<Self> {
        let kubelet = admin.as_user(&format!("system:node:{name}"), &["system:nodes"]);
        let capacity = json!({
            "cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "500", "amd.com/gpu": "8",
        });
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
            "status": { "capacity": capacity, "allocatable": capacity },
        });
        let created = admin.create("/api/v1/nodes", &node).await?;
        anyhow::ensure!(created.is_ok(), "create node {name}: {created:?}");
        let (caller, administrator) = (kubelet.clone(), admin.clone());
        let task = tokio::spawn(async move {
            let mut beat = None;
            loop {
                // Whatever fails here is tried again, and seen as a step that is not reached.
                if beat.is_none_or(|last: Instant| last.elapsed() > Duration::from_secs(5)) {
                    beat = Some(Instant::now());
                    let _ = heartbeat(&administrator, name).await;
                }
                let _ = run_pods(&caller, name).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        let node = Self { kubelet, name, task };
        let path = format!("/api/v1/nodes/{name}");
        let ready = poll(async || {
            let node = admin.get(&path).await?;
            Ok(node.body.pointer("/spec/taints").is_none()
                && node.body.pointer("/status/conditions").is_some())
        });
        anyhow::ensure!(ready.await?, "node {name} does not get ready");
        Ok(node)
    }
}

async fn heartbeat(admin: &Caller, node: &str) -> Result<()> {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "Test", "message": "",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    });
    admin
        .merge(&format!("/api/v1/nodes/{node}/status"), &json!({ "status": { "conditions": [condition] } }))
        .await?;
    Ok(())
}

async fn run_pods(kubelet: &Caller, node: &str) -> Result<()> {
    let pods = kubelet.get(&format!("/api/v1/pods?fieldSelector=spec.nodeName={node}")).await?;
    for pod in pods.items() {
        let text = |pointer| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let path =
            format!("/api/v1/namespaces/{}/pods/{}", text("/metadata/namespace"), text("/metadata/name"));
        let labelled = |label| pod.pointer(label).is_some();
        let phase = text("/status/phase");
        let deleted = pod.pointer("/metadata/deletionTimestamp").is_some();
        if deleted && !labelled("/metadata/labels/test~1deaf") {
            set_phase(kubelet, &path, "Succeeded").await?;
            kubelet.delete(&format!("{path}?gracePeriodSeconds=0")).await?;
        } else if phase == "Pending" {
            set_phase(kubelet, &path, "Running").await?;
        } else if phase == "Running" && labelled("/metadata/labels/test~1ends") {
            set_phase(kubelet, &path, "Succeeded").await?;
        }
    }
    Ok(())
}

async fn set_phase(kubelet: &Caller, pod: &str, phase: &str) -> Result<()> {
    let ready = if phase == "Running" { "True" } else { "False" };
    let status =
        json!({ "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": ready }] } });
    kubelet.merge(&format!("{pod}/status"), &status).await?;
    Ok(())
}

/// A pod with one container, over which `changes` is laid as a merge patch.
pub(crate) fn pod(name: &str, changes: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": "example.invalid/image" }],
        },
    });
    lay_over(&mut pod, changes);
    pod
}

/// A workload of `apps/v1` whose pods carry its name as the label `app`; `changes` as for [`pod`].
pub(crate) fn workload(kind: &str, name: &str, changes: &Value) -> Value {
    let mut workload = json!({
        "apiVersion": "apps/v1", "kind": kind,
        "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": pod(name, &json!({ "apiVersion": null, "kind": null, "metadata": { "name": null, "labels": { "app": name } } })),
        },
    });
    lay_over(&mut workload, changes);
    workload
}

/// Merge patch of RFC 7386.
pub(crate) fn lay_over(base: &mut Value, changes: &Value) {
    let Value::Object(changes) = changes else {
        *base = changes.clone();
        return;
    };
    if !base.is_object() {
        *base = json!({});
    }
    if let Value::Object(base) = base {
        for (key, change) in changes {
            if change.is_null() {
                base.remove(key);
            } else {
                lay_over(base.entry(key).or_insert(Value::Null), change);
            }
        }
    }
}
