//! What an import changes: decides, and touches nothing.

mod kept;
mod qos;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use spur_sdk::rpc::messages::slurm::{
    AddUserRequest, CreateAccountRequest, DeleteAccountRequest, DeleteQosRequest, RemoveUserRequest, UserInfo,
};
use spur_sdk::{AccountName, Limit, TresLimits, UserName};
use spur_sdk_quota::{
    Account, AdminLevel, Association, CountLimit, Fairshare, Limits, Model, QosSelection, ROOT, Sourced,
    Terms, Tree, TresLimit,
};

use self::kept::{count, text, tres, unkept};
use super::change::Change;
use super::records::{Records, amounts};
use super::values::{NO_LIMIT, limits, list, spelled};

/// A change and what it is about.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub(super) change: Change,
    /// In words, a line.
    pub(super) words: String,
}

/// What an import changes.
#[derive(Debug, Default)]
pub(super) struct Import {
    /// In an order in which they can be made one after the other.
    pub(super) steps: Vec<Step>,
    /// What SPUR's accounting keeps no field for, a line each.
    pub(super) notes: Vec<String>,
    /// What the controller has and the sources do not name, if it stays.
    pub(super) left: Vec<String>,
}

/// What makes a controller's accounts say what a model says.
pub(super) fn plan(model: &Model, records: &Records, delete_missing: bool) -> Import {
    let mut planning = Planning { model, records, tree: Tree::of(model), import: Import::default() };
    let preempting = planning.qos();
    planning.accounts();
    planning.users();
    planning.coordinators();
    planning.import.steps.extend(preempting);
    planning.missing(delete_missing);
    planning.import
}

struct Planning<'m> {
    model: &'m Model,
    records: &'m Records,
    tree: Tree<'m>,
    import: Import,
}

/// Fields that differ, by name.
#[derive(Default)]
struct Fields(Vec<&'static str>);

impl Fields {
    /// The new value, where it differs from the old one.
    fn set<T: PartialEq>(&mut self, field: &'static str, new: T, old: &T) -> Option<T> {
        (new != *old).then(|| {
            self.0.push(field);
            new
        })
    }

    fn amounts(
        &mut self,
        field: &'static str,
        new: &TresLimits,
        rounded: &str,
        exact: Option<&String>,
    ) -> Option<String> {
        // What cannot be read is replaced.
        let same = limits(amounts(rounded, exact)).is_some_and(|old| old == *new);
        (!same).then(|| {
            self.0.push(field);
            spelled(new)
        })
    }

    fn words(&self, subject: &str, is_new: bool) -> String {
        let fields = self.0.join(", ");
        match (is_new, fields.is_empty()) {
            (true, true) => format!("{subject}: create"),
            (true, false) => format!("{subject}: create with {fields}"),
            (false, _) => format!("{subject}: change {fields}"),
        }
    }
}

/// The smaller of two limits.
fn smaller(own: &mut Limits, more: &Limits) {
    fn take<K: Ord + Clone>(
        own: &mut BTreeMap<K, Sourced<Limit<u64>>>,
        more: &BTreeMap<K, Sourced<Limit<u64>>>,
    ) {
        for (key, value) in more.iter().filter(|(_, value)| value.value.value().is_some()) {
            let wins = own
                .get(key)
                .and_then(|own| own.value.value())
                .is_none_or(|own| value.value.value() < Some(own));
            if wins {
                own.insert(key.clone(), value.clone());
            }
        }
    }
    take(&mut own.counts, &more.counts);
    for (limit, set) in &more.tres {
        take(own.tres.entry(*limit).or_default(), set);
    }
}

const ACCOUNT_COUNTS: &[CountLimit] = &[CountLimit::GrpJobs];
const ACCOUNT_AMOUNTS: &[TresLimit] = &[TresLimit::GrpTres];
const MEMBER_COUNTS: &[CountLimit] =
    &[CountLimit::MaxJobs, CountLimit::MaxSubmitJobs, CountLimit::GrpSubmitJobs, CountLimit::MaxWall];
const MEMBER_AMOUNTS: &[TresLimit] = &[TresLimit::MaxTresPerJob, TresLimit::GrpTres];
impl<'m> Planning<'m> {
    fn note(&mut self, subject: &str, unkept: &[String]) {
        if !unkept.is_empty() {
            self.import
                .notes
                .push(format!("{subject}: not kept, as there is no field for it: {}", unkept.join("; ")));
        }
    }

    fn step(&mut self, change: Change, words: String) {
        self.import.steps.push(Step { change, words });
    }

    /// Makes the accounts, each after the one above it.
    fn accounts(&mut self) {
        let model = self.model;
        self.root();
        let mut below: BTreeMap<&str, Vec<&'m Account>> = BTreeMap::new();
        for account in model.accounts.values() {
            if Model::is_root(&account.name) || self.tree.stopped(&account.name).is_some() {
                continue;
            }
            let parent = account.parent.as_ref().map_or(ROOT, |parent| parent.value.as_str());
            below.entry(parent).or_default().push(account);
        }
        let mut open = vec![ROOT];
        while let Some(parent) = open.pop() {
            let children = below.remove(parent).unwrap_or_default();
            for account in &children {
                self.account(account, &account.terms);
            }
            open.extend(children.iter().rev().map(|child| child.name.as_str()));
        }
    }

    /// What binds everybody: Slurm's cluster line and account root are one thing.
    fn root(&mut self) {
        let model = self.model;
        let named = model.accounts.get(ROOT);
        if named.is_none() && model.cluster.terms == Terms::default() && model.cluster.name.is_none() {
            return;
        }
        let mut terms = model.cluster.terms.clone();
        // A share of root's has nobody beside it.
        terms.fairshare = None;
        if let Some(root) = named {
            smaller(&mut terms.limits, &root.terms.limits);
            terms.qos = terms.qos.or_else(|| root.terms.qos.clone());
            terms.default_qos = terms.default_qos.or_else(|| root.terms.default_qos.clone());
        }
        let limited = !tres(&terms.limits, TresLimit::GrpTres).is_empty()
            || count(&terms.limits, CountLimit::GrpJobs) != NO_LIMIT;
        let Ok(name) = ROOT.parse::<AccountName>() else { return };
        if limited || self.records.accounts.contains_key(ROOT) {
            let plain = Account::new(name, spur_sdk_quota::Origin::store("cluster"));
            self.account(named.unwrap_or(&plain), &terms);
        } else {
            let unkept = unkept(&terms, ACCOUNT_COUNTS, ACCOUNT_AMOUNTS, false, true);
            self.note("cluster", &unkept);
        }
    }

    fn account(&mut self, account: &Account, terms: &Terms) {
        let known = self.records.accounts.get(account.name.as_str());
        let none = spur_sdk::rpc::messages::slurm::AccountInfo {
            fairshare_weight: 1.0,
            max_running_jobs: NO_LIMIT,
            ..Default::default()
        };
        let old = known.unwrap_or(&none);
        let subject = format!("account {}", account.name);
        let mut fields = Fields::default();
        let mut request =
            CreateAccountRequest { name: account.name.to_string(), ..CreateAccountRequest::default() };
        let parent = account.parent.as_ref().map(|parent| parent.value.to_string()).unwrap_or_default();
        let above = if old.parent_account == ROOT { String::new() } else { old.parent_account.clone() };
        request.parent_account = fields.set("parent", parent, &above);
        request.description = fields.set("description", text(account.description.as_ref()), &old.description);
        request.organization =
            fields.set("organization", text(account.organization.as_ref()), &old.organization);
        let share = match terms.fairshare.as_ref().map(|share| share.value) {
            Some(Fairshare::Shares(shares)) => f64::from(shares),
            _ => 1.0,
        };
        request.fairshare_weight = fields.set("fairshare", share, &old.fairshare_weight);
        let jobs = count(&terms.limits, CountLimit::GrpJobs);
        request.max_running_jobs = fields.set("max_running_jobs", jobs, &old.max_running_jobs);
        let allocation = tres(&terms.limits, TresLimit::GrpTres);
        request.grp_tres =
            fields.amounts("grp_tres", &allocation, &old.grp_tres, old.grp_tres_exact.as_ref());
        if known.is_none() || !fields.0.is_empty() {
            let words = fields.words(&subject, known.is_none());
            self.step(Change::CreateAccount(request), words);
        }
        let unkept = unkept(terms, ACCOUNT_COUNTS, ACCOUNT_AMOUNTS, false, true);
        self.note(&subject, &unkept);
    }

    /// Makes users and memberships, the default account first.
    fn users(&mut self) {
        let model = self.model;
        let mut members: BTreeMap<&UserName, Vec<(&AccountName, &Association)>> = BTreeMap::new();
        for (key, association) in &model.associations {
            if Model::is_root(&key.account) {
                if key.user.as_str() != ROOT {
                    self.import.notes.push(format!("{key}: not kept, as root has no members"));
                }
                continue;
            }
            if self.tree.stopped(&key.account).is_some() || self.tree.is_unread(&key.account, &key.user) {
                continue;
            }
            if key.partition.is_some() {
                self.import.notes.push(format!("{key}: not kept, as memberships hold on all partitions"));
                continue;
            }
            members.entry(&key.user).or_default().push((&key.account, association));
        }
        for user in model.users.values() {
            let of_user = members.remove(&user.name).unwrap_or_default();
            // Slurm's own root; whoever is root on the controller's machine is an admin anyway.
            if (user.name.as_str() == ROOT && of_user.is_empty())
                || self.tree.is_unread_everywhere(&user.name)
            {
                continue;
            }
            self.user(user, of_user);
        }
    }

    fn user(&mut self, user: &spur_sdk_quota::User, mut members: Vec<(&AccountName, &Association)>) {
        let person = self.records.people.get(user.name.as_str());
        let default = user.default_account.as_ref().map(|account| &account.value);
        members.sort_by_key(|(account, _)| (Some(*account) != default, *account));
        let level = user.admin_level.as_ref().map_or(AdminLevel::None, |level| level.value).to_string();
        let known =
            person.map_or(
                "none",
                |person| if person.admin_level.is_empty() { "none" } else { &person.admin_level },
            );
        let mut level = (level != known.to_lowercase()).then_some(level);
        if members.is_empty() && (person.is_none() || level.is_some()) {
            let request = AddUserRequest {
                user: user.name.to_string(),
                admin_level: level.take(),
                ..AddUserRequest::default()
            };
            self.step(
                Change::AddUser(request),
                format!(
                    "user {}: {}",
                    user.name,
                    if person.is_some() { "change admin_level" } else { "create" }
                ),
            );
        }
        let current = person.map(|person| person.default_account.as_str()).unwrap_or_default();
        for (account, association) in members {
            let becomes_default = Some(account) == default && current != account.as_str();
            self.member(user, account, association, becomes_default, level.take());
        }
        let mut unkept = Vec::new();
        let (keys, comment) = (user.wckeys.as_ref(), user.comment.as_ref());
        unkept.extend(user.default_wckey.as_ref().map(|key| format!("default_wckey={}", key.value)));
        unkept.extend(
            keys.map(|keys| format!("wckeys={}", keys.value.iter().cloned().collect::<Vec<_>>().join(","))),
        );
        unkept.extend(comment.map(|comment| format!("comment={}", comment.value)));
        self.note(&format!("user {}", user.name), &unkept);
    }

    fn member(
        &mut self,
        user: &spur_sdk_quota::User,
        account: &AccountName,
        association: &Association,
        becomes_default: bool,
        level: Option<String>,
    ) {
        let known = self.records.member(account.as_str(), user.name.as_str());
        let none = UserInfo {
            max_running_jobs: NO_LIMIT,
            max_submit_jobs: NO_LIMIT,
            grp_submit_jobs: NO_LIMIT,
            max_wall_minutes: NO_LIMIT,
            ..UserInfo::default()
        };
        let (old, terms) = (known.unwrap_or(&none), &association.terms);
        let subject = format!("user {} in account {account}", user.name);
        let mut fields = Fields::default();
        let mut request = AddUserRequest {
            user: user.name.to_string(),
            account: account.to_string(),
            ..AddUserRequest::default()
        };
        request.is_default = becomes_default.then(|| {
            fields.0.push("default account");
            true
        });
        request.admin_level = level.inspect(|_| fields.0.push("admin_level"));
        let default_qos = terms.default_qos.as_ref().map(|name| name.value.to_string()).unwrap_or_default();
        request.default_qos = fields.set("default_qos", default_qos, &old.default_qos);
        let allowed: BTreeSet<String> = match terms.qos.as_ref().map(|qos| &qos.value) {
            Some(QosSelection::Only(names)) => names.iter().map(ToString::to_string).collect(),
            _ => BTreeSet::new(),
        };
        let allowed = fields.set("allowed_qos", allowed, &list(&old.allowed_qos).into_iter().collect());
        request.allowed_qos = allowed.map(|allowed| allowed.into_iter().collect::<Vec<_>>().join(","));
        let limits = &terms.limits;
        let mut number = |field, limit, old: u32| fields.set(field, count(limits, limit), &old);
        request.max_running_jobs = number("max_running_jobs", CountLimit::MaxJobs, old.max_running_jobs);
        request.max_submit_jobs = number("max_submit_jobs", CountLimit::MaxSubmitJobs, old.max_submit_jobs);
        request.grp_submit_jobs = number("grp_submit_jobs", CountLimit::GrpSubmitJobs, old.grp_submit_jobs);
        request.max_wall_minutes = number("max_wall", CountLimit::MaxWall, old.max_wall_minutes);
        let mut sum = |field, limit, rounded: &str, exact: Option<&String>| {
            fields.amounts(field, &tres(limits, limit), rounded, exact)
        };
        let job = old.max_tres_per_job_exact.as_ref();
        request.max_tres_per_job =
            sum("max_tres_per_job", TresLimit::MaxTresPerJob, &old.max_tres_per_job, job);
        request.grp_tres = sum("grp_tres", TresLimit::GrpTres, &old.grp_tres, old.grp_tres_exact.as_ref());
        if known.is_none() || !fields.0.is_empty() {
            let words = fields.words(&subject, known.is_none());
            self.step(Change::AddUser(request), words);
        }
        let unkept = unkept(terms, MEMBER_COUNTS, MEMBER_AMOUNTS, true, false);
        self.note(&subject, &unkept);
    }

    fn coordinators(&mut self) {
        let model = self.model;
        for account in model.accounts.values() {
            if self.tree.stopped(&account.name).is_some() {
                continue;
            }
            let old = self.records.accounts.get(account.name.as_str());
            let old: BTreeSet<String> = old.iter().flat_map(|old| old.coordinators.iter().cloned()).collect();
            let mut new = BTreeSet::new();
            for user in account.coordinators.keys() {
                if model.users.contains_key(user) || self.records.people.contains_key(user.as_str()) {
                    new.insert(user.to_string());
                } else {
                    self.import.notes.push(format!(
                        "account {}: coordinator {user} is left out, as no user",
                        account.name
                    ));
                }
            }
            if new == old {
                continue;
            }
            let request = CreateAccountRequest {
                name: account.name.to_string(),
                add_coordinators: new.difference(&old).cloned().collect(),
                remove_coordinators: old.difference(&new).cloned().collect(),
                ..CreateAccountRequest::default()
            };
            self.step(
                Change::CreateAccount(request),
                format!("account {}: change coordinators", account.name),
            );
        }
    }

    /// What the controller has and the sources do not name.
    fn missing(&mut self, delete: bool) {
        let (model, records) = (self.model, self.records);
        let named: BTreeSet<(&str, &str)> =
            model.associations.keys().map(|key| (key.account.as_str(), key.user.as_str())).collect();
        let mut gone = Vec::new();
        for (account, user) in records.members.keys() {
            let person_goes = !model.users.contains_key(user.as_str());
            if !named.contains(&(account.as_str(), user.as_str())) && !person_goes {
                let request = RemoveUserRequest { user: user.clone(), account: account.clone() };
                gone.push((Change::RemoveUser(request), format!("user {user} in account {account}")));
            }
        }
        for user in records.people.keys().filter(|user| !model.users.contains_key(user.as_str())) {
            let request = RemoveUserRequest { user: user.clone(), account: String::new() };
            gone.push((Change::RemoveUser(request), format!("user {user}")));
        }
        // What is lower first.
        for account in records.subtree(ROOT).iter().skip(1).rev() {
            if !model.accounts.contains_key(account.as_str()) {
                let request = DeleteAccountRequest { name: account.clone(), force: None };
                gone.push((Change::DeleteAccount(request), format!("account {account}")));
            }
        }
        for name in records.qos.keys().filter(|name| !model.qos.contains_key(name.as_str())) {
            let used = model.associations.values().any(|member| {
                let default =
                    member.terms.default_qos.as_ref().is_some_and(|default| default.value.as_str() == name);
                let allowed = match member.terms.qos.as_ref().map(|qos| &qos.value) {
                    Some(QosSelection::Only(selected)) => selected.contains(name.as_str()),
                    Some(QosSelection::Changed { .. }) | None => false,
                };
                default || allowed
            });
            if !used {
                let request = DeleteQosRequest { name: name.clone(), force: None };
                gone.push((Change::DeleteQos(request), format!("qos {name}")));
            }
        }
        for (change, what) in gone {
            if delete {
                self.step(change, format!("{what}: delete"));
            } else {
                self.import.left.push(what);
            }
        }
    }
}
