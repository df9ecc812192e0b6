//! The command line of the SPUR SDK.

mod exit;
mod output;
mod quota;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use self::exit::Exit;

/// Rules a Kubernetes cluster by a batch scheduler's accounts.
#[derive(Parser)]
#[command(name = "spur", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = exit::CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Project accounts, users and limits onto Kubernetes tenancy.
    #[command(subcommand, arg_required_else_help = true, after_help = exit::help(quota::EXAMPLES))]
    Quota(Box<quota::Command>),
    /// Print a completion script.
    #[command(after_help = exit::help("Example: spur completions bash >/etc/bash_completion.d/spur"))]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing can be done about a terminal that is gone.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() };
        }
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("SPUR_LOG").unwrap_or_else(|_| "off".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let result = match cli.command {
        Command::Quota(command) => quota::run(*command),
        Command::Completions { shell } => {
            // Not straight to standard output: clap_complete panics where nobody reads it to its end.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "spur", &mut script);
            output::print(&String::from_utf8_lossy(&script)).map(|()| Exit::Done)
        }
    };
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            output::error(&error);
            if error.is::<exit::UsageError>() { Exit::Usage.into() } else { Exit::Failed.into() }
        }
    }
}
