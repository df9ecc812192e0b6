//! A member of an account who tries to get at more than the account's share: other identities, other namespaces,
//! what limits the account, and resources that are not charged. (What the tenant guard refuses is in `guard.rs`.)

mod tenant;

use anyhow::Result;
use serde_json::{Value, json};
use spur_system_tests::Site;
use tenant::{Caller, Steps, pod, workload};

const ACCOUNTS: &str = r#"
[[account]]
name = "physics"
grp_tres = { cpu = 4, mem = "8Gi", "gres/gpu" = 2 }
[[account]]
name = "chemistry"
grp_tres = { cpu = 4, mem = "8Gi" }
[[user]]
name = "alice"
accounts = ["physics"]
[[user]]
name = "bob"
accounts = ["physics", "chemistry"]
"#;

/// All that a member may do with resources, as the API server tells: what `spur-tenant` grants, and the reviews of
/// oneself that are everybody's. Whoever widens the role changes this list.
const GRANTED: [&str; 13] = [
    "apps/controllerrevisions: get list watch",
    "apps/daemonsets,deployments,replicasets,statefulsets: get list watch create update patch delete deletecollection",
    "apps/deployments/scale,replicasets/scale,statefulsets/scale: get update patch",
    "authentication.k8s.io/selfsubjectreviews: create",
    "authorization.k8s.io/selfsubjectaccessreviews,selfsubjectrulesreviews: create",
    "autoscaling/horizontalpodautoscalers: get list watch create update patch delete deletecollection",
    "batch/cronjobs,jobs: get list watch create update patch delete deletecollection",
    "events.k8s.io/events: get list watch",
    "/configmaps,persistentvolumeclaims,pods,secrets,services: get list watch create update patch delete deletecollection",
    "/events,limitranges,resourcequotas: get list watch",
    "/pods/attach,pods/exec,pods/portforward: create get",
    "/pods/eviction: create",
    "/pods/log: get",
];

/// The parties of the test.
struct Lab {
    admin: Caller,
    alice: Caller,
    namespace: String,
    other: String,
}

impl Lab {
    async fn up() -> Result<(Self, Site)> {
        let site = Site::up(ACCOUNTS, "").await?;
        let lab = Self {
            admin: Caller::new(site.admin.clone()),
            alice: Caller::new(site.member("alice").await?),
            namespace: site.namespace("physics"),
            other: site.namespace("chemistry"),
        };
        Ok((lab, site))
    }

    fn core(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    fn in_group(&self, group: &str, resource: &str) -> String {
        format!("/apis/{group}/namespaces/{}/{resource}", self.namespace)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_gets_at_nothing_but_the_accounts_share() -> Result<()> {
    let (lab, _site) = Lab::up().await?;
    let mut steps = Steps::default();
    the_role_grants_what_is_listed_and_no_more(&lab, &mut steps).await?;
    no_other_identity_can_be_had(&lab, &mut steps).await?;
    nothing_that_limits_the_account_can_be_changed(&lab, &mut steps).await?;
    pods_cannot_be_changed_or_used_past_the_limits(&lab, &mut steps).await?;
    no_other_namespace_can_be_entered(&lab, &mut steps).await?;
    nothing_runs_uncharged(&lab, &mut steps).await?;
    steps.finish()
}

async fn the_role_grants_what_is_listed_and_no_more(lab: &Lab, steps: &mut Steps) -> Result<()> {
    // A role for a custom resource that asks to be part of `edit` must not become part of ours.
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "widgets", "labels": {
            "rbac.authorization.k8s.io/aggregate-to-edit": "true",
            "rbac.authorization.k8s.io/aggregate-to-view": "true",
        } },
        "rules": [{ "apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get"] }],
    });
    let created = lab.admin.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await?;
    steps.allowed("role: a role that widens edit is made", &created);

    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
        "spec": { "namespace": lab.namespace },
    });
    let answer = lab.alice.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", &review).await?;
    let mut granted = Vec::new();
    let words = |rule: &Value, field: &str| {
        let words = rule.get(field).and_then(Value::as_array).into_iter().flatten();
        words.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    for rule in answer.body.pointer("/status/resourceRules").and_then(Value::as_array).into_iter().flatten() {
        let (groups, resources) = (words(rule, "apiGroups").join(","), words(rule, "resources").join(","));
        granted.push(format!("{groups}/{resources}: {}", words(rule, "verbs").join(" ")));
    }
    granted.sort_unstable();
    granted.dedup();
    let mut wanted = GRANTED.map(str::to_owned).to_vec();
    wanted.sort_unstable();
    steps.check("role: it grants what is listed and no more", granted == wanted, &format!("{granted:#?}"));

    for verb in ["create", "get"] {
        for stream in ["attach", "exec", "portforward"] {
            let may = lab.alice.may(verb, &format!("/pods/{stream}"), &lab.namespace).await?;
            steps.check(&format!("role: {verb} pods/{stream} at home"), may, "denied");
            let may = lab.alice.may(verb, &format!("/pods/{stream}"), &lab.other).await?;
            steps.check(&format!("role: no {verb} pods/{stream} elsewhere"), !may, "granted");
        }
    }
    Ok(())
}

async fn no_other_identity_can_be_had(lab: &Lab, steps: &mut Steps) -> Result<()> {
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let sentence = "cannot create resource \"serviceaccounts/token\"";
    for (whose, path) in [
        ("the namespace's default", lab.core("serviceaccounts/default/token")),
        ("a colleague's", "/api/v1/namespaces/spur-users/serviceaccounts/spur-user-bob/token".to_owned()),
        ("their own", "/api/v1/namespaces/spur-users/serviceaccounts/spur-user-alice/token".to_owned()),
    ] {
        steps.refused(
            &format!("identity: {whose} token"),
            &lab.alice.create(&path, &request).await?,
            sentence,
        );
    }
    for (who, user, group) in [
        ("the namespace's default", format!("system:serviceaccount:{}:default", lab.namespace), ""),
        ("a colleague", "system:serviceaccount:spur-users:spur-user-bob".to_owned(), ""),
        ("an administrator", "admin".to_owned(), "system:masters"),
    ] {
        let groups: &[&str] = if group.is_empty() { &[] } else { &[group] };
        let answer = lab.alice.as_user(&user, groups).get(&lab.core("pods")).await?;
        steps.refused(&format!("identity: impersonation of {who}"), &answer, "cannot impersonate");
    }
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "mine" } });
    let answer = lab.alice.create(&lab.core("serviceaccounts"), &account).await?;
    steps.refused(
        "identity: a ServiceAccount of their own",
        &answer,
        "cannot create resource \"serviceaccounts\"",
    );

    // A Secret may ask for the token of a ServiceAccount of the namespace; there is only one, with no rights.
    let secret = |name: &str, account: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": { "name": name, "annotations": { "kubernetes.io/service-account.name": account } },
        })
    };
    let secrets = lab.core("secrets");
    steps.allowed(
        "identity: a Secret for the default token",
        &lab.alice.create(&secrets, &secret("own", "default")).await?,
    );
    let filled =
        async || Ok(lab.alice.get(&lab.core("secrets/own")).await?.body.pointer("/data/token").is_some());
    steps.reached("identity: it is filled", filled).await?;
    lab.alice.create(&secrets, &secret("bob", "spur-user-bob")).await?;
    let gone = async || Ok(lab.alice.get(&lab.core("secrets/bob")).await?.code == 404);
    steps.reached("identity: a Secret for a colleague's token is thrown away", gone).await?;
    let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{}", lab.namespace)];
    let groups = groups.each_ref().map(String::as_str);
    let default = lab.admin.as_user(&format!("system:serviceaccount:{}:default", lab.namespace), &groups);
    let sentence = "cannot list resource";
    for resource in ["pods", "secrets", "configmaps", "resourcequotas"] {
        let answer = default.get(&lab.core(resource)).await?;
        steps.refused(
            &format!("identity: the default ServiceAccount reads no {resource}"),
            &answer,
            sentence,
        );
    }
    let created = lab.alice.try_create(&lab.core("pods"), &pod("p", &json!({}))).await?;
    let mounted = created.body.pointer("/spec/containers/0/volumeMounts").is_some();
    steps.check(
        "identity: no token is mounted into a pod",
        created.is_ok() && !mounted,
        &format!("{created:?}"),
    );

    for user in ["alice", "spur-user-alice", "system:serviceaccount:physics:spur-user-alice"] {
        let answer = lab.admin.as_user(user, &[]).get(&lab.core("pods")).await?;
        steps.refused(&format!("identity: user {user} inherits nothing"), &answer, sentence);
    }
    Ok(())
}

async fn nothing_that_limits_the_account_can_be_changed(lab: &Lab, steps: &mut Steps) -> Result<()> {
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "deny" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress"] },
    });
    let policies = lab.in_group("networking.k8s.io/v1", "networkpolicies");
    steps.allowed("limits: the operator denies traffic", &lab.admin.create(&policies, &policy).await?);
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "never" },
        "spec": { "maxUnavailable": 0, "selector": {} },
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "me" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin" },
        "subjects": [{ "kind": "ServiceAccount", "name": "spur-user-alice", "namespace": "spur-users" }],
    });
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "all" },
        "rules": [{ "apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"] }],
    });
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "more" }, "spec": { "hard": { "pods": "9" } },
    });
    let lease =
        json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "l" } });
    let claim = json!({ "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": { "name": "gpu" }, "spec": {} });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": { "name": "e" },
        "addressType": "IPv4", "endpoints": [],
    });
    let rbac = "rbac.authorization.k8s.io/v1";
    for (what, collection, object) in [
        ("disruption budget", lab.in_group("policy/v1", "poddisruptionbudgets"), &budget),
        ("role binding", lab.in_group(rbac, "rolebindings"), &binding),
        ("role", lab.in_group(rbac, "roles"), &role),
        ("network policy", policies.clone(), &policy),
        ("quota", lab.core("resourcequotas"), &quota),
        ("lease", lab.in_group("coordination.k8s.io/v1", "leases"), &lease),
        ("device claim", lab.in_group("resource.k8s.io/v1", "resourceclaims"), &claim),
        ("endpoint slice", lab.in_group("discovery.k8s.io/v1", "endpointslices"), &slice),
    ] {
        let answer = lab.alice.try_create(&collection, object).await?;
        steps.refused(&format!("limits: a {what} of their own"), &answer, "cannot create resource");
    }
    let namespace = format!("/api/v1/namespaces/{}", lab.namespace);
    let more = json!({ "spec": { "hard": { "pods": "9999" } } });
    let lax = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "privileged" } } });
    let unmanaged = json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": null } } });
    for (what, path, patch) in [
        ("the quota", lab.core("resourcequotas/spur-quota"), &more),
        ("the quota on priorities", lab.core("resourcequotas/spur-priority"), &more),
        ("the defaults", lab.core("limitranges/spur-defaults"), &json!({ "spec": { "limits": [] } })),
        ("the namespace's Pod Security", namespace.clone(), &lax),
        ("the label that binds the guard", namespace.clone(), &unmanaged),
        (
            "the use of the quota",
            lab.core("resourcequotas/spur-quota/status"),
            &json!({ "status": { "used": {} } }),
        ),
        (
            "the binding of members",
            lab.in_group(rbac, "rolebindings/spur-members"),
            &json!({ "subjects": [] }),
        ),
    ] {
        let answer = lab.alice.merge(&path, patch).await?;
        steps.refused(&format!("limits: a change of {what}"), &answer, "cannot patch resource");
    }
    for (what, path) in [
        ("the quota", lab.core("resourcequotas/spur-quota")),
        ("the defaults", lab.core("limitranges/spur-defaults")),
        ("the operator's network policy", format!("{policies}/deny")),
        ("the binding of members", lab.in_group(rbac, "rolebindings/spur-members")),
        ("the namespace", namespace),
        (
            "the guard",
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/spur-guard-pods".to_owned(),
        ),
        ("the role", "/apis/rbac.authorization.k8s.io/v1/clusterroles/spur-tenant".to_owned()),
    ] {
        let answer = lab.alice.delete(&format!("{path}?dryRun=All")).await?;
        steps.refused(&format!("limits: the deletion of {what}"), &answer, "cannot delete resource");
    }
    Ok(())
}

async fn pods_cannot_be_changed_or_used_past_the_limits(lab: &Lab, steps: &mut Steps) -> Result<()> {
    steps.allowed("pod: created", &lab.alice.create(&lab.core("pods"), &pod("p", &json!({}))).await?);
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "p" }, "target": { "kind": "Node", "name": "n" },
    });
    for (what, collection) in [("pods/binding", "pods/p/binding"), ("bindings", "bindings")] {
        let answer = lab.alice.create(&lab.core(collection), &binding).await?;
        steps.refused(&format!("pod: {what}"), &answer, "cannot create resource");
    }
    for (what, patch) in [
        ("resize", json!({ "spec": { "containers": [] } })),
        (
            "ephemeralcontainers",
            json!({ "spec": { "ephemeralContainers": [{ "name": "e", "image": "i" }] } }),
        ),
        ("status", json!({ "status": { "phase": "Failed" } })),
    ] {
        let answer = lab.alice.merge(&lab.core(&format!("pods/p/{what}")), &patch).await?;
        steps.refused(
            &format!("pod: pods/{what}"),
            &answer,
            &format!("cannot patch resource \"pods/{what}\""),
        );
    }
    let answer = lab.alice.get("/api/v1/nodes/n/proxy/pods").await?;
    steps.refused("pod: the kubelet through the API server", &answer, "cannot get resource \"nodes/proxy\"");
    let answer = lab.alice.get(&lab.core("pods/p/proxy/")).await?;
    steps.refused("pod: a proxy to a pod", &answer, "cannot get resource \"pods/proxy\"");
    Ok(())
}

async fn no_other_namespace_can_be_entered(lab: &Lab, steps: &mut Steps) -> Result<()> {
    for namespace in [lab.other.as_str(), "spur-users", "kube-system", "default"] {
        for resource in ["pods", "secrets", "configmaps", "serviceaccounts", "resourcequotas"] {
            let answer = lab.alice.get(&format!("/api/v1/namespaces/{namespace}/{resource}")).await?;
            steps.refused(&format!("elsewhere: {resource} of {namespace}"), &answer, "cannot list resource");
        }
        let answer = lab
            .alice
            .try_create(&format!("/api/v1/namespaces/{namespace}/pods"), &pod("p", &json!({})))
            .await?;
        steps.refused(
            &format!("elsewhere: a pod in {namespace}"),
            &answer,
            "cannot create resource \"pods\"",
        );
    }
    for path in [
        "/api/v1/pods",
        "/api/v1/secrets",
        "/api/v1/namespaces",
        "/api/v1/nodes",
        "/api/v1/persistentvolumes",
    ] {
        steps.refused(&format!("elsewhere: {path}"), &lab.alice.get(path).await?, "at the cluster scope");
    }
    Ok(())
}

async fn nothing_runs_uncharged(lab: &Lab, steps: &mut Steps) -> Result<()> {
    let pods = lab.core("pods");
    let container = |requests: Value| json!([{ "name": "main", "image": "i", "resources": requests }]);
    let sidecar = json!([{ "name": "side", "image": "i", "restartPolicy": "Always" }]);
    for (what, spec, cpu) in [
        ("no requests", json!({}), "100m"),
        ("an init container without", json!({ "initContainers": [{ "name": "i", "image": "i" }] }), "100m"),
        ("a sidecar without", json!({ "initContainers": sidecar }), "200m"),
        (
            "limits alone",
            json!({ "containers": container(json!({ "limits": { "cpu": "1", "memory": "1Gi" } })) }),
            "1",
        ),
    ] {
        steps.allowed(
            &format!("charge: a pod with {what}"),
            &lab.alice.create(&pods, &pod("c", &json!({ "spec": spec }))).await?,
        );
        let used = async || {
            let quota = lab.alice.get(&lab.core("resourcequotas/spur-quota")).await?;
            // Beside it stands the pod of the steps before.
            let used =
                quota.body.pointer("/status/used/requests.cpu").and_then(Value::as_str).map(millicores);
            Ok(used == Some(millicores(cpu) + 100))
        };
        steps.reached(&format!("charge: {what}, {cpu} CPU"), used).await?;
        steps.allowed(&format!("charge: {what}, deleted"), &lab.alice.delete(&format!("{pods}/c")).await?);
    }
    let minimum = "minimum cpu usage per Container is 10m";
    let exceeded = "exceeded quota: spur-quota";
    for (what, changes, sentence) in [
        (
            "a request of nothing",
            json!({ "containers": container(json!({ "requests": { "cpu": "0" } })) }),
            minimum,
        ),
        (
            "an init container that requests nothing",
            json!({ "initContainers": [{ "name": "i", "image": "i", "resources": { "requests": { "cpu": "1m" } } }] }),
            minimum,
        ),
        ("too much CPU", json!({ "containers": container(json!({ "requests": { "cpu": "5" } })) }), exceeded),
        (
            "too much memory",
            json!({ "containers": container(json!({ "requests": { "memory": "9Gi" } })) }),
            exceeded,
        ),
        (
            "too many GPUs",
            json!({ "containers": container(json!({ "limits": { "amd.com/gpu": "3" } })) }),
            exceeded,
        ),
        (
            "too many GPUs in an init container",
            json!({ "initContainers": [
                { "name": "i", "image": "i", "resources": { "limits": { "amd.com/gpu": "3" } } },
            ] }),
            exceeded,
        ),
    ] {
        let answer = lab.alice.try_create(&pods, &pod("c", &json!({ "spec": changes }))).await?;
        steps.refused(&format!("charge: {what}"), &answer, sentence);
    }
    let service = |kind: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
            "spec": { "type": kind, "ports": [{ "port": 80 }] },
        })
    };
    for kind in ["NodePort", "LoadBalancer"] {
        let answer = lab.alice.try_create(&lab.core("services"), &service(kind)).await?;
        steps.refused(&format!("charge: a Service of type {kind}"), &answer, exceeded);
    }

    // A controller is refused as well, and says so in an event.
    let big = json!({ "spec": { "replicas": 1, "template": { "spec": {
        "containers": container(json!({ "requests": { "cpu": "5" } })),
    } } } });
    let created = lab
        .alice
        .create(&lab.in_group("apps/v1", "replicasets"), &workload("ReplicaSet", "big", &big))
        .await?;
    steps.allowed("charge: a ReplicaSet with too much CPU is stored", &created);
    let events = lab.core("events?fieldSelector=reason=FailedCreate,involvedObject.name=big");
    let told = async || {
        let events = lab.alice.get(&events).await?;
        Ok(events
            .items()
            .any(|e| e.get("message").and_then(Value::as_str).is_some_and(|m| m.contains(exceeded))))
    };
    steps.reached("charge: its events say why it has no pod", told).await
}

/// Millicores of a CPU quantity as Kubernetes writes it.
fn millicores(quantity: &str) -> u64 {
    match quantity.strip_suffix('m') {
        Some(milli) => milli.parse().unwrap_or_default(),
        None => quantity.parse::<u64>().unwrap_or_default() * 1000,
    }
}
