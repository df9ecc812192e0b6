//! Sessions and tokens against the bare requests, on a real control plane, at the same concurrency, in turns.
//!
//! "Mint" is a session and its first token, against creating a Secret and asking for a token bound to it. "Refresh" is
//! a further token, against asking for a token bound to a Secret that is there.

use std::future::Future;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;
use spur_sdk::{Deadlines, UserName};
use spur_sdk_quota::k8s::KubeAccess;
use spur_sdk_quota::kubeconfig::{
    KubeconfigPolicy, Membership, Memberships, MintRequest, Minter, SessionName,
};
use spur_test_control_plane::{ControlPlane, Options};

const USERS: usize = 50;
const CONCURRENCY: usize = 16;
const ROUNDS: usize = 24;
/// Of each kind, in each round.
const COUNT: usize = 100;

#[expect(clippy::print_stdout, reason = "this is a program")]
fn say(text: &str) {
    println!("{text}");
}

/// Everybody is in one account.
struct Everybody;

impl Memberships for Everybody {
    async fn membership(&self, _: &UserName) -> Membership {
        Membership::Known {
            accounts: "physics".parse().into_iter().collect(),
            default: None,
            seen: SystemTime::now(),
        }
    }
}

fn user(number: usize) -> String {
    format!("user-{}", number % USERS)
}

struct Bare {
    accounts: Api<ServiceAccount>,
    secrets: Api<Secret>,
}

impl Bare {
    fn new(client: &Client) -> Self {
        let namespace = "spur-users";
        Self {
            accounts: Api::namespaced(client.clone(), namespace),
            secrets: Api::namespaced(client.clone(), namespace),
        }
    }

    async fn secret(&self, name: &str, uid: &str, account: &str) -> Result<String> {
        // The same object as a session's.
        let secret = json!({ "type": "Opaque", "immutable": true, "metadata": {
            "name": name,
            "labels": { "app.kubernetes.io/managed-by": "spur-quota", "spur.amd.com/session": account },
            "annotations": {
                "spur.amd.com/user-name": "user-1", "spur.amd.com/client": "bench",
                "spur.amd.com/created": "2026-11-30T12:00:00Z", "spur.amd.com/expires": "2026-12-01T00:00:00Z",
            },
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "ServiceAccount", "name": account, "uid": uid }
            ],
        } });
        let made = self.secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
        made.metadata.uid.context("uid")
    }

    async fn token(&self, account: &str, secret: &str, uid: Option<&str>) -> Result<String> {
        let request: TokenRequest = serde_json::from_value(json!({ "spec": {
            "audiences": [], "expirationSeconds": 3600,
            "boundObjectRef": { "apiVersion": "v1", "kind": "Secret", "name": secret, "uid": uid },
        } }))?;
        let made = self.accounts.create_token_request(account, &PostParams::default(), &request).await?;
        Ok(made.status.context("status")?.token)
    }
}

/// `COUNT` at the bench's concurrency, and how long they took.
async fn timed<T, F: Future<Output = Result<T>>>(one: impl Fn(usize) -> F) -> Result<(Vec<T>, Duration)> {
    let start = Instant::now();
    let done = stream::iter((0..COUNT).map(one)).buffer_unordered(CONCURRENCY).try_collect().await?;
    Ok((done, start.elapsed()))
}

#[derive(Default)]
struct Arm(Vec<f64>);

impl Arm {
    fn add(&mut self, time: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        self.0.push(COUNT as f64 / time.as_secs_f64());
    }

    fn median(&self) -> f64 {
        let mut rates = self.0.clone();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or_default()
    }
}

fn compare(what: &str, ours: &Arm, bare: &Arm) {
    let mut ratios: Vec<f64> = ours.0.iter().zip(&bare.0).map(|(ours, bare)| ours / bare).collect();
    ratios.sort_by(f64::total_cmp);
    say(&format!(
        "{what}: {:.0}/s, bare {:.0}/s, ratio {:.2} (median of rounds; half of them {:.2} to {:.2})",
        ours.median(),
        bare.median(),
        ratios.get(ratios.len() / 2).copied().unwrap_or_default(),
        ratios.get(ratios.len() / 4).copied().unwrap_or_default(),
        ratios.get(ratios.len() * 3 / 4).copied().unwrap_or_default(),
    ));
}

type Bench = Minter<KubeAccess, Everybody>;

async fn mints(minter: &Bench) -> Result<(Vec<SessionName>, Duration)> {
    timed(|number| async move {
        let request = MintRequest::new(user(number).parse()?).client("bench");
        Ok(minter.mint(&request).await?.session)
    })
    .await
}

async fn bare_mints(bare: &Bare, uids: &[String], round: usize) -> Result<(Vec<(String, String)>, Duration)> {
    timed(|number| async move {
        let account = format!("spur-user-{}", user(number));
        let name = format!("{account}.1800000000.{round:08}{number:08}");
        let uid = bare.secret(&name, uids.get(number % USERS).context("uid")?, &account).await?;
        bare.token(&account, &name, Some(&uid)).await?;
        Ok((account, name))
    })
    .await
}

async fn refreshes(minter: &Bench, sessions: &[SessionName]) -> Result<Duration> {
    let done = timed(|number| async move {
        let session = sessions.get(number).context("session")?;
        let user = session.service_account().trim_start_matches("spur-user-").parse()?;
        minter.refresh(&MintRequest::new(user), session).await?;
        Ok(())
    });
    Ok(done.await?.1)
}

async fn bare_refreshes(bare: &Bare, secrets: &[(String, String)]) -> Result<Duration> {
    let done = timed(|number| async move {
        let (account, name) = secrets.get(number).context("secret")?;
        bare.token(account, name, None).await.map(drop)
    });
    Ok(done.await?.1)
}

#[tokio::main]
async fn main() -> Result<()> {
    let control_plane = ControlPlane::start_with(Options::default().scheduler(false)).await?;
    let client = control_plane.client().await?;
    let bare = Bare::new(&client);
    let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": "spur-users" } }))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    let mut uids = Vec::new();
    for number in 0..USERS {
        let account = json!({ "metadata": {
            "name": format!("spur-user-{}", user(number)),
            "labels": { "app.kubernetes.io/managed-by": "spur-quota" },
            "annotations": { "spur.amd.com/user-name": user(number) },
        } });
        let made = bare.accounts.create(&PostParams::default(), &serde_json::from_value(account)?).await?;
        uids.push(made.metadata.uid.context("uid")?);
    }
    let access = KubeAccess::file(control_plane.kubeconfig(), None, Deadlines::default());
    let minter = Minter::new(access, Everybody, KubeconfigPolicy::new("bench"))?;

    let (mut mint, mut bare_mint, mut refresh, mut bare_refresh) =
        (Arm::default(), Arm::default(), Arm::default(), Arm::default());
    for round in 0..=ROUNDS {
        // Who comes second meets what the first has left to the controller manager.
        let (sessions, ours, secrets, theirs) = if round % 2 == 0 {
            let (sessions, ours) = mints(&minter).await?;
            let (secrets, theirs) = bare_mints(&bare, &uids, round).await?;
            (sessions, ours, secrets, theirs)
        } else {
            let (secrets, theirs) = bare_mints(&bare, &uids, round).await?;
            let (sessions, ours) = mints(&minter).await?;
            (sessions, ours, secrets, theirs)
        };
        let (further, bare_further) = if round % 2 == 0 {
            let further = refreshes(&minter, &sessions).await?;
            (further, bare_refreshes(&bare, &secrets).await?)
        } else {
            let bare_further = bare_refreshes(&bare, &secrets).await?;
            (refreshes(&minter, &sessions).await?, bare_further)
        };
        // The first round warms both up.
        if round > 0 {
            mint.add(ours);
            bare_mint.add(theirs);
            refresh.add(further);
            bare_refresh.add(bare_further);
        }
    }
    say(&format!("{ROUNDS} rounds of {COUNT} each, {CONCURRENCY} at a time"));
    compare("mint", &mint, &bare_mint);
    compare("refresh", &refresh, &bare_refresh);
    control_plane.stop().await
}
