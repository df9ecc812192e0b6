//! A run, from the first line of its log to the last.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use prometheus_client::registry::Registry;
use spur_sdk::fs::read_text;
use spur_sdk_quota::cluster::{Metrics, QuotaController, Status};
use spur_sdk_quota::source::Source;
use spur_sdk_quota::{CancellationToken, Policy};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::arguments::Arguments;
use crate::cluster::connect;
use crate::pages::Pages;

/// The largest policy that is read, in bytes.
const MAX_POLICY: u64 = 1 << 26;

/// How long the controller may take to stop. It needs one request, to give its Lease back.
const STOPPING: Duration = Duration::from_secs(10);

/// Runs until a signal says stop.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let policy = arguments.policy.as_deref().map_or_else(|| Ok(Policy::default()), policy)?;
    let runtime =
        Builder::new_multi_thread().worker_threads(2).enable_all().build().context("start the runtime")?;
    let ended = runtime.block_on(serve(arguments, policy));
    // A thread that waits for a file server that hangs is left behind.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

fn policy(path: &Path) -> anyhow::Result<Policy> {
    Ok(Policy::read(&read_text(path, MAX_POLICY)?, &path.display().to_string())?)
}

async fn serve(arguments: &Arguments, policy: Policy) -> anyhow::Result<()> {
    let shutdown = stop_on_signal()?;
    let (api, cluster) = connect(arguments).await?;
    let address = arguments.listen;
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}; --listen names another address"))?;
    let listens = listener.local_addr().unwrap_or(address);
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let (sender, status) = watch::channel(Status::default());
    let options = arguments.options().metrics(metrics).status(sender);
    let source = arguments.source()?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        cluster,
        sources = source.name(),
        policy = arguments.policy.as_ref().map(|path| tracing::field::display(path.display())),
        identity = options.lease.as_ref().map(|lease| &*lease.identity),
        listen = %listens,
        "started"
    );
    // A task of its own: it has to tell when the controller does not go round.
    let pages = tokio::spawn(Pages::new(status, registry).serve(listener));
    let controller = QuotaController::with(options);
    let ended = tokio::select! {
        ended = controller.serve(source, api, policy, shutdown.clone()) => ended.map_err(Into::into),
        // The Lease then runs out.
        () = overdue(&shutdown) => Ok(()),
    };
    pages.abort();
    tracing::info!("stopped");
    ended
}

/// Ends a while after the controller was told to stop.
async fn overdue(shutdown: &CancellationToken) {
    shutdown.cancelled().await;
    sleep(STOPPING).await;
    tracing::warn!(seconds = STOPPING.as_secs(), "the controller does not stop");
}

/// Is cancelled when the program is told to end.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let shutdown = CancellationToken::new();
    for (kind, name) in [(SignalKind::interrupt(), "SIGINT"), (SignalKind::terminate(), "SIGTERM")] {
        let mut signal = signal(kind).with_context(|| format!("listen for {name}"))?;
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            if signal.recv().await.is_some() {
                tracing::info!(signal = name, "stopping");
                shutdown.cancel();
            }
        });
    }
    Ok(shutdown)
}
