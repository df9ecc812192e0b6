//! The command line of the SPUR SDK.

mod accounts;
mod controller;
mod environment;
mod exit;
mod k8s;
mod login;
mod output;
mod quota;
mod site;

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
    /// Look after a controller's accounts.
    #[command(arg_required_else_help = true)]
    Account(Box<accounts::Account>),
    /// Look after the users of a controller's accounts.
    #[command(arg_required_else_help = true)]
    User(Box<accounts::User>),
    /// Look after a controller's QoS.
    #[command(arg_required_else_help = true)]
    Qos(Box<accounts::Qos>),
    /// Look after a controller's accounts as sacctmgr does.
    #[command(arg_required_else_help = true, after_help = exit::help(accounts::SACCTMGR_EXAMPLES))]
    Sacctmgr(accounts::Sacctmgr),
    /// Get credentials for controllers on other machines, through the controller of this one.
    #[command(after_help = exit::help("They hold at most 12 h and are yours alone: root gets none."))]
    Login(login::Login),
    /// Show what the controller takes you for.
    #[command(name = "whoami")]
    WhoAmI(login::WhoAmI),
    /// Get into the Kubernetes cluster.
    #[command(arg_required_else_help = true)]
    K8s(k8s::K8s),
    /// Print a token for kubectl, as kubeconfigs of `spur k8s kubeconfig` ask for it.
    KubeToken(k8s::KubeToken),
    /// Look after the controller.
    #[command(arg_required_else_help = true)]
    Site(site::Site),
    /// Look after the nodes that belong to the site.
    #[command(arg_required_else_help = true)]
    Node(site::Node),
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
        Command::Account(command) => accounts::account(&command),
        Command::User(command) => accounts::user(&command),
        Command::Qos(command) => accounts::qos(&command),
        Command::Sacctmgr(command) => accounts::sacctmgr(&command),
        Command::Login(command) => login::login(&command),
        Command::WhoAmI(command) => login::who_am_i(&command),
        Command::K8s(command) => k8s::k8s(&command),
        Command::KubeToken(command) => k8s::kube_token(&command),
        Command::Site(command) => site::site(&command),
        Command::Node(command) => site::node(&command),
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
