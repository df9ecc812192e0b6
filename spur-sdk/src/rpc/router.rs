//! Which function answers which call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use super::{Code, Refusal, Rpc};
use crate::identity::{Access, Caller, Role};

/// Who calls, as verified, and what the authorization table says of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Call {
    /// Who.
    pub caller: Caller,
    /// In which roles.
    pub roles: BTreeSet<Role>,
    /// [`Access::Allow`], or [`Access::Own`]: then the function has to see to it that the call is about what is the
    /// caller's own.
    pub access: Access,
}

impl Call {
    /// A call, for tests of functions that answer one.
    #[must_use]
    pub fn new(caller: Caller, roles: BTreeSet<Role>, access: Access) -> Self {
        Self { caller, roles, access }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Bytes, Refusal>> + Send>>;
type Function = dyn Fn(Call, Bytes) -> Answer + Send + Sync;

/// Where a call is answered.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) function: Arc<Function>,
    /// By whichever controller is asked, not by the leader alone.
    pub(super) anywhere: bool,
}

/// Which function answers which call.
#[derive(Clone, Default)]
pub struct Router {
    routes: BTreeMap<&'static str, Route>,
}

impl Router {
    /// One that answers nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers a call, on the controller that leads; others hand it on.
    #[must_use]
    pub fn on<R: Rpc, F, A>(self, function: F) -> Self
    where
        F: Fn(Call, R::Request) -> A + Send + Sync + 'static,
        A: Future<Output = Result<R::Response, Refusal>> + Send + 'static,
    {
        self.add::<R, F, A>(function, false)
    }

    /// Answers a call on every controller.
    #[must_use]
    pub fn anywhere<R: Rpc, F, A>(self, function: F) -> Self
    where
        F: Fn(Call, R::Request) -> A + Send + Sync + 'static,
        A: Future<Output = Result<R::Response, Refusal>> + Send + 'static,
    {
        self.add::<R, F, A>(function, true)
    }

    fn add<R: Rpc, F, A>(mut self, function: F, anywhere: bool) -> Self
    where
        F: Fn(Call, R::Request) -> A + Send + Sync + 'static,
        A: Future<Output = Result<R::Response, Refusal>> + Send + 'static,
    {
        let function = move |call: Call, bytes: Bytes| -> Answer {
            let request = match R::Request::decode(bytes) {
                Ok(request) => request,
                Err(error) => {
                    let refusal =
                        Refusal::new(Code::InvalidArgument, format!("the message cannot be read: {error}"));
                    return Box::pin(std::future::ready(Err(refusal)));
                }
            };
            let answer = function(call, request);
            Box::pin(async move { Ok(Bytes::from(answer.await?.encode_to_vec())) })
        };
        self.routes.insert(R::PATH, Route { function: Arc::new(function), anywhere });
        self
    }

    /// Answers whatever `other` does as well; where both answer a call, `other` does.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.routes.extend(other.routes);
        self
    }

    /// Answers a call of this process itself, as if it had come over the wire from `call`'s caller. The authorization
    /// table was asked when `call` was made, and is not asked again.
    ///
    /// # Errors
    /// What the function refuses; `Unimplemented` where there is none.
    ///
    /// # Cancellation
    /// Whether the call was carried out is unknown.
    pub async fn answer<R: Rpc>(&self, call: Call, request: &R::Request) -> Result<R::Response, Refusal> {
        let missing = || Refusal::new(Code::Unimplemented, format!("{} is not served here", R::PATH));
        let route = self.routes.get(R::PATH).ok_or_else(missing)?;
        let answer = (route.function)(call, Bytes::from(request.encode_to_vec())).await?;
        R::Response::decode(answer).map_err(|error| Refusal::new(Code::Internal, error.to_string()))
    }

    pub(super) fn route(&self, path: &str) -> Option<&Route> {
        self.routes.get(path)
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.routes.keys()).finish()
    }
}
