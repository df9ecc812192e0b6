//! Serving.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use spur_sdk::identity::{Authority, Credentials, LocalCallers, Roster, SiteKey, SystemUsers};
use spur_sdk::rpc::messages::site::{BackupResponse, BackupRpc, StatusResponse, StatusRpc};
use spur_sdk::rpc::messages::slurm::{PingResponse, PingRpc};
use spur_sdk::rpc::messages::timestamp;
use spur_sdk::rpc::{
    Listener, Refusal, Router, Server, ServerOptions, SiteCallers, Standing, health_routes, site_routes,
};
use spur_sdk::store::file::Missing;
use spur_sdk::store::{Backup, SharedStore};
use spur_sdk::{SystemClock, error_chain};
use spur_sdk_quota::accounting::{self, AccountRoles};
use spur_sdk_quota::kubeconfig;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::term::{self, Parts, Services};
use crate::{init, store};

/// How often this controller looks whether its certificate has to be renewed.
const RENEW: Duration = Duration::from_hours(6);

pub(crate) async fn run(config: &Config) -> anyhow::Result<()> {
    let shutdown = CancellationToken::new();
    let mut stopping = stopped(&shutdown)?;
    let kubernetes = term::kubernetes(config)?;
    let hint = "is there a site yet? spurctld init makes one";
    let opened = store::open(config, Missing::Refuse).await.context(hint)?;
    let key = SiteKey::load(&config.in_state("site.key")).context(hint)?;
    let authority = Authority::load(&opened.store, &key).await?;
    let credentials = init::controller(config, &opened.store, authority.clone()).await?;
    let name = config.name()?.to_string();
    let roster = Roster::new(SystemClock);
    let services = Services::default();
    let callers = SiteCallers::new(
        config.site.clone(),
        roster.clone(),
        LocalCallers::new(SystemUsers::default(), config.controller.admin_group.clone()),
        AccountRoles(services.accounts.clone()),
    );
    if let Some(folder) = config.controller.socket.parent() {
        spur_sdk::fs::create_folder(folder, 0o755)?;
    }
    let socket = Listener::socket(&config.controller.socket).await?;
    let (network, shown) = Listener::tls(&config.controller.listen, &credentials).await?;
    let address = network.address().map(|address| address.to_string()).unwrap_or_default();
    let parts = Parts {
        store: opened.store.clone(),
        authority: authority.clone(),
        roster: roster.clone(),
        kubernetes,
        name: name.clone(),
    };
    let answers = routes(config, &services, &opened)?;
    let limits = &config.limits;
    let options = ServerOptions::default()
        .rate(limits.calls_per_second)
        .max_calls(limits.calls_at_once)
        .max_anonymous(limits.anonymous_connections);
    let server = Server::new(Arc::new(callers), answers, services.standing.clone())
        .forwarding(Arc::new(credentials.clone()))
        .options(options)
        .serve(vec![socket, network], shutdown.clone());
    tracing::info!(
        controller = name,
        site = %config.site,
        address,
        socket = %config.controller.socket.display(),
        store = opened.kind,
        "serving"
    );
    let renewing = renew(config, &opened.store, authority, &shown);
    let result = tokio::select! {
        // The server and the term see the token themselves and end in good order.
        ended = async { tokio::join!(server, term::lead(&opened.leadership, &parts, &services, &shutdown)).0 } => ended,
        // The rest never ends, and has nothing to lose.
        () = roster.follow(&opened.store) => Ok(()),
        () = renewing => Ok(()),
        () = &mut stopping => Ok(()),
    };
    result.context("serve")
}

/// Cancels the token when the process is told to end; a second time ends it at once.
fn stopped(
    shutdown: &CancellationToken,
) -> anyhow::Result<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let shutdown = shutdown.clone();
    Ok(Box::pin(async move {
        for _ in 0..2 {
            tokio::select! {
                // Signals are not lost: the next round sees them.
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("told to end");
            shutdown.cancel();
        }
    }))
}

/// Renews this controller's certificate in time.
async fn renew(config: &Config, store: &SharedStore, authority: Authority, shown: &spur_sdk::rpc::TlsHandle) {
    loop {
        tokio::time::sleep(RENEW).await;
        let renewed: anyhow::Result<Credentials> = init::controller(config, store, authority.clone()).await;
        let result = renewed.and_then(|credentials| Ok(shown.replace(&credentials)?));
        if let Err(error) = result {
            tracing::warn!(
                error = error_chain(error.as_ref()),
                "this controller's certificate is not renewed"
            );
        }
    }
}

fn routes(config: &Config, services: &Services, opened: &store::Opened) -> anyhow::Result<Router> {
    let controller = config.advertised()?;
    Ok(Router::new()
        .merge(accounting::routes(&services.accounts))
        .merge(site_routes(&services.site))
        .merge(kubeconfig::routes(&services.minter, Some(&controller)))
        .merge(health_routes(&services.standing))
        .merge(own(config, services, opened)?))
}

/// What is about this controller itself.
fn own(config: &Config, services: &Services, opened: &store::Opened) -> anyhow::Result<Router> {
    let (name, address) = (config.name()?.to_string(), config.advertised()?);
    let (site, kind, store) = (config.site.to_string(), opened.kind, opened.store.clone());
    let (folder, services, started) = (config.in_state("backups"), services.clone(), SystemTime::now());
    let host = name.clone();
    Ok(Router::new()
        .anywhere::<PingRpc, _, _>(move |_, ()| {
            let hostname = host.clone();
            async move {
                Ok(PingResponse {
                    hostname,
                    server_time: Some(timestamp(SystemTime::now())),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    federation_peers: Vec::new(),
                })
            }
        })
        .anywhere::<StatusRpc, _, _>(move |_, ()| {
            let (leader, leader_address) = match services.standing.get() {
                Standing::Leading => (name.clone(), address.clone()),
                Standing::Following { name, address, .. } => (name, address),
                _ => (String::new(), String::new()),
            };
            let book = services.accounts.get().map(|accounting| accounting.book());
            let status = StatusResponse {
                controller: name.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                leading: leader == name,
                leader,
                leader_address,
                revision: book.as_ref().map_or(0, |book| book.revision().0),
                store: kind.to_owned(),
                started: Some(timestamp(started)),
                site: site.clone(),
                accounts: book.as_ref().map_or(0, |book| book.accounts().len() as u64),
                users: book.as_ref().map_or(0, |book| book.users().len() as u64),
            };
            async move { Ok(status) }
        })
        .on::<BackupRpc, _, _>(move |call, request| {
            let (store, folder) = (store.clone(), folder.clone());
            async move {
                let name = match request.name.as_str() {
                    "" => format!("{}.backup", humantime::format_rfc3339_seconds(SystemTime::now())),
                    name => name.to_owned(),
                };
                let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
                if name.starts_with('.') || name.len() > 200 || !name.chars().all(plain) {
                    return Err(Refusal::invalid(
                        "name",
                        "write letters, digits and - _ . : of a file in the folder",
                    ));
                }
                let backup = Backup::of(&store).await.map_err(|error| Refusal::from_error(&error))?;
                let (revision, entries) =
                    (backup.snapshot().revision.0, backup.snapshot().entries.len() as u64);
                let path = folder.join(name);
                let shown = path.display().to_string();
                let written = tokio::task::spawn_blocking(move || {
                    spur_sdk::fs::create_folder(&folder, 0o700)
                        .map_err(|error| Refusal::from_error(&error))?;
                    backup.write(&path).map_err(|error| Refusal::from_error(&error))
                });
                written
                    .await
                    .map_err(|error| Refusal::new(spur_sdk::rpc::Code::Internal, error.to_string()))??;
                tracing::info!(caller = %call.caller, path = shown, revision, "backup written");
                Ok(BackupResponse { path: shown, revision, entries })
            }
        }))
}
