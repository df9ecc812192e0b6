//! gRPC's health check.

use std::collections::BTreeSet;

use super::messages::health::health_check_response::ServingStatus;
use super::messages::health::{CheckRpc, HealthCheckResponse};
use super::{Code, Refusal, Router, Standing, StandingHandle, paths};

/// Answers health checks: the server as a whole serves while it answers, and a service while a leader is known.
#[must_use]
pub fn health_routes(standing: &StandingHandle) -> Router {
    let standing = standing.clone();
    let services: BTreeSet<String> =
        paths().iter().filter_map(|path| Some(path.split_once('/')?.0.to_owned())).collect();
    Router::new().anywhere::<CheckRpc, _, _>(move |_, request| {
        let known = request.service.is_empty() || services.contains(&request.service);
        let serves = request.service.is_empty() || standing.get() != Standing::Leaderless;
        async move {
            if !known {
                return Err(Refusal::new(Code::NotFound, format!("service: {} is unknown", request.service)));
            }
            let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
            Ok(HealthCheckResponse { status: status.into() })
        }
    })
}
