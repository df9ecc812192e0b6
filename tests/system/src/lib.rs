//! A site for tests: a real control plane with a projection applied to it.

pub mod program;
pub mod proxy;
pub mod reconciler;
pub mod witness;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use spur_sdk::Deadlines;
use spur_sdk_quota::cluster::{ApplyOptions, ApplyReport, Plan, PlanOptions, apply, observe, plan};
use spur_sdk_quota::k8s::KubeApi;
use spur_sdk_quota::source::{ReadOptions, read};
use spur_sdk_quota::{Model, Policy, Projection, QuotaProjector, names};
use spur_test_control_plane::ControlPlane;

/// A control plane of its own, gone with the value, and what was applied to it.
#[expect(missing_debug_implementations, reason = "a kube client has none")]
pub struct Site {
    /// The control plane.
    pub control_plane: ControlPlane,
    /// An administrator in `system:masters`.
    pub admin: Client,
    /// What was applied.
    pub projection: Projection,
}

/// Reads accounts as a file named `accounts.toml` would be.
///
/// # Errors
/// The text is no file of accounts.
pub fn model(accounts: &str) -> Result<Model> {
    Ok(read(accounts, "accounts.toml", ReadOptions::default())?)
}

/// What the accounts need to be in step with a cluster.
///
/// # Errors
/// The texts cannot be read, or the cluster cannot.
pub async fn planned(
    client: &Client,
    model: &Model,
    policy: &Policy,
    adopt: bool,
) -> Result<(Projection, Plan)> {
    let api = KubeApi::new(client.clone(), Deadlines::default());
    let observed = observe(&api).await?;
    let projector = QuotaProjector::new(policy).default_priority_class(observed.default_priority_class());
    let projection = projector.project(model);
    let plan = plan(&projection, &observed, &PlanOptions::default().adopt(adopt));
    Ok((projection, plan))
}

/// Plans and applies.
///
/// # Errors
/// The cluster cannot be read. What could not be applied stands in the report.
pub async fn applied(client: &Client, model: &Model, policy: &Policy) -> Result<(Projection, ApplyReport)> {
    let (projection, plan) = planned(client, model, policy, false).await?;
    let api = KubeApi::new(client.clone(), Deadlines::default());
    let report = apply(&plan, &api, &ApplyOptions::default()).await;
    Ok((projection, report))
}

impl Site {
    /// A new control plane with the accounts applied.
    ///
    /// # Errors
    /// The control plane does not start, or anything was not applied.
    pub async fn up(accounts: &str, policy: &str) -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        let admin = control_plane.client().await?;
        let policy = Policy::read(policy, "policy.toml")?;
        let (projection, report) = applied(&admin, &model(accounts)?, &policy).await?;
        ensure!(report.is_complete(), "not applied in full: {report:#?}");
        Ok(Self { control_plane, admin, projection })
    }

    /// The namespace of an account.
    #[must_use]
    pub fn namespace(&self, account: &str) -> String {
        names::NAMESPACES.map(account)
    }

    /// A user, by a token of the ServiceAccount in `spur-users`, who is let into all accounts of theirs.
    ///
    /// # Errors
    /// No token was to be had.
    pub async fn member(&self, user: &str) -> Result<Client> {
        let client = member(&self.control_plane, user).await?;
        let accounts = self.projection.accounts.iter();
        for account in accounts.filter(|account| account.members.iter().any(|member| member.as_str() == user))
        {
            let pods: Api<Pod> = Api::namespaced(client.clone(), &account.namespace);
            eventually(|| async { Ok(pods.list(&ListParams::default()).await?) }).await?;
        }
        Ok(client)
    }
}

/// Tries until it goes well, for 20 s at most: the API server takes in roles and bindings a moment after they are
/// written.
///
/// # Errors
/// The last failure.
pub async fn eventually<T, F: Future<Output = Result<T>>>(mut attempt: impl FnMut() -> F) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match attempt().await {
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            done => return done,
        }
    }
}

/// A user of a control plane, by a token of the ServiceAccount in `spur-users`.
///
/// # Errors
/// No token was to be had.
pub async fn member(control_plane: &ControlPlane, user: &str) -> Result<Client> {
    let name = names::SERVICE_ACCOUNTS.map(user);
    control_plane.client_for_service_account(names::USERS_NAMESPACE, &name).await
}
