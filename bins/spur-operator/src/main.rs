//! Keeps a Kubernetes cluster at what a batch scheduler's accounts say: the controller of `spur-sdk-quota` as a
//! program of its own, in a cluster or beside it.

mod accounts;
mod arguments;
mod cluster;
mod environment;
mod pages;
mod run;

use std::env::VarError;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use spur_sdk::error_chain;
use spur_sdk_quota::cluster::ControllerError;
use tracing_subscriber::EnvFilter;

use self::arguments::{Arguments, LogFormat};

/// What is logged unless SPUR_LOG says otherwise. The client's own line for each request that fails says less than ours,
/// and says it every time.
const LOGGED: &str = "info,kube_client::client::builder=off";

const FAILED: u8 = 1;
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nothing can be done about a terminal that is gone.
            let _ = error.print();
            return if error.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    if let Err(error) = log(arguments.log_format) {
        say(&error);
        return USAGE.into();
    }
    match run::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if tracing::enabled!(tracing::Level::ERROR) {
                tracing::error!(error = error_chain(error.as_ref()), "cannot run");
            } else {
                say(&error);
            }
            if error.is::<ControllerError>() { USAGE.into() } else { FAILED.into() }
        }
    }
}

/// Says why it ends, where there is no log.
fn say(error: &anyhow::Error) {
    // Nothing can be done about a terminal that is gone.
    let _ = writeln!(std::io::stderr(), "error: {}", error_chain(error.as_ref()));
}

/// Writes the log to standard error.
fn log(format: LogFormat) -> anyhow::Result<()> {
    let filter = match std::env::var(environment::LOG) {
        Ok(text) => EnvFilter::builder().parse(&text).map_err(|error| {
            anyhow::anyhow!("SPUR_LOG={text}: {error}; write it like info,spur_sdk_quota=debug")
        })?,
        Err(VarError::NotPresent) => EnvFilter::new(LOGGED),
        Err(error) => anyhow::bail!("SPUR_LOG: {error}"),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
