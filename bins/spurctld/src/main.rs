//! The controller of the SPUR SDK: keeps a site's accounts, knows who asks, and gives users their kubeconfigs.

mod arguments;
mod config;
mod init;
mod run;
mod store;
mod term;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use spur_sdk::error_chain;
use tracing_subscriber::EnvFilter;

use self::arguments::{Arguments, Command, LogFormat};
use self::config::Config;

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
    match carry_out(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {}", error_chain(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

/// Says something to whoever has typed the command.
fn say(text: &str) {
    // Nothing can be done about a terminal that is gone.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn carry_out(arguments: &Arguments) -> anyhow::Result<()> {
    log(arguments)?;
    let config = Config::read(&arguments.config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match &arguments.command {
        Command::CheckConfig => {
            say(&format!("{} can be used", arguments.config.display()));
            Ok(())
        }
        Command::Init { site_key } => runtime.block_on(init::init(&config, site_key.as_deref())),
        Command::Run => {
            let result = runtime.block_on(run::run(&config));
            // A file server that hangs must not keep the process.
            runtime.shutdown_timeout(std::time::Duration::from_secs(2));
            result
        }
        Command::Restore { backup } => runtime.block_on(init::restore(&config, backup)),
    }
}

/// Writes the log to standard error.
fn log(arguments: &Arguments) -> anyhow::Result<()> {
    let default = if matches!(arguments.command, Command::Run) {
        "info,kube_client::client::builder=off"
    } else {
        "warn"
    };
    let filter = match std::env::var("SPUR_LOG") {
        Ok(text) => EnvFilter::builder().parse(&text).map_err(|error| {
            anyhow::anyhow!("SPUR_LOG={text}: {error}; write it like info,spur_sdk=debug")
        })?,
        Err(_) => EnvFilter::new(default),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match arguments.log_format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
