//! The model's side of the traits.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, sleep_until};

use super::ModelCluster;
use super::audit::Verb;
use super::requests::Course;
use super::state::{Request, State};
use crate::cluster::{
    ApiError, ClusterApi, Event, EventApi, Key, Kind, Lease, LeaseApi, List, Selection, WatchEvent,
};

/// How long the server keeps Events.
const EVENTS: Duration = Duration::from_hours(1);

/// One client of a [`ModelCluster`]. Clones are the same client.
#[derive(Debug, Clone)]
pub struct ModelClient {
    cluster: ModelCluster,
    who: Arc<str>,
}

impl ModelClient {
    pub(super) fn new(cluster: ModelCluster, who: &str) -> Self {
        Self { cluster, who: Arc::from(who) }
    }

    /// What the record knows it by.
    #[must_use]
    pub fn who(&self) -> &str {
        &self.who
    }

    /// One request: after a while it has its effect, or fails, or both.
    async fn request<T>(
        &self,
        verb: Verb,
        effect: impl FnOnce(&mut State, Request<'_>) -> Result<T, ApiError> + Send,
    ) -> Result<T, ApiError> {
        let Course { delay, carried_out, failure } = self.cluster.with(|state| state.course(&self.who, verb));
        sleep(delay).await;
        let request = Request { who: &self.who, verb };
        let answer = carried_out.then(|| self.cluster.with(|state| effect(state, request)));
        if let Some((after, error)) = failure {
            sleep(after).await;
            return Err(error);
        }
        // What is not carried out has a failure.
        answer.unwrap_or_else(|| Err(ApiError::Transport("no answer".to_owned())))
    }
}

impl ClusterApi for ModelClient {
    async fn list(&self, kind: Kind, selection: Selection<'_>) -> Result<List, ApiError> {
        self.request(Verb::List, |state, _| Ok(state.list(kind, &selection))).await
    }

    async fn watch(
        &self,
        kind: Kind,
        selection: Selection<'_>,
        version: &str,
        mut on_event: impl FnMut(WatchEvent) + Send,
    ) -> Result<(), ApiError> {
        let opened = self.request(Verb::Watch, |state, _| {
            let (following, mut first) = state.open_watch(kind, &selection, version)?;
            let end = state.cut_short(&mut first);
            Ok((following, first, end))
        });
        let (mut following, first, end) = opened.await?;
        first.into_iter().for_each(&mut on_event);
        if let Some(end) = end {
            return end;
        }
        loop {
            // What comes up from here on is not missed.
            let mut news = pin!(self.cluster.0.news.notified());
            news.as_mut().enable();
            let turn = self.cluster.with(|state| state.turn(&self.who, kind, &selection, &mut following));
            turn.events.into_iter().for_each(&mut on_event);
            if let Some(end) = turn.end {
                return end;
            }
            tokio::select! {
                biased;
                // Both only wake; what there is to tell is looked up anew.
                () = news => {}
                () = sleep_until(turn.wake) => {}
            }
        }
    }

    async fn apply(&self, key: &Key, object: &Value) -> Result<Value, ApiError> {
        self.request(Verb::Apply, |state, request| state.apply(request, key, object)).await
    }

    async fn merge(&self, key: &Key, patch: &Value) -> Result<Value, ApiError> {
        self.request(Verb::Merge, |state, request| state.merge(request, key, patch)).await
    }

    async fn delete(&self, key: &Key, uid: &str, resource_version: &str) -> Result<(), ApiError> {
        self.request(Verb::Delete, |state, request| state.delete(request, key, uid, resource_version)).await
    }

    async fn refusal(&self, namespace: &str, pod: &Value) -> Result<Option<String>, ApiError> {
        let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        self.request(Verb::Probe, |state, _| match state.place("pods", Some(namespace)) {
            Ok(()) => Ok(state.refusal(namespace, name)),
            Err(ApiError::Status { code: 403, message, .. }) => Ok(Some(message)),
            Err(error) => Err(error),
        })
        .await
    }
}

impl LeaseApi for ModelClient {
    async fn read_lease(&self, namespace: &str, name: &str) -> Result<Option<Lease>, ApiError> {
        self.request(Verb::ReadLease, |state, _| Ok(state.lease(namespace, name))).await
    }

    async fn write_lease(&self, namespace: &str, name: &str, lease: &Lease) -> Result<Lease, ApiError> {
        self.request(Verb::WriteLease, |state, request| state.set_lease(request.who, namespace, name, lease))
            .await
    }
}

impl EventApi for ModelClient {
    async fn record(&self, event: &Event) -> Result<(), ApiError> {
        self.request(Verb::WriteEvent, |state, _| {
            state.place("Event", Some(&event.namespace))?;
            state.events.push((state.now, event.clone()));
            Ok(())
        })
        .await
    }

    async fn recorded(&self) -> Result<Vec<Event>, ApiError> {
        self.request(Verb::ListEvents, |state, _| {
            let now = state.now;
            let kept = |(at, _): &&(tokio::time::Instant, Event)| now.saturating_duration_since(*at) < EVENTS;
            Ok(state.events.iter().filter(kept).map(|(_, event)| event.clone()).collect())
        })
        .await
    }
}
