//! Handing a call on to the leader.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use hyper::header::HeaderValue;

use super::{CALLER, ServerOptions};
use crate::NodeName;
use crate::identity::{Caller, Credentials};
use crate::rpc::client::{CallError, Client, ClientOptions, Target};
use crate::rpc::{Code, Refusal};

/// Hands calls on; keeps the connection to the last leader.
#[derive(Debug)]
pub(super) struct Forwarder {
    credentials: Arc<Credentials>,
    options: ServerOptions,
    client: Mutex<Option<(String, Client)>>,
}

impl Forwarder {
    pub(super) fn new(credentials: Arc<Credentials>, options: ServerOptions) -> Self {
        Self { credentials, options, client: Mutex::new(None) }
    }

    fn client(&self, address: &str) -> Result<Client, CallError> {
        let mut kept = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((known, client)) if known == address => Ok(client.clone()),
            _ => {
                let target = Target::Tls(address.to_owned(), Arc::clone(&self.credentials));
                let client =
                    Client::new(&target, ClientOptions::default().deadlines(self.options.deadlines))?;
                *kept = Some((address.to_owned(), client.clone()));
                Ok(client)
            }
        }
    }

    /// Asks the leader on behalf of a caller.
    pub(super) async fn ask(
        &self,
        address: &str,
        path: &str,
        caller: &Caller,
        message: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, Refusal> {
        let unavailable =
            |message: String| Refusal { code: Code::Unavailable, message, leader: Some(address.to_owned()) };
        let client = self.client(address).map_err(|error| unavailable(crate::error_chain(&error)))?;
        let asked = client.bytes(&format!("/{path}"), message, deadline, Some(&header(caller)?)).await;
        asked.map_err(|error| match error {
            CallError::Refused(refusal) => refusal,
            CallError::Timeout { after, .. } => {
                Refusal::new(Code::DeadlineExceeded, format!("the leader did not answer within {after:?}"))
            }
            error => unavailable(format!("the leader cannot be asked: {}", crate::error_chain(&error))),
        })
    }
}

/// A caller as metadata.
fn header(caller: &Caller) -> Result<String, Refusal> {
    let json = serde_json::to_vec(caller);
    let json = json.map_err(|error| Refusal::new(Code::Internal, format!("hand on {caller}: {error}")))?;
    Ok(URL_SAFE_NO_PAD.encode(json))
}

/// The caller whom the controller `by` hands on.
pub(super) fn caller(value: &HeaderValue, by: NodeName) -> Result<Caller, Refusal> {
    let json = URL_SAFE_NO_PAD.decode(value.as_bytes()).map_err(|error| Refusal::invalid(CALLER, error))?;
    let caller: Caller = serde_json::from_slice(&json).map_err(|error| Refusal::invalid(CALLER, error))?;
    caller.forwarded(by).map_err(|error| Refusal::from_error(&error))
}
