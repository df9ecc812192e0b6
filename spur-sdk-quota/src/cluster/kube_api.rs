//! [`ClusterApi`] over the kube client; foreign errors are translated here and nowhere else.

use std::future::Future;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
    WatchEvent, WatchParams,
};
use kube::core::GroupVersionKind;
use kube::{Client, Error};
use serde_json::Value;
use spur_sdk::{Classify, Deadlines, ErrorKind, error_chain};

use super::{ApiError, ClusterApi, Key, Kind, Selection};
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

    /// One call, with a deadline for each try.
    async fn call<T, F>(&self, request: impl Fn() -> F) -> Result<T, ApiError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = self.deadlines.kubernetes_unary;
        let attempt = || async {
            match tokio::time::timeout(deadline, request()).await {
                Ok(answer) => answer.map_err(translate),
                Err(_) => Err(ApiError::Timeout(deadline)),
            }
        };
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

    async fn list_once(&self, kind: Kind, selection: Selection<'_>) -> Result<Vec<Value>, ApiError> {
        let (api, fields) = match selection {
            Selection::All => (self.api(kind, None), None),
            Selection::Named(name) => (self.api(kind, None), Some(format!("metadata.name={name}"))),
            Selection::In(namespace) => (self.api(kind, Some(namespace)), None),
            Selection::One(namespace, name) => {
                (self.api(kind, namespace), Some(format!("metadata.name={name}")))
            }
        };
        let mut parameters = ListParams::default().limit(PAGE);
        parameters.field_selector = fields;
        let mut values = Vec::new();
        loop {
            let page = self.call(|| api.list(&parameters)).await?;
            for object in page.items {
                values
                    .push(serde_json::to_value(object).map_err(|error| ApiError::Answer(error.to_string()))?);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters.continue_token = Some(token),
                None => return Ok(values),
            }
        }
    }
}

fn translate(error: Error) -> ApiError {
    match error {
        Error::Api(status) => ApiError::Status {
            code: status.code,
            retry_after: status
                .details
                .as_ref()
                .map(|details| details.retry_after_seconds)
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Duration::from_secs(seconds.into())),
            reason: status.reason,
            message: status.message,
        },
        Error::SerdeError(error) => ApiError::Answer(error.to_string()),
        Error::Service(source) => ApiError::Transport(error_chain(&*source)),
        other => ApiError::Transport(other.to_string()),
    }
}

impl ClusterApi for KubeApi {
    async fn list(&self, kind: Kind, selection: Selection<'_>) -> Result<Vec<Value>, ApiError> {
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
        serde_json::to_value(applied).map_err(|error| ApiError::Answer(error.to_string()))
    }

    async fn merge(&self, key: &Key, patch: &Value) -> Result<(), ApiError> {
        let api = self.api(key.kind, key.namespace.as_deref());
        let parameters =
            PatchParams { field_manager: Some(names::MANAGER.to_owned()), ..PatchParams::default() };
        let deadline = self.deadlines.kubernetes_unary;
        // Not repeated: its resource version holds for one try.
        let request = async { api.patch(&key.name, &parameters, &Patch::Merge(patch)).await };
        match tokio::time::timeout(deadline, request).await {
            Ok(answer) => answer.map(drop).map_err(translate),
            Err(_) => Err(ApiError::Timeout(deadline)),
        }
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
        match self.call(|| api.delete(&key.name, &parameters)).await {
            Ok(_) | Err(ApiError::Status { code: 404, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn watch_quotas(&self) -> impl Stream<Item = Result<Value, ApiError>> + Send {
        let api = self.api(Kind::ResourceQuota, None);
        let seconds = u32::try_from(self.deadlines.kubernetes_watch.as_secs()).unwrap_or(290);
        let parameters = WatchParams::default()
            .labels(&format!("{}={}", names::MANAGED_BY, names::MANAGER))
            .timeout(seconds.clamp(1, 294));
        let deadline = self.deadlines.kubernetes_unary;
        let opened = async move {
            // Version 0: first what the server has, then every change.
            match tokio::time::timeout(deadline, api.watch(&parameters, "0")).await {
                Ok(stream) => stream.map_err(translate),
                Err(_) => Err(ApiError::Timeout(deadline)),
            }
        };
        stream::once(opened).try_flatten_translated()
    }
}

/// Turns a stream that has to be opened first into its events.
trait Flatten: Sized {
    fn try_flatten_translated(self) -> impl Stream<Item = Result<Value, ApiError>> + Send;
}

impl<S, W> Flatten for S
where
    S: Stream<Item = Result<W, ApiError>> + Send,
    W: Stream<Item = Result<WatchEvent<DynamicObject>, Error>> + Send,
{
    fn try_flatten_translated(self) -> impl Stream<Item = Result<Value, ApiError>> + Send {
        self.map_ok(|events| events.map_err(translate)).try_flatten().filter_map(|event| async {
            let object = match event {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => object,
                Ok(WatchEvent::Error(status)) => return Some(Err(translate(Error::Api(status)))),
                Ok(WatchEvent::Deleted(_) | WatchEvent::Bookmark(_)) => return None,
                Err(error) => return Some(Err(error)),
            };
            Some(serde_json::to_value(object).map_err(|error| ApiError::Answer(error.to_string())))
        })
    }
}
