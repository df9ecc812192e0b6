//! What is served over HTTP: probes, metrics, the state.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use spur_sdk_quota::cluster::Status;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

/// The controller goes round every 10 s at least.
const LONGEST_ROUND: Duration = Duration::from_mins(1);

/// Connections at a time; others wait to be taken.
const CONNECTIONS: usize = 64;

/// How long a client may take to ask.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a connection lives, whatever is asked over it. Those who ask regularly connect anew.
const LIFETIME: Duration = Duration::from_mins(1);

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is told.
pub(crate) struct Pages {
    status: watch::Receiver<Status>,
    /// When the controller last went round.
    round: watch::Sender<Instant>,
    registry: Registry,
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    code: StatusCode,
    kind: &'static str,
    text: String,
}

impl Page {
    fn text(code: StatusCode, text: impl Into<String>) -> Self {
        Self { code, kind: TEXT, text: format!("{}\n", text.into()) }
    }

    fn unless(trouble: Option<String>) -> Self {
        match trouble {
            None => Self::text(StatusCode::OK, "ok"),
            Some(trouble) => Self::text(StatusCode::SERVICE_UNAVAILABLE, trouble),
        }
    }
}

impl Pages {
    pub(crate) fn new(status: watch::Receiver<Status>, registry: Registry) -> Self {
        Self { status, round: watch::Sender::new(Instant::now()), registry }
    }

    /// Serves until it is dropped.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let pages = Arc::new(self);
        tokio::join!(pages.follow(), accept(listener, &pages));
    }

    /// Notes when the controller goes round, by this process's own clock: the time of day may jump.
    async fn follow(&self) {
        let mut status = self.status.clone();
        while status.changed().await.is_ok() {
            self.round.send_replace(Instant::now());
        }
    }

    fn answer(&self, method: &Method, path: &str, peer: SocketAddr) -> Page {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Page::text(StatusCode::METHOD_NOT_ALLOWED, "only GET");
        }
        match path {
            "/healthz" => Page::unless(self.sick()),
            "/readyz" => Page::unless(self.unready()),
            "/metrics" => self.metrics(),
            // It names accounts and users, and every pod of every tenant may reach this one.
            "/status" if !peer.ip().to_canonical().is_loopback() => Page::text(
                StatusCode::FORBIDDEN,
                "told to this machine or pod alone; from elsewhere: kubectl -n spur-system port-forward POD 8080",
            ),
            "/status" => match serde_json::to_string_pretty(&*self.status.borrow()) {
                Ok(text) => Page { code: StatusCode::OK, kind: JSON, text: format!("{text}\n") },
                Err(error) => Page::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            },
            _ => Page::text(StatusCode::NOT_FOUND, "there are /healthz, /readyz, /metrics and /status"),
        }
    }

    fn sick(&self) -> Option<String> {
        let round = self.round.borrow().elapsed();
        (round >= LONGEST_ROUND)
            .then(|| format!("the controller has not gone round for {} s; restart it", round.as_secs()))
    }

    fn unready(&self) -> Option<String> {
        let status = self.status.borrow();
        if status.is_ready() {
            return None;
        }
        Some(if status.leading {
            let missing = [(status.synced, "the cluster"), (status.has_source, "the source")];
            let missing: Vec<_> =
                missing.into_iter().filter(|(there, _)| !there).map(|(_, what)| what).collect();
            format!("leads, and has not read {} yet; /status and the log say why", missing.join(" and "))
        } else if status.lease_error.is_some() {
            "the Lease cannot be had; /status and the log say why".to_owned()
        } else {
            "is starting".to_owned()
        })
    }

    fn metrics(&self) -> Page {
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => Page { code: StatusCode::OK, kind: METRICS, text },
            Err(error) => Page::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

async fn accept(listener: TcpListener, pages: &Arc<Pages>) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // It is never closed.
        let Ok(place) = Arc::clone(&free).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let pages = Arc::clone(pages);
                tokio::spawn(async move {
                    // A client that is gone, or too slow, has no answer to get.
                    let _ = timeout(LIFETIME, converse(stream, peer, &pages)).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Too many open files, such as they are; it passes.
                tracing::warn!(%error, "no connection can be taken");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, peer: SocketAddr, pages: &Pages) -> hyper::Result<()> {
    let service = service_fn(|request: Request<_>| {
        let page = pages.answer(request.method(), request.uri().path(), peer);
        std::future::ready(Ok::<_, Infallible>(response(page)))
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn response(page: Page) -> Response<String> {
    let response = Response::builder().status(page.code).header(CONTENT_TYPE, page.kind);
    let response = match page.code {
        StatusCode::METHOD_NOT_ALLOWED => response.header(ALLOW, "GET, HEAD"),
        _ => response,
    };
    // Names and values of headers are ours and sound.
    response.body(page.text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(status: Status) -> (watch::Sender<Status>, Pages) {
        let (sender, receiver) = watch::channel(status);
        (sender, Pages::new(receiver, Registry::default()))
    }

    fn ask(pages: &Pages, path: &str) -> (u16, String) {
        let page = pages.answer(&Method::GET, path, SocketAddr::from(([127, 0, 0, 1], 9)));
        (page.code.as_u16(), page.text)
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_healthy_while_the_controller_goes_round() {
        let (sender, pages) = pages(Status::default());
        let pages = Arc::new(pages);
        let following = Arc::clone(&pages);
        tokio::spawn(async move { following.follow().await });
        sleep(Duration::from_secs(59)).await;
        assert_eq!(ask(&pages, "/healthz").0, 200);
        sender.send_replace(Status::default());
        sleep(Duration::from_secs(59)).await;
        assert_eq!(ask(&pages, "/healthz").0, 200);
        sleep(Duration::from_secs(1)).await;
        let (code, text) = ask(&pages, "/healthz");
        assert_eq!((code, &*text), (503, "the controller has not gone round for 60 s; restart it\n"));
    }

    #[test]
    fn a_leader_is_ready_when_it_knows_cluster_and_source() {
        let mut status = Status::default();
        let (sender, pages) = pages(status.clone());
        assert_eq!(ask(&pages, "/readyz"), (503, "is starting\n".to_owned()));
        status.lease_error = Some("secret".to_owned());
        sender.send_replace(status.clone());
        let (code, text) = ask(&pages, "/readyz");
        assert_eq!(
            (code, text.contains("the Lease cannot be had"), text.contains("secret")),
            (503, true, false)
        );
        status.lease_error = None;
        status.leading = true;
        sender.send_replace(status.clone());
        let (code, text) = ask(&pages, "/readyz");
        assert_eq!(code, 503);
        assert!(text.contains("the cluster and the source"), "{text}");
        status.synced = true;
        sender.send_replace(status.clone());
        assert!(ask(&pages, "/readyz").1.contains("has not read the source yet"));
        status.has_source = true;
        sender.send_replace(status);
        assert_eq!(ask(&pages, "/readyz"), (200, "ok\n".to_owned()));
    }

    #[test]
    fn the_state_is_told_to_this_machine_alone() {
        let (_sender, pages) = pages(Status::default());
        let code = |peer: &str| {
            let peer = SocketAddr::new(peer.parse().unwrap(), 9);
            pages.answer(&Method::GET, "/status", peer).code.as_u16()
        };
        for (peer, expected) in [
            ("127.0.0.1", 200),
            ("::1", 200),
            ("::ffff:127.0.0.1", 200),
            ("10.244.1.7", 403),
            ("fe80::1", 403),
        ] {
            assert_eq!(code(peer), expected, "{peer}");
        }
        let (_, text) = ask(&pages, "/status");
        assert!(text.contains("\"has_source\": false"), "{text}");
    }

    #[test]
    fn other_pages_and_other_methods_are_refused() {
        let (_sender, pages) = pages(Status::default());
        assert_eq!(ask(&pages, "/").0, 404);
        let peer = SocketAddr::from(([127, 0, 0, 1], 9));
        let page = pages.answer(&Method::POST, "/healthz", peer);
        assert_eq!(page.code, StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(response(page).headers().get(ALLOW).unwrap(), "GET, HEAD");
    }
}
