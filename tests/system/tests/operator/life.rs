//! A whole life: everything that an operator does but deleting namespaces.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use spur_test_control_plane::Component;

use super::lab::Lab;
use super::program::Operator;
use super::{ADMISSION, COORDINATORS, RBAC, accounts, in_namespace, text, until};

/// Every rule of the guard is off.
pub(crate) const NO_GUARD: &str = "[guard.rules]
node_name = false
scheduler = false
priority_class = false
grace_period = false
pod_resources = false
resource_claims = false
tolerations = false
cross_namespace_affinity = false
volumes = false
finalizers = false
force_delete = false
force_evict = false
external_ips = false
";

const GUARD: [&str; 5] = ["eviction", "pod-deletion", "pod-updates", "pods", "services"];

/// Takes the operator through everything that it does but deleting.
pub(crate) async fn live(lab: &Lab) -> Result<()> {
    let first = accounts("a b c d e f", 4);
    let source = lab.write("accounts.toml", &first)?;
    let policy = lab.write("policy.toml", COORDINATORS)?;
    let leader = Operator::start(&lab.kubeconfig, &[&*source, "--policy", &policy]).await?;
    if let Err(error) = keep(lab, &leader, &first).await {
        return Err(error.context(leader.diagnosis().await));
    }

    // Another replica takes over and goes on, with another policy.
    let policy = lab.write("other.toml", NO_GUARD)?;
    let follower = Operator::start(&lab.kubeconfig, &[&*source, "--policy", &policy]).await?;
    follower.answers("/readyz", 200).await?;
    ensure!(follower.status().await?["leading"] == false, "two lead");
    leader.stop().await?;
    if let Err(error) = take_over(lab, &follower).await {
        return Err(error.context(follower.diagnosis().await));
    }
    let (ended, _) = follower.stop().await?;
    ensure!(ended.success(), "{ended}");
    Ok(())
}

async fn take_over(lab: &Lab, follower: &Operator) -> Result<()> {
    follower.stands("the other leads", |status| status["leading"] == true).await?;
    lab.say(&accounts("a b c", 2), NO_GUARD).await?;
    for name in GUARD {
        lab.is_gone(&format!("{ADMISSION}/validatingadmissionpolicybindings/spur-guard-{name}")).await?;
        lab.is_gone(&format!("{ADMISSION}/validatingadmissionpolicies/spur-guard-{name}")).await?;
    }
    lab.is_gone(&format!("{RBAC}/namespaces/spur-acct-a/rolebindings/spur-coordinators")).await
}

/// From nothing: accounts and users that come and go, drift, removals.
async fn keep(lab: &Lab, leader: &Operator, first: &str) -> Result<()> {
    leader.answers("/readyz", 200).await?;
    lab.holds(first, COORDINATORS).await?;

    // A new account whose `default` ServiceAccount nobody else makes first, other caps, a member and a user out.
    lab.control_plane.pause(Component::ControllerManager)?;
    let second = accounts("a b c d e f g", 8).replace("accounts = [\"b\"]", "accounts = [\"a\"]");
    lab.write("accounts.toml", &second)?;
    let default = in_namespace("spur-acct-g", "serviceaccounts/default");
    until(&default, || lab.admin.get(&default)).await?;
    lab.control_plane.resume(Component::ControllerManager)?;
    lab.holds(&second, COORDINATORS).await?;
    Drift { lab, operator: leader, accounts: &second }.go().await?;

    // Away and back again, with the ServiceAccount of the one user.
    let user = in_namespace("spur-users", "serviceaccounts/spur-user-a-user");
    let fewer = second
        .replace("name = \"a\"\n", "name = \"h\"\n")
        .replace("accounts = [\"a\"]", "accounts = [\"h\"]");
    lab.write("accounts.toml", &fewer.replace("name = \"a-user\"", "name = \"h-user\""))?;
    lab.is_retired("spur-acct-a").await?;
    lab.is_gone(&user).await?;
    lab.say(&second, COORDINATORS).await?;
    lab.admin.get(&user).await?;

    // Half of all at once: held, confirmed, done; and the confirmation is taken away.
    lab.write("accounts.toml", &accounts("a b c", 8))?;
    let status =
        leader.stands("removals are held", |status| status["removals"]["decision"] == "held").await?;
    let confirmed = json!({ "spur.amd.com/confirm-removals": status["removals"]["digest"] });
    lab.admin.patch(USERS, &json!({ "metadata": { "annotations": confirmed } })).await?;
    for gone in ["d", "e", "f", "g"] {
        lab.is_retired(&format!("spur-acct-{gone}")).await?;
    }
    until("the confirmation is taken away", || async {
        let found = lab.admin.get(USERS).await?;
        ensure!(found["metadata"]["annotations"]["spur.amd.com/confirm-removals"].is_null(), "{found:#}");
        Ok(())
    })
    .await?;
    let events = lab.admin.get(&in_namespace("spur-acct-d", "events")).await?;
    let reasons: Vec<_> =
        events["items"].as_array().into_iter().flatten().map(|event| text(event, "/reason")).collect();
    ensure!(reasons.contains(&"Retired"), "{reasons:?}");
    Ok(())
}

/// What others change of what is ours, and is put back.
struct Drift<'l> {
    lab: &'l Lab,
    operator: &'l Operator,
    accounts: &'l str,
}

impl Drift<'_> {
    /// Changes everything that is ours, one after the other, then deletes it, then puts another in its place.
    async fn go(&self) -> Result<()> {
        let admin = &self.lab.admin;
        let edits = edits();
        for (path, edit) in &edits {
            self.put_back(&format!("edit of {path}"), admin.patch(path, edit)).await?;
        }
        let paths = edits.iter().map(|(path, _)| path);
        for path in paths.filter(|path| ![ACCOUNT, USERS].contains(&&***path)) {
            self.put_back(&format!("deletion of {path}"), admin.delete(path)).await?;
        }
        for name in ["spur-quota", "spur-priority"] {
            let scoped = json!({
                "metadata": { "name": name }, "spec": { "hard": { "pods": "9" }, "scopes": ["NotTerminating"] },
            });
            self.made_anew(&format!("{ACCOUNT}/resourcequotas"), name, &scoped).await?;
        }
        let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" });
        for name in ["spur-members", "spur-coordinators"] {
            let bound = json!({ "metadata": { "name": name }, "roleRef": role });
            self.made_anew(&format!("{RBAC}/namespaces/spur-acct-a/rolebindings"), name, &bound).await?;
        }
        Ok(())
    }

    /// Makes a change; waits until it is put back, and until the operator is done with it: what differs again before
    /// that waits for its turn, and later each time.
    async fn put_back<T>(&self, what: &str, change: impl Future<Output = Result<T>>) -> Result<()> {
        let done = || self.operator.logged(&["put back", "written"]);
        let before = done();
        change.await?;
        until(&format!("{what} is put back"), async || {
            ensure!(done() > before, "nothing is written");
            Ok(())
        })
        .await?;
        self.lab.holds(self.accounts, COORDINATORS).await.with_context(|| what.to_owned())?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(())
    }

    /// Puts another object in the place of one of ours that cannot be changed. The operator is paused meanwhile: it
    /// would make the one anew before the other is there.
    async fn made_anew(&self, path: &str, name: &str, object: &Value) -> Result<()> {
        let admin = &self.lab.admin;
        let pause = |value: Value| json!({ "metadata": { "annotations": { "spur.amd.com/paused": value } } });
        let change = async {
            admin.patch(ACCOUNT, &pause("true".into())).await?;
            self.operator.stands("it is paused", |status| status["counts"]["paused"] == 1).await?;
            admin.delete(&format!("{path}/{name}")).await?;
            admin.post(path, object).await?;
            admin.patch(ACCOUNT, &pause(Value::Null)).await
        };
        self.put_back(&format!("{path}/{name} of another kind"), change).await
    }
}

const ACCOUNT: &str = "/api/v1/namespaces/spur-acct-a";
const USERS: &str = "/api/v1/namespaces/spur-users";

/// Where, and a merge patch.
fn edits() -> Vec<(String, Value)> {
    let bindings = format!("{RBAC}/namespaces/spur-acct-a/rolebindings");
    let level = "pod-security.kubernetes.io/enforce";
    let version = "pod-security.kubernetes.io/enforce-version";
    let stranger = json!([{ "kind": "ServiceAccount", "namespace": "default", "name": "default" }]);
    let everything = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]);
    let labels = json!({ "app.kubernetes.io/managed-by": null, level: "privileged", version: "v1.25" });
    let hard = json!({ "requests.cpu": "999", "count/jobs.batch": "1" });
    let aggregation = json!({ "clusterRoleSelectors": [{ "matchLabels": { "nothing": "nothing" } }] });
    vec![
        (ACCOUNT.to_owned(), json!({ "metadata": { "labels": labels } })),
        (USERS.to_owned(), json!({ "metadata": { "labels": { level: "privileged" } } })),
        (format!("{ACCOUNT}/resourcequotas/spur-quota"), json!({ "spec": { "hard": hard } })),
        (format!("{ACCOUNT}/resourcequotas/spur-priority"), json!({ "spec": { "hard": { "pods": "7" } } })),
        (format!("{ACCOUNT}/limitranges/spur-defaults"), json!({ "spec": { "limits": [] } })),
        (format!("{ACCOUNT}/serviceaccounts/default"), json!({ "automountServiceAccountToken": true })),
        (format!("{bindings}/spur-members"), json!({ "subjects": stranger })),
        (format!("{bindings}/spur-coordinators"), json!({ "subjects": null })),
        (
            format!("{USERS}/serviceaccounts/spur-user-a-user"),
            json!({ "automountServiceAccountToken": true }),
        ),
        (format!("{RBAC}/clusterroles/spur-tenant"), json!({ "rules": everything })),
        (format!("{RBAC}/clusterroles/spur-coordinator"), json!({ "aggregationRule": aggregation })),
        (
            format!("{ADMISSION}/validatingadmissionpolicies/spur-guard-pods"),
            json!({ "spec": { "failurePolicy": "Ignore" } }),
        ),
        (
            format!("{ADMISSION}/validatingadmissionpolicybindings/spur-guard-pods"),
            json!({ "spec": { "validationActions": ["Audit"] } }),
        ),
    ]
}
