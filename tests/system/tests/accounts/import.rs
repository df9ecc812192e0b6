//! `spur account import`.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use spur_sdk_quota::source::{ReadOptions, read};
use spur_sdk_quota::{
    AdminLevel, CountLimit, Fairshare, Limits, Model, QosSelection, QosSetting, ROOT, Terms, TresLimit,
};

use crate::lab::{Lab, repository};

/// What of a model SPUR's accounting holds, as text by subject.
pub(crate) fn held(model: &Model) -> BTreeMap<String, String> {
    let text = |text: Option<&spur_sdk_quota::Sourced<String>>| {
        text.map(|text| text.value.clone()).unwrap_or_default()
    };
    let mut held = BTreeMap::new();
    for account in model.accounts.values() {
        let parent = account.parent.as_ref().map(|parent| parent.value.to_string());
        let share = match account.terms.fairshare.as_ref().map(|share| share.value) {
            Some(Fairshare::Shares(shares)) => shares,
            _ => 1,
        };
        let share = if account.name.as_str() == ROOT { 1 } else { share };
        let users: Vec<_> = account.coordinators.keys().map(ToString::to_string).collect();
        let (description, organization) =
            (text(account.description.as_ref()), text(account.organization.as_ref()));
        let limits = limits(&account.terms.limits, &[CountLimit::GrpJobs], &[TresLimit::GrpTres]);
        let said = format!("{parent:?} {description:?} {organization:?} {share} {users:?} {limits}");
        held.insert(format!("account {}", account.name), said);
    }
    for user in model.users.values() {
        let default = user.default_account.as_ref().map(|account| account.value.to_string());
        let level = user.admin_level.as_ref().map_or(AdminLevel::None, |level| level.value);
        held.insert(format!("user {}", user.name), format!("{default:?} {level}"));
    }
    for (key, member) in &model.associations {
        if key.partition.is_none() && !Model::is_root(&key.account) {
            held.insert(key.to_string(), of_member(&member.terms));
        }
    }
    for qos in model.qos.values() {
        use CountLimit as C;
        let counts = [
            C::MaxJobsPerUser,
            C::MaxSubmitJobsPerUser,
            C::MaxSubmitJobsPerAccount,
            C::GrpSubmitJobs,
            C::MaxWall,
            C::GrpWall,
            C::Priority,
        ];
        let amounts = [TresLimit::MaxTresPerJob, TresLimit::MaxTresPerUser, TresLimit::GrpTres];
        let mut said =
            format!("{:?} {}", text(qos.description.as_ref()), limits(&qos.limits, &counts, &amounts));
        for setting in
            [QosSetting::Flags, QosSetting::Preempt, QosSetting::PreemptMode, QosSetting::UsageFactor]
        {
            write!(said, " {}={}", setting.keys().0, text(qos.settings.get(&setting))).unwrap();
        }
        held.insert(format!("qos {}", qos.name), said);
    }
    held
}

fn of_member(terms: &Terms) -> String {
    use CountLimit as C;
    let counts = [C::MaxJobs, C::MaxSubmitJobs, C::GrpSubmitJobs, C::MaxWall];
    let limits = limits(&terms.limits, &counts, &[TresLimit::MaxTresPerJob, TresLimit::GrpTres]);
    let default = terms.default_qos.as_ref().map(|name| name.value.to_string());
    let allowed = match terms.qos.as_ref().map(|qos| &qos.value) {
        Some(QosSelection::Only(names)) => names.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    };
    format!("{default:?} {allowed:?} {limits}")
}

fn limits(limits: &Limits, counts: &[CountLimit], amounts: &[TresLimit]) -> String {
    let mut said = Vec::new();
    for limit in counts {
        let value = limits.counts.get(limit).and_then(|value| value.value.value());
        said.extend(
            value
                .filter(|value| *limit != CountLimit::Priority || *value > 0)
                .map(|value| format!("{}={value}", limit.spec().key)),
        );
    }
    for limit in amounts {
        for (tres, value) in limits.tres.get(limit).into_iter().flatten() {
            said.extend(value.value.value().map(|value| format!("{}.{tres}={value}", limit.spec().key)));
        }
    }
    said.join(" ")
}

#[test]
fn an_import_makes_what_the_source_says_and_nothing_the_second_time() -> Result<()> {
    let lab = Lab::start()?;
    let example = repository("examples/accounts.toml");
    let import = ["account", "import", example.to_str().unwrap()];
    let before = lab.revision()?;
    let dry = lab.done(&[&import[..], &["--dry-run"]].concat())?;
    assert!(
        dry.stdout.contains("account science: create with description, organization, fairshare, grp_tres"),
        "{dry:#?}"
    );
    assert_eq!(lab.revision()?, before);
    let said = lab.done(&import)?;
    assert_eq!(
        said.stderr.lines().filter(|line| line.contains("not kept")).collect::<Vec<_>>(),
        [
            "note: account fluid-dynamics: not kept, as there is no field for it: max_tres_per_job=cpu=128",
            "note: account Quantum_Chemistry: not kept, as there is no field for it: max_wall=2880",
            "note: user frank in account teaching on partition debug: not kept, as memberships hold on all partitions",
        ]
    );
    let source = read(&std::fs::read_to_string(&example)?, "accounts.toml", ReadOptions::default())?;
    let (ours, mut theirs) = (held(&lab.model()?), held(&source));
    // The cluster's limits are root's.
    theirs.insert("account root".to_owned(), ours["account root"].clone());
    assert!(ours["account root"].contains("grp_tres.cpu=4096000"), "{ours:#?}");
    assert_eq!(ours, theirs);
    let revision = lab.revision()?;
    let again = lab.done(&import)?;
    assert!(again.stdout.is_empty() && again.stderr.contains("nothing to change"), "{again:#?}");
    assert_eq!(lab.revision()?, revision);
    Ok(())
}

/// A tree of accounts, each with members.
fn many(accounts: usize) -> String {
    let mut text = String::new();
    for number in 0..accounts {
        let parent = if number < 10 { String::new() } else { format!("parent = \"a{}\"\n", number / 10) };
        write!(
            text,
            "[[account]]\nname = \"a{number}\"\n{parent}grp_tres = \"cpu={},mem=1500Mi\"\n",
            number + 1
        )
        .unwrap();
    }
    for number in 0..accounts * 2 {
        let (one, other) = (number % accounts, (number * 7 + 1) % accounts);
        write!(text, "[[user]]\nname = \"u{number}\"\naccounts = [\"a{one}\", \"a{other}\"]\ndefault_account = \"a{other}\"\n").unwrap();
    }
    text
}

#[test]
fn a_large_import_goes_in_batches_and_what_is_missing_goes_only_when_asked() -> Result<()> {
    let lab = Lab::start()?;
    let text = many(150);
    let said = lab.spur_reading(&["account", "import", "-"], &text)?;
    assert_eq!(said.code, 0, "{said:#?}");
    let source = read(&text, "accounts.toml", ReadOptions::default())?;
    assert_eq!(held(&lab.model()?), held(&source));
    let smaller = many(140);
    let said = lab.spur_reading(&["account", "import", "-"], &smaller)?;
    assert!(said.code == 0 && said.stderr.contains("--delete-missing deletes it"), "{said:#?}");
    assert_eq!(lab.model()?.accounts.len(), 150);
    let said = lab.spur_reading(&["account", "import", "-", "--delete-missing"], &smaller)?;
    assert_eq!(said.code, 0, "{said:#?}");
    let source = read(&smaller, "accounts.toml", ReadOptions::default())?;
    assert_eq!(held(&lab.model()?), held(&source));
    Ok(())
}

#[test]
fn what_is_wrong_in_a_source_stops_just_that() -> Result<()> {
    let lab = Lab::start()?;
    let text = "[[account]]\nname = \"good\"\n[[account]]\nname = \"bad name\"\n[[account]]\nname = \"unread\"\n\
        grp_tres = \"nodes=1\"\n[[user]]\nname = \"alice\"\naccounts = [\"good\", \"bad name\", \"unread\"]\n";
    let said = lab.spur_reading(&["account", "import", "-"], text)?;
    assert_eq!(said.code, 3, "{said:#?}");
    for message in [
        "stdin:7: account unread: grp_tres: \"nodes\" is no TRES: did you mean node?",
        "account bad name: name: \"bad name\" holds ' ', which separates names elsewhere",
        "user alice in account bad name: account bad name does not exist",
    ] {
        assert!(said.stderr.contains(message), "{message}: {said:#?}");
    }
    let model = lab.model()?;
    assert_eq!(model.accounts.keys().map(ToString::to_string).collect::<Vec<_>>(), ["good"]);
    assert_eq!(model.associations.len(), 1);
    let said = lab.spur_reading(&["account", "import", "-", "--delete-missing"], text)?;
    assert!(said.code == 1 && said.stderr.contains("what could not be read would be deleted"), "{said:#?}");
    let said = lab.spur_reading(&["account", "import", "-", "--delete-missing"], "\n")?;
    assert!(said.code == 1 && said.stderr.contains("would delete all"), "{said:#?}");
    assert_eq!(lab.model()?.associations.len(), 1);
    Ok(())
}
