//! The checks of the Multi-Tenancy Benchmarks of the Kubernetes project (its tool is archived), taken as a member of
//! an account on a real API server, under both Pod Security profiles. The outcome is the table in
//! `docs/multi-tenancy-benchmark.md`; with `UPDATE_DOCS=1` the test writes it.

mod tenant;

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use spur_system_tests::Site;
use tenant::{Caller, pod};
use tokio::task::JoinSet;

const ACCOUNTS: &str = r#"
[[account]]
name = "physics"
grp_tres = { cpu = 32, mem = "64Gi" }
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

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

const BEGIN: &str = "<!-- The table below is written by tests/system/tests/multi_tenancy_benchmark.rs. -->\n";
const END: &str = "<!-- End of the table. -->\n";

/// How a check came out, and what was seen when it did not pass.
type Outcome = std::result::Result<(), String>;

/// One check of the benchmarks.
struct Check {
    id: &'static str,
    level: u8,
    title: &'static str,
    /// What makes it pass, or why it does not.
    remark: &'static str,
    /// Outcome under each profile of [`PROFILES`].
    passes: [bool; 2],
}

const PROFILES: [&str; 2] = ["baseline", "restricted"];

/// In the order of the benchmarks' own list. An id that stands there twice stands here twice.
const CHECKS: [Check; 20] = [
    Check {
        id: "MTB-PL1-CC-CPI-1",
        level: 1,
        title: "Block access to cluster resources",
        remark: "`spur-tenant` is bound in the account's namespace alone and names no cluster-scoped resource",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL1-BC-CPI-2",
        level: 1,
        title: "Block modification of the operator's labelled objects",
        remark: "`spur-tenant` writes to none of the kinds that SPUR projects",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL1-BC-CPI-3",
        level: 1,
        title: "Block added capabilities",
        remark: "Pod Security; `baseline` lets a container keep what runtimes grant by default, SETPCAP among it",
        passes: [false, true],
    },
    Check {
        id: "MTB-PL1-BC-CPI-4",
        level: 1,
        title: "Require running as a user other than root",
        remark: "Pod Security; `baseline` only warns",
        passes: [false, true],
    },
    Check {
        id: "MTB-PL1-BC-CPI-5",
        level: 1,
        title: "Block privileged containers",
        remark: "Pod Security",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL1-BC-CPI-6",
        level: 1,
        title: "Block privilege escalation",
        remark: "Pod Security; `baseline` only warns",
        passes: [false, true],
    },
    Check {
        id: "MTB-PL1-CC-TI-1",
        level: 1,
        title: "Block changes of the namespace's quota",
        remark: "`spur-tenant` reads ResourceQuotas and LimitRanges, no more",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL1-CC-TI-2",
        level: 1,
        title: "Block access to other tenants' resources",
        remark: "a RoleBinding for each namespace; nothing is bound in the cluster",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL1-CC-FNS-1",
        level: 1,
        title: "Quota on CPU, memory and ephemeral storage",
        remark: "ResourceQuota `spur-quota`, for an account with limits on CPU and memory",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL1-CC-FNS-2",
        level: 1,
        title: "Quota on numbers of objects",
        remark: "ResourceQuota `spur-quota`, `[objects]` of the policy file",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL1-BC-HI-1",
        level: 1,
        title: "Block host paths",
        remark: "Pod Security",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL1-BC-HI-1",
        level: 1,
        title: "Block Services of type NodePort",
        remark: "ResourceQuota `spur-quota`, `services.nodeports: 0`",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL1-BC-HI-3",
        level: 1,
        title: "Block the host's network and ports",
        remark: "Pod Security",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL1-BC-HI-4",
        level: 1,
        title: "Block the host's process ids",
        remark: "Pod Security",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL1-BC-HI-5",
        level: 1,
        title: "Block the host's inter-process communication",
        remark: "Pod Security",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL1-CC-DI-1",
        level: 1,
        title: "Require imagePullPolicy Always",
        remark: "not enforced: it protects private images on shared nodes, and a site that has them turns on the API \
                 server's admission plugin AlwaysPullImages",
        passes: [false, false],
    },
    Check {
        id: "MTB-PL1-BC-NI-1",
        level: 2,
        title: "Deny network connections across tenants by default",
        remark: "not projected yet: the network policies of accounts are the operator's",
        passes: [false, false],
    },
    Check {
        id: "MTB-PL2-CC-TI-1",
        level: 2,
        title: "Block escalation of roles",
        remark: "`spur-tenant` has neither `bind` nor `escalate`",
        passes: [true, true],
    },
    Check {
        id: "MTB-PL2-BC-OPS-3",
        level: 2,
        title: "Tenants manage roles and role bindings themselves",
        remark: "against the design: who may enter a namespace is what the accounts say",
        passes: [false, false],
    },
    Check {
        id: "MTB-PL2-BC-OPS-4",
        level: 2,
        title: "Tenants manage network policies themselves",
        remark: "against the design: who may delete one may delete the operator's",
        passes: [false, false],
    },
];

/// A member of an account, and what the checks need besides.
struct Tenant {
    admin: Caller,
    alice: Caller,
    namespace: String,
    other: String,
}

/// A resource that the API server serves.
#[derive(Clone)]
struct Resource {
    /// `group/name`, with an empty group for the core.
    name: String,
    path: String,
    namespaced: bool,
}

impl Tenant {
    fn core(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    /// Every resource in its preferred version, without subresources.
    async fn resources(&self) -> Result<Vec<Resource>> {
        let mut versions = vec![(String::new(), "/api/v1".to_owned())];
        let groups = self.admin.get("/apis").await?;
        for group in groups.body.get("groups").and_then(Value::as_array).into_iter().flatten() {
            let text = |pointer| group.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            versions.push((
                text("/name").to_owned(),
                format!("/apis/{}", text("/preferredVersion/groupVersion")),
            ));
        }
        let mut resources = Vec::new();
        for (group, path) in versions {
            let list = self.admin.get(&path).await?;
            for resource in list.body.get("resources").and_then(Value::as_array).into_iter().flatten() {
                let name = resource.get("name").and_then(Value::as_str).unwrap_or_default();
                if !name.contains('/') {
                    resources.push(Resource {
                        name: format!("{group}/{name}"),
                        path: path.clone(),
                        namespaced: resource.get("namespaced") == Some(&Value::Bool(true)),
                    });
                }
            }
        }
        ensure!(resources.len() > 50, "the API server serves too little: {}", resources.len());
        Ok(resources)
    }

    /// What alice may do, of these resources and verbs, in a namespace.
    async fn granted(
        &self,
        resources: &[String],
        verbs: &[&'static str],
        namespace: &str,
    ) -> Result<Vec<String>> {
        let mut questions = JoinSet::new();
        for resource in resources {
            let (alice, resource, namespace) = (self.alice.clone(), resource.clone(), namespace.to_owned());
            let verbs = verbs.to_vec();
            questions.spawn(async move {
                let mut granted = Vec::new();
                for verb in verbs {
                    if alice.may(verb, &resource, &namespace).await? {
                        granted.push(format!("{verb} {resource}"));
                    }
                }
                Ok::<_, anyhow::Error>(granted)
            });
        }
        let mut granted: Vec<String> = Vec::new();
        while let Some(answer) = questions.join_next().await {
            granted.extend(answer??);
        }
        granted.sort_unstable();
        Ok(granted)
    }

    async fn none_granted(
        &self,
        resources: &[String],
        verbs: &[&'static str],
        namespace: &str,
    ) -> Result<Outcome> {
        let granted = self.granted(resources, verbs, namespace).await?;
        Ok(if granted.is_empty() { Ok(()) } else { Err(format!("granted: {}", granted.join(", "))) })
    }

    async fn all_granted(&self, resources: &[String], verbs: &[&'static str]) -> Result<Outcome> {
        let granted = self.granted(resources, verbs, &self.namespace).await?;
        let wanted = resources.len() * verbs.len();
        Ok(if granted.len() == wanted {
            Ok(())
        } else {
            Err(format!("{} of {wanted} granted", granted.len()))
        })
    }

    /// Passes when the API server refuses the object and the refusal names `word`.
    async fn refused(&self, collection: &str, object: &Value, word: &str) -> Result<Outcome> {
        let answer = self.alice.try_create(&self.core(collection), object).await?;
        if answer.is_ok() {
            return Ok(Err("it was let in".to_owned()));
        }
        ensure!(
            answer.code == 403 && answer.message().contains(word),
            "refused for another reason: {answer:?}"
        );
        Ok(Ok(()))
    }

    /// Passes when a pod that both profiles let in is refused once `changes` are made.
    async fn pod_refused(&self, changes: &Value, word: &str) -> Result<Outcome> {
        self.refused("pods", &decent_pod(changes), word).await
    }

    async fn operator_objects_stand(&self, resources: &[Resource]) -> Result<Outcome> {
        let mut seen = 0;
        for resource in resources.iter().filter(|resource| resource.namespaced) {
            let name = resource.name.split_once('/').map_or("", |(_, name)| name);
            let path = format!("{}/namespaces/{}/{name}", resource.path, self.namespace);
            // As the administrator, so that what the tenant cannot see is tried too.
            let list = self
                .admin
                .get(&format!("{path}?labelSelector=app.kubernetes.io/managed-by=spur-quota"))
                .await?;
            for object in list.items() {
                seen += 1;
                let object = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                if self.alice.delete(&format!("{path}/{object}?dryRun=All")).await?.is_ok() {
                    return Ok(Err(format!("{name}/{object} can be deleted")));
                }
                let label = json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": null } } });
                if self.alice.merge(&format!("{path}/{object}?dryRun=All"), &label).await?.is_ok() {
                    return Ok(Err(format!("{name}/{object} can be changed")));
                }
            }
        }
        ensure!(seen >= 4, "two quotas, a LimitRange and a RoleBinding at least, but {seen} were seen");
        Ok(Ok(()))
    }

    /// Passes when the quotas that alice sees limit all of these.
    async fn limited(&self, wanted: &[&str]) -> Result<Outcome> {
        let quotas = self.alice.get(&self.core("resourcequotas")).await?;
        let missing: Vec<_> = wanted
            .iter()
            .filter(|name| {
                !quotas.items().any(|quota| {
                    let hard = quota.pointer("/spec/hard").and_then(Value::as_object);
                    hard.is_some_and(|hard| {
                        hard.contains_key(**name) || hard.contains_key(&format!("requests.{name}"))
                    })
                })
            })
            .copied()
            .collect();
        Ok(if missing.is_empty() { Ok(()) } else { Err(format!("no limit on {}", missing.join(", "))) })
    }

    /// The outcomes in the order of [`CHECKS`].
    async fn outcomes(&self) -> Result<Vec<Outcome>> {
        let control = self.alice.try_create(&self.core("pods"), &decent_pod(&json!({}))).await?;
        ensure!(control.is_ok(), "a decent pod is not let in: {control:?}");
        let resources = self.resources().await?;
        let names = |namespaced: bool| {
            let mut names: Vec<String> =
                resources.iter().filter(|r| r.namespaced == namespaced).map(|r| r.name.clone()).collect();
            // What everybody may ask about themselves.
            names.retain(|name| !name.contains("/selfsubject"));
            names
        };
        let mut cluster = names(false);
        cluster.push("/nodes/proxy".to_owned());
        let limits = ["/resourcequotas".to_owned(), "/limitranges".to_owned()];
        let write = &["create", "update", "patch", "delete", "deletecollection"];
        let mut outcomes = vec![
            self.none_granted(&cluster, &VERBS, &self.namespace).await?,
            self.operator_objects_stand(&resources).await?,
        ];
        outcomes.extend(self.container_outcomes().await?);
        outcomes.extend([
            self.none_granted(&limits, write, &self.namespace).await?,
            self.none_granted(&names(true), &VERBS, &self.other).await?,
            self.limited(&["cpu", "memory", "ephemeral-storage"]).await?,
            self.limited(&OBJECTS).await?,
        ]);
        outcomes.extend(self.host_outcomes().await?);
        outcomes.extend(self.self_service_outcomes().await?);
        Ok(outcomes)
    }

    /// What a container may do: BC-CPI-3 to 6.
    async fn container_outcomes(&self) -> Result<[Outcome; 4]> {
        let added = json!({ "capabilities": { "drop": ["ALL"], "add": ["SETPCAP"] } });
        let privileged = json!({ "privileged": true, "allowPrivilegeEscalation": null });
        let root = json!({ "spec": { "securityContext": { "runAsNonRoot": false } } });
        let escalation = json!({ "allowPrivilegeEscalation": true });
        Ok([
            self.pod_refused(&container(&json!({ "securityContext": added })), "SETPCAP").await?,
            self.pod_refused(&root, "runAsNonRoot").await?,
            self.pod_refused(&container(&json!({ "securityContext": privileged })), "privileged").await?,
            self.pod_refused(
                &container(&json!({ "securityContext": escalation })),
                "allowPrivilegeEscalation",
            )
            .await?,
        ])
    }

    /// What reaches the host: BC-HI and CC-DI-1.
    async fn host_outcomes(&self) -> Result<[Outcome; 6]> {
        let host = |field: &str| json!({ "spec": { field: true } });
        let path = json!({ "spec": { "volumes": [{ "name": "host", "hostPath": { "path": "/" } }] } });
        let port = container(&json!({ "ports": [{ "containerPort": 80, "hostPort": 80 }] }));
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
            "spec": { "type": "NodePort", "ports": [{ "port": 80 }] },
        });
        let network = self.pod_refused(&host("hostNetwork"), "hostNetwork").await?;
        Ok([
            self.pod_refused(&path, "hostPath").await?,
            self.refused("services", &service, "services.nodeports").await?,
            network.and(self.pod_refused(&port, "hostPort").await?),
            self.pod_refused(&host("hostPID"), "hostPID").await?,
            self.pod_refused(&host("hostIPC"), "hostIPC").await?,
            self.pod_refused(&container(&json!({ "imagePullPolicy": "Never" })), "imagePullPolicy").await?,
        ])
    }

    /// What stands between tenants, and what they may arrange themselves: BC-NI-1 and level 2.
    async fn self_service_outcomes(&self) -> Result<[Outcome; 4]> {
        let rbac = |names: &[&str]| {
            names.iter().map(|name| format!("rbac.authorization.k8s.io/{name}")).collect::<Vec<_>>()
        };
        let policies = ["networking.k8s.io/networkpolicies".to_owned()];
        let path = format!("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", self.namespace);
        let isolated = self.admin.get(&path).await?.items().count() > 0;
        let escalate = self
            .none_granted(&rbac(&["roles", "clusterroles"]), &["escalate", "bind"], &self.namespace)
            .await?;
        let bindings = rbac(&["roles", "rolebindings"]);
        let write = self.none_granted(&bindings, &["create", "update", "patch"], &self.namespace).await?;
        Ok([
            if isolated { Ok(()) } else { Err("there is no NetworkPolicy".to_owned()) },
            escalate.and(write),
            self.all_granted(&bindings, &VERBS).await?,
            self.all_granted(&policies, &VERBS).await?,
        ])
    }
}

/// The numbers of objects that CC-FNS-2 wants limited.
const OBJECTS: [&str; 9] = [
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Changes of a pod that give its container what `restricted` asks for, and these.
fn container(changes: &Value) -> Value {
    let mut container = json!({
        "name": "main", "image": "i",
        "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
    });
    tenant::lay_over(&mut container, changes);
    json!({ "spec": { "containers": [container] } })
}

/// A pod that both profiles let in, with changes.
fn decent_pod(changes: &Value) -> Value {
    let context = json!({ "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } });
    let mut decent = pod("decent", &container(&json!({})));
    tenant::lay_over(&mut decent, &json!({ "spec": { "securityContext": context } }));
    tenant::lay_over(&mut decent, changes);
    decent
}

async fn outcomes_under(profile: &'static str) -> Result<Vec<Outcome>> {
    let site = Site::up(ACCOUNTS, &format!("pod_security = \"{profile}\"\n")).await?;
    let tenant = Tenant {
        admin: Caller::new(site.admin.clone()),
        alice: Caller::new(site.member("alice").await?),
        namespace: site.namespace("physics"),
        other: site.namespace("chemistry"),
    };
    tenant.outcomes().await.with_context(|| format!("under the profile {profile}"))
}

fn table() -> String {
    let word = |passes: bool| if passes { "passes" } else { "fails" };
    let row = |check: &Check| {
        let [baseline, restricted] = check.passes.map(word);
        let Check { id, level, title, remark, .. } = check;
        format!("| {id} | {level} | {title} | {baseline} | {restricted} | {remark} |\n")
    };
    let count =
        |profile: usize| CHECKS.iter().filter(|check| check.passes.get(profile) == Some(&true)).count();
    let [baseline, restricted] = PROFILES;
    [
        BEGIN.to_owned(),
        format!("\n| Check | Level | What it asks for | {baseline} | {restricted} | By what, or why not |\n"),
        "|---|---|---|---|---|---|\n".to_owned(),
        CHECKS.iter().map(row).collect(),
        format!("\n`{baseline}` passes {} of {} checks, ", count(0), CHECKS.len()),
        format!("`{restricted}` {}.\n\n{END}", count(1)),
    ]
    .concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_profile_passes_the_checks_that_the_documentation_says() -> Result<()> {
    let (baseline, restricted) = tokio::try_join!(outcomes_under(PROFILES[0]), outcomes_under(PROFILES[1]))?;
    let mut wrong = Vec::new();
    for (number, (profile, outcomes)) in
        [(PROFILES[0], baseline), (PROFILES[1], restricted)].into_iter().enumerate()
    {
        ensure!(outcomes.len() == CHECKS.len(), "{} outcomes of {} checks", outcomes.len(), CHECKS.len());
        for (check, outcome) in CHECKS.iter().zip(outcomes) {
            if Some(&outcome.is_ok()) != check.passes.get(number) {
                wrong.push(format!("{} ({}) under {profile}: {outcome:?}", check.id, check.title));
            }
        }
    }
    ensure!(wrong.is_empty(), "other outcomes than expected:\n{}", wrong.join("\n"));

    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/multi-tenancy-benchmark.md"));
    let page = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (before, rest) = page.split_once(BEGIN).context("the page has no beginning of the table")?;
    let (_, after) = rest.split_once(END).context("the page has no end of the table")?;
    let wanted = format!("{before}{}{after}", table());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, wanted).with_context(|| path.display().to_string())?;
    } else {
        ensure!(page == wanted, "docs/multi-tenancy-benchmark.md is out of date: run with UPDATE_DOCS=1");
    }
    Ok(())
}
