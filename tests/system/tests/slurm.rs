//! A real Slurm: its dumps are read as it means them, and it takes what is written for it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use spur_sdk::{AccountName, Limit, Tres, UserName};
use spur_sdk_quota::source::{Format, ReadOptions, dump_keys, read, to_accounts_toml, to_dump};
use spur_sdk_quota::{
    Account, AdminLevel, Association, AssociationKey, Carrier, CountLimit, Fairshare, Limits, Model, Origin,
    Policy, Projection, Qos, QosSelection, QosSetting, QuotaProjector, ROOT, Sourced, Terms, TresLimit, User,
};
use spur_test_slurm::Slurm;

const ACCOUNTS: &str = include_str!("../../../examples/accounts.toml");

/// What the columns of `sacctmgr show` are called. A limit that is new belongs here.
const COUNTS: [(CountLimit, &str); 16] = [
    (CountLimit::GrpJobs, "GrpJobs"),
    (CountLimit::GrpJobsAccrue, "GrpJobsAccrue"),
    (CountLimit::GrpSubmitJobs, "GrpSubmit"),
    (CountLimit::GrpWall, "GrpWall"),
    (CountLimit::MaxJobs, "MaxJobs"),
    (CountLimit::MaxJobsAccrue, "MaxJobsAccrue"),
    (CountLimit::MaxSubmitJobs, "MaxSubmit"),
    (CountLimit::MaxWall, "MaxWall"),
    (CountLimit::MinPrioThreshold, "MinPrioThres"),
    (CountLimit::Priority, "Priority"),
    (CountLimit::MaxJobsPerUser, "MaxJobsPU"),
    (CountLimit::MaxJobsPerAccount, "MaxJobsPA"),
    (CountLimit::MaxSubmitJobsPerUser, "MaxSubmitPU"),
    (CountLimit::MaxSubmitJobsPerAccount, "MaxSubmitPA"),
    (CountLimit::MaxJobsAccruePerUser, "MaxJobsAccruePU"),
    (CountLimit::MaxJobsAccruePerAccount, "MaxJobsAccruePA"),
];
const AMOUNTS: [(TresLimit, &str); 12] = [
    (TresLimit::GrpTres, "GrpTRES"),
    (TresLimit::GrpTresMins, "GrpTRESMins"),
    (TresLimit::GrpTresRunMins, "GrpTRESRunMins"),
    (TresLimit::MaxTresMinsPerJob, "MaxTRESMins"),
    (TresLimit::MaxTresRunMins, "MaxTRESRunMins"),
    (TresLimit::MaxTresPerJob, "MaxTRES"),
    (TresLimit::MaxTresPerNode, "MaxTRESPerNode"),
    (TresLimit::MaxTresPerUser, "MaxTRESPU"),
    (TresLimit::MaxTresPerAccount, "MaxTRESPA"),
    (TresLimit::MaxTresRunMinsPerUser, "MaxTRESRunMinsPU"),
    (TresLimit::MaxTresRunMinsPerAccount, "MaxTRESRunMinsPA"),
    (TresLimit::MinTresPerJob, "MinTRES"),
];

/// What a table or a model says, by column: amounts by TRES, or one number without a name.
type Said = BTreeMap<&'static str, BTreeMap<String, u64>>;

/// The columns of limits that stand on these carriers.
fn columns(on: Carrier) -> Vec<&'static str> {
    assert_eq!((COUNTS.len(), AMOUNTS.len()), (CountLimit::ALL.len(), TresLimit::ALL.len()));
    let stands = move |carrier: Carrier| carrier == on || carrier == Carrier::Both;
    let counts =
        COUNTS.iter().filter(move |(limit, _)| stands(limit.spec().carrier)).map(|(_, column)| *column);
    counts
        .chain(
            AMOUNTS.iter().filter(move |(limit, _)| stands(limit.spec().carrier)).map(|(_, column)| *column),
        )
        .collect()
}

fn said_by_model(limits: &Limits) -> Said {
    let value = |limit: &Sourced<Limit<u64>>| limit.value.value();
    let count = |(limit, column): &(CountLimit, _)| {
        let value = limits.counts.get(limit).and_then(value)?;
        Some((*column, BTreeMap::from([(String::new(), value)])))
    };
    let amounts = |(limit, column): &(TresLimit, _)| {
        let amounts = limits
            .tres
            .get(limit)?
            .iter()
            .filter_map(|(tres, amount)| Some((tres.to_string(), value(amount)?)));
        Some((*column, amounts.collect()))
    };
    COUNTS
        .iter()
        .filter_map(count)
        .chain(AMOUNTS.iter().filter_map(amounts))
        .filter(|(_, said)| !said.is_empty())
        .collect()
}

fn said_by_table(columns: &[&'static str], cells: &[String]) -> Said {
    let filled = columns.iter().zip(cells).filter(|(_, cell)| !cell.is_empty());
    filled.map(|(column, cell)| (*column, cell.split(',').map(entry).collect())).collect()
}

/// `cpu=4`, `mem=2T`, `1-12:00:00` or `3`: in millicores, bytes, minutes, or as it stands.
fn entry(text: &str) -> (String, u64) {
    let (name, amount) = text.split_once('=').unwrap_or(("", text));
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|error| panic!("{text}: {error}"));
    let amount = match name {
        "cpu" => number(amount) * 1000,
        "mem" => {
            let (digits, unit) = amount.split_at(amount.len() - 1);
            let power = "KMGTP".find(unit).unwrap_or_else(|| panic!("{text} has no unit"));
            number(digits) << (10 * (power + 1))
        }
        _ if amount.contains(':') => {
            let (days, time) = amount.split_once('-').unwrap_or(("0", amount));
            let parts: Vec<_> = time.split(':').map(number).collect();
            number(days) * 1440 + parts[0] * 60 + parts[1]
        }
        _ => number(amount),
    };
    (name.to_owned(), amount)
}

/// Runs sacctmgr, which must find nothing to object to.
fn sacctmgr(lab: &Slurm, words: &[&str]) -> Result<String> {
    let output = lab.sacctmgr(words)?;
    let objects = output.stderr.contains("error") || output.stdout.contains("Unknown option");
    ensure!(output.status.success() && !objects, "sacctmgr {words:?}: {output:#?}");
    Ok(output.stdout)
}

/// The rows of `sacctmgr show WHAT`.
fn show(lab: &Slurm, what: &[&str], columns: &[&str]) -> Result<Vec<Vec<String>>> {
    let format = format!(
        "format={}",
        columns.iter().map(|column| format!("{column}%99")).collect::<Vec<_>>().join(",")
    );
    let text = sacctmgr(lab, &[&["-nP", "show"], what, &[&format]].concat())?;
    Ok(text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect())
}

/// Reads a dump, which must hold nothing that is not understood.
fn model(dump: &str) -> Model {
    let model = read(dump, "dump", ReadOptions::default().format(Some(Format::Dump))).unwrap();
    assert_eq!(model.problems, [], "{dump}");
    model
}

#[test]
fn a_dump_is_read_as_slurm_means_it() -> Result<()> {
    let Some(lab) = Slurm::start_or_skip("a_dump_is_read_as_slurm_means_it")? else { return Ok(()) };
    make_a_site(&lab)?;
    let dump = lab.dump()?;
    let model = model(&dump);
    associations_are_as_shown(&lab, &model)?;
    accounts_are_as_shown(&lab, &model)?;
    users_are_as_shown(&lab, &model)?;
    what_is_projected(&model);
    Ok(())
}

fn make_a_site(lab: &Slurm) -> Result<()> {
    let run = |text: &str, more: &[&str]| {
        let words: Vec<_> = text.split_whitespace().chain(more.iter().copied()).collect();
        sacctmgr(lab, &words).map(drop)
    };
    run("add qos gpu,long", &[])?;
    run("modify cluster alpha set GrpTRES=cpu=4096,mem=16T MaxJobs=100", &[])?;
    let every = "Fairshare=100 QosLevel=normal,gpu DefaultQOS=gpu Priority=22 MinPrioThresh=23 \
        GrpTRES=cpu=640,mem=2T,gres/gpu=32,gres/gpu:mi300x=8,node=20,license/matlab=5,billing=7,energy=8,fs/disk=9,vmem=10,pages=11 \
        GrpTRESMins=cpu=1000,mem=2000,gres/gpu:mi300x=3 GrpTRESRunMins=cpu=100,mem=3000M GrpJobs=11 GrpJobsAccrue=12 \
        GrpSubmitJobs=13 GrpWall=2-00:00:00 MaxTRESMinsPerJob=cpu=14 MaxTRESRunMins=cpu=15 MaxTRESPerJob=cpu=16,mem=1500 \
        MaxTRESPerNode=cpu=17,gres/gpu:mi300x=4 MaxJobs=18 MaxJobsAccrue=19 MaxSubmitJobs=20 MaxWall=1-12";
    let description = "Description=Natural sciences: it's a \"test\" of #1, c\\d & a=b, \u{e4}\u{df}";
    run(&format!("add account science Organization=Uni {every}"), &[description])?;
    run(
        "add account physics parent=science GrpTRES=cpu=1,mem=1500,gres/gpu:mi300x=4 Fairshare=parent QOS+=long",
        &[],
    )?;
    run(
        "add account optics parent=physics GrpTRES=cpu=0 MaxWall=90",
        &["Organization=\u{dc}ni", "Description=a\tb # c"],
    )?;
    run("add account silent", &[])?;
    run("modify account silent set Description=", &[])?;
    run("add user alice account=physics,optics DefaultAccount=optics MaxJobs=3", &[])?;
    run(
        "add user bob account=physics AdminLevel=Operator Fairshare=parent WCKeys=k1,k2 DefaultWCKey=k2",
        &[],
    )?;
    run("add user bob account=optics partition=debug,gpu GrpTRES=cpu=3 QosLevel=gpu", &[])?;
    run("add user Carol account=silent AdminLevel=Administrator", &[])?;
    run("add coordinator names=bob account=science,optics", &[])
}

fn associations_are_as_shown(lab: &Slurm, model: &Model) -> Result<()> {
    // 22.05 keeps a MinPrioThresh and does not dump it.
    let limits: Vec<_> =
        columns(Carrier::Association).into_iter().filter(|column| *column != "MinPrioThres").collect();
    let keys = ["Account", "User", "Partition", "ParentName", "Share", "QOS", "DefaultQOS"];
    let rows = show(lab, &["assoc", "WOPLimits"], &[&keys[..], &limits].concat())?;
    assert_eq!(rows.len(), 1 + model.accounts.len() + model.associations.len(), "{rows:#?}");
    for row in &rows {
        let (keys, cells) = row.split_at(keys.len());
        let [account, user, partition, parent, share, qos, default_qos] = keys else { panic!("{row:?}") };
        let terms = if !user.is_empty() {
            let partition = (!partition.is_empty()).then(|| partition.parse()).transpose()?;
            let key = AssociationKey { account: account.parse()?, user: user.parse()?, partition };
            &model.associations.get(&key).with_context(|| key.to_string())?.terms
        } else if account == ROOT {
            &model.cluster.terms
        } else {
            let account = model.accounts.get(account.as_str()).context(account.clone())?;
            assert_eq!(account.parent.as_ref().map_or(ROOT, |parent| parent.value.as_str()), parent);
            &account.terms
        };
        assert_eq!(said_by_model(&terms.limits), said_by_table(&limits, cells), "{row:?}");
        assert_eq!(
            &terms.fairshare.as_ref().map(|share| share.value.to_string()).unwrap_or_default(),
            share,
            "{row:?}"
        );
        assert_eq!(
            &terms.default_qos.as_ref().map(|qos| qos.value.to_string()).unwrap_or_default(),
            default_qos,
            "{row:?}"
        );
        // The table shows what is added as if it were all.
        let selected = match terms.qos.as_ref().map(|qos| &qos.value) {
            Some(QosSelection::Only(names) | QosSelection::Changed { add: names, .. }) => names.iter(),
            None => std::collections::btree_set::Iter::default(),
        };
        assert_eq!(&selected.map(ToString::to_string).collect::<Vec<_>>().join(","), qos, "{row:?}");
    }
    let physics = &model.accounts["physics"].terms.qos;
    assert!(
        matches!(physics.as_ref().map(|qos| &qos.value), Some(QosSelection::Changed { .. })),
        "{physics:?}"
    );
    Ok(())
}

fn accounts_are_as_shown(lab: &Slurm, model: &Model) -> Result<()> {
    let text =
        |text: &Option<Sourced<String>>| text.as_ref().map(|text| text.value.clone()).unwrap_or_default();
    let told = model.accounts.values().map(|account| {
        [account.name.to_string(), text(&account.description), text(&account.organization)].to_vec()
    });
    let mut shown = show(lab, &["account"], &["Account", "Description", "Organization"])?;
    shown.retain(|row| row[0] != ROOT);
    assert_eq!(told.collect::<Vec<_>>(), shown);
    let science = &model.accounts["science"];
    assert_eq!(text(&science.description), "natural sciences: it`s a `test` of #1, c\\d & a=b, \u{e4}\u{df}");
    // The table has those of the accounts above as well.
    for (account, coordinator) in [("science", true), ("physics", false), ("optics", true), ("silent", false)]
    {
        let coordinators = &model.accounts[account].coordinators;
        assert_eq!(coordinators.keys().map(UserName::as_str).eq(["bob"]), coordinator, "{account}");
    }
    Ok(())
}

fn users_are_as_shown(lab: &Slurm, model: &Model) -> Result<()> {
    let text =
        |text: &Option<Sourced<String>>| text.as_ref().map(|text| text.value.clone()).unwrap_or_default();
    let told = model.users.values().map(|user| {
        let level = user.admin_level.as_ref().map_or(AdminLevel::None, |level| level.value).to_string();
        let account =
            user.default_account.as_ref().map(|account| account.value.to_string()).unwrap_or_default();
        [user.name.to_string(), account, text(&user.default_wckey), level].to_vec()
    });
    let mut shown = show(lab, &["user"], &["User", "DefaultAccount", "DefaultWCKey", "AdminLevel"])?;
    for row in &mut shown {
        row[3].make_ascii_lowercase();
    }
    assert_eq!(told.collect::<Vec<_>>(), shown);
    let keys = model.users.values().flat_map(|user| {
        let keys = user.wckeys.iter().flat_map(|keys| &keys.value);
        keys.map(|key| [user.name.to_string(), key.clone()].to_vec())
    });
    assert_eq!(keys.collect::<Vec<_>>(), show(lab, &["wckey"], &["User", "WCKey"])?);
    Ok(())
}

/// Caps of an account: CPU, memory and GPUs.
fn caps(projection: &Projection, account: &str) -> [Option<String>; 3] {
    let account = projection.accounts.iter().find(|projected| projected.account.as_str() == account).unwrap();
    let objects = account.objects.iter().map(|object| serde_json::to_value(object).unwrap());
    let quota = objects.into_iter().find(|object| object["metadata"]["name"] == "spur-quota").unwrap();
    ["requests.cpu", "requests.memory", "requests.amd.com/gpu"]
        .map(|key| quota["spec"]["hard"][key].as_str().map(str::to_owned))
}

fn what_is_projected(model: &Model) {
    let projection = QuotaProjector::new(&Policy::default()).project(model);
    for (account, expected) in [
        ("science", ["640", "2097152Mi", "32"]),
        // A bare number of Slurm's is MiB.
        ("physics", ["1", "1500Mi", "4"]),
        ("optics", ["0", "1500Mi", "4"]),
    ] {
        assert_eq!(caps(&projection, account), expected.map(|cap| Some(cap.to_owned())), "{account}");
    }
    let silent = ["4096", "16777216Mi"].map(|cap| Some(cap.to_owned()));
    assert_eq!(caps(&projection, "silent")[..2], silent, "what binds everybody");
    let members = |account: &str| {
        let account =
            projection.accounts.iter().find(|projected| projected.account.as_str() == account).unwrap();
        account.members.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(members("optics"), ["alice", "bob"]);
    assert_eq!(members("silent"), ["carol"]);
}

/// Beside the example: what Slurm rounds, turns to lower case, or spells otherwise.
const ODD: &str = r#"
[[account]]
name = "Odd"
parent = "science"
description = "It's \"odd\": #1, c\\d, a=b & a\ttab; ends with \\"
organization = "Grüße"
fairshare = "parent"
qos = ["normal", "gpu"]
default_qos = "gpu"
coordinators = ["Zoe", "bob"]
grp_tres = "cpu=2.5,mem=1000M,node=3,billing=4,energy=5,license/matlab=6,gres/gpu:mi300x=7,gres/gpu=8,vmem=1,pages=9"
grp_tres_mins = { cpu = 10, mem = "3G" }
grp_tres_run_mins = "cpu=11"
max_tres_mins_per_job = "cpu=12"
max_tres_run_mins = "cpu=13"
max_tres_per_job = "cpu=14,mem=15Gi"
max_tres_per_node = "gres/gpu:mi300x=2"
grp_jobs = 16
grp_jobs_accrue = 17
grp_submit_jobs = 18
grp_wall = "1-00:00:00"
max_jobs = 19
max_jobs_accrue = -1
max_submit_jobs = 0
max_wall = "30:15"
min_prio_threshold = 20
priority = 21

[[account]]
name = "odder"
parent = "Odd"
qos = ["+gpu"]
max_jobs = "parent"

[[user]]
name = "Zoe"
accounts = ["archive", "Odd", "odder"]
default_account = "odder"
admin_level = "administrator"
comment = "not for Slurm"

[[association]]
account = "Odd"
user = "Zoe"
fairshare = 5
grp_tres = "cpu=1"

[[association]]
account = "odder"
user = "Zoe"
partition = "Debug"
qos = ["-gpu"]
"#;

#[test]
fn what_is_converted_loads_and_comes_back() -> Result<()> {
    let Some(lab) = Slurm::start_or_skip("what_is_converted_loads_and_comes_back")? else { return Ok(()) };
    // Slurm remembers accounts, so the second time needs one that has seen none.
    let second = std::thread::spawn(Slurm::start);
    sacctmgr(&lab, &["add", "qos", "gpu"])?;
    let own = read(&format!("{ACCOUNTS}{ODD}"), "accounts.toml", ReadOptions::default())?;
    assert_eq!(own.problems, []);
    let (text, notes) = to_dump(&own);
    for note in [
        "create them first: gpu",
        "account Odd: grp_tres = cpu=2500m,mem=1000 is rounded down to cpu=2,mem=953M",
        "upper case to lower case",
        "MinPrioThresh",
        "the comment is left out",
    ] {
        assert!(notes.iter().any(|told| told.contains(note)), "{note} in {notes:#?}");
    }
    lab.load(&text)?;
    let dump = lab.dump_of("aurora")?;
    let back = model(&dump);
    same(&comparable(&as_slurm_keeps(&own)), &comparable(&back));

    let second = second.join().expect("start a second lab")?;
    sacctmgr(&second, &["add", "qos", "gpu"])?;
    second.load(&to_dump(&back).0)?;
    same(&dump, &second.dump_of("aurora")?);
    Ok(())
}

/// A model as text, without what 22.05 keeps and does not dump.
fn comparable(model: &Model) -> String {
    let text = to_accounts_toml(model);
    text.split_inclusive('\n').filter(|line| !line.starts_with("min_prio_threshold = ")).collect()
}

/// Asserts that texts are the same, and shows the entries that stand in one of them alone.
#[track_caller]
fn same(left: &str, right: &str) {
    let entries = |text: &str| text.split("\n\n").map(str::to_owned).collect::<BTreeSet<_>>();
    let (one, other) = (entries(left), entries(right));
    let alone =
        |one: &BTreeSet<String>, other| one.difference(other).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(left == right, "left:\n{}\n\nright:\n{}", alone(&one, &other), alone(&other, &one));
}

/// A model as it comes back from `sacctmgr load` and `dump`. This is all that Slurm changes:
///
/// - names, descriptions and organisations are in lower case, ASCII letters alone; quotes in them are backquotes;
/// - a description that is not given is the account's name, an organisation that of the parent or, under root, its own;
/// - shares that are not given are 1; the cluster has the QoS `normal` where it has none;
/// - CPUs are whole, memory is whole MiB; what says "no limit here" or "the parent's" is not there;
/// - a user has a default account, who has workload keys has a default one, and it is one of them;
/// - `root` is a user, in the account `root`;
/// - comments of users and definitions of QoS are not in the file.
fn as_slurm_keeps(model: &Model) -> Model {
    let mut kept = Model::default();
    kept.cluster.name.clone_from(&model.cluster.name);
    kept.cluster.terms = kept_terms(&model.cluster.terms);
    let normal = [String::from("normal").parse().unwrap()].into();
    kept.cluster.terms.qos.get_or_insert_with(|| sourced(QosSelection::Only(normal)));
    for account in model.accounts.values() {
        let mut next = Account::new(lower(&account.name), origin());
        let parent = account.parent.as_ref().map(|parent| lower(&parent.value));
        let text = |text: &Option<Sourced<String>>, default: &AccountName| {
            let text = text.as_ref().map_or(default.to_string(), |text| text.value.replace(['\'', '"'], "`"));
            Some(sourced(text.to_ascii_lowercase()))
        };
        next.description = text(&account.description, &next.name);
        next.organization = text(&account.organization, parent.as_ref().unwrap_or(&next.name));
        next.parent = parent.map(sourced);
        next.coordinators = account.coordinators.keys().map(|user| (lower(user), origin())).collect();
        next.terms = kept_terms(&account.terms);
        kept.accounts.insert(next.name.clone(), next);
    }
    let root = "root".parse::<UserName>().unwrap();
    let member = |user: &UserName, account: &str| AssociationKey {
        account: account.parse().unwrap(),
        user: user.clone(),
        partition: None,
    };
    let mut associations: Vec<_> = model
        .associations
        .iter()
        .map(|(key, association)| (key.clone(), association.terms.clone()))
        .collect();
    associations.push((member(&root, ROOT), Terms::default()));
    for (key, terms) in associations {
        let key = AssociationKey {
            account: lower(&key.account),
            user: lower(&key.user),
            partition: key.partition.map(|name| lower(&name)),
        };
        let mut association = Association::new(origin());
        association.terms = kept_terms(&terms);
        let user =
            kept.users.entry(key.user.clone()).or_insert_with(|| User::new(key.user.clone(), origin()));
        user.default_account = Some(sourced(key.account.clone()));
        kept.associations.insert(key, association);
    }
    for user in model.users.values() {
        let next = kept.users.get_mut(&lower(&user.name)).unwrap();
        next.default_account = user
            .default_account
            .as_ref()
            .map(|account| sourced(lower(&account.value)))
            .or(next.default_account.take());
        next.admin_level = user.admin_level.clone().filter(|level| level.value != AdminLevel::None);
        let default = user.default_wckey.iter().map(|key| key.value.clone());
        let keys: BTreeSet<_> =
            user.wckeys.iter().flat_map(|keys| keys.value.clone()).chain(default.clone()).collect();
        next.default_wckey = default.chain(keys.first().cloned()).next().map(sourced);
        next.wckeys = (!keys.is_empty()).then(|| sourced(keys));
    }
    kept.users.get_mut(&root).unwrap().admin_level = Some(sourced(AdminLevel::Administrator));
    kept
}

fn kept_terms(terms: &Terms) -> Terms {
    let mut kept = terms.clone();
    kept.fairshare.get_or_insert_with(|| sourced(Fairshare::Shares(1)));
    kept.limits.counts.retain(|_, value| value.value.value().is_some());
    for amounts in kept.limits.tres.values_mut() {
        amounts.retain(|_, amount| amount.value.value().is_some());
        for (tres, amount) in amounts {
            let whole = match tres {
                Tres::Cpu => 1000,
                Tres::Mem => 1 << 20,
                _ => 1,
            };
            amount.value = Limit::Value(amount.value.value().unwrap() / whole * whole);
        }
    }
    kept
}

fn lower<N: ToString + std::str::FromStr<Err: std::fmt::Debug>>(name: &N) -> N {
    name.to_string().to_ascii_lowercase().parse().unwrap()
}

fn origin() -> Origin {
    Origin::store("test")
}

fn sourced<T>(value: T) -> Sourced<T> {
    Sourced::new(value, origin())
}

/// Keys that we read and 22.05 does not know yet: of later dumps.
const NOT_YET: [&str; 4] = ["Comment", "Flags", "MaxTRESRunMinsPerAccount", "MaxTRESRunMinsPerUser"];

/// Values with which Slurm means the same as we do.
const SPELLINGS: [&str; 20] = [
    "GrpTRES='mem=3000'",
    "GrpTRES='mem=2g'",
    "GrpTRES='mem=3GB'",
    "GrpTRES='GRES/GPU:mi300x=2,CPU=3'",
    "GrpTRES='gres/gpu=1k'",
    "GrpTRES='fs/disk=10G,vmem=20M'",
    "GrpTRES='cpu=-1,node=3'",
    "GrpTRES=cpu=4,mem=5G",
    "GrpTRES=",
    "GrpJobs=-1",
    "GrpJobs=0",
    "MaxWall='1-12'",
    "MaxWall='1-12:30'",
    "MaxWall='30:15'",
    "GrpWall='01:30:00'",
    "MaxWall=-1",
    "MaxWall=UNLIMITED",
    "Fairshare=2147483647",
    "GrpNodes=3:GrpTRES=cpu=4",
    "QOS='+gpu,-normal'",
];

/// A value for a key of a dump, with a number that no other has.
fn sample(key: &str, number: usize) -> String {
    match key {
        "AdminLevel" => "operator".to_owned(),
        "Coordinator" | "DefaultAccount" => "members".to_owned(),
        "DefaultQOS" | "Preempt" => "gpu".to_owned(),
        "QOSLevel" => "'gpu,normal'".to_owned(),
        "Parent" => ROOT.to_owned(),
        "PreemptMode" => "cancel".to_owned(),
        "PreemptExemptTime" => "'00:10:00'".to_owned(),
        "LimitFactor" | "UsageFactor" | "UsageThreshold" => "0.500000".to_owned(),
        "Description" | "Organization" | "Partition" | "WCKeys" | "DefaultWCKey" | "Classification" => {
            format!("text{number}")
        }
        "Flags" => "DenyOnLimit".to_owned(),
        // Shown with its minutes.
        "GraceTime" => (60 * number).to_string(),
        key if key.contains("TRES") => format!("'cpu={number},mem=3000,gres/gpu:mi300x=2'"),
        _ => number.to_string(),
    }
}

/// The beginnings of a key, itself the last.
fn beginnings(key: &str) -> impl Iterator<Item = &str> {
    (1..=key.len()).map(|end| &key[..end])
}

/// A dump with one pair on an account, or on a user who is in an account of that name.
fn with_pair(kind: &str, name: &str, pair: &str) -> String {
    let members = "Cluster - 'alpha'\nParent - 'root'\nAccount - 'members'\n";
    let parent = if kind == "User" { "Parent - 'members'\n" } else { "" };
    format!("{members}{parent}{kind} - '{name}':{pair}\n")
}

#[test]
fn each_key_means_the_same_to_slurm() -> Result<()> {
    let Some(lab) = Slurm::start_or_skip("each_key_means_the_same_to_slurm")? else { return Ok(()) };
    sacctmgr(&lab, &["add", "qos", "gpu"])?;
    let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let (mut taken, mut thresholds) = (0, Vec::new());
    let keys: Vec<_> =
        dump_keys().into_iter().filter(|(key, place, _)| *place != "QOS" && !NOT_YET.contains(key)).collect();
    for (key, _, meaning) in &keys {
        for written in beginnings(key).filter(|written| seen.insert(written.to_ascii_lowercase())) {
            let name = format!("n{taken:03}");
            let pair = format!("{written}={}", sample(key, 100 + taken));
            let reads = |kind| {
                let text = with_pair(kind, &name, &pair);
                let model = read(&text, "dump", ReadOptions::default().format(Some(Format::Dump))).unwrap();
                model.problems.is_empty().then_some(model)
            };
            let kinds = ["Account", "User"].into_iter().find_map(|kind| Some((kind, reads(kind)?)));
            let Some((kind, read)) = kinds else {
                assert_ne!(written, *key, "we do not read {pair}");
                continue;
            };
            let without = model(&with_pair(kind, &name, ""));
            let says = to_accounts_toml(&read) != to_accounts_toml(&without);
            assert_ne!(says, meaning.starts_with("ignored: "), "{pair} says something: {says}");
            if *key == "MinPrioThresh" {
                thresholds.push([name.clone(), (100 + taken).to_string()].to_vec());
            }
            lines.entry(kind).or_default().push(format!("{kind} - '{name}':{pair}\n"));
            taken += 1;
        }
    }
    for (number, pair) in SPELLINGS.iter().enumerate() {
        lines.entry("Account").or_default().push(format!("Account - 's{number:02}':{pair}\n"));
    }
    let (accounts, users) = (lines["Account"].concat(), lines["User"].concat());
    let file = format!(
        "Cluster - 'alpha'\nParent - 'root'\nAccount - 'members'\n{accounts}Parent - 'members'\n{users}"
    );
    println!("{taken} spellings of {} keys", keys.len());
    lab.load(&file)?;
    same(&comparable(&as_slurm_keeps(&model(&file))), &comparable(&model(&lab.dump()?)));
    let mut shown = show(&lab, &["assoc", "WOPLimits"], &["Account", "MinPrioThres"])?;
    shown.retain(|row| !row[1].is_empty());
    assert_eq!(shown, thresholds, "22.05 takes it and does not dump it");

    // Later releases take them.
    let (key, qos) = (
        |key| with_pair("User", "late", &format!("{key}=1")),
        "Cluster - 'alpha'\nQOS - 'late':Priority=3\n",
    );
    for (text, reason) in [
        (key("Comment"), "Unknown option: Comment=1"),
        (key("Flags"), "Unknown option: Flags=1"),
        (qos.to_owned(), "Misformatted line"),
    ] {
        if let Err(refused) = lab.load(&text) {
            assert!(refused.to_string().contains(reason), "{refused}");
        }
    }
    each_key_of_a_qos_means_the_same(&lab)
}

/// 22.05 has no QOS lines, but the keys of later ones are those of `sacctmgr add qos`.
fn each_key_of_a_qos_means_the_same(lab: &Slurm) -> Result<()> {
    // One QoS takes many keys that have nothing to do with each other.
    let mut made: Vec<(Vec<String>, BTreeMap<&str, String>)> = Vec::new();
    let mut number = 100;
    for (key, ..) in
        dump_keys().into_iter().filter(|(key, place, _)| *place == "QOS" && !NOT_YET[2..].contains(key))
    {
        number += 1;
        let says = |written: &str| {
            let text = format!("QOS - 'q':{written}={}\n", sample(key, number));
            let model = read(&text, "dump", ReadOptions::default().format(Some(Format::Dump))).unwrap();
            model.problems.is_empty().then(|| said_by_qos(&model.qos["q"]))
        };
        let whole = says(key).with_context(|| format!("we do not read {key}"))?;
        assert_ne!(whole, BTreeMap::new(), "{key} says nothing");
        let short = beginnings(key).find(|written| says(written).as_ref() == Some(&whole)).unwrap();
        for written in [short, key] {
            let pair = format!("{written}={}", sample(key, number).replace('\'', ""));
            let free =
                made.iter_mut().find(|(_, said)| whole.keys().all(|column| !said.contains_key(column)));
            match free {
                Some((pairs, said)) => {
                    pairs.push(pair);
                    said.extend(whole.clone());
                }
                None => made.push((vec![pair], whole.clone())),
            }
        }
    }
    for (number, (pairs, _)) in made.iter().enumerate() {
        let name = format!("made{number:02}");
        let words = ["add", "qos", &name].into_iter().chain(pairs.iter().map(String::as_str));
        sacctmgr(lab, &words.collect::<Vec<_>>())?;
    }
    let columns =
        [&["Name", "Description"], &columns(Carrier::Qos)[..], &SETTINGS.map(|(_, column)| column)].concat();
    let mut rows = show(lab, &["qos"], &columns)?;
    rows.retain(|row| row[0].starts_with("made"));
    for (row, (pairs, said)) in rows.iter().zip(&made) {
        let shown: BTreeMap<_, _> = columns.iter().copied().zip(row).collect();
        for (column, value) in said {
            let shown = match shown[column].as_str() {
                text if *column == "GraceTime" => format!("{}", entry(text).1 * 60),
                text if COUNTS.iter().any(|(_, name)| name == column) || text.contains('=') => {
                    let said: BTreeMap<_, _> = text.split(',').map(entry).collect();
                    format!("{said:?}")
                }
                text => text.to_owned(),
            };
            assert_eq!(&shown, value, "{column} of {pairs:?}");
        }
    }
    assert_eq!(rows.len(), made.len());
    println!("{} keys of a QoS in {} of them", number - 100, made.len());
    Ok(())
}

/// What the columns of the settings are called.
const SETTINGS: [(QosSetting, &str); 8] = [
    (QosSetting::Flags, "Flags"),
    (QosSetting::GraceTime, "GraceTime"),
    (QosSetting::LimitFactor, "LimitFactor"),
    (QosSetting::Preempt, "Preempt"),
    (QosSetting::PreemptMode, "PreemptMode"),
    (QosSetting::PreemptExemptTime, "PreemptExemptTime"),
    (QosSetting::UsageFactor, "UsageFactor"),
    (QosSetting::UsageThreshold, "UsageThres"),
];

fn said_by_qos(qos: &Qos) -> BTreeMap<&'static str, String> {
    let mut said: BTreeMap<_, _> =
        said_by_model(&qos.limits).into_iter().map(|(column, said)| (column, format!("{said:?}"))).collect();
    let settings = SETTINGS
        .iter()
        .filter_map(|(setting, column)| Some((*column, qos.settings.get(setting)?.value.clone())));
    said.extend(settings);
    said.extend(qos.description.as_ref().map(|text| ("Description", text.value.clone())));
    said
}
