//! `spur login`, `spur whoami`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use spur_sdk::identity::KeyRequest;
use spur_sdk::rpc::messages::site::{LoginRequest, LoginRpc, WhoAmIRpc};

use crate::controller::{Controller, ask, block_on, private_folder};
use crate::exit::Exit;
use crate::{environment, output};

/// `spur login`.
#[derive(Args, Debug)]
pub(crate) struct Login {
    #[command(flatten)]
    controller: Controller,
    /// How long the credentials hold, such as 8h; at most 12h.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    lifetime: Option<Duration>,
    /// Where they are written. Default: where spur looks for them.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

pub(crate) fn login(command: &Login) -> anyhow::Result<Exit> {
    let path = match (&command.save, &command.controller.credentials) {
        (Some(path), _) | (None, Some(path)) => path.clone(),
        (None, None) => environment::login_file()?,
    };
    block_on(async {
        let client = command.controller.client()?;
        let request = KeyRequest::generate()?;
        let seconds =
            command.lifetime.map_or(0, |lifetime| u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX));
        let asked = LoginRequest { request: request.pem().to_owned(), lifetime_seconds: seconds };
        let given = ask::<LoginRpc>(&client, &asked).await?;
        let credentials = request.complete_pem(&given.certificate, &given.authority)?;
        private_folder(&path)?;
        credentials.save(&path)?;
        let user = credentials.subject().name().to_owned();
        let expires = humantime::format_rfc3339_seconds(credentials.content().not_after()).to_string();
        output::note(&format!("logged in as {user} until {expires}; credentials are in {}", path.display()));
        Ok(Exit::Done)
    })
}

/// `spur whoami`.
#[derive(Args, Debug)]
pub(crate) struct WhoAmI {
    #[command(flatten)]
    controller: Controller,
    #[arg(short, long, value_enum, default_value = "table")]
    output: output::Format,
}

/// What the controller takes the caller for.
#[derive(Serialize)]
struct Known {
    caller: String,
    roles: Vec<String>,
    via: String,
}

pub(crate) fn who_am_i(command: &WhoAmI) -> anyhow::Result<Exit> {
    block_on(async {
        let answer = ask::<WhoAmIRpc>(&command.controller.client()?, &()).await?;
        let known = Known { caller: answer.caller, roles: answer.roles, via: answer.via };
        output::value(command.output, &known, || {
            format!("{}\nroles: {}\nby: {}", known.caller, known.roles.join(", "), known.via)
        })?;
        Ok(Exit::Done)
    })
}
