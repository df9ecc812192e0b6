//! The way to the cluster.

use anyhow::{Context, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use spur_sdk::Deadlines;
use spur_sdk_quota::k8s::KubeApi;

use crate::arguments::Arguments;

/// An error of kube's without its sources, which its text holds already.
fn unusable(kubeconfig: &str, error: &KubeconfigError) -> anyhow::Error {
    match error {
        KubeconfigError::ReadConfig(error, path) => anyhow!("read kubeconfig {}: {error}", path.display()),
        other => anyhow!("{kubeconfig}: {other}"),
    }
}

/// The cluster, and its address. Nothing is asked of it.
pub(crate) async fn connect(arguments: &Arguments) -> anyhow::Result<(KubeApi, String)> {
    let deadlines = Deadlines::default();
    let options = KubeConfigOptions { context: arguments.context.clone(), ..KubeConfigOptions::default() };
    let mut config = if let Some(path) = &arguments.kubeconfig {
        let unusable = |error| unusable(&format!("kubeconfig {}", path.display()), &error);
        let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
        kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(unusable)?
    } else if arguments.context.is_some() {
        let found = kube::Config::from_kubeconfig(&options).await;
        found.map_err(|error| unusable("kubeconfig", &error))?
    } else {
        kube::Config::incluster()
            .map_err(|error| anyhow!("this is no pod, so name a cluster with --kubeconfig FILE: {error}"))?
    };
    config.connect_timeout = Some(deadlines.connect);
    let address = config.cluster_url.to_string();
    let client = kube::Client::try_from(config).with_context(|| format!("cluster at {address}"))?;
    Ok((KubeApi::new(client, deadlines), address))
}
