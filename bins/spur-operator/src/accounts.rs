//! Where the accounts come from.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, bail};
use spur_sdk::fs::read_text;
use spur_sdk::identity::Credentials;
use spur_sdk::rpc::{Client, ClientOptions, Target, with_port};
use spur_sdk_quota::Model;
use spur_sdk_quota::source::{FileSource, Merged, Source, SourceError, SpurSource};

/// The largest file of credentials, in bytes.
const MAX_CREDENTIALS: u64 = 1 << 16;

/// Files, or a controller.
pub(crate) enum Accounts {
    Files(Merged<FileSource>),
    Controller(SpurSource),
}

impl Accounts {
    pub(crate) fn of_controller(address: &str, credentials: Option<&Path>) -> anyhow::Result<Self> {
        let target = match (address.strip_prefix("http://"), credentials) {
            (Some(plain), None) => Target::Plain(with_port(plain.trim_end_matches('/'))),
            (Some(_), Some(_)) => bail!("http:// has no use for credentials: nobody is verified there"),
            (None, None) => {
                bail!("--from-spur {address} needs --credentials FILE, of an operator or an admin")
            }
            (None, Some(path)) => {
                // Not as a secret of this user alone: a Secret's mount is readable by the pod's group.
                let text = read_text(path, MAX_CREDENTIALS)?;
                let place = path.display().to_string();
                let credentials = Credentials::from_pem(text.as_bytes(), &place, SystemTime::now())?;
                let address = address.strip_prefix("https://").unwrap_or(address);
                Target::Tls(with_port(address.trim_end_matches('/')), Arc::new(credentials))
            }
        };
        let client = Client::new(&target, ClientOptions::default()).context("--from-spur")?;
        Ok(Self::Controller(SpurSource::new(client)))
    }
}

impl Source for Accounts {
    fn name(&self) -> String {
        match self {
            Self::Files(files) => files.name(),
            Self::Controller(controller) => controller.name(),
        }
    }

    async fn read(&self) -> Result<Model, SourceError> {
        match self {
            Self::Files(files) => files.read().await,
            Self::Controller(controller) => controller.read().await,
        }
    }

    async fn changed(&self) {
        match self {
            Self::Files(files) => files.changed().await,
            Self::Controller(controller) => controller.changed().await,
        }
    }
}
