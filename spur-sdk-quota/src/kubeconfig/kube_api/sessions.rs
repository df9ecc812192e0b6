//! [`SessionApi`] over the kube client.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::{Api, DeleteParams, GetParams, ListParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;
use spur_sdk::Deadlines;

use crate::api_error::translate;
use crate::kubeconfig::{ApiError, BearerToken, NewSession, Session, SessionApi, SessionName, StoredAccount};
use crate::project::names;

/// Objects that one page of a list holds.
const PAGE: u32 = 500;

/// The sessions behind a kube client. Each call is tried once, but for what the client itself tries again (kube's
/// `default_retry`: 429, 503, 504), and has the deadline of a Kubernetes request.
#[derive(Clone)]
pub struct KubeSessions {
    pub(super) client: Client,
    accounts: Api<ServiceAccount>,
    secrets: Api<Secret>,
    deadline: Duration,
}

impl std::fmt::Debug for KubeSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeSessions").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl KubeSessions {
    /// The sessions behind a client.
    #[must_use]
    pub fn new(client: Client, deadlines: &Deadlines) -> Self {
        Self {
            accounts: Api::namespaced(client.clone(), names::USERS_NAMESPACE),
            secrets: Api::namespaced(client.clone(), names::USERS_NAMESPACE),
            client,
            deadline: deadlines.kubernetes_unary,
        }
    }

    /// With the deadline of a request. The client's futures are large, so they are not carried along.
    fn call<'a, T: 'a>(
        &self,
        request: impl Future<Output = kube::Result<T>> + Send + 'a,
    ) -> impl Future<Output = Result<T, ApiError>> + Send + 'a {
        let deadline = self.deadline;
        let request: Pin<Box<dyn Future<Output = kube::Result<T>> + Send + 'a>> = Box::pin(request);
        async move {
            match tokio::time::timeout(deadline, request).await {
                Ok(answer) => answer.map_err(translate),
                Err(_) => Err(ApiError::Timeout(deadline)),
            }
        }
    }
}

fn missing(what: &str) -> ApiError {
    ApiError::Answer(format!("there is no {what} in it"))
}

impl SessionApi for KubeSessions {
    async fn account(&self, name: &str) -> Result<Option<StoredAccount>, ApiError> {
        // From the API server's memory, which costs it no question to etcd. It may lag by moments. That shows: one that
        // is gone gets no token, and a session that is owned by one that was replaced goes at once.
        let account = match self.call(self.accounts.get_with(name, &GetParams::any())).await {
            Ok(account) => account,
            Err(ApiError::Status { code: 404, .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = account.metadata;
        Ok(Some(StoredAccount {
            uid: metadata.uid.ok_or_else(|| missing("uid"))?,
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
            is_leaving: metadata.deletion_timestamp.is_some(),
        }))
    }

    async fn create(&self, session: &NewSession) -> Result<String, ApiError> {
        let secret = secret(session);
        let parameters =
            PostParams { field_manager: Some(names::MANAGER.to_owned()), ..PostParams::default() };
        let created = self.call(self.secrets.create(&parameters, &secret)).await?;
        created.metadata.uid.ok_or_else(|| missing("uid"))
    }

    async fn request_token(
        &self,
        session: &SessionName,
        uid: Option<&str>,
        lifetime: Duration,
    ) -> Result<(BearerToken, SystemTime), ApiError> {
        let spec = TokenRequestSpec {
            // The API server's own.
            audiences: Vec::new(),
            expiration_seconds: i64::try_from(lifetime.as_secs()).ok(),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Secret".to_owned()),
                name: Some(session.to_string()),
                uid: uid.map(str::to_owned),
            }),
        };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let parameters = PostParams::default();
        let asked = self.accounts.create_token_request(session.service_account(), &parameters, &request);
        let status = self.call(asked).await?.status.ok_or_else(|| missing("status"))?;
        Ok((BearerToken::new(status.token), SystemTime::from(status.expiration_timestamp.0)))
    }

    async fn list(&self, prefix: &str, account: Option<&str>) -> Result<Vec<Session>, ApiError> {
        let key = format!("{prefix}/session");
        let which = account.map_or_else(|| key.clone(), |account| format!("{key}={account}"));
        let labels = format!("{}={},{which}", names::MANAGED_BY, names::MANAGER);
        let found = self.metadata_of(&self.secrets, &labels).await?;
        Ok(found.into_iter().filter_map(|found| session(found, prefix)).collect())
    }

    async fn delete(&self, session: &SessionName, uid: Option<&str>) -> Result<bool, ApiError> {
        let preconditions =
            uid.map(|uid| Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        self.deleted(self.secrets.delete(session.as_str(), &parameters)).await
    }
}

impl KubeSessions {
    /// The metadata of all objects with these labels: of content nothing is asked for.
    pub(super) async fn metadata_of<K>(
        &self,
        api: &Api<K>,
        labels: &str,
    ) -> Result<Vec<PartialObjectMeta<K>>, ApiError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let mut tries = 0_u8;
        loop {
            match self.pages(api, labels).await {
                // The pages of a list are of one moment, which the server forgets after a while.
                Err(error) if error.is_expired() && tries < 3 => tries = tries.saturating_add(1),
                done => return done,
            }
        }
    }

    async fn pages<K>(&self, api: &Api<K>, labels: &str) -> Result<Vec<PartialObjectMeta<K>>, ApiError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let mut parameters = ListParams::default().labels(labels).limit(PAGE);
        let mut found = Vec::new();
        loop {
            let page = self.call(api.list_metadata(&parameters)).await?;
            found.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters.continue_token = Some(token),
                None => return Ok(found),
            }
        }
    }

    /// Whether there was one to delete.
    pub(super) async fn deleted<T>(
        &self,
        request: impl Future<Output = kube::Result<T>> + Send,
    ) -> Result<bool, ApiError> {
        match self.call(request).await {
            Ok(_) => Ok(true),
            // Gone, or another one by now.
            Err(ApiError::Status { code: 404 | 409, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn secret(session: &NewSession) -> Secret {
    let account = session.name.service_account();
    Secret {
        metadata: ObjectMeta {
            name: Some(session.name.to_string()),
            labels: Some(session.labels.clone()),
            annotations: Some(session.annotations.clone()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "ServiceAccount".to_owned(),
                name: account.to_owned(),
                uid: session.owner_uid.clone(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        immutable: Some(true),
        ..Secret::default()
    }
}

/// A Secret as a session; `None` if it only looks like one.
fn session(found: PartialObjectMeta<Secret>, prefix: &str) -> Option<Session> {
    let metadata = found.metadata;
    let name: SessionName = metadata.name?.parse().ok()?;
    let labels = metadata.labels.unwrap_or_default();
    if labels.get(&format!("{prefix}/session")).map(String::as_str) != Some(name.service_account()) {
        return None;
    }
    let annotations = metadata.annotations.unwrap_or_default();
    let text = |annotations: &BTreeMap<String, String>, key: &str| {
        annotations.get(&format!("{prefix}/{key}")).filter(|text| !text.is_empty()).cloned()
    };
    let user = text(&annotations, "user-name").and_then(|user| user.parse().ok());
    // An annotation that somebody altered speaks for nobody else.
    let user = user.filter(|user| name.is_of(user));
    let created = metadata.creation_timestamp.map(|time| SystemTime::from(time.0));
    let client = text(&annotations, "client");
    Some(Session::new(name, metadata.uid?).user(user).created(created).client(client))
}
