//! Asking a controller: which one, and as whom.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, anyhow};
use clap::Args;
use spur_sdk::identity::Credentials;
use spur_sdk::rpc::{CallError, Client, ClientOptions, Code, Rpc, Target, with_port};

use crate::environment;

/// The socket of a controller on this machine.
pub(crate) const SOCKET: &str = "/run/spur/spurctld.sock";

/// Which controller is asked, and as whom.
#[derive(Args, Debug, Clone)]
pub(crate) struct Controller {
    /// The controller: unix:PATH, HOST or HOST:PORT. Default: the socket of one on this machine,
    /// /run/spur/spurctld.sock.
    #[arg(long, global = true, value_name = "ADDRESS", env = environment::CONTROLLER)]
    pub(crate) controller: Option<String>,
    /// Credentials for a controller on another machine, as `spur login` writes them. Default: those of the last login.
    #[arg(long, global = true, value_name = "FILE", env = environment::CREDENTIALS)]
    pub(crate) credentials: Option<PathBuf>,
}

impl Controller {
    /// Whom to ask.
    pub(crate) fn target(&self) -> anyhow::Result<Target> {
        let named = self.controller.as_deref().map(str::trim).filter(|address| !address.is_empty());
        let Some(address) = named else { return Ok(Target::Socket(SOCKET.into())) };
        if let Some(path) = address.strip_prefix("unix:") {
            return Ok(Target::Socket(path.trim_start_matches("//").into()));
        }
        if let Some(plain) = address.strip_prefix("http://") {
            // SPUR's own spelling and default: nobody is verified there.
            return Ok(Target::Plain(with_port(plain.trim_end_matches('/'))));
        }
        let address = self.address().unwrap_or_default();
        let path = match &self.credentials {
            Some(path) => path.clone(),
            None => environment::login_file()?,
        };
        if self.credentials.is_none() && !path.exists() {
            return Err(anyhow!(
                "there are no credentials for {address}: spur login gets some, or name a file with --credentials"
            ));
        }
        let credentials = Credentials::load(&path, SystemTime::now())?;
        Ok(Target::Tls(address, Arc::new(credentials)))
    }

    /// The address of a controller on another machine, if one is named.
    pub(crate) fn address(&self) -> Option<String> {
        let address = self.controller.as_deref()?.trim();
        if address.is_empty() || address.starts_with("unix:") || address.starts_with("http://") {
            return None;
        }
        Some(with_port(address.strip_prefix("https://").unwrap_or(address).trim_end_matches('/')))
    }

    /// A client.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(&self.target()?, ClientOptions::default())?)
    }
}

/// Asks, and says what is wrong in a way that tells the way out.
pub(crate) async fn ask<R: Rpc>(client: &Client, request: &R::Request) -> anyhow::Result<R::Response> {
    client.call::<R>(request).await.map_err(|error| told(client, error))
}

/// An error of a call for people.
pub(crate) fn told(client: &Client, error: CallError) -> anyhow::Error {
    let hint = match &error {
        CallError::Connect { reason, .. }
            if client.target().starts_with("unix:") && reason.contains("No such file") =>
        {
            Some("no controller runs on this machine; name another with --controller HOST:PORT")
        }
        CallError::Connect { reason, .. } if reason.contains("Permission denied") => {
            Some("the socket's folder does not let you in")
        }
        CallError::Refused(refusal) if refusal.code == Code::Unimplemented => {
            Some("this controller has no such call: it may be an older one")
        }
        _ => None,
    };
    match hint {
        Some(hint) => anyhow::Error::new(error).context(hint),
        None => error.into(),
    }
}

/// A runtime for one command.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    runtime.block_on(work)
}

/// Writes a file that only its owner may read, and the folder for it.
pub(crate) fn private_folder(path: &Path) -> anyhow::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    // A bare name is of a file in the working folder.
    if !folder.as_os_str().is_empty() && !folder.exists() {
        private_folder(folder)?;
        spur_sdk::fs::create_folder(folder, 0o700)?;
    }
    Ok(())
}
