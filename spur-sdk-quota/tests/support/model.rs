//! Models and policies of any shape, and models compared without the places.

#![allow(dead_code, reason = "compiled into every test that names it")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use spur_sdk::{AccountName, Limit, Tres, UserName};
use spur_sdk_quota::{
    Account, AdminLevel, Association, AssociationKey, Burst, Carrier, Completeness, CountLimit, Fairshare,
    Limits, Model, Origin, PodSecurity, Policy, Qos, QosSelection, QosSetting, ROOT, Sourced, Terms,
    TresLimit, Unlimited, User,
};

/// What names and texts a model may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// Any that the vocabulary takes.
    Any,
    /// Those that a dump keeps: no upper case, no quotes, no commas.
    Dump,
}

pub(crate) fn place() -> Origin {
    Origin::store("somewhere")
}

fn sourced<T>(value: T) -> Sourced<T> {
    Sourced::new(value, place())
}

fn name(names: Names) -> BoxedStrategy<String> {
    // Mostly few and near each other, so that they meet.
    let close = "[a-d]{1,2}";
    let text = match names {
        Names::Any => prop_oneof![6 => close, 2 => "[a-cA-C_.@-]{1,4}", 1 => "\\PC{1,70}"].boxed(),
        Names::Dump => {
            prop_oneof![6 => close, 2 => "[a-c_.@:=#\\\\-]{1,4}", 1 => "[a-zé日 :#=\\\\-]{1,60}"].boxed()
        }
    };
    text.prop_filter("a sign says how a QoS changes the list", |name| !name.starts_with(['+', '-']))
        .prop_filter("no name", |name| name.parse::<AccountName>().is_ok() && name != ROOT)
        .boxed()
}

fn text(names: Names) -> BoxedStrategy<String> {
    match names {
        Names::Any => prop_oneof!["[a-z ]{0,12}", "\\PC{0,12}", "[\\x00-\\x7f]{0,12}"].boxed(),
        // Outer blanks are trimmed, and nothing is the same as not given.
        Names::Dump => "[a-z]([a-zé日 :#=,\\\\-]{0,12}[a-z\\\\#:])?".boxed(),
    }
}

fn limit(value: impl Strategy<Value = u64> + 'static) -> BoxedStrategy<Limit<u64>> {
    prop_oneof![8 => value.prop_map(Limit::Value), 1 => Just(Limit::Unset), 1 => Just(Limit::Parent)].boxed()
}

fn gres(name: &str, kind: Option<&str>) -> Tres {
    Tres::Gres { name: name.to_owned(), kind: kind.map(str::to_owned) }
}

fn tres_amount() -> BoxedStrategy<(Tres, Limit<u64>)> {
    let cpu = prop_oneof![1 => Just(0_u64), 2 => 1_u64..20, 5 => (1_u64..64).prop_map(|cpus| cpus * 1000), 1 => 1_u64..200_000];
    let memory = prop_oneof![
        1 => Just(0_u64),
        2 => 1_u64..(8 << 20),
        3 => (1_u64..5_000_000).prop_map(|mb| mb * 1_000_000),
        3 => (1_u64..5_000_000).prop_map(|mib| mib << 20),
        1 => 1_u64..(1 << 50),
    ];
    let count = || limit(prop_oneof![1 => Just(0_u64), 4 => 1_u64..20, 1 => 1_u64..1_000_000]);
    let with =
        |tres: Tres, amount: BoxedStrategy<Limit<u64>>| amount.prop_map(move |amount| (tres.clone(), amount));
    prop_oneof![
        5 => with(Tres::Cpu, limit(cpu)),
        5 => with(Tres::Mem, limit(memory)),
        4 => with(gres("gpu", None), count()),
        2 => with(gres("gpu", Some("mi300x")), count()),
        2 => with(gres("gpu", Some("mi250")), count()),
        1 => with(gres("nic", None), count()),
        1 => with(Tres::Node, count()),
        1 => with(Tres::License("matlab".to_owned()), count()),
        1 => with(Tres::FileSystem("disk".to_owned()), limit(1_u64..(1 << 40))),
        1 => with(Tres::BurstBuffer("scratch".to_owned()), limit((1_u64..(1 << 20)).prop_map(|mib| mib << 20))),
    ]
    .boxed()
}

fn limits(on_qos: bool) -> BoxedStrategy<Limits> {
    let stands = move |carrier: Carrier| match carrier {
        Carrier::Both => true,
        Carrier::Qos => on_qos,
        Carrier::Association => !on_qos,
    };
    let counts: Vec<_> =
        CountLimit::ALL.iter().copied().filter(|limit| stands(limit.spec().carrier)).collect();
    let tres: Vec<_> = TresLimit::ALL.iter().copied().filter(|limit| stands(limit.spec().carrier)).collect();
    let count = limit(prop_oneof![1 => Just(0_u64), 5 => 1_u64..10_000, 1 => 1_u64..4_294_967_294]);
    let amounts = |most| btree_map_of(vec(tres_amount(), 1..most));
    let counts = btree_map(prop::sample::select(counts), count, 0..3);
    let others = btree_map(prop::sample::select(tres), amounts(3), 0..2);
    (counts, option::weighted(0.7, amounts(5)), others)
        .prop_map(|(counts, grp, mut others)| {
            others.remove(&TresLimit::GrpTres);
            others.extend(grp.map(|grp| (TresLimit::GrpTres, grp)));
            let mut limits = Limits::default();
            limits.counts = counts.into_iter().map(|(limit, value)| (limit, sourced(value))).collect();
            limits.tres = others
                .into_iter()
                .map(|(limit, amounts)| (limit, amounts.into_iter().map(|(t, a)| (t, sourced(a))).collect()))
                .collect();
            limits
        })
        .boxed()
}

fn btree_map_of<K: Ord + std::fmt::Debug + Clone, V: std::fmt::Debug + Clone>(
    pairs: impl Strategy<Value = Vec<(K, V)>>,
) -> impl Strategy<Value = BTreeMap<K, V>> {
    pairs.prop_map(|pairs| pairs.into_iter().collect())
}

fn fairshare() -> BoxedStrategy<Fairshare> {
    prop_oneof![4 => (0_u32..1000).prop_map(Fairshare::Shares), 1 => Just(Fairshare::Parent)].boxed()
}

fn qos_selection(names: Names) -> BoxedStrategy<QosSelection> {
    let some = |range| btree_set(name(names).prop_map(|name| name.parse().unwrap()), range);
    prop_oneof![
        some(0..3).prop_map(QosSelection::Only),
        (some(1..3), some(0..2)).prop_map(|(add, remove)| QosSelection::Changed { add, remove }),
        some(1..3).prop_map(|remove| QosSelection::Changed { add: BTreeSet::new(), remove }),
    ]
    .boxed()
}

fn terms(names: Names) -> BoxedStrategy<Terms> {
    let default_qos = option::weighted(0.2, name(names));
    let qos = option::weighted(0.2, qos_selection(names));
    (option::weighted(0.3, fairshare()), limits(false), qos, default_qos)
        .prop_map(|(fairshare, limits, qos, default_qos)| {
            let mut terms = Terms::default();
            terms.fairshare = fairshare.map(sourced);
            terms.limits = limits;
            terms.qos = qos.map(sourced);
            terms.default_qos = default_qos.map(|name| sourced(name.parse().unwrap()));
            terms
        })
        .boxed()
}

/// An account whose parent is one of those before it.
#[derive(Debug, Clone)]
struct Seed {
    name: String,
    parent: Option<prop::sample::Index>,
    terms: Terms,
    description: Option<String>,
    organization: Option<String>,
    coordinators: BTreeSet<UserName>,
}

fn seed(names: Names) -> impl Strategy<Value = Seed> {
    let coordinators = btree_set(name(names).prop_map(|name| name.parse().unwrap()), 0..2);
    let texts = (option::weighted(0.3, text(names)), option::weighted(0.2, text(names)));
    (name(names), option::weighted(0.7, any::<prop::sample::Index>()), terms(names), texts, coordinators)
        .prop_map(|(name, parent, terms, (description, organization), coordinators)| Seed {
            name,
            parent,
            terms,
            description,
            organization,
            coordinators,
        })
}

#[derive(Debug, Clone)]
struct UserSeed {
    name: UserName,
    /// Accounts by index, the partition of each membership, and its terms if it has any of its own.
    memberships: Vec<(prop::sample::Index, Option<String>, Option<Terms>)>,
    default_account: bool,
    admin_level: Option<AdminLevel>,
    wckeys: Option<BTreeSet<String>>,
    texts: (Option<String>, Option<String>),
}

fn user(names: Names) -> impl Strategy<Value = UserSeed> {
    let partition = option::weighted(0.2, name(names));
    let terms = option::weighted(0.3, terms(names));
    let memberships = vec((any::<prop::sample::Index>(), partition, terms), 0..4);
    let level = option::weighted(
        0.2,
        prop::sample::select(vec![AdminLevel::None, AdminLevel::Operator, AdminLevel::Administrator]),
    );
    let wckeys = option::weighted(0.2, btree_set(name(names), 0..3));
    let texts = (option::weighted(0.2, text(names)), option::weighted(0.2, text(names)));
    (name(names), memberships, any::<bool>(), level, wckeys, texts).prop_map(
        |(name, memberships, default_account, admin_level, wckeys, texts)| UserSeed {
            name: name.parse().unwrap(),
            memberships,
            default_account,
            admin_level,
            wckeys,
            texts,
        },
    )
}

fn qos(names: Names) -> impl Strategy<Value = Qos> {
    let settings = btree_map(prop::sample::select(QosSetting::ALL), text(names), 0..3);
    (name(names), option::of(text(names)), limits(true), settings).prop_map(
        |(name, description, limits, settings)| {
            let mut qos = Qos::new(name.parse().unwrap(), place());
            qos.description = description.map(sourced);
            qos.limits = limits;
            qos.settings = settings.into_iter().map(|(setting, value)| (setting, sourced(value))).collect();
            qos
        },
    )
}

/// A model without problems.
pub(crate) fn model(names: Names) -> impl Strategy<Value = Model> {
    let cluster = (option::of(name(names)), option::weighted(0.4, terms(names)));
    let root = option::weighted(0.3, terms(names));
    (cluster, root, vec(seed(names), 0..8), vec(user(names), 0..4), vec(qos(names), 0..3)).prop_map(
        |((cluster, cluster_terms), root, seeds, users, qos)| {
            let mut model = Model::default();
            model.completeness = Completeness::Full;
            model.cluster.name = cluster.map(|name| sourced(name.parse().unwrap()));
            model.cluster.terms = cluster_terms.unwrap_or_default();
            let mut order: Vec<AccountName> = Vec::new();
            for seed in seeds {
                let name: AccountName = seed.name.parse().unwrap();
                if model.accounts.contains_key(&name) {
                    continue;
                }
                let mut account = Account::new(name.clone(), place());
                let parent = seed.parent.filter(|_| !order.is_empty()).map(|index| index.get(&order).clone());
                account.parent = parent.map(sourced);
                account.terms = seed.terms;
                account.description = seed.description.map(sourced);
                account.organization = seed.organization.map(sourced);
                account.coordinators = seed.coordinators.into_iter().map(|user| (user, place())).collect();
                model.accounts.insert(name.clone(), account);
                order.push(name);
            }
            if let Some(terms) = root {
                let mut root = Account::new(ROOT.parse().unwrap(), place());
                root.terms = terms;
                order.push(root.name.clone());
                model.accounts.insert(root.name.clone(), root);
            }
            for seed in users {
                if model.users.contains_key(&seed.name) {
                    continue;
                }
                let mut user = User::new(seed.name.clone(), place());
                for (index, partition, terms) in seed.memberships {
                    if order.is_empty() {
                        break;
                    }
                    let account = index.get(&order).clone();
                    if seed.default_account {
                        user.default_account = Some(sourced(account.clone()));
                    }
                    let partition = partition.map(|name| name.parse().unwrap());
                    let key = AssociationKey { account, user: seed.name.clone(), partition };
                    let mut association = Association::new(place());
                    association.terms = terms.unwrap_or_default();
                    model.associations.insert(key, association);
                }
                user.admin_level = seed.admin_level.map(sourced);
                user.wckeys = seed.wckeys.map(sourced);
                user.default_wckey = seed.texts.0.map(sourced);
                user.comment = seed.texts.1.map(sourced);
                model.users.insert(seed.name, user);
            }
            model.qos = qos.into_iter().map(|qos| (qos.name.clone(), qos)).collect();
            model
        },
    )
}

/// A policy that a file could hold.
pub(crate) fn policy() -> impl Strategy<Value = Policy> {
    let unlimited = || prop::sample::select(vec![Unlimited::Closed, Unlimited::Open]);
    let resources = prop::sample::select(vec![
        vec![(gres("gpu", None), "amd.com/gpu")],
        vec![(gres("gpu", None), "amd.com/gpu"), (gres("gpu", Some("mi300x")), "amd.com/mi300x")],
        vec![(gres("gpu", Some("mi300x")), "amd.com/gpu"), (gres("gpu", Some("mi250")), "amd.com/gpu")],
        vec![(gres("gpu", None), "amd.com/gpu"), (gres("nic", None), "example.com/nic")],
        vec![(gres("gpu", None), "amd.com/gpu"), (gres("nic", None), "amd.com/gpu")],
        vec![],
    ]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let requests = (0_u64..50, 0_u64..200, 0_u64..(8 << 20), 0_u64..(256 << 20));
    let storage = (option::of(0_u64..(2 << 30)), option::of(0_u64..(2 << 30)), option::of(0_u64..(2 << 30)));
    let scope = vec("[a-d]{1,2}", 0..2);
    (unlimited(), unlimited(), flags, resources, requests, storage, scope).prop_map(
        |(no_allocation, unset, (burst, coordinators, restricted), resources, requests, storage, scope)| {
            let mut policy = Policy::default();
            policy.no_allocation = no_allocation;
            policy.unset_dimension = unset;
            policy.burst = if burst { Burst::Limited } else { Burst::Free };
            policy.coordinators = coordinators;
            policy.pod_security = if restricted { PodSecurity::Restricted } else { PodSecurity::Baseline };
            policy.resources =
                resources.into_iter().map(|(tres, resource)| (tres, resource.to_owned())).collect();
            let (cpu, more_cpu, memory, more_memory) = requests;
            policy.min_request.cpu = cpu;
            policy.default_request.cpu = cpu + more_cpu;
            policy.min_request.memory = memory;
            policy.default_request.memory = memory + more_memory;
            let (least, default, cap) = storage;
            policy.min_request.ephemeral_storage = least;
            policy.default_request.ephemeral_storage =
                default.or(least).map(|default| default.max(least.unwrap_or(0)));
            if let Some(cap) = cap {
                policy.objects.insert("requests.ephemeral-storage".to_owned(), cap);
            }
            policy.scope = scope.into_iter().map(|name| name.parse().unwrap()).collect();
            policy
        },
    )
}

/// A model with one place for all that it holds.
pub(crate) fn without_places(mut model: Model) -> Model {
    fn at<T>(sourced: &mut Sourced<T>) {
        sourced.origin = place();
    }
    fn limits(limits: &mut Limits) {
        limits.counts.values_mut().for_each(at);
        limits.tres.values_mut().flat_map(BTreeMap::values_mut).for_each(at);
    }
    fn terms(terms: &mut Terms) {
        terms.fairshare.iter_mut().for_each(at);
        terms.qos.iter_mut().for_each(at);
        terms.default_qos.iter_mut().for_each(at);
        limits(&mut terms.limits);
    }
    model.cluster.name.iter_mut().for_each(at);
    terms(&mut model.cluster.terms);
    for account in model.accounts.values_mut() {
        account.origin = place();
        account.parent.iter_mut().for_each(at);
        account.description.iter_mut().for_each(at);
        account.organization.iter_mut().for_each(at);
        account.coordinators.values_mut().for_each(|origin| *origin = place());
        terms(&mut account.terms);
    }
    for user in model.users.values_mut() {
        user.origin = place();
        user.default_account.iter_mut().for_each(at);
        user.admin_level.iter_mut().for_each(at);
        user.default_wckey.iter_mut().for_each(at);
        user.wckeys.iter_mut().for_each(at);
        user.comment.iter_mut().for_each(at);
    }
    for association in model.associations.values_mut() {
        association.origin = place();
        terms(&mut association.terms);
    }
    for qos in model.qos.values_mut() {
        qos.origin = place();
        qos.description.iter_mut().for_each(at);
        limits(&mut qos.limits);
        qos.settings.values_mut().for_each(at);
    }
    model
}
