//! What a change makes of the book; decides, and touches nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use spur_sdk::{AccountName, QosName, UserName};

use super::AccountingError;
use super::book::{Book, Put};
use super::edit::{AccountEdit, Edit, Expected, QosEdit, UserEdit, new_name};
use super::records::{AccountRecord, MemberRecord, QosRecord, UserRecord};
use crate::model::{AdminLevel, ROOT};

/// A change that somebody wants.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    Account(Box<AccountEdit>),
    DeleteAccount {
        name: AccountName,
        force: bool,
    },
    User(Box<UserEdit>),
    /// Out of one account, or out of all.
    RemoveUser {
        user: UserName,
        account: Option<AccountName>,
    },
    Qos(Box<QosEdit>),
    DeleteQos {
        name: QosName,
        force: bool,
    },
}

/// A record that changes, and how, in words.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub(super) put: Put,
    pub(super) change: String,
}

/// The book with changes that are not made yet.
#[derive(Debug)]
pub(super) struct Draft {
    book: Book,
    /// In an order in which they can be made one after the other.
    pub(super) steps: Vec<Step>,
}

fn set<T>(slot: &mut Option<T>, edit: Edit<T>) {
    match edit {
        Edit::Keep => {}
        Edit::Clear => *slot = None,
        Edit::Set(value) => *slot = Some(value),
    }
}

fn expect(expected: Expected, exists: bool, what: &Put) -> Result<(), AccountingError> {
    match (expected, exists) {
        (Expected::Absent, true) => Err(AccountingError::Exists(what.subject())),
        (Expected::Present, false) => Err(AccountingError::NotFound(what.subject())),
        _ => Ok(()),
    }
}

/// How a record differs, a field at a time: `grp_tres: cpu=64 -> cpu=128`.
fn words<R: Serialize>(before: Option<&R>, after: &R) -> String {
    let fields = |record: &R| match serde_json::to_value(record) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (old, new) = (before.map(fields).unwrap_or_default(), fields(after));
    let show = |value: Option<&Value>| match value {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(list)) => {
            let list: Vec<_> =
                list.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned)).collect();
            list.join(",")
        }
        Some(value) => value.to_string(),
    };
    let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let changed =
        names.into_iter().filter(|name| old.get(*name) != new.get(*name)).map(|name| match before {
            Some(_) => format!("{name}: {} -> {}", show(old.get(name)), show(new.get(name))),
            None => format!("{name}: {}", show(new.get(name))),
        });
    let changed: Vec<_> = changed.collect();
    match (before, changed.is_empty()) {
        (None, true) => "created".to_owned(),
        (None, false) => format!("created; {}", changed.join("; ")),
        (Some(_), _) => changed.join("; "),
    }
}

/// Some names, and how many more there are.
fn some<T: ToString>(names: &[T]) -> String {
    let shown: Vec<_> = names.iter().take(5).map(ToString::to_string).collect();
    match names.len().saturating_sub(shown.len()) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl Draft {
    pub(super) fn new(book: &Book) -> Self {
        Self { book: book.clone(), steps: Vec::new() }
    }

    pub(super) fn make(&mut self, change: Change) -> Result<(), AccountingError> {
        match change {
            Change::Account(edit) => self.account(*edit),
            Change::DeleteAccount { name, force } => self.delete_account(&name, force),
            Change::User(edit) => self.user(*edit),
            Change::RemoveUser { user, account } => self.remove_user(&user, account.as_ref()),
            Change::Qos(edit) => self.qos(*edit),
            Change::DeleteQos { name, force } => self.delete_qos(&name, force),
        }
    }

    fn step(&mut self, put: Put, change: String) {
        self.book.put(put.clone());
        self.steps.push(Step { put, change });
    }

    fn account(&mut self, edit: AccountEdit) -> Result<(), AccountingError> {
        let before = self.book.accounts.get(&edit.name).cloned();
        expect(edit.expected, before.is_some(), &Put::Account(edit.name.clone(), None))?;
        if before.is_none() {
            new_name("name", edit.name.as_str())?;
        }
        let mut record = before.as_deref().cloned().unwrap_or_default();
        set(&mut record.description, edit.description);
        set(&mut record.organization, edit.organization);
        set(&mut record.parent, edit.parent);
        set(&mut record.fairshare_weight, edit.fairshare_weight);
        set(&mut record.max_running_jobs, edit.max_running_jobs);
        edit.grp_tres.apply(&mut record.grp_tres);
        for user in edit.add_coordinators {
            if !self.book.users.contains_key(&user) {
                return Err(AccountingError::NotFound(format!("user {user}, who is to be a coordinator,")));
            }
            record.coordinators.insert(user);
        }
        for user in &edit.remove_coordinators {
            record.coordinators.remove(user);
        }
        self.check_parent(&edit.name, record.parent.as_ref())?;
        if before.as_deref() != Some(&record) {
            let change = words(before.as_deref(), &record);
            self.step(Put::Account(edit.name, Some(record)), change);
        }
        Ok(())
    }

    fn check_parent(&self, name: &AccountName, parent: Option<&AccountName>) -> Result<(), AccountingError> {
        let invalid = |message: String| Err(AccountingError::invalid("parent_account", message));
        let Some(parent) = parent else { return Ok(()) };
        if name.as_str() == ROOT {
            return invalid("root stands above all others".to_owned());
        }
        if !self.book.accounts.contains_key(parent) {
            return invalid(format!("account {parent} does not exist"));
        }
        let mut next = Some(parent);
        for _ in 0..=self.book.accounts.len() {
            match next {
                Some(above) if above == name => {
                    return invalid(format!("{parent} is {name} itself or below it"));
                }
                Some(above) => next = self.book.accounts.get(above).and_then(|record| record.parent.as_ref()),
                None => return Ok(()),
            }
        }
        invalid("the accounts above go round in a circle".to_owned())
    }

    fn user(&mut self, edit: UserEdit) -> Result<(), AccountingError> {
        let known = self.book.users.get(&edit.user).cloned();
        if known.is_none() {
            new_name("user", edit.user.as_str())?;
        }
        let mut user = known.as_deref().cloned().unwrap_or_default();
        match edit.admin_level {
            Edit::Keep => {}
            Edit::Clear => user.admin_level = AdminLevel::None,
            Edit::Set(level) => user.admin_level = level,
        }
        let mut member = None;
        match edit.account {
            None => expect(edit.expected, known.is_some(), &Put::User(edit.user.clone(), None))?,
            Some(account) => {
                if account.as_str() == ROOT {
                    return Err(AccountingError::invalid(
                        "account",
                        "root stands above all others and has no members",
                    ));
                }
                if !self.book.accounts.contains_key(&account) {
                    return Err(AccountingError::NotFound(format!("account {account}")));
                }
                let before = self.book.members.get(&(account.clone(), edit.user.clone())).cloned();
                expect(
                    edit.expected,
                    before.is_some(),
                    &Put::Member(account.clone(), edit.user.clone(), None),
                )?;
                let mut record = before.as_deref().cloned().unwrap_or_default();
                set(&mut record.default_qos, edit.default_qos);
                set(&mut record.allowed_qos, edit.allowed_qos);
                set(&mut record.max_running_jobs, edit.max_running_jobs);
                set(&mut record.max_submit_jobs, edit.max_submit_jobs);
                set(&mut record.grp_submit_jobs, edit.grp_submit_jobs);
                set(&mut record.max_wall_minutes, edit.max_wall_minutes);
                edit.max_tres_per_job.apply(&mut record.max_tres_per_job);
                edit.grp_tres.apply(&mut record.grp_tres);
                self.check_qos(&record)?;
                self.choose_default(&edit.user, &mut user, &account, edit.is_default)?;
                member = Some((account, before, record));
            }
        }
        if known.as_deref() != Some(&user) {
            let change = words(known.as_deref(), &user);
            self.step(Put::User(edit.user.clone(), Some(user)), change);
        }
        if let Some((account, before, record)) = member
            && before.as_deref() != Some(&record)
        {
            let change = words(before.as_deref(), &record);
            self.step(Put::Member(account, edit.user, Some(record)), change);
        }
        Ok(())
    }

    fn check_qos(&self, member: &MemberRecord) -> Result<(), AccountingError> {
        let exists = |field, name: &QosName| {
            let known = self.book.qos.contains_key(name);
            if known {
                Ok(())
            } else {
                Err(AccountingError::invalid(field, format!("qos {name} does not exist")))
            }
        };
        for name in member.allowed_qos.iter().flatten() {
            exists("allowed_qos", name)?;
        }
        let Some(default) = &member.default_qos else { return Ok(()) };
        exists("default_qos", default)?;
        if member.allowed_qos.as_ref().is_some_and(|allowed| !allowed.contains(default)) {
            return Err(AccountingError::invalid(
                "default_qos",
                format!("{default} is not among allowed_qos"),
            ));
        }
        Ok(())
    }

    /// Sets a user's default account after a change of the membership in `account`.
    fn choose_default(
        &self,
        name: &UserName,
        user: &mut UserRecord,
        account: &AccountName,
        wanted: Option<bool>,
    ) -> Result<(), AccountingError> {
        let is = user.default_account.as_ref() == Some(account);
        match wanted {
            Some(true) => user.default_account = Some(account.clone()),
            Some(false) if is => {
                let other = self.book.accounts_of(name).into_iter().find(|other| *other != account);
                let Some(other) = other else {
                    let message = format!("{account} is the user's only account and stays the default");
                    return Err(AccountingError::invalid("is_default", message));
                };
                user.default_account = Some(other.clone());
            }
            _ if user.default_account.is_none() => user.default_account = Some(account.clone()),
            _ => {}
        }
        Ok(())
    }

    fn remove_user(&mut self, user: &UserName, account: Option<&AccountName>) -> Result<(), AccountingError> {
        if !self.book.users.contains_key(user) {
            return Err(AccountingError::NotFound(format!("user {user}")));
        }
        if let Some(account) = account {
            if !self.book.members.contains_key(&(account.clone(), user.clone())) {
                return Err(AccountingError::NotFound(format!("user {user} in account {account}")));
            }
            self.leave(user, account);
        } else {
            let accounts: Vec<_> = self.book.accounts_of(user).into_iter().cloned().collect();
            for account in &accounts {
                self.leave(user, account);
            }
            // Who has rights over the accounts goes as well: all of the user is to go.
            self.forget(user);
        }
        Ok(())
    }

    /// Takes a user out of an account; out of the last one, the user is forgotten.
    fn leave(&mut self, user: &UserName, account: &AccountName) {
        let member = Put::Member(account.clone(), user.clone(), None);
        self.step(member, "deleted".to_owned());
        let left = self.book.accounts_of(user).first().map(|account| (*account).clone());
        let Some(before) = self.book.users.get(user).cloned() else { return };
        if left.is_none() && before.admin_level == AdminLevel::None {
            return self.forget(user);
        }
        if before.default_account.as_ref() == Some(account) {
            let mut record = before.as_ref().clone();
            record.default_account = left;
            let change = words(Some(before.as_ref()), &record);
            self.step(Put::User(user.clone(), Some(record)), change);
        }
    }

    fn forget(&mut self, user: &UserName) {
        let coordinated: Vec<(AccountName, Arc<AccountRecord>)> = self
            .book
            .accounts
            .iter()
            .filter(|(_, account)| account.coordinators.contains(user))
            .map(|(name, account)| (name.clone(), Arc::clone(account)))
            .collect();
        for (name, before) in coordinated {
            let mut record = before.as_ref().clone();
            record.coordinators.remove(user);
            let change = words(Some(before.as_ref()), &record);
            self.step(Put::Account(name, Some(record)), change);
        }
        if self.book.users.contains_key(user) {
            self.step(Put::User(user.clone(), None), "deleted".to_owned());
        }
    }

    fn delete_account(&mut self, name: &AccountName, force: bool) -> Result<(), AccountingError> {
        if name.as_str() == ROOT {
            return Err(AccountingError::invalid("name", "root cannot be deleted"));
        }
        if !self.book.accounts.contains_key(name) {
            return Err(AccountingError::NotFound(format!("account {name}")));
        }
        // Itself and all below, what is lower later.
        let mut going = vec![name.clone()];
        let mut at = 0;
        while let Some(above) = going.get(at).cloned() {
            let below =
                self.book.accounts.iter().filter(|(_, account)| account.parent.as_ref() == Some(&above));
            let below: Vec<_> = below.map(|(name, _)| name.clone()).collect();
            going.extend(below);
            at = at.saturating_add(1);
        }
        let members: Vec<(AccountName, UserName)> =
            self.book.members.keys().filter(|(account, _)| going.contains(account)).cloned().collect();
        if !force && (going.len() > 1 || !members.is_empty()) {
            let mut holds = Vec::new();
            if let Some(below) = going.get(1..).filter(|below| !below.is_empty()) {
                holds.push(format!("{} accounts below ({})", below.len(), some(below)));
            }
            if !members.is_empty() {
                let users: BTreeSet<_> = members.iter().map(|(_, user)| user).collect();
                let users: Vec<_> = users.into_iter().collect();
                holds.push(format!("{} members ({})", members.len(), some(&users)));
            }
            return Err(AccountingError::InUse {
                what: format!("account {name}"),
                holds: holds.join(" and "),
            });
        }
        for (account, user) in &members {
            self.leave(user, account);
        }
        for account in going.into_iter().rev() {
            self.step(Put::Account(account, None), "deleted".to_owned());
        }
        Ok(())
    }

    fn qos(&mut self, edit: QosEdit) -> Result<(), AccountingError> {
        let before = self.book.qos.get(&edit.name).cloned();
        expect(edit.expected, before.is_some(), &Put::Qos(edit.name.clone(), None))?;
        if before.is_none() {
            new_name("name", edit.name.as_str())?;
        }
        let mut record = before.as_deref().cloned().unwrap_or_default();
        set(&mut record.description, edit.description);
        set(&mut record.priority, edit.priority);
        set(&mut record.preempt_mode, edit.preempt_mode);
        set(&mut record.preempt_exempt_time, edit.preempt_exempt_time);
        set(&mut record.usage_factor, edit.usage_factor);
        for (field, edit) in edit.numbers {
            set(record.number(field), edit);
        }
        edit.max_tres_per_job.apply(&mut record.max_tres_per_job);
        edit.max_tres_per_user.apply(&mut record.max_tres_per_user);
        edit.grp_tres.apply(&mut record.grp_tres);
        let mut preempt = Some(std::mem::take(&mut record.preempt));
        set(&mut preempt, edit.preempt);
        record.preempt = preempt.unwrap_or_default();
        let mut flags = Some(std::mem::take(&mut record.flags));
        set(&mut flags, edit.flags);
        record.flags = flags.unwrap_or_default();
        let other = |name: &&QosName| **name != edit.name && !self.book.qos.contains_key(*name);
        if let Some(unknown) = record.preempt.iter().find(other) {
            return Err(AccountingError::invalid("preempt", format!("qos {unknown} does not exist")));
        }
        if before.as_deref() != Some(&record) {
            let change = words(before.as_deref(), &record);
            self.step(Put::Qos(edit.name, Some(record)), change);
        }
        Ok(())
    }

    fn delete_qos(&mut self, name: &QosName, force: bool) -> Result<(), AccountingError> {
        if !self.book.qos.contains_key(name) {
            return Err(AccountingError::NotFound(format!("qos {name}")));
        }
        let uses = |member: &MemberRecord| {
            member.default_qos.as_ref() == Some(name)
                || member.allowed_qos.as_ref().is_some_and(|allowed| allowed.contains(name))
        };
        let members: Vec<_> = self
            .book
            .members
            .iter()
            .filter(|(_, member)| uses(member))
            .map(|(key, member)| (key.clone(), Arc::clone(member)))
            .collect();
        let preempting: Vec<_> = self
            .book
            .qos
            .iter()
            .filter(|(other, qos)| *other != name && qos.preempt.contains(name))
            .map(|(other, qos)| (other.clone(), Arc::clone(qos)))
            .collect();
        if !force && (!members.is_empty() || !preempting.is_empty()) {
            let named: Vec<_> =
                members.iter().map(|((account, user), _)| format!("{user} in {account}")).collect();
            let mut holds = Vec::new();
            if !named.is_empty() {
                holds.push(format!("{} memberships that name it ({})", named.len(), some(&named)));
            }
            if !preempting.is_empty() {
                holds.push(format!("{} QoS that preempt it", preempting.len()));
            }
            return Err(AccountingError::InUse { what: format!("qos {name}"), holds: holds.join(" and ") });
        }
        // On the wire no QoS at all is every QoS, so a membership must not be left without.
        let only = |member: &MemberRecord| {
            member.allowed_qos.as_ref().is_some_and(|allowed| allowed.iter().all(|allowed| allowed == name))
        };
        if let Some(((account, user), _)) = members.iter().find(|(_, member)| only(member)) {
            let message =
                format!("is the only allowed QoS of user {user} in account {account}: change that first");
            return Err(AccountingError::invalid("name", message));
        }
        for ((account, user), before) in members {
            let mut record = before.as_ref().clone();
            if record.default_qos.as_ref() == Some(name) {
                record.default_qos = None;
            }
            if let Some(allowed) = &mut record.allowed_qos {
                allowed.remove(name);
            }
            let change = words(Some(before.as_ref()), &record);
            self.step(Put::Member(account, user, Some(record)), change);
        }
        for (other, before) in preempting {
            let mut record = before.as_ref().clone();
            record.preempt.remove(name);
            let change = words(Some(before.as_ref()), &record);
            self.step(Put::Qos(other, Some(record)), change);
        }
        self.step(Put::Qos(name.clone(), None), "deleted".to_owned());
        Ok(())
    }
}

impl QosRecord {
    /// The number that a request's field sets.
    fn number(&mut self, field: &str) -> &mut Option<u32> {
        match field {
            "max_jobs_per_user" => &mut self.max_jobs_per_user,
            "max_submit_jobs_per_user" => &mut self.max_submit_jobs_per_user,
            "max_submit_jobs_per_account" => &mut self.max_submit_jobs_per_account,
            "grp_submit_jobs" => &mut self.grp_submit_jobs,
            "max_wall_minutes" => &mut self.max_wall_minutes,
            _ => &mut self.grp_wall_minutes,
        }
    }
}
