//! The tenant guard on a real API server: what it refuses with which sentence, and that everything else goes on.

mod tenant;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use spur_system_tests::Site;
use tenant::{Caller, Node, Steps, pod, poll, workload};

const ACCOUNTS: &str = r#"
[[account]]
name = "physics"
grp_tres = { cpu = 32, mem = "64Gi", "gres/gpu" = 8 }
[[account]]
name = "chemistry"
grp_tres = { cpu = 32, mem = "64Gi" }
[[user]]
name = "alice"
accounts = ["physics"]
[[user]]
name = "bob"
accounts = ["chemistry"]
"#;

const POLICY: &str = r#"
[guard]
priority_classes = ["batch-normal"]
exempt_groups = ["site:wardens"]
"#;

const MIRROR: &str = "kubernetes.io/config.mirror";

/// The parties of the test.
struct Lab {
    admin: Caller,
    alice: Caller,
    /// Cluster administrator by binding, but not in `system:masters`.
    operator: Caller,
    /// One whom the guard's policy exempts.
    warden: Caller,
    /// The Job controller, which acts in every namespace.
    controller: Caller,
    node: Node,
    namespace: String,
}

impl Lab {
    async fn up() -> Result<(Self, Site)> {
        let site = Site::up(ACCOUNTS, POLICY).await?;
        let admin = Caller::new(site.admin.clone());
        for (name, group) in [("operator", "site:operators"), ("warden", "site:wardens")] {
            let binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": { "name": name },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
                "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group }],
            });
            admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await?;
        }
        for (name, value) in [("batch-normal", 10), ("urgent", 100_000)] {
            let class = json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": { "name": name }, "value": value,
            });
            admin.create("/apis/scheduling.k8s.io/v1/priorityclasses", &class).await?;
        }
        let lab = Self {
            alice: Caller::new(site.member("alice").await?),
            operator: admin.as_user("olga", &["site:operators"]),
            warden: admin.as_user("wanda", &["site:wardens"]),
            controller: admin.as_user(
                "system:serviceaccount:kube-system:job-controller",
                &["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
            ),
            node: Node::up(&admin, "worker-1").await?,
            namespace: site.namespace("physics"),
            admin,
        };
        Ok((lab, site))
    }

    fn core(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    fn apps(&self, resource: &str) -> String {
        format!("/apis/apps/v1/namespaces/{}/{resource}", self.namespace)
    }

    fn batch(&self, resource: &str) -> String {
        format!("/apis/batch/v1/namespaces/{}/{resource}", self.namespace)
    }

    fn pod(&self, name: &str) -> String {
        self.core(&format!("pods/{name}"))
    }

    /// Creates a pod as alice and waits until it runs.
    async fn run(&self, name: &str, changes: &Value) -> Result<()> {
        let created = self.alice.create(&self.core("pods"), &pod(name, changes)).await?;
        anyhow::ensure!(created.is_ok(), "create pod {name}: {created:?}");
        let path = self.pod(name);
        let running = poll(async || {
            Ok(self.admin.get(&path).await?.body.pointer("/status/phase") == Some(&json!("Running")))
        });
        anyhow::ensure!(running.await?, "pod {name} does not run: {:?}", self.admin.get(&path).await?);
        Ok(())
    }

    async fn evict(&self, caller: &Caller, name: &str, api: &str, options: &Value) -> Result<tenant::Answer> {
        let mut eviction = json!({ "apiVersion": api, "kind": "Eviction", "metadata": { "name": name } });
        if let (false, Some(eviction)) = (options.is_null(), eviction.as_object_mut()) {
            eviction.insert("deleteOptions".to_owned(), options.clone());
        }
        caller.create(&format!("{}/eviction?dryRun=All", self.pod(name)), &eviction).await
    }

    async fn used(&self, resource: &str) -> Result<String> {
        let quota = self.admin.get(&self.core("resourcequotas/spur-quota")).await?;
        let used =
            quota.body.pointer("/status/used").and_then(|used| used.get(resource)).and_then(Value::as_str);
        Ok(used.with_context(|| format!("no use of {resource}: {quota:?}"))?.to_owned())
    }
}

/// Contents of pods that are refused, each with a part of the answer.
#[expect(clippy::too_many_lines, reason = "a table")]
fn refused_pods(other_namespace: &str) -> Vec<(&'static str, Value, &'static str)> {
    let required = |kind: &str, term: Value| json!({ "spec": { "affinity": { kind: { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } } });
    let toleration = |toleration: Value| json!({ "spec": { "tolerations": [toleration] } });
    let claims = json!({ "limits": { "deviceclass.resource.kubernetes.io/gpu.example.com": "1" } });
    let node_name = "spec.nodeName may not be set";
    let scheduler = "spec.schedulerName names is not open to accounts; use default-scheduler";
    let class = "spec.priorityClassName names is not open to accounts; leave it out, or use batch-normal";
    let grace = "spec.terminationGracePeriodSeconds must be between 1 and 300";
    let devices = "devices may not be claimed";
    let taints = "spec.tolerations may not tolerate every taint";
    let affinity = "spec.affinity may not refer to pods of other namespaces";
    let volumes = "spec.volumes may hold configMap, secret, persistentVolumeClaim";
    let finalizers = "metadata.finalizers may not be set on a pod";
    vec![
        ("a node", json!({ "spec": { "nodeName": "worker-1" } }), node_name),
        (
            "a node, as a mirror pod",
            json!({ "metadata": { "annotations": { MIRROR: "x" } }, "spec": { "nodeName": "worker-1" } }),
            node_name,
        ),
        ("a foreign scheduler", json!({ "spec": { "schedulerName": "mine" } }), scheduler),
        ("an unlisted priority class", json!({ "spec": { "priorityClassName": "urgent" } }), class),
        (
            "a priority class of the system",
            json!({ "spec": { "priorityClassName": "system-node-critical" } }),
            class,
        ),
        ("no grace period", json!({ "spec": { "terminationGracePeriodSeconds": 0 } }), grace),
        ("a grace period of 301 seconds", json!({ "spec": { "terminationGracePeriodSeconds": 301 } }), grace),
        ("a grace period of a day", json!({ "spec": { "terminationGracePeriodSeconds": 86_400 } }), grace),
        (
            "resources of the pod as a whole",
            json!({ "spec": { "resources": { "requests": { "cpu": "1" } } } }),
            "spec.resources, the resources of the pod as a whole",
        ),
        (
            "a resource claim",
            json!({ "spec": { "resourceClaims": [{ "name": "gpu", "resourceClaimName": "gpu" }] } }),
            devices,
        ),
        (
            "a device class as a resource",
            json!({ "spec": { "containers": [{ "name": "main", "image": "i", "resources": claims }] } }),
            devices,
        ),
        (
            "a device class as a resource of an init container",
            json!({ "spec": { "initContainers": [{ "name": "init", "image": "i", "resources": claims }] } }),
            devices,
        ),
        ("a toleration of everything", toleration(json!({ "operator": "Exists" })), taints),
        (
            "a toleration of every NoExecute taint",
            toleration(json!({ "operator": "Exists", "effect": "NoExecute" })),
            taints,
        ),
        (
            "a toleration of the control plane",
            toleration(json!({ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" })),
            taints,
        ),
        (
            "a toleration of the control plane by its old name",
            toleration(json!({ "key": "node-role.kubernetes.io/master", "effect": "NoSchedule" })),
            taints,
        ),
        (
            "anti-affinity to the pods of all namespaces",
            required(
                "podAntiAffinity",
                json!({ "topologyKey": "kubernetes.io/hostname", "namespaceSelector": {} }),
            ),
            affinity,
        ),
        (
            "anti-affinity to the pods of another namespace",
            required("podAntiAffinity", json!({ "topologyKey": "zone", "namespaces": [other_namespace] })),
            affinity,
        ),
        (
            "affinity to the pods of all namespaces",
            required("podAffinity", json!({ "topologyKey": "zone", "namespaceSelector": {} })),
            affinity,
        ),
        (
            "a preference against the pods of all namespaces",
            json!({ "spec": { "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
                { "weight": 1, "podAffinityTerm": { "topologyKey": "zone", "namespaceSelector": {} } },
            ] } } } }),
            affinity,
        ),
        (
            "an NFS export, whose files a user id of its own choice opens",
            volume(json!({ "nfs": { "server": "homes", "path": "/home" } })),
            volumes,
        ),
        ("an inline CSI volume", volume(json!({ "csi": { "driver": "nfs.csi.k8s.io" } })), volumes),
        (
            "an iSCSI target",
            volume(
                json!({ "iscsi": { "targetPortal": "192.0.2.1:3260", "iqn": "iqn.2001-04.com.example:a", "lun": 0 } }),
            ),
            volumes,
        ),
        ("a finalizer", json!({ "metadata": { "finalizers": ["example.com/stay"] } }), finalizers),
        (
            "the Job controller's finalizer",
            json!({ "metadata": { "finalizers": ["batch.kubernetes.io/job-tracking"] } }),
            finalizers,
        ),
    ]
}

/// A pod with one volume.
fn volume(source: Value) -> Value {
    let mut volume = source;
    if let Some(volume) = volume.as_object_mut() {
        volume.insert("name".to_owned(), "data".into());
    }
    json!({ "spec": { "volumes": [volume] } })
}

/// Contents of pods that are let in.
fn allowed_pods(namespace: &str) -> Vec<(&'static str, Value)> {
    let own =
        json!([{ "topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaces": [namespace] }]);
    vec![
        ("nothing special", json!({})),
        ("an empty volume", volume(json!({ "emptyDir": {} }))),
        ("a claim", volume(json!({ "persistentVolumeClaim": { "claimName": "data" } }))),
        ("a ConfigMap", volume(json!({ "configMap": { "name": "settings" } }))),
        ("the default grace period", json!({ "spec": { "terminationGracePeriodSeconds": null } })),
        ("a grace period of 300 seconds", json!({ "spec": { "terminationGracePeriodSeconds": 300 } })),
        ("the default scheduler by name", json!({ "spec": { "schedulerName": "default-scheduler" } })),
        ("a listed priority class", json!({ "spec": { "priorityClassName": "batch-normal" } })),
        (
            "a toleration by key",
            json!({ "spec": { "tolerations": [{ "key": "gpu", "operator": "Exists" }] } }),
        ),
        (
            "anti-affinity to pods of its own namespace",
            json!({ "spec": { "affinity": { "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": own,
            } } } }),
        ),
        ("a scheduling gate", json!({ "spec": { "schedulingGates": [{ "name": "example.com/wait" }] } })),
        (
            "a GPU",
            json!({ "spec": { "containers": [{
                "name": "main", "image": "i", "resources": { "limits": { "amd.com/gpu": "1" } },
            }] } }),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guard_refuses_each_attack_with_a_sentence_and_lets_everything_else_go_on() -> Result<()> {
    let mut steps = Steps::default();
    let (lab, site) = Lab::up().await?;
    steps.check("the control plane, the accounts and a node are up", true, "");
    the_api_server_finds_no_fault_in_the_policies(&lab, &mut steps).await?;
    pods_are_judged_by_their_content_whoever_creates_them(&lab, &site, &mut steps).await?;
    running_pods_cannot_be_forced_away_or_changed(&lab, &mut steps).await?;
    pods_that_run_nowhere_go_at_once(&lab, &mut steps).await?;
    services_have_no_external_addresses(&lab, &mut steps).await?;
    let (mut jobs, mut templates, mut namespace) = (Steps::default(), Steps::default(), Steps::default());
    tokio::try_join!(
        workloads_roll_out_and_scale(&lab, &mut steps),
        jobs_end(&lab, &mut jobs),
        templates_do_not_carry_anything_past(&lab, &site, &mut templates),
        a_namespace_is_deleted_with_its_pods(&lab, &site, &mut namespace)
    )?;
    for apart in [jobs, templates, namespace] {
        steps.append(apart);
    }
    nodes_are_drained(&lab, &mut steps).await?;
    steps.finish()
}

async fn the_api_server_finds_no_fault_in_the_policies(lab: &Lab, steps: &mut Steps) -> Result<()> {
    let path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let checked = async || {
        let policies = lab.admin.get(path).await?;
        Ok(policies.items().all(|policy| policy.pointer("/status/observedGeneration").is_some()))
    };
    steps.reached("policies: the controller manager checks their types", checked).await?;
    let policies = lab.admin.get(path).await?;
    steps.check("policies: there are five", policies.items().count() == 5, &format!("{policies:?}"));
    for policy in policies.items() {
        let name = policy.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let warnings = policy.pointer("/status/typeChecking/expressionWarnings");
        steps.check(
            &format!("policies: {name} has no warnings"),
            warnings.is_none(),
            &format!("{warnings:?}"),
        );
    }
    Ok(())
}

async fn pods_are_judged_by_their_content_whoever_creates_them(
    lab: &Lab,
    site: &Site,
    steps: &mut Steps,
) -> Result<()> {
    let pods = lab.core("pods");
    // The API server takes up a new policy within about a second.
    let pinned = pod("p", &json!({ "spec": { "nodeName": "worker-1" } }));
    let taken_up = async || Ok(!lab.alice.try_create(&pods, &pinned).await?.is_ok());
    steps.reached("create: the API server has taken up the policy", taken_up).await?;
    for (what, changes, sentence) in refused_pods(&site.namespace("chemistry")) {
        let object = pod("p", &changes);
        for (who, caller) in [("a member", &lab.alice), ("system:masters", &lab.admin)] {
            let answer = caller.try_create(&pods, &object).await?;
            steps.refused(&format!("create: {who}, a pod with {what}"), &answer, sentence);
        }
        let answer = lab.alice.try_apply(&lab.pod("p"), &object).await?;
        steps.refused(&format!("server-side apply: a pod with {what}"), &answer, sentence);
    }
    for (what, changes) in allowed_pods(&lab.namespace) {
        let answer = lab.alice.try_create(&pods, &pod("p", &changes)).await?;
        steps.allowed(&format!("create: a pod with {what}"), &answer);
    }

    let tracked = |kind: &str, api: &str| {
        let owner = json!({ "apiVersion": api, "kind": kind, "name": "x", "uid": "1", "controller": true });
        let meta = json!({ "finalizers": ["batch.kubernetes.io/job-tracking"], "ownerReferences": [owner] });
        pod("p", &json!({ "metadata": meta }))
    };
    let answer = lab.controller.try_create(&pods, &tracked("Job", "batch/v1")).await?;
    steps.allowed("create: the Job controller, a pod of a Job", &answer);
    let sentence = "metadata.finalizers may not be set on a pod";
    let answer = lab.controller.try_create(&pods, &tracked("ReplicaSet", "apps/v1")).await?;
    steps.refused("create: a controller, a ReplicaSet's pod with the Job's finalizer", &answer, sentence);
    let answer = lab.alice.try_create(&pods, &tracked("Job", "batch/v1")).await?;
    steps.refused("create: a member, a pod of a Job with the Job's finalizer", &answer, sentence);

    let node = lab.admin.get("/api/v1/nodes/worker-1").await?;
    let mirror = pod(
        "m",
        &json!({
            "metadata": {
                "annotations": { MIRROR: "x", "kubernetes.io/config.hash": "x" },
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Node", "name": "worker-1", "controller": true,
                    "uid": node.body.pointer("/metadata/uid"),
                }],
            },
            "spec": {
                "nodeName": "worker-1", "terminationGracePeriodSeconds": 0, "tolerations": [{ "operator": "Exists" }],
            },
        }),
    );
    steps.allowed("create: a node, a mirror pod", &lab.node.kubelet.try_create(&pods, &mirror).await?);
    Ok(())
}

async fn running_pods_cannot_be_forced_away_or_changed(lab: &Lab, steps: &mut Steps) -> Result<()> {
    lab.run("runs", &json!({ "spec": { "terminationGracePeriodSeconds": 30 } })).await?;
    let (one, all) = (lab.pod("runs"), lab.core("pods"));
    let sentence = "a pod on a node must be deleted with a grace period between 1 and 300 seconds";
    for (what, path, options) in [
        ("at once, by query", format!("{one}?gracePeriodSeconds=0"), Value::Null),
        ("at once, by body", one.clone(), json!({ "gracePeriodSeconds": 0 })),
        ("after 301 seconds", format!("{one}?gracePeriodSeconds=301"), Value::Null),
        ("at once, as a collection", format!("{all}?gracePeriodSeconds=0"), Value::Null),
        ("at once, as a collection by body", all.clone(), json!({ "gracePeriodSeconds": 0 })),
    ] {
        for (who, caller) in [("a member", &lab.alice), ("an administrator who is not exempt", &lab.operator)]
        {
            let answer = match &options {
                Value::Null => caller.delete(&path).await?,
                options => caller.delete_with(&path, options).await?,
            };
            steps.refused(&format!("delete: {who}, {what}"), &answer, sentence);
        }
    }
    let sentence = "a pod must be evicted with a grace period between 1 and 300 seconds";
    for api in ["policy/v1", "policy/v1beta1"] {
        for seconds in [0, 86_400] {
            let answer =
                lab.evict(&lab.alice, "runs", api, &json!({ "gracePeriodSeconds": seconds })).await?;
            steps.refused(&format!("evict: {api}, after {seconds} seconds"), &answer, sentence);
        }
    }
    for (what, options) in [
        ("without options", Value::Null),
        ("with empty options", json!({})),
        ("after 5 seconds", json!({ "gracePeriodSeconds": 5 })),
    ] {
        let answer = lab.evict(&lab.alice, "runs", "policy/v1", &options).await?;
        steps.allowed(&format!("evict: {what}"), &answer);
    }
    let cleaner = lab.admin.as_user(
        "system:serviceaccount:kube-system:pod-garbage-collector",
        &["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
    );
    for (who, caller) in [
        ("system:masters", &lab.admin),
        ("the node", &lab.node.kubelet),
        ("a controller of kube-system", &cleaner),
        ("whom policy names", &lab.warden),
    ] {
        let answer = caller.delete(&format!("{one}?gracePeriodSeconds=0&dryRun=All")).await?;
        steps.allowed(&format!("delete: {who}, at once"), &answer);
    }
    for (who, caller) in [("system:masters", &lab.admin), ("whom policy names", &lab.warden)] {
        let answer = lab.evict(caller, "runs", "policy/v1", &json!({ "gracePeriodSeconds": 0 })).await?;
        steps.allowed(&format!("evict: {who}, at once"), &answer);
    }

    let sentence = "metadata.finalizers may not be set on a pod";
    let finalizers = json!({ "metadata": { "finalizers": ["example.com/stay"] } });
    steps.refused("patch: a finalizer", &lab.alice.merge(&one, &finalizers).await?, sentence);
    let add =
        |toleration: Value| json!([{ "op": "add", "path": "/spec/tolerations/-", "value": toleration }]);
    let sentence = "spec.tolerations may not tolerate every taint";
    for (what, toleration) in [
        ("everything", json!({ "operator": "Exists" })),
        (
            "the control plane",
            json!({ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" }),
        ),
    ] {
        let answer = lab.alice.patch(&one, &add(toleration)).await?;
        steps.refused(&format!("patch: a toleration of {what}"), &answer, sentence);
    }
    let answer = lab.alice.patch(&one, &add(json!({ "key": "gpu", "operator": "Exists" }))).await?;
    steps.allowed("patch: a toleration by key", &answer);
    let answer = lab.alice.merge(&one, &json!({ "metadata": { "labels": { "a": "b" } } })).await?;
    steps.allowed("patch: a label", &answer);

    lab.run(
        "deaf",
        &json!({
            "metadata": { "labels": { "test/deaf": "" } }, "spec": { "terminationGracePeriodSeconds": 30 },
        }),
    )
    .await?;
    steps.allowed("delete: with the pod's own grace period", &lab.alice.delete(&lab.pod("deaf")).await?);
    let sentence = "a pod on a node must be deleted with a grace period between 1 and 300 seconds";
    let answer = lab.alice.delete(&format!("{}?gracePeriodSeconds=0", lab.pod("deaf"))).await?;
    steps.refused("delete: at once, while it is being deleted", &answer, sentence);
    let charged = lab.used("pods").await?;
    steps.check("delete: a pod that is being deleted is charged", charged == "2", &charged);
    steps.allowed(
        "delete: the node, what has ended",
        &lab.node.kubelet.delete(&format!("{}?gracePeriodSeconds=0", lab.pod("deaf"))).await?,
    );
    steps.allowed(
        "delete: after one second",
        &lab.alice.delete(&format!("{one}?gracePeriodSeconds=1")).await?,
    );
    let gone = async || Ok(lab.admin.get(&all).await?.items().count() == 0);
    steps.reached("delete: the node ends the pod and it is gone", gone).await?;
    let free = async || Ok(lab.used("pods").await? == "0");
    steps.reached("delete: then it is no longer charged", free).await
}

async fn pods_that_run_nowhere_go_at_once(lab: &Lab, steps: &mut Steps) -> Result<()> {
    let pending = pod("pending", &json!({ "spec": { "nodeSelector": { "no": "where" } } }));
    for (what, query) in [("at once", "?gracePeriodSeconds=0"), ("by default", "")] {
        steps.allowed(
            &format!("pending, {what}: created"),
            &lab.alice.create(&lab.core("pods"), &pending).await?,
        );
        let answer = lab.alice.delete(&format!("{}{query}", lab.pod("pending"))).await?;
        steps.allowed(&format!("pending, {what}: deleted"), &answer);
    }
    let ended = pod("ended", &json!({ "metadata": { "labels": { "test/ends": "" } } }));
    steps.allowed("ended: created", &lab.alice.create(&lab.core("pods"), &ended).await?);
    let path = lab.pod("ended");
    let ended =
        async || Ok(lab.admin.get(&path).await?.body.pointer("/status/phase") == Some(&json!("Succeeded")));
    steps.reached("ended: it has", ended).await?;
    steps
        .allowed("ended: deleted at once", &lab.alice.delete(&format!("{path}?gracePeriodSeconds=0")).await?);
    Ok(())
}

async fn services_have_no_external_addresses(lab: &Lab, steps: &mut Steps) -> Result<()> {
    let sentence = "spec.externalIPs may not be set";
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" }, "spec": { "ports": [{ "port": 80 }] },
    });
    let external = json!({ "spec": { "externalIPs": ["192.0.2.1"] } });
    let mut with = service.clone();
    if let Some(spec) = with.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("externalIPs".to_owned(), json!(["192.0.2.1"]));
    }
    steps.refused(
        "service: created with one",
        &lab.alice.try_create(&lab.core("services"), &with).await?,
        sentence,
    );
    steps.allowed("service: created without", &lab.alice.create(&lab.core("services"), &service).await?);
    let path = lab.core("services/web");
    steps.refused("service: one is added", &lab.alice.merge(&path, &external).await?, sentence);
    steps.refused("service: one is added by whomever", &lab.admin.merge(&path, &external).await?, sentence);
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    steps.allowed("service: another change", &lab.alice.merge(&path, &label).await?);
    Ok(())
}

async fn workloads_roll_out_and_scale(lab: &Lab, steps: &mut Steps) -> Result<()> {
    for (kind, resource, changes, ready) in [
        ("Deployment", "deployments", json!({ "spec": { "replicas": 2 } }), "readyReplicas"),
        (
            "StatefulSet",
            "statefulsets",
            json!({ "spec": { "replicas": 2, "serviceName": "web" } }),
            "readyReplicas",
        ),
        ("DaemonSet", "daemonsets", json!({}), "numberReady"),
    ] {
        let name = resource;
        let path = lab.apps(&format!("{resource}/{name}"));
        let created = lab.alice.create(&lab.apps(resource), &workload(kind, name, &changes)).await?;
        steps.allowed(&format!("{kind}: created"), &created);
        let wanted = if kind == "DaemonSet" { 1 } else { 2 };
        let is_ready = async |wanted: u64, updated: &str| {
            let workload = lab.alice.get(&path).await?.body;
            let count =
                |name: &str| workload.pointer("/status").and_then(|status| status.get(name)?.as_u64());
            let generation = workload.pointer("/metadata/generation");
            Ok(generation == workload.pointer("/status/observedGeneration")
                && count(ready) == Some(wanted)
                && count(updated) == Some(wanted))
        };
        let updated = if kind == "DaemonSet" { "updatedNumberScheduled" } else { "updatedReplicas" };
        steps.reached(&format!("{kind}: ready"), async || is_ready(wanted, updated).await).await?;
        let template = json!({ "spec": { "template": { "metadata": { "annotations": { "again": "1" } } } } });
        steps.allowed(&format!("{kind}: changed"), &lab.alice.merge(&path, &template).await?);
        steps.reached(&format!("{kind}: rolled out"), async || is_ready(wanted, updated).await).await?;
        if kind != "DaemonSet" {
            let scaled =
                lab.alice.merge(&format!("{path}/scale"), &json!({ "spec": { "replicas": 1 } })).await?;
            steps.allowed(&format!("{kind}: scaled"), &scaled);
            steps.reached(&format!("{kind}: shrunk"), async || is_ready(1, updated).await).await?;
        }
    }
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": { "name": "web" },
        "spec": {
            "maxReplicas": 3,
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "deployments" },
        },
    });
    let path = format!("/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers", lab.namespace);
    steps.allowed("HorizontalPodAutoscaler: created", &lab.alice.create(&path, &autoscaler).await?);

    for (cascade, resource) in [("Foreground", "deployments"), ("Background", "statefulsets")] {
        let path = lab.apps(&format!("{resource}/{resource}"));
        let answer = lab.alice.delete(&format!("{path}?propagationPolicy={cascade}")).await?;
        steps.allowed(&format!("garbage collection: {cascade}, {resource} deleted"), &answer);
        let pods = format!("{}?labelSelector=app={resource}", lab.core("pods"));
        let gone = async || {
            Ok(lab.alice.get(&path).await?.code == 404 && lab.alice.get(&pods).await?.items().count() == 0)
        };
        steps
            .reached(&format!("garbage collection: {cascade}, {resource} and its pods are gone"), gone)
            .await?;
    }
    Ok(())
}

async fn jobs_end(lab: &Lab, steps: &mut Steps) -> Result<()> {
    let template = json!({
        "metadata": { "labels": { "test/ends": "" } },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": "i" }] },
    });
    let spec = json!({ "completions": 3, "parallelism": 2, "template": template });
    let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "job" }, "spec": spec });
    steps.allowed("Job: created", &lab.alice.create(&lab.batch("jobs"), &job).await?);
    let path = lab.batch("jobs/job");
    let complete = async || {
        let job = lab.alice.get(&path).await?;
        let mut conditions =
            job.body.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
        Ok(conditions.any(|condition| condition.get("type") == Some(&json!("Complete"))))
    };
    steps.reached("Job: complete", complete).await?;
    let cron = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "cron" },
        "spec": { "schedule": "0 0 1 1 *", "jobTemplate": { "spec": { "template": template } } },
    });
    steps.allowed("CronJob: created", &lab.alice.create(&lab.batch("cronjobs"), &cron).await?);
    steps.allowed("Job: deleted", &lab.alice.delete(&format!("{path}?propagationPolicy=Foreground")).await?);
    steps.reached("Job: gone with its pods", async || Ok(lab.alice.get(&path).await?.code == 404)).await
}

/// What a member writes into a workload reaches the API server as a pod of the controller manager. One attack for
/// each rule, since the controller manager tries again and again.
async fn templates_do_not_carry_anything_past(lab: &Lab, site: &Site, steps: &mut Steps) -> Result<()> {
    let mut attacks = refused_pods(&site.namespace("chemistry"));
    attacks.dedup_by_key(|(_, _, sentence)| *sentence);
    for (kind, resource) in [("ReplicaSet", "replicasets"), ("DaemonSet", "daemonsets")] {
        let mut expected = Vec::new();
        for (number, (what, changes, sentence)) in attacks.iter().enumerate() {
            // A DaemonSet is there to see that another controller is bound too.
            if kind == "DaemonSet" && !what.contains("toleration") {
                continue;
            }
            let name = format!("{resource}-{number}");
            let replicas = if kind == "ReplicaSet" { json!(1) } else { Value::Null };
            let spec = json!({ "spec": { "replicas": replicas, "template": changes } });
            let created = lab.alice.create(&lab.apps(resource), &workload(kind, &name, &spec)).await?;
            steps.allowed(&format!("template: {kind} with {what} is stored"), &created);
            expected.push((name, *what, *sentence));
        }
        for (name, what, sentence) in expected {
            let events =
                lab.core(&format!("events?fieldSelector=reason=FailedCreate,involvedObject.name={name}"));
            let told = async || {
                let events = lab.alice.get(&events).await?;
                let mut messages = events.items().filter_map(|event| event.get("message")?.as_str());
                Ok(messages.any(|message| message.contains(sentence)))
            };
            steps
                .reached(&format!("template: {kind} with {what}, its events say why it has no pod"), told)
                .await?;
            lab.alice.delete(&lab.apps(&format!("{resource}/{name}"))).await?;
        }
    }
    Ok(())
}

async fn nodes_are_drained(lab: &Lab, steps: &mut Steps) -> Result<()> {
    let replicas = json!({ "spec": { "replicas": 3 } });
    let created =
        lab.alice.create(&lab.apps("deployments"), &workload("Deployment", "last", &replicas)).await?;
    steps.allowed("drain: a Deployment", &created);
    let pods = format!("{}?labelSelector=app=last", lab.core("pods"));
    let names = async || {
        let pods = lab.admin.get(&pods).await?;
        let running = pods.items().filter(|pod| pod.pointer("/status/phase") == Some(&json!("Running")));
        Ok::<_, anyhow::Error>(
            running
                .filter_map(|pod| pod.pointer("/metadata/name")?.as_str().map(str::to_owned))
                .collect::<Vec<_>>(),
        )
    };
    steps.reached("drain: its pods run", async || Ok(names().await?.len() == 3)).await?;
    let cordon = json!({ "spec": { "unschedulable": true } });
    lab.operator.merge("/api/v1/nodes/worker-1", &cordon).await?;
    let evicted = names().await?;
    for (number, name) in evicted.iter().enumerate() {
        let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name } });
        let answer = lab.operator.create(&format!("{}/eviction", lab.pod(name)), &eviction).await?;
        steps.allowed(&format!("drain: pod {number} is evicted"), &answer);
    }
    let empty = async || {
        let pods = lab.admin.get(&pods).await?;
        let here = pods.items().filter(|pod| pod.pointer("/spec/nodeName").is_some());
        Ok(here.count() == 0 && pods.items().count() == 3)
    };
    steps.reached("drain: the node is empty, and new pods wait", empty).await?;
    let uncordon = json!({ "spec": { "unschedulable": null } });
    lab.operator.merge("/api/v1/nodes/worker-1", &uncordon).await?;
    steps.reached("drain: they run when the node is back", async || Ok(names().await?.len() == 3)).await
}

async fn a_namespace_is_deleted_with_its_pods(lab: &Lab, site: &Site, steps: &mut Steps) -> Result<()> {
    let bob = Caller::new(site.member("bob").await?);
    let namespace = site.namespace("chemistry");
    let deployments = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let two = workload("Deployment", "web", &json!({ "spec": { "replicas": 2 } }));
    steps.allowed("namespace: a Deployment", &bob.create(&deployments, &two).await?);
    let path = format!("{deployments}/web");
    let ready = async || Ok(bob.get(&path).await?.body.pointer("/status/readyReplicas") == Some(&json!(2)));
    steps.reached("namespace: its pods run", ready).await?;
    let path = format!("/api/v1/namespaces/{namespace}");
    steps.allowed("namespace: deleted", &lab.operator.delete(&path).await?);
    steps.reached("namespace: gone", async || Ok(lab.admin.get(&path).await?.code == 404)).await
}
