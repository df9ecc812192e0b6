//! One call: who asks, may they, and the answer.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};

use super::connection::Peer;
use super::{CALLER, Callers, Shared, forward};
use crate::identity::{Access, Caller, Identity, Via, table};
use crate::rpc::codec::BytesCodec;
use crate::rpc::router::{Call, Route};
use crate::rpc::{Code, Refusal, Standing};

/// What is asked before a message is read.
struct Admitted {
    path: String,
    call: Call,
    deadline: Duration,
    route: Route,
    _running: super::limits::Running,
}

pub(super) async fn answer<C: Callers>(
    request: Request<Incoming>,
    peer: Peer,
    shared: Arc<Shared<C>>,
) -> Response<Body> {
    let admitted = match admit(&request, &peer, &shared).await {
        Ok(admitted) => admitted,
        Err(refusal) => {
            tracing::info!(?peer, path = request.uri().path(), code = %refusal.code, %refusal, "call refused");
            return refusal.into_status().into_http();
        }
    };
    let mut grpc = Grpc::new(BytesCodec).max_decoding_message_size(shared.options.max_message);
    // Also for a message that comes drop by drop.
    let most = shared.options.max_deadline;
    let answered = grpc.unary(Unary { admitted: Some(admitted), shared }, request);
    tokio::time::timeout(most, answered).await.unwrap_or_else(|_| {
        Refusal::new(Code::DeadlineExceeded, format!("not done within {most:?}")).into_status().into_http()
    })
}

async fn admit<C: Callers>(
    request: &Request<Incoming>,
    peer: &Peer,
    shared: &Shared<C>,
) -> Result<Admitted, Refusal> {
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let caller = caller(request, peer, shared).await?;
    let route = shared.router.route(&path).cloned();
    let handed_on = route.as_ref().is_some_and(|route| !route.anywhere)
        && matches!(shared.standing.get(), Standing::Following { .. });
    let (roles, access) = match shared.callers.roles(&caller).await {
        Ok(roles) => {
            let access = table::decide(&path, &roles);
            (roles, access)
        }
        // The leader knows, and judges anew.
        Err(refusal) if handed_on && refusal.code == Code::Unavailable => (BTreeSet::new(), Access::Own),
        Err(refusal) => return Err(refusal),
    };
    // Who may not ask is not told what there is.
    if access == Access::Deny {
        let (code, hint) = match caller.identity {
            Identity::Anonymous => (Code::Unauthenticated, "a certificate is needed: spur login"),
            _ => (Code::PermissionDenied, "see `spur whoami` and the authorization table"),
        };
        return Err(Refusal::new(code, format!("{caller} may not call {path}: {hint}")));
    }
    let route =
        route.ok_or_else(|| Refusal::new(Code::Unimplemented, format!("{path} is not served here")))?;
    let key = match peer {
        Peer::Nobody(address) => address.ip().to_string(),
        _ => caller.identity.to_string(),
    };
    let running = shared.limits.begin(key, Instant::now())?;
    let deadline = deadline(request).unwrap_or(shared.options.max_deadline).min(shared.options.max_deadline);
    Ok(Admitted { path, call: Call { caller, roles, access }, deadline, route, _running: running })
}

/// Who asks: the other end of the connection, or whom a controller has verified.
async fn caller<C: Callers>(
    request: &Request<Incoming>,
    peer: &Peer,
    shared: &Shared<C>,
) -> Result<Caller, Refusal> {
    let caller = match peer {
        Peer::Local { uid, pid } => shared.callers.local(*uid, *pid).await?,
        Peer::Certified(certificate) => shared.callers.peer(certificate)?,
        Peer::Nobody(_) => Caller::anonymous(),
    };
    let Some(header) = request.headers().get(CALLER) else { return Ok(caller) };
    let Identity::Controller { name } = caller.identity else {
        return Err(Refusal::new(Code::PermissionDenied, format!("{CALLER} counts from controllers only")));
    };
    let caller = forward::caller(header, name)?;
    shared.callers.forwarded(&caller)?;
    Ok(caller)
}

/// The caller's deadline: a number of up to 8 digits and a unit (gRPC over HTTP/2, "Timeout").
fn deadline(request: &Request<Incoming>) -> Option<Duration> {
    let text = request.headers().get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = (number.len() <= 8).then(|| number.parse().ok())??;
    match unit {
        "H" => number.checked_mul(3600).map(Duration::from_secs),
        "M" => number.checked_mul(60).map(Duration::from_secs),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Answers the one message of a call.
struct Unary<C> {
    admitted: Option<Admitted>,
    shared: Arc<Shared<C>>,
}

impl<C: Callers> UnaryService<Bytes> for Unary<C> {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<Bytes>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let (admitted, shared) = (self.admitted.take(), Arc::clone(&self.shared));
        Box::pin(async move {
            // There is one message in a call.
            let Some(admitted) = admitted else { return Err(Status::internal("a second message")) };
            let deadline = admitted.deadline;
            let path = admitted.path.clone();
            let caller = admitted.call.caller.clone();
            let answered =
                tokio::time::timeout(deadline, carry_out(admitted, request.into_inner(), &shared)).await;
            let answered = answered.unwrap_or_else(|_| {
                let message = format!("not done within {deadline:?}; whether it will be is unknown");
                Err(Refusal::new(Code::DeadlineExceeded, message))
            });
            answered.map(tonic::Response::new).map_err(|refusal| {
                tracing::info!(%caller, path, code = %refusal.code, %refusal, "call refused");
                refusal.into_status()
            })
        })
    }
}

async fn carry_out<C: Callers>(
    admitted: Admitted,
    message: Bytes,
    shared: &Shared<C>,
) -> Result<Bytes, Refusal> {
    let Admitted { path, call, deadline, route, _running } = admitted;
    if route.anywhere {
        return (route.function)(call, message).await;
    }
    match shared.standing.get() {
        Standing::Leading => (route.function)(call, message).await,
        Standing::Leaderless => {
            Err(Refusal::new(Code::Unavailable, "no leader is known: try again in a few seconds"))
        }
        Standing::Following { name, address } => {
            let refusal = |message: String| Refusal {
                code: Code::Unavailable,
                message,
                leader: Some(address.clone()).filter(|address| !address.is_empty()),
            };
            // One that was handed on already came to a controller that does not lead any more.
            let forwarder =
                shared.forwarder.as_ref().filter(|_| !matches!(call.caller.via, Via::Forwarded { .. }));
            let forwarder =
                forwarder.ok_or_else(|| refusal(format!("this controller does not lead, {name} does")))?;
            if address.is_empty() {
                return Err(refusal(format!("{name} leads, and does not say where it is reached")));
            }
            forwarder.ask(&address, &path, &call.caller, message, deadline).await
        }
    }
}
