//! The wire protocol: SPUR's messages, a server that knows who asks, a client.
//!
//! All calls are unary. A [`Router`] has a function for each [`Rpc`]; a [`Server`] takes connections, finds out who
//! calls, asks the authorization table, and hands on what may pass. See `docs/reference/rpc.md`.

mod client;
mod codec;
mod health;
mod listener;
pub mod messages;
mod refusal;
mod router;
mod server;
mod site;
mod standing;
mod tls;

pub use client::{CallError, Client, ClientOptions, Target, with_port};
pub use health::health_routes;
pub use listener::{ListenError, Listener, TlsHandle};
pub use refusal::{Code, Refusal};
pub use router::{Call, Router};
pub use server::{Callers, ServeError, Server, ServerOptions};
pub use site::{Site, SiteCallers, site_routes};
pub use standing::{Current, Standing, StandingHandle};
pub use tls::TlsError;

/// A call of the wire protocol; the types that implement it stand beside their messages in [`messages`].
pub trait Rpc: Send + Sync + 'static {
    /// Package, service and name, such as `slurm.SlurmAccounting/ListAccounts`.
    const PATH: &'static str;
    /// What is asked.
    type Request: prost::Message + Default + 'static;
    /// What is answered.
    type Response: prost::Message + Default + 'static;
}

/// The paths of all calls that the protocol descriptions name, sorted.
#[must_use]
pub fn paths() -> Vec<String> {
    let descriptors = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
    let set = <prost_types::FileDescriptorSet as prost::Message>::decode(descriptors.as_slice())
        .unwrap_or_default();
    let mut paths: Vec<String> = set
        .file
        .iter()
        .flat_map(|file| {
            file.service.iter().flat_map(|service| {
                let prefix = format!("{}.{}", file.package(), service.name());
                service.method.iter().map(move |method| format!("{prefix}/{}", method.name()))
            })
        })
        .collect();
    paths.sort();
    paths
}
