//! A controller of SPUR's own: it knows none of our calls and fields, and `spur` gets by.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use spur_sdk::identity::{IdentityError, LocalCallers, Roster, SystemUsers, UserRoles, UserStanding};
use spur_sdk::rpc::messages::slurm::{
    AddUserRpc, CreateAccountRpc, CreateQosRpc, DeleteAccountRpc, DeleteQosRpc, ListAccountsRpc, ListQosRpc,
    ListUsersRpc, RemoveUserRpc,
};
use spur_sdk::rpc::{
    CallError, Client, ClientOptions, Listener, Refusal, Router, Rpc, Server, SiteCallers, StandingHandle,
    Target,
};
use spur_sdk::{SystemClock, UserName};
use tokio_util::sync::CancellationToken;

use crate::lab::{Lab, run};

#[derive(Clone)]
struct Nobody;

impl UserRoles for Nobody {
    async fn standing(&self, _: &UserName) -> Result<UserStanding, IdentityError> {
        Ok(UserStanding::default())
    }
}

/// Hands a call on to a controller of ours, but for what an older one does not know.
fn hand_on<R: Rpc>(
    router: Router,
    client: &Client,
    forget: fn(&mut R::Request),
    answer: fn(&mut R::Response),
) -> Router
where
    R::Request: Send + Sync,
    R::Response: Send,
{
    let client = client.clone();
    router.on::<R, _, _>(move |_, mut request| {
        let client = client.clone();
        async move {
            forget(&mut request);
            let mut answered = client.call::<R>(&request).await.map_err(|error| match error {
                CallError::Refused(refusal) => refusal,
                other => Refusal::new(spur_sdk::rpc::Code::Internal, other.to_string()),
            })?;
            answer(&mut answered);
            Ok(answered)
        }
    })
}

fn older(client: &Client) -> Router {
    let router = hand_on::<ListAccountsRpc>(
        Router::new(),
        client,
        |_| {},
        |answer| {
            (answer.revision, answer.partial) = (None, None);
            for account in &mut answer.accounts {
                (account.grp_tres_exact, account.coordinators) = (None, Vec::new());
            }
        },
    );
    let router = hand_on::<ListUsersRpc>(
        router,
        client,
        |_| {},
        |answer| {
            (answer.revision, answer.partial) = (None, None);
            for user in &mut answer.users {
                (user.grp_tres_exact, user.max_tres_per_job_exact) = (None, None);
            }
        },
    );
    let router = hand_on::<ListQosRpc>(router, client, |_| {}, |answer| answer.revision = None);
    let router = hand_on::<CreateAccountRpc>(
        router,
        client,
        |request| {
            (request.presence, request.merge_tres) = (None, None);
            (request.add_coordinators, request.remove_coordinators) = (Vec::new(), Vec::new());
        },
        |()| {},
    );
    let router = hand_on::<AddUserRpc>(
        router,
        client,
        |request| (request.presence, request.merge_tres) = (None, None),
        |()| {},
    );
    let router = hand_on::<CreateQosRpc>(
        router,
        client,
        |request| (request.presence, request.merge_tres) = (None, None),
        |()| {},
    );
    let router = hand_on::<DeleteAccountRpc>(router, client, |request| request.force = None, |()| {});
    let router = hand_on::<DeleteQosRpc>(router, client, |request| request.force = None, |()| {});
    hand_on::<RemoveUserRpc>(router, client, |_| {}, |()| {})
}

/// Serves until the token is cancelled.
fn serve(lab: &Lab, stop: CancellationToken) -> Result<(PathBuf, std::thread::JoinHandle<()>)> {
    let (behind, socket) = (lab.socket(), lab.file("older"));
    let path = socket.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (server, store) = runtime.block_on(async {
        let client = Client::new(&Target::Socket(behind), ClientOptions::default())?;
        let roles = SiteCallers::new(
            "lab".parse()?,
            Roster::new(SystemClock),
            LocalCallers::new(SystemUsers::default(), None),
            Nobody,
        );
        let server = Server::new(Arc::new(roles), older(&client), StandingHandle::leading());
        anyhow::Ok((server, vec![Listener::socket(&path).await?]))
    })?;
    let thread = std::thread::spawn(move || drop(runtime.block_on(server.serve(store, stop))));
    Ok((socket, thread))
}

#[test]
fn an_older_controller_is_asked_in_its_own_calls() -> Result<()> {
    let lab = Lab::start()?;
    let stop = CancellationToken::new();
    let (socket, thread) = serve(&lab, stop.clone())?;
    let controller = format!("unix:{}", socket.display());
    let spur = |arguments: &[&str]| run(&controller, arguments, "");
    let said = spur(&["account", "add", "physics", "chem", "--grp-tres", "cpu=64,mem=1000"])?;
    assert_eq!(
        (said.code, said.stdout.as_str()),
        (0, "account physics: written\naccount chem: written\n"),
        "{said:#?}"
    );
    assert!(said.stderr.contains("this controller is an older one"), "{said:#?}");
    let said = spur(&[
        "sacctmgr",
        "-i",
        "modify",
        "account",
        "where",
        "name=physics",
        "set",
        "grptres=cpu=128,mem=-1",
    ])?;
    assert_eq!(said.code, 0, "{said:#?}");
    assert_eq!(lab.json(&["account", "show", "physics"])?["grp_tres"], "cpu=128");
    let said = spur(&["account", "add", "physics"])?;
    assert!(said.code == 1 && said.stderr.contains("account physics exists already"), "{said:#?}");
    let said = spur(&["account", "modify", "physics", "--coordinator", "alice"])?;
    assert!(said.code == 1 && said.stderr.contains("keeps no coordinators"), "{said:#?}");
    let said = spur(&["user", "add", "alice", "--account", "physics,chem", "--dry-run"])?;
    assert!(said.code == 0 && said.stdout.contains("would be written"), "{said:#?}");
    assert_eq!(lab.model()?.users.len(), 0);
    assert_eq!(spur(&["user", "add", "alice", "--account", "physics,chem"])?.code, 0);
    let said = spur(&["account", "delete", "physics"])?;
    assert!(said.code == 1 && said.stderr.contains("use --force"), "{said:#?}");
    assert_eq!(spur(&["account", "delete", "physics", "--force"])?.code, 0);
    let said = spur(&["sacctmgr", "-nP", "show", "assoc", "format=cluster,account,user"])?;
    assert_eq!(said.stdout, "cluster|root|\ncluster|chem|\ncluster|chem|alice\n", "{said:#?}");
    let import = run(&controller, &["account", "import", "-"], "[[account]]\nname = \"new\"\n")?;
    assert_eq!(import.code, 0, "{import:#?}");
    assert_eq!(lab.model()?.accounts.keys().map(ToString::to_string).collect::<BTreeSet<_>>().len(), 2);
    stop.cancel();
    thread.join().unwrap();
    Ok(())
}
