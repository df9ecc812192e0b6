//! Events over the kube client.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::{Event as KubeEvent, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, ObjectMeta, PostParams};

use super::{KubeApi, PAGE, names};
use crate::cluster::{ApiError, Event, EventApi, EventKind};

fn to_kube(event: &Event) -> KubeEvent {
    let time = Timestamp::try_from(event.time).ok().map(Time);
    KubeEvent {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}.", event.namespace)),
            namespace: Some(event.namespace.clone()),
            ..ObjectMeta::default()
        },
        // An Event stands in the namespace of what it is about, so that its members see it.
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Namespace".to_owned()),
            name: Some(event.namespace.clone()),
            namespace: Some(event.namespace.clone()),
            ..ObjectReference::default()
        },
        type_: Some(match event.kind {
            EventKind::Normal => "Normal".to_owned(),
            EventKind::Warning => "Warning".to_owned(),
        }),
        reason: Some(event.reason.clone()),
        message: Some(event.message.clone()),
        first_timestamp: time.clone(),
        last_timestamp: time,
        count: Some(1),
        source: Some(EventSource { component: Some(names::MANAGER.to_owned()), host: None }),
        reporting_component: Some(names::MANAGER.to_owned()),
        ..KubeEvent::default()
    }
}

fn from_kube(event: KubeEvent) -> Event {
    let kind = match event.type_.as_deref() {
        Some("Warning") => EventKind::Warning,
        _ => EventKind::Normal,
    };
    let time = event.last_timestamp.map_or(SystemTime::UNIX_EPOCH, |time| time.0.into());
    let namespace = event.metadata.namespace.unwrap_or_default();
    Event::new(
        &namespace,
        kind,
        event.reason.as_deref().unwrap_or_default(),
        event.message.unwrap_or_default(),
        time,
    )
}

impl EventApi for KubeApi {
    async fn record(&self, event: &Event) -> Result<(), ApiError> {
        let api: Api<KubeEvent> = Api::namespaced(self.client.clone(), &event.namespace);
        self.once(api.create(&PostParams::default(), &to_kube(event))).await.map(drop)
    }

    async fn recorded(&self) -> Result<Vec<Event>, ApiError> {
        let api: Api<KubeEvent> = Api::all(self.client.clone());
        let ours = format!("source={}", names::MANAGER);
        let mut parameters = ListParams::default().fields(&ours).limit(PAGE);
        let mut events = Vec::new();
        loop {
            let page = self.call(|| api.list(&parameters)).await?;
            events.extend(page.items.into_iter().map(from_kube));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters.continue_token = Some(token),
                None => return Ok(events),
            }
        }
    }
}
