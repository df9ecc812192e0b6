//! The API server behind a fence: a replica that leads no more writes nothing.

use std::future::Future;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use crate::cluster::lease::{Elector, Fence};
use crate::cluster::{
    ApiError, ClusterApi, Event, EventApi, Key, Kind, LeaseApi, LeaseSettings, List, Selection, WatchEvent,
};

/// How long a write may take, whatever the client below does.
const LIMIT: Duration = Duration::from_secs(35);

/// Every write is sent only while the fence is open, each try of it anew; every delete asks the server first whether
/// the Lease still is ours.
pub(super) struct Fenced<'a, A> {
    pub(super) api: &'a A,
    /// The Lease and its fence; `None` when the host sees to it that one replica runs.
    pub(super) lease: Option<(&'a LeaseSettings, &'a Fence)>,
}

impl<A: ClusterApi + LeaseApi> Fenced<'_, A> {
    async fn behind<T>(&self, call: impl Future<Output = Result<T, ApiError>> + Send) -> Result<T, ApiError> {
        // A client that repeats a call for minutes would write what was judged minutes ago.
        let call = async {
            match timeout(LIMIT, call).await {
                Ok(result) => result,
                Err(_) => Err(ApiError::Timeout(LIMIT)),
            }
        };
        let Some((_, fence)) = self.lease else { return call.await };
        tokio::select! {
            biased;
            // Looked at whenever the call is about to go on, so a process that was stopped for longer than its
            // Lease sends nothing when it wakes up. A call that is dropped here may have had its effect or not.
            () = fence.lost() => Err(ApiError::NotLeading),
            result = call => result,
        }
    }
}

impl<A: ClusterApi + LeaseApi + EventApi> Fenced<'_, A> {
    /// Writes an Event.
    pub(super) async fn record(&self, event: &Event) -> Result<(), ApiError> {
        self.behind(self.api.record(event)).await
    }
}

impl<A: ClusterApi + LeaseApi> ClusterApi for Fenced<'_, A> {
    fn list(
        &self,
        kind: Kind,
        selection: Selection<'_>,
    ) -> impl Future<Output = Result<List, ApiError>> + Send {
        self.api.list(kind, selection)
    }

    fn watch(
        &self,
        kind: Kind,
        selection: Selection<'_>,
        version: &str,
        on_event: impl FnMut(WatchEvent) + Send,
    ) -> impl Future<Output = Result<(), ApiError>> + Send {
        self.api.watch(kind, selection, version, on_event)
    }

    fn apply(&self, key: &Key, object: &Value) -> impl Future<Output = Result<Value, ApiError>> + Send {
        self.behind(self.api.apply(key, object))
    }

    fn merge(&self, key: &Key, patch: &Value) -> impl Future<Output = Result<Value, ApiError>> + Send {
        self.behind(self.api.merge(key, patch))
    }

    async fn delete(&self, key: &Key, uid: &str, resource_version: &str) -> Result<(), ApiError> {
        if let Some((settings, _)) = self.lease
            && !Elector::is_held(self.api, settings).await?
        {
            return Err(ApiError::NotLeading);
        }
        self.behind(self.api.delete(key, uid, resource_version)).await
    }

    fn refusal(
        &self,
        namespace: &str,
        pod: &Value,
    ) -> impl Future<Output = Result<Option<String>, ApiError>> + Send {
        self.api.refusal(namespace, pod)
    }
}
