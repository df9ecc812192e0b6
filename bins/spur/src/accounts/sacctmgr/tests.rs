//! Words, what they change, and tables, without a controller.

use spur_sdk::rpc::messages::slurm::{AccountInfo, QosInfo, UserInfo};

use super::plan::Plan;
use super::show::{Layout, table};
use super::*;
use crate::accounts::change::Change;
use crate::accounts::values::NO_LIMIT;

fn account(name: &str, parent: &str, grp_tres: &str) -> AccountInfo {
    AccountInfo {
        name: name.to_owned(),
        description: name.to_owned(),
        organization: "uni".to_owned(),
        parent_account: parent.to_owned(),
        fairshare_weight: 1.0,
        max_running_jobs: NO_LIMIT,
        grp_tres: grp_tres.to_owned(),
        ..AccountInfo::default()
    }
}

fn member(account: &str, name: &str) -> UserInfo {
    UserInfo {
        name: name.to_owned(),
        account: account.to_owned(),
        admin_level: "operator".to_owned(),
        default_account: "physics".to_owned(),
        allowed_qos: "gpu,long".to_owned(),
        max_running_jobs: 3,
        max_submit_jobs: NO_LIMIT,
        grp_submit_jobs: NO_LIMIT,
        max_wall_minutes: 2160,
        ..UserInfo::default()
    }
}

fn records() -> Records {
    let accounts =
        vec![account("physics", "", "cpu=64,mem=131072,gres/gpu=8"), account("Optics", "physics", "")];
    let qos = ["gpu", "long"].map(|name| QosInfo { name: name.to_owned(), ..QosInfo::default() });
    Records::of(accounts, vec![member("physics", "alice"), member("Optics", "alice")], qos.to_vec(), false)
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn plan(verb: Verb, text: &str) -> Result<Plan, WordsError> {
    let (entity, line) = read(verb, &words(text))?;
    match verb {
        Verb::Add => plan::add(entity, &line, &records(), "alpha"),
        Verb::Delete => plan::delete(entity, &line, &records(), "alpha", false),
        Verb::Modify | Verb::Show => plan::modify(entity, &line, &records(), "alpha"),
    }
}

fn shown(text: &str) -> String {
    let (entity, line) = read(Verb::Show, &words(text)).unwrap();
    table(entity, &line, &records(), "alpha", Layout::Parsable, false).unwrap()
}

fn error(verb: Verb, text: &str) -> String {
    plan(verb, text).unwrap_err().0
}

#[test]
fn an_account_is_added_as_slurm_people_type_it() {
    let plan =
        plan(Verb::Add, "account Name=chem,physics PARENT=root GrpTres=cpu=64,mem=131072 grpj=3 desc=Chem")
            .unwrap();
    let [Change::CreateAccount(request)] = plan.changes.as_slice() else { panic!("{plan:?}") };
    assert_eq!((request.name.as_str(), request.organization.as_deref()), ("chem", Some("chem")));
    assert_eq!(request.description.as_deref(), Some("Chem"));
    assert_eq!(request.grp_tres.as_deref(), Some("cpu=64,mem=131072"));
    assert_eq!(request.max_running_jobs, Some(3));
    assert!(
        plan::add(
            Entity::Account,
            &read(Verb::Add, &words("account physics")).unwrap().1,
            &records(),
            "alpha"
        )
        .unwrap()
        .changes
        .is_empty()
    );
}

#[test]
fn names_are_as_they_are_kept_or_in_lower_case() {
    let plan = plan(Verb::Add, "user Bob account=OPTICS,Optics,physics defaultaccount=Optics").unwrap();
    let requests: Vec<_> = plan
        .changes
        .iter()
        .map(|change| match change {
            Change::AddUser(request) => (request.user.as_str(), request.account.as_str(), request.is_default),
            _ => panic!("{change:?}"),
        })
        .collect();
    assert_eq!(requests, [("bob", "Optics", Some(true)), ("bob", "optics", None), ("bob", "physics", None)]);
}

#[test]
fn a_change_names_what_it_changes() {
    let changed =
        plan(Verb::Modify, "account where name=physics set grptres=cpu=128 GrpNodes=4 fairshare=5").unwrap();
    let [Change::CreateAccount(request)] = changed.changes.as_slice() else { panic!("{changed:?}") };
    assert_eq!(request.grp_tres.as_deref(), Some("cpu=128,node=4"));
    assert_eq!(
        (request.merge_tres, request.fairshare_weight, request.description.as_ref()),
        (Some(true), Some(5.0), None)
    );
    let of_one = plan(Verb::Modify, "user where name=alice account=physics set maxjobs=-1").unwrap();
    let [Change::AddUser(request)] = of_one.changes.as_slice() else { panic!("{of_one:?}") };
    assert_eq!(request.max_running_jobs, Some(NO_LIMIT));
    assert_eq!(plan(Verb::Modify, "user alice set maxwall=10").unwrap().changes.len(), 2);
    assert_eq!(plan(Verb::Modify, "user where name=nobody set maxjobs=1").unwrap().changes, []);
}

#[test]
fn lists_of_qos_are_set_added_to_and_taken_from() {
    let allowed = |text: &str| {
        let plan = plan(Verb::Modify, &format!("user where name=alice account=physics set {text}"))?;
        let [Change::AddUser(request)] = plan.changes.as_slice() else { panic!("{plan:?}") };
        Ok::<_, WordsError>(request.allowed_qos.clone().unwrap())
    };
    assert_eq!(allowed("qos=GPU").unwrap(), "gpu");
    assert_eq!(allowed("qos+=new").unwrap(), "gpu,long,new");
    assert_eq!(allowed("qos-=long").unwrap(), "gpu");
    assert_eq!(allowed("qos+=new qos-=gpu,long").unwrap(), "new");
    assert_eq!(allowed("qos=").unwrap(), "");
    assert!(allowed("qos-=long,gpu").unwrap_err().0.contains("no QoS would be left"));
}

#[test]
fn what_is_wrong_names_the_word_and_the_way_out() {
    for (verb, text, message) in [
        (Verb::Add, "account x foo=3", " Unknown option: foo=3\n known are Names, Accounts"),
        (Verb::Add, "account x maxjobs=3", "maxjobs: SPUR's accounting keeps it for users"),
        (Verb::Add, "account x grptres=nodes=3", "grptres=nodes=3: \"nodes\" is no TRES: did you mean node?"),
        (Verb::Add, "account x grptres=", "grptres=: has no value; -1 takes a limit away"),
        (Verb::Add, "account", " Need name of account to add."),
        (Verb::Add, "account x cluster=beta", " This cluster 'beta' doesn't exist"),
        (Verb::Add, "user x", " Need name of account to add user to."),
        (Verb::Add, "user x account=physics partition=gpu", "partition=gpu: SPUR's memberships hold on all"),
        (Verb::Add, "user x account=physics maxjobs=many", "maxjobs=many: is no number from 0 (blocks) to"),
        (Verb::Add, "tree x", "tree: name one of account"),
        (Verb::Modify, "account set grpjobs=3", " Name what to modify"),
        (Verb::Modify, "account physics", " Nothing is to be set"),
        (Verb::Modify, "account physics set grpjobs+=3", "grpjobs+=3: only lists"),
        (Verb::Modify, "user alice set account=Optics", "account=Optics: a membership is not moved"),
        (
            Verb::Modify,
            "account where grpjobs=3 set parent=root",
            " Unknown condition: grpjobs=3\n Use keyword 'set'",
        ),
        (Verb::Delete, "account", " Name what to delete"),
    ] {
        let error = error(verb, text);
        assert!(error.starts_with(message), "{text}: {error}");
    }
}

#[test]
fn a_user_is_deleted_out_of_one_account_or_out_of_all() {
    let removed = |text: &str| -> Vec<String> {
        let plan = plan(Verb::Delete, text).unwrap();
        let of = |change: &Change| match change {
            Change::RemoveUser(request) => format!("{}@{}", request.user, request.account),
            _ => panic!("{change:?}"),
        };
        plan.changes.iter().map(of).collect()
    };
    assert_eq!(removed("user name=alice account=physics"), ["alice@physics"]);
    assert_eq!(removed("user alice"), ["alice@"]);
    assert_eq!(removed("user where account=optics"), ["alice@Optics"]);
    assert_eq!(removed("user nobody"), [""; 0]);
}

#[test]
fn tables_have_slurms_rows() {
    assert_eq!(
        shown("assoc tree format=account,user,grptres,maxwall,qos,parentname"),
        "root|||||\n physics||cpu=64,gres/gpu=8,mem=131072|||root\n  physics|alice||1-12:00:00|gpu,long|\n  Optics||||\
         |physics\n   Optics|alice||1-12:00:00|gpu,long|\n"
    );
    assert_eq!(shown("assoc tree where account=optics format=acc,use"), "Optics|\n Optics|alice\n");
    assert_eq!(shown("user"), "alice|physics|Operator\n");
    assert_eq!(
        shown("account where name=optics,root"),
        "Optics|Optics|uni\nroot|default root account|root\n"
    );
    assert_eq!(shown("assoc user= account=physics format=acc,use"), "physics|\n");
    assert_eq!(shown("assoc where user=alice account=physics format=acc,use"), "physics|alice\n");
    assert_eq!(shown("qos gpu format=name,preemptmode,grace"), "gpu|cluster|00:00:00\n");
}

#[test]
fn a_table_for_people_is_cut_as_slurm_cuts_it() {
    let (entity, line) =
        read(Verb::Show, &words("assoc account=physics user= format=account%-12,grptres%8")).unwrap();
    let text = table(entity, &line, &records(), "alpha", Layout::Columns, true).unwrap();
    assert_eq!(text, "Account       GrpTRES \n------------ -------- \nphysics      cpu=64,+ \n");
}
