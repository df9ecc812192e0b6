//! [`ClusterApi`] over the kube client.

mod event;
mod lease;

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use futures::StreamExt;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
    WatchEvent as KubeEvent, WatchParams,
};
use kube::core::GroupVersionKind;
use kube::{Client, Error};
use serde_json::Value;
use spur_sdk::{Classify, Deadlines, ErrorKind};

use crate::api_error::translate;
use crate::cluster::{ApiError, ClusterApi, Key, Kind, List, Selection, WatchEvent};
use crate::project::names;

/// Objects that one page of a list holds.
const PAGE: u32 = 500;

/// An API server behind a kube client. Calls that may be repeated are, up to four times, with jitter, when the
/// server is overloaded, cannot be reached or does not answer. Each try has the deadline of a request; between two
/// at most 20 s pass, or what the server wishes, up to a minute.
#[derive(Clone)]
pub struct KubeApi {
    client: Client,
    deadlines: Deadlines,
}

impl std::fmt::Debug for KubeApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeApi").field("deadlines", &self.deadlines).finish_non_exhaustive()
    }
}

impl KubeApi {
    /// An API server.
    #[must_use]
    pub fn new(client: Client, deadlines: Deadlines) -> Self {
        Self { client, deadlines }
    }

    fn api(&self, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
        let (group, version, plural, _) = kind.resource();
        let resource =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind.name()), plural);
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// One try, with a deadline.
    async fn once<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, ApiError> {
        let deadline = self.deadlines.kubernetes_unary;
        match tokio::time::timeout(deadline, request).await {
            Ok(answer) => answer.map_err(translate),
            Err(_) => Err(ApiError::Timeout(deadline)),
        }
    }

    /// One call, with a deadline for each try.
    async fn call<T, F>(&self, request: impl Fn() -> F) -> Result<T, ApiError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let attempt = || self.once(request());
        let backoff = ExponentialBuilder::default()
            .with_jitter()
            .with_min_delay(Duration::from_millis(200))
            .with_max_delay(Duration::from_secs(20))
            .with_max_times(4);
        attempt
            .retry(backoff)
            .when(|error| matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout))
            // The server's own wish is the least that is waited.
            .adjust(|error, delay| match error {
                ApiError::Status { retry_after: Some(wish), .. } => {
                    delay.map(|delay| delay.max((*wish).min(Duration::from_mins(1))))
                }
                _ => delay,
            })
            .await
    }

    /// The API of a selection, and what restricts it to the selection: fields, labels.
    fn select(
        &self,
        kind: Kind,
        selection: Selection<'_>,
    ) -> (Api<DynamicObject>, Option<String>, Option<String>) {
        let named = |name| Some(format!("metadata.name={name}"));
        match selection {
            Selection::All => (self.api(kind, None), None, None),
            Selection::Ours => {
                let label = format!("{}={}", names::MANAGED_BY, names::MANAGER);
                (self.api(kind, None), None, Some(label))
            }
            Selection::Named(name) => (self.api(kind, None), named(name), None),
            Selection::In(namespace) => (self.api(kind, Some(namespace)), None, None),
            Selection::One(namespace, name) => (self.api(kind, namespace), named(name), None),
        }
    }

    async fn list_once(&self, kind: Kind, selection: Selection<'_>) -> Result<List, ApiError> {
        let (api, field_selector, label_selector) = self.select(kind, selection);
        let mut parameters =
            ListParams { field_selector, label_selector, ..ListParams::default() }.limit(PAGE);
        let mut items = Vec::new();
        loop {
            let page = self.call(|| api.list(&parameters)).await?;
            for object in page.items {
                items.push(value(object)?);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters.continue_token = Some(token),
                None => return Ok(List::new(items, page.metadata.resource_version.unwrap_or_default())),
            }
        }
    }
}

/// An object as JSON.
fn value(object: impl serde::Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(object).map_err(|error| ApiError::Answer(error.to_string()))
}

impl ClusterApi for KubeApi {
    async fn list(&self, kind: Kind, selection: Selection<'_>) -> Result<List, ApiError> {
        let mut tries = 0_u8;
        loop {
            match self.list_once(kind, selection).await {
                // The pages of a list are of one moment, which the server forgets after a while. A list that
                // breaks off is begun anew, never used in part.
                Err(ApiError::Status { code: 410, .. }) if tries < 3 => tries = tries.saturating_add(1),
                result => return result,
            }
        }
    }

    async fn refusal(&self, namespace: &str, pod: &Value) -> Result<Option<String>, ApiError> {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods");
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let pod = serde_json::from_value(pod.clone()).map_err(|error| ApiError::Answer(error.to_string()))?;
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        match self.call(|| api.create(&parameters, &pod)).await {
            Ok(_) => Ok(None),
            Err(ApiError::Status { code: 403, message, .. }) => Ok(Some(message)),
            Err(error) => Err(error),
        }
    }

    async fn apply(&self, key: &Key, object: &Value) -> Result<Value, ApiError> {
        let api = self.api(key.kind, key.namespace.as_deref());
        let parameters = PatchParams::apply(names::MANAGER).force();
        let patch = Patch::Apply(object);
        // Of the answer only the metadata is of use, so no more is asked for.
        let applied = self.call(|| api.patch_metadata(&key.name, &parameters, &patch)).await?;
        value(applied)
    }

    async fn merge(&self, key: &Key, patch: &Value) -> Result<Value, ApiError> {
        let api = self.api(key.kind, key.namespace.as_deref());
        let parameters =
            PatchParams { field_manager: Some(names::MANAGER.to_owned()), ..PatchParams::default() };
        // Not repeated: its resource version holds for one try.
        value(self.once(api.patch_metadata(&key.name, &parameters, &Patch::Merge(patch))).await?)
    }

    async fn delete(&self, key: &Key, uid: &str, resource_version: &str) -> Result<(), ApiError> {
        let api = self.api(key.kind, key.namespace.as_deref());
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: Some(resource_version.to_owned()),
            }),
            ..DeleteParams::default()
        };
        // Not repeated: what was judged holds for one try.
        match self.once(api.delete(&key.name, &parameters)).await {
            Ok(_) | Err(ApiError::Status { code: 404, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn watch(
        &self,
        kind: Kind,
        selection: Selection<'_>,
        version: &str,
        mut on_event: impl FnMut(WatchEvent) + Send,
    ) -> Result<(), ApiError> {
        let (api, field_selector, label_selector) = self.select(kind, selection);
        let seconds = u32::try_from(self.deadlines.kubernetes_watch.as_secs()).unwrap_or(290).clamp(1, 294);
        let parameters =
            WatchParams { field_selector, label_selector, ..WatchParams::default() }.timeout(seconds);
        let opened = tokio::time::timeout(self.deadlines.kubernetes_unary, api.watch(&parameters, version));
        let events = opened
            .await
            .map_err(|_| ApiError::Timeout(self.deadlines.kubernetes_unary))?
            .map_err(translate)?;
        let mut events = pin!(events);
        loop {
            // The server sends a bookmark every minute. A connection that is silent for longer is a dead one.
            let silence = self.deadlines.kubernetes_watch_silence;
            let event = tokio::time::timeout(silence, events.next()).await;
            match event.map_err(|_| ApiError::Timeout(silence))? {
                Some(Ok(KubeEvent::Added(object) | KubeEvent::Modified(object))) => {
                    on_event(WatchEvent::Changed(value(object)?));
                }
                Some(Ok(KubeEvent::Deleted(object))) => on_event(WatchEvent::Deleted(value(object)?)),
                Some(Ok(KubeEvent::Bookmark(bookmark))) => {
                    on_event(WatchEvent::Version(bookmark.metadata.resource_version));
                }
                Some(Ok(KubeEvent::Error(status))) => return Err(translate(Error::Api(status))),
                Some(Err(error)) => return Err(translate(error)),
                None => return Ok(()),
            }
        }
    }
}
