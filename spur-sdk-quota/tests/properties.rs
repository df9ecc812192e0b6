//! What holds of every model and policy.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/model.rs"]
mod generated;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use spur_sdk::{AccountName, Limit, MemorySpelling, Tres, UserName, format_tres, parse_tres};
use spur_sdk_quota::source::{Format, ReadOptions, read, to_accounts_toml, to_dump};
use spur_sdk_quota::{
    AdminLevel, Completeness, Dimension, Limits, Model, Projection, QosSelection, ROOT, Terms, TresLimit,
    check, explain,
};

use generated::{Names, model, policy, without_places};
use support::project;

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 512,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

fn read_toml(text: &str) -> Model {
    read(text, "file", ReadOptions::default().format(Some(Format::Toml))).unwrap()
}

/// All that a projection says, without the places of the source.
fn said(projection: &Projection) -> String {
    let mut text = support::yaml(projection.objects());
    for account in &projection.accounts {
        writeln!(text, "{} {:?} {:?}", account.account, account.closed, account.members).unwrap();
    }
    writeln!(text, "{:?} {:?}", projection.stopped.len(), projection.report.without_allocation).unwrap();
    let mut rows: Vec<_> = (projection.report.unenforced.iter())
        .map(|row| format!("{} {} {} {}", row.holder, row.limit, row.value, row.reason))
        .collect();
    rows.sort();
    text += &rows.join("\n");
    // Notes name places as file:LINE.
    for note in &projection.report.notes {
        let mut parts = note.split("file:");
        text += parts.next().unwrap_or_default();
        parts.for_each(|part| text += part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    text
}

/// The tables of a TOML text in another order.
fn shuffled(text: &str, mut seed: u64) -> String {
    let mut tables: Vec<&str> = text.trim_end().split("\n\n").collect();
    for last in (1..tables.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let other = usize::try_from(seed >> 33).unwrap() % (last + 1);
        tables.swap(last, other);
    }
    tables.join("\n\n") + "\n"
}

/// The smallest value on an account's path, found by walking up from it.
fn smallest(model: &Model, account: &AccountName, tres: &Tres) -> Option<u64> {
    let own = |limits: &Limits| limits.tres(TresLimit::GrpTres, tres).and_then(|limit| limit.value.value());
    let mut found = vec![own(&model.cluster.terms.limits)];
    let root: AccountName = ROOT.parse().unwrap();
    found.extend(model.accounts.get(&root).map(|root| own(&root.terms.limits)));
    let mut at = model.accounts.get(account);
    while let Some(account) = at {
        found.push(own(&account.terms.limits));
        at = account.parent.as_ref().and_then(|parent| model.accounts.get(&parent.value));
    }
    found.into_iter().flatten().min()
}

fn amounts(projection: &Projection, account: &AccountName) -> BTreeMap<Dimension, u64> {
    let found = projection.accounts.iter().find(|projected| projected.account == *account);
    found
        .map(|found| found.caps.iter().map(|(dimension, cap)| (dimension.clone(), cap.amount)).collect())
        .unwrap_or_default()
}

/// What a dump keeps of a model.
fn as_a_dump_has_it(model: &Model) -> Model {
    let mut model = without_places(model.clone());
    if let Some(root) = model.accounts.remove(ROOT) {
        tighten(&mut model.cluster.terms, root.terms);
        // Only the coordinators of root have a place, with a user.
        let mut bare = spur_sdk_quota::Account::new(root.name.clone(), generated::place());
        bare.coordinators = root.coordinators;
        model.accounts.insert(root.name, bare);
    }
    let name = model.cluster.name.take();
    model.cluster.name =
        name.or_else(|| Some(spur_sdk_quota::Sourced::new("cluster".parse().unwrap(), generated::place())));
    rounded(&mut model.cluster.terms);
    let members: BTreeSet<UserName> = model.associations.keys().map(|key| key.user.clone()).collect();
    for account in model.accounts.values_mut() {
        rounded(&mut account.terms);
        account.coordinators.retain(|user, _| members.contains(user));
    }
    model.accounts.retain(|name, account| !Model::is_root(name) || !account.coordinators.is_empty());
    model.associations.values_mut().for_each(|association| rounded(&mut association.terms));
    model.users.retain(|name, _| members.contains(name));
    for user in model.users.values_mut() {
        user.comment = None;
        user.admin_level = user.admin_level.take().filter(|level| level.value != AdminLevel::None);
        user.wckeys = user.wckeys.take().filter(|keys| !keys.value.is_empty());
    }
    model.qos.clear();
    model.completeness = Completeness::Partial;
    model
}

/// Adds root's terms to the cluster's; of two limits the smaller holds.
fn tighten(terms: &mut Terms, root: Terms) {
    terms.fairshare = terms.fairshare.take().or(root.fairshare);
    terms.qos = terms.qos.take().or(root.qos);
    terms.default_qos = terms.default_qos.take().or(root.default_qos);
    for (limit, value) in root.limits.counts {
        let own = terms.limits.counts.entry(limit).or_insert_with(|| value.clone());
        own.value = smaller(own.value, value.value);
    }
    for (limit, amounts) in root.limits.tres {
        for (tres, value) in amounts {
            let own =
                terms.limits.tres.entry(limit).or_default().entry(tres).or_insert_with(|| value.clone());
            own.value = smaller(own.value, value.value);
        }
    }
}

fn smaller(a: Limit<u64>, b: Limit<u64>) -> Limit<u64> {
    a.value().into_iter().chain(b.value()).min().map_or(Limit::Unset, Limit::Value)
}

/// Whole CPUs, whole MiB, and nothing that is not set.
fn rounded(terms: &mut Terms) {
    terms.limits.counts.retain(|_, limit| limit.value.value().is_some());
    for amounts in terms.limits.tres.values_mut() {
        amounts.retain(|_, limit| limit.value.value().is_some());
        for (tres, limit) in amounts {
            let unit = match tres {
                Tres::Cpu => 1000,
                Tres::Mem | Tres::BurstBuffer(_) => 1 << 20,
                _ => 1,
            };
            limit.value = limit.value.value().map_or(Limit::Unset, |value| Limit::Value(value / unit * unit));
        }
    }
    terms.limits.tres.retain(|_, amounts| !amounts.is_empty());
    terms.qos =
        terms.qos.take().filter(|qos| !matches!(&qos.value, QosSelection::Only(names) if names.is_empty()));
}

/// Texts with one value made unreadable, or one key unknown.
fn broken(text: &str, line: prop::sample::Index, how: u8) -> Option<String> {
    let fields: Vec<usize> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.contains(" = ") && !line.starts_with("name = "))
        .map(|(number, _)| number)
        .collect();
    if fields.is_empty() {
        return None;
    }
    let chosen = *line.get(&fields);
    let lines = text.lines().enumerate().map(|(number, line)| match line.split_once(" = ") {
        Some((key, value)) if number == chosen => match how % 4 {
            0 => format!("{key} = \"!?\""),
            1 => format!("{key}x = {value}"),
            2 => format!("{key} = [[]]"),
            _ => format!("{key} = {{ cpus = 4 }}"),
        },
        _ => line.to_owned(),
    });
    Some(lines.collect::<Vec<_>>().join("\n") + "\n")
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn projecting_twice_gives_the_same(model in model(Names::Any), policy in policy()) {
        prop_assert_eq!(project(&model, &policy), project(&model.clone(), &policy.clone()));
    }

    #[test]
    fn the_order_of_the_input_changes_nothing(model in model(Names::Any), policy in policy(), seed in any::<u64>()) {
        let text = to_accounts_toml(&model);
        let (first, second) = (read_toml(&text), read_toml(&shuffled(&text, seed)));
        prop_assert_eq!(said(&project(&first, &policy)), said(&project(&second, &policy)));
        prop_assert_eq!(without_places(first), without_places(second));
    }

    #[test]
    fn the_check_passes_on_every_projection(model in model(Names::Any), policy in policy()) {
        prop_assert_eq!(check(&project(&model, &policy)), []);
    }

    #[test]
    fn caps_of_cpu_and_memory_are_the_smallest_on_the_path(model in model(Names::Any), policy in policy()) {
        let projection = project(&model, &policy);
        for account in &projection.accounts {
            for (tres, dimension) in [(Tres::Cpu, Dimension::Cpu), (Tres::Mem, Dimension::Memory)] {
                let cap = account.caps.get(&dimension).map(|cap| cap.amount);
                prop_assert_eq!(cap, smallest(&model, &account.account, &tres), "{} {}", account.account, tres);
            }
        }
    }

    #[test]
    fn no_child_has_more_than_its_parent(model in model(Names::Any), policy in policy()) {
        let projection = project(&model, &policy);
        for account in &projection.accounts {
            let Some(parent) = &account.parent else { continue };
            let own = amounts(&projection, &account.account);
            for (dimension, most) in amounts(&projection, parent) {
                prop_assert!(own.get(&dimension).is_some_and(|own| *own <= most), "{} {dimension}", account.account);
            }
        }
    }

    #[test]
    fn an_explanation_says_what_is_projected(model in model(Names::Any), policy in policy()) {
        let projection = project(&model, &policy);
        for account in &projection.accounts {
            let explanation = explain(&model, &policy, &account.account).unwrap();
            prop_assert_eq!(explanation.closed, account.closed.as_ref().map(ToString::to_string));
            prop_assert_eq!(explanation.members.len(), account.members.len());
            for dimension in &explanation.dimensions {
                let binding: Vec<_> = dimension.candidates.iter().filter(|candidate| candidate.binds).collect();
                prop_assert!(binding.len() <= 1, "{} is bound twice", dimension.key);
                let quota = support::cap(&projection, account.account.as_str(), &dimension.key);
                prop_assert_eq!(binding.first().map(|binding| &binding.amount), quota.as_ref(), "{}", dimension.key);
            }
        }
    }

    #[test]
    fn our_own_file_keeps_all_of_a_model(model in model(Names::Any)) {
        let again = read_toml(&to_accounts_toml(&model));
        let mut expected = without_places(model);
        if expected.accounts.is_empty() {
            expected.completeness = Completeness::Partial;
        }
        prop_assert_eq!(without_places(again), expected);
    }

    #[test]
    fn a_dump_keeps_all_but_what_slurm_rounds(model in model(Names::Dump)) {
        let (text, _) = to_dump(&model);
        let again = read(&text, "file", ReadOptions::default().format(Some(Format::Dump))).unwrap();
        prop_assert_eq!(without_places(again), as_a_dump_has_it(&model), "{}", text);
    }

    #[test]
    fn a_field_that_cannot_be_read_never_gives_more(
        model in model(Names::Any), policy in policy(), line in any::<prop::sample::Index>(), how in any::<u8>(),
    ) {
        let text = to_accounts_toml(&model);
        let Some(broken) = broken(&text, line, how) else { return Ok(()) };
        let Ok(worse) = read(&broken, "file", ReadOptions::default().format(Some(Format::Toml))) else { return Ok(()) };
        never_more(&project(&model, &policy), &project(&worse, &policy))?;
        // Nor does what is written of it.
        never_more(&project(&model, &policy), &project(&read_toml(&to_accounts_toml(&worse)), &policy))?;
    }

    #[test]
    fn a_dump_of_what_cannot_be_read_in_full_never_gives_more(
        mut model in model(Names::Dump), policy in policy(), line in any::<prop::sample::Index>(), how in any::<u8>(),
    ) {
        // On the one line that a dump has for both, a count of the one makes counts by type of the other a breakdown.
        if let Some(root) = model.accounts.get_mut(ROOT) {
            root.terms.limits.tres.remove(&TresLimit::GrpTres);
        }
        let text = to_accounts_toml(&model);
        let Some(broken) = broken(&text, line, how) else { return Ok(()) };
        let Ok(worse) = read(&broken, "file", ReadOptions::default().format(Some(Format::Toml))) else { return Ok(()) };
        let again = read(&to_dump(&worse).0, "file", ReadOptions::default().format(Some(Format::Dump))).unwrap();
        never_more(&project(&model, &policy), &project(&again, &policy))?;
    }

    #[test]
    fn a_cut_dump_never_gives_more(model in model(Names::Dump), policy in policy(), at in any::<prop::sample::Index>()) {
        let (text, _) = to_dump(&model);
        let options = ReadOptions::default().format(Some(Format::Dump));
        let whole = project(&read(&text, "file", options).unwrap(), &policy);
        let ends: Vec<usize> = text.char_indices().map(|(end, _)| end).collect();
        let cut = text.get(..*at.get(&ends)).unwrap();
        never_more(&whole, &project(&read(cut, "file", options).unwrap(), &policy))?;
    }

    #[test]
    fn tres_reads_back_what_it_writes(model in model(Names::Any)) {
        for account in model.accounts.values() {
            for amounts in account.terms.limits.tres.values() {
                let limits = amounts.iter().map(|(tres, limit)| (tres.clone(), limit.value)).collect();
                let text = format_tres(&limits, MemorySpelling::Spur);
                prop_assert_eq!(parse_tres(&text, MemorySpelling::Spur), Ok(limits), "{}", text);
            }
        }
    }
}

/// That each account of the second projection has no cap that is larger than in the first, and lacks none.
fn never_more(sound: &Projection, worse: &Projection) -> Result<(), TestCaseError> {
    for account in &worse.accounts {
        let before = sound.accounts.iter().find(|projected| projected.account == account.account);
        prop_assert!(before.is_some(), "{} is new", account.account);
        prop_assert!(
            before.is_some_and(|before| before.closed.is_none() || account.closed.is_some()),
            "{} opens",
            account.account
        );
        let own = amounts(worse, &account.account);
        for (dimension, most) in amounts(sound, &account.account) {
            prop_assert!(
                own.get(&dimension).is_some_and(|own| *own <= most),
                "{} {dimension}",
                account.account
            );
        }
    }
    Ok(())
}
