//! `spur k8s`, `spur kube-token`: the way into the Kubernetes cluster.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use serde::Serialize;
use spur_sdk::rpc::messages::site::{
    KubeTokenRequest, KubeTokenRpc, ListSessionsRequest, ListSessionsRpc, RevokeSessionsRequest,
    RevokeSessionsRpc,
};
use spur_sdk::rpc::messages::slurm::{ClusterKubeconfigRequest, ClusterKubeconfigRpc};
use spur_sdk::rpc::messages::time;
use spur_sdk::rpc::{CallError, Client};
use spur_sdk::{Classify, ErrorKind};
use spur_sdk_quota::kubeconfig::cache::{CacheKey, TokenCache};
use spur_sdk_quota::kubeconfig::{BearerToken, Issued, SessionName, Token};

use crate::controller::{Controller, ask, block_on, private_folder, told};
use crate::exit::{self, Exit};
use crate::site::{seconds, shown};
use crate::{environment, output};

#[derive(Args, Debug)]
pub(crate) struct K8s {
    #[command(flatten)]
    controller: Controller,
    #[command(subcommand)]
    command: K8sCommand,
}

#[derive(Subcommand, Debug)]
enum K8sCommand {
    /// Get a kubeconfig that reaches your accounts' namespaces and nothing else.
    #[command(after_help = exit::help("Without --static there is no secret in the file: kubectl runs `spur kube-token`, \
which asks the controller as you. Log in first: spur login.

Examples:
  spur k8s kubeconfig --save ~/.kube/config
  spur k8s kubeconfig --static --lifetime 1h >job.kubeconfig
  spur k8s kubeconfig sessions
  spur k8s kubeconfig revoke alice"))]
    #[command(args_conflicts_with_subcommands = true)]
    Kubeconfig(Kubeconfig),
}

#[derive(Args, Debug)]
struct Kubeconfig {
    #[command(subcommand)]
    command: Option<KubeconfigCommand>,
    /// Another user's; for admins.
    #[arg(long, value_name = "USER", default_value = "")]
    user: String,
    /// Put a token into the file instead of the command that gets one: a secret, and it ends.
    #[arg(long = "static")]
    fixed: bool,
    /// How long the token in the file holds, such as 1h.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "fixed")]
    lifetime: Option<Duration>,
    /// Write it here, readable by you alone. Default: standard output.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum KubeconfigCommand {
    /// List the sessions that tokens are of: yours, or for an admin everybody's.
    Sessions {
        /// Only this user's.
        #[arg(default_value = "")]
        user: String,
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// End sessions: new requests with their tokens are refused within 15 s.
    #[command(after_help = exit::help("What is open goes on: watches, logs and terminals outlive a token. A user who is \
still in an account may get a new one: take the user out of the account as well."))]
    Revoke {
        /// Whose.
        user: String,
        /// Only this session.
        #[arg(long, value_name = "NAME", default_value = "")]
        session: String,
        /// Also delete the user's pods, where it is known whose they are.
        #[arg(long)]
        evict: bool,
    },
}

/// What a session is called in lists: the program and the host.
fn client_name() -> String {
    let host =
        spur_sdk::fs::read_text(std::path::Path::new("/proc/sys/kernel/hostname"), 1024).unwrap_or_default();
    format!("spur {} on {}", env!("CARGO_PKG_VERSION"), host.trim())
}

pub(crate) fn k8s(command: &K8s) -> anyhow::Result<Exit> {
    let K8sCommand::Kubeconfig(kubeconfig) = &command.command;
    block_on(async {
        let client = command.controller.client()?;
        match &kubeconfig.command {
            None => file(&client, kubeconfig).await,
            Some(KubeconfigCommand::Sessions { user, output }) => sessions(&client, user, *output).await,
            Some(KubeconfigCommand::Revoke { user, session, evict }) => {
                let request =
                    RevokeSessionsRequest { user: user.clone(), session: session.clone(), evict: *evict };
                let ended = ask::<RevokeSessionsRpc>(&client, &request).await?;
                output::note(&format!("{} sessions of {user} have ended", ended.sessions));
                if *evict {
                    output::note(&format!("{} pods deleted", ended.pods));
                }
                Ok(Exit::Done)
            }
        }
    })
}

async fn file(client: &Client, command: &Kubeconfig) -> anyhow::Result<Exit> {
    let request = ClusterKubeconfigRequest {
        user: command.user.clone(),
        static_token: Some(command.fixed),
        lifetime_seconds: Some(seconds(command.lifetime)),
        client: Some(client_name()),
        ..ClusterKubeconfigRequest::default()
    };
    let answer = ask::<ClusterKubeconfigRpc>(client, &request).await?;
    if let Some(expires) = &answer.expires {
        output::note(&format!("the token in it holds until {}", shown(Some(expires))));
    }
    match &command.save {
        None => output::print(&answer.kubeconfig)?,
        Some(path) => {
            private_folder(path)?;
            spur_sdk::fs::write_file(path, answer.kubeconfig.as_bytes(), 0o600)?;
            output::note(&format!("written to {}", path.display()));
        }
    }
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Session {
    name: String,
    user: String,
    created: String,
    expires: String,
    client: String,
}

async fn sessions(client: &Client, user: &str, format: output::Format) -> anyhow::Result<Exit> {
    let answer = ask::<ListSessionsRpc>(client, &ListSessionsRequest { user: user.to_owned() }).await?;
    let sessions: Vec<Session> = answer
        .sessions
        .into_iter()
        .map(|session| Session {
            name: session.name,
            user: session.user,
            created: shown(session.created.as_ref()),
            expires: shown(session.expires.as_ref()),
            client: session.client,
        })
        .collect();
    output::value(format, &sessions, || {
        let rows = sessions.iter().map(|session| {
            [session.user.clone(), session.name.clone(), session.expires.clone(), session.client.clone()]
        });
        output::table(["USER", "SESSION", "EXPIRES", "CLIENT"], rows)
    })?;
    Ok(Exit::Done)
}

/// `spur kube-token`.
#[derive(Args, Debug)]
pub(crate) struct KubeToken {
    #[command(flatten)]
    controller: Controller,
    /// The cluster that the token is for, as the kubeconfig has it.
    #[arg(long)]
    cluster: String,
}

/// Why there is no token, for the cache to decide whether an older one serves.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct NoToken {
    kind: ErrorKind,
    text: String,
}

impl Classify for NoToken {
    fn kind(&self) -> ErrorKind {
        self.kind
    }
}

pub(crate) fn kube_token(command: &KubeToken) -> anyhow::Result<Exit> {
    let (runtime, cache) = environment::token_folders();
    let kept = TokenCache::new(runtime.as_deref(), cache.as_deref());
    let controller = command.controller.controller.clone().unwrap_or_default();
    let credentials = command.controller.credentials.as_ref().map(|path| path.display().to_string());
    let key = CacheKey::new(&[&controller, &command.cluster, &credentials.unwrap_or_default()]);
    let asker = environment::asker();
    let got =
        kept.get_or_refresh(&key, asker.as_deref(), SystemTime::now(), |session| fetch(command, session))?;
    output::print(&got.issued.token.exec_credential())?;
    Ok(Exit::Done)
}

fn fetch(command: &KubeToken, session: Option<&SessionName>) -> Result<Issued, NoToken> {
    let failed =
        |kind| move |error: anyhow::Error| NoToken { kind, text: spur_sdk::error_chain(error.as_ref()) };
    let request = KubeTokenRequest {
        session: session.map(ToString::to_string).unwrap_or_default(),
        client: client_name(),
        ..KubeTokenRequest::default()
    };
    let now = SystemTime::now();
    // Not before it is needed: a kept token costs neither a runtime nor a look at the credentials.
    let answer = block_on(async {
        let client = command.controller.client().map_err(failed(ErrorKind::Denied));
        let client = match client {
            Ok(client) => client,
            Err(error) => return Ok(Err(error)),
        };
        let answer = client.call::<KubeTokenRpc>(&request).await;
        Ok(answer.map_err(|error: CallError| {
            let kind = error.kind();
            failed(kind)(told(&client, error))
        }))
    });
    let answer = answer.map_err(failed(ErrorKind::Internal))??;
    let unusable = || NoToken {
        kind: ErrorKind::Internal,
        text: "the controller's answer has no time or session".to_owned(),
    };
    let expires = answer.expires.as_ref().and_then(time).ok_or_else(unusable)?;
    let session: SessionName = answer.session.parse().map_err(|_| unusable())?;
    Ok(Issued::new(Token::new(BearerToken::new(answer.token), now, expires), session))
}
