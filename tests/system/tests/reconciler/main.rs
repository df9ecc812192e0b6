//! The controller on a real API server: what it keeps true, takes away, holds, gives back, outlasts.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "the helpers of tests fail as tests do"
)]

mod chaos;
mod faults;
mod keeping;
mod obstacles;
mod removal;
mod replicas;

use anyhow::{Context, Result};
use kube::api::{Api, Patch, PatchParams};
use serde_json::Value;

/// Says how long a part of a test took.
async fn timed<T>(what: &str, part: impl Future<Output = Result<T>>) -> Result<T> {
    let start = std::time::Instant::now();
    let result = part.await.with_context(|| what.to_owned());
    println!("{:>5.1} s  {what}", start.elapsed().as_secs_f64());
    result
}

/// A change by somebody else.
async fn edit<K>(api: &Api<K>, name: &str, patch: Value) -> Result<()>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let parameters = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
    api.patch(name, &parameters, &Patch::Merge(patch)).await.map(drop).context("hand edit")
}

/// A file of accounts with a cap of four CPUs and one member each.
fn accounts(names: &[&str]) -> String {
    let account = |name: &&str| {
        format!(
            "[[account]]\nname = \"{name}\"\ngrp_tres = \"cpu=4\"\n[[user]]\nname = \"{name}-user\"\naccounts = [\"{name}\"]\n"
        )
    };
    names.iter().map(account).collect()
}
