//! What the words of `add`, `modify` and `delete` change: decides, and touches nothing.

mod account;
mod qos;
mod user;

use std::collections::BTreeSet;

use spur_sdk::rpc::messages::slurm::{
    CreateAccountRequest, DeleteAccountRequest, DeleteQosRequest, Presence,
};

use self::account::{accounts, add_accounts, modify_accounts};
use self::qos::{add_qos, modify_qos, qos_meets};
use self::user::{add_users, asks_membership, delete_users, modify_users};
use super::Entity;
use super::keys::Field;
use super::words::{Line, Pair, Sign, WordsError, names};
use crate::accounts::change::Change;
use crate::accounts::records::Records;
use crate::accounts::values;

/// What is to be changed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    /// Slurm's words over what changes.
    pub(super) heading: &'static str,
    pub(super) changes: Vec<Change>,
    /// Slurm's words where nothing is there to change.
    pub(super) nothing: &'static str,
}

type Planned = Result<Plan, WordsError>;

/// A name as it is known, or in lower case as Slurm keeps it.
fn resolve(name: &str, known: impl Fn(&str) -> bool) -> String {
    if known(name) { name.to_owned() } else { name.to_lowercase() }
}

impl Records {
    fn account_name(&self, name: &str) -> String {
        resolve(name, |name| self.accounts.contains_key(name))
    }

    fn user_name(&self, name: &str) -> String {
        resolve(name, |name| self.people.contains_key(name))
    }

    fn qos_name(&self, name: &str) -> String {
        resolve(name, |name| self.qos.contains_key(name))
    }
}

fn invalid(pair: &Pair, message: impl AsRef<str>) -> WordsError {
    WordsError(format!("{}: {}", pair.text, message.as_ref()))
}

/// A value that is there: an empty one may be a variable that was not set, and must not take a limit away.
fn given(pair: &Pair) -> Result<&str, WordsError> {
    match pair.value.as_str() {
        "" => Err(invalid(pair, "has no value; -1 takes a limit away")),
        value => Ok(value),
    }
}

fn number(pair: &Pair) -> Result<Option<u32>, WordsError> {
    given(pair)?;
    values::number(&pair.value).map(Some).map_err(|error| invalid(pair, error))
}

fn minutes(pair: &Pair) -> Result<Option<u32>, WordsError> {
    given(pair)?;
    values::minutes(&pair.value).map(Some).map_err(|error| invalid(pair, error))
}

/// A text; -1 takes it away.
fn text(value: &str) -> String {
    if value == "-1" { String::new() } else { value.to_owned() }
}

/// Adds amounts to those that the words before have named.
fn amounts(slot: &mut Option<String>, pair: &Pair, one: Option<&str>) -> Result<(), WordsError> {
    let value = given(pair)?;
    let value = match one {
        Some(tres) => format!("{tres}={value}"),
        None => value.to_owned(),
    };
    let value = values::amounts(&value).map_err(|error| invalid(pair, error))?;
    match slot {
        Some(before) if !before.is_empty() && !value.is_empty() => *before = format!("{before},{value}"),
        slot => *slot = Some(value),
    }
    Ok(())
}

/// Only lists take `+=` and `-=`.
fn plain(pair: &Pair) -> Result<(), WordsError> {
    match pair.sign {
        Sign::Set => Ok(()),
        Sign::Add | Sign::Remove => Err(invalid(pair, "only lists of QoS and flags take += and -=")),
    }
}

/// A list of names that `=` replaces, `+=` adds to and `-=` takes from.
fn changed_list(pair: &Pair, before: &[String]) -> Vec<String> {
    let named = names(&pair.value);
    match pair.sign {
        Sign::Set if pair.value == "-1" => Vec::new(),
        Sign::Set => named,
        Sign::Add => {
            let all: BTreeSet<_> = before.iter().cloned().chain(named).collect();
            all.into_iter().collect()
        }
        Sign::Remove => before.iter().filter(|name| !named.contains(*name)).cloned().collect(),
    }
}

fn check_cluster(line: &Line, site: &str) -> Result<(), WordsError> {
    let asked =
        line.settings.iter().filter(|pair| pair.field == Field::Cluster).flat_map(|pair| names(&pair.value));
    match asked.into_iter().find(|cluster| !cluster.eq_ignore_ascii_case(site)) {
        Some(other) => {
            Err(WordsError(format!(" This cluster '{other}' doesn't exist; the controller's is '{site}'.")))
        }
        None => Ok(()),
    }
}

/// The plan of an `add`.
pub(super) fn add(entity: Entity, line: &Line, records: &Records, site: &str) -> Planned {
    check_cluster(line, site)?;
    let (heading, changes) = match entity {
        Entity::Account => (" Adding Account(s)", add_accounts(line, records)?),
        Entity::User => (" Adding User(s)", add_users(line, records)?),
        Entity::Qos => (" Adding QOS(s)", add_qos(line, records)?),
        Entity::Coordinator => (" Adding Coordinator User(s)", coordinators(line, records, true)?),
        Entity::Association => {
            return Err(WordsError::new(
                "an association is added by adding a user: add user name=USER account=ACCOUNT",
            ));
        }
    };
    Ok(Plan { heading, changes, nothing: " Nothing new added." })
}

/// The plan of a `modify`.
pub(super) fn modify(entity: Entity, line: &Line, records: &Records, site: &str) -> Planned {
    check_cluster(line, site)?;
    if line.conditions.is_empty() {
        return Err(WordsError::new(" Name what to modify: where name=NAME"));
    }
    if !line.settings.iter().any(|pair| pair.field != Field::Cluster) {
        return Err(WordsError::new(" Nothing is to be set: write set KEY=VALUE"));
    }
    let (heading, changes) = match entity {
        Entity::Account => {
            let own = line.sets_any(&[Field::Description, Field::Organization]);
            let heading = if own { " Modified accounts..." } else { " Modified account associations..." };
            (heading, modify_accounts(line, records, site)?)
        }
        Entity::User => {
            let own = line.sets_any(&[Field::AdminLevel, Field::DefaultAccount]);
            let heading = if own { " Modified users..." } else { " Modified user associations..." };
            (heading, modify_users(line, records, site)?)
        }
        Entity::Qos => (" Modified qos...", modify_qos(line, records)?),
        Entity::Coordinator | Entity::Association => {
            return Err(WordsError::new("modify takes account, user or qos"));
        }
    };
    Ok(Plan { heading, changes, nothing: " Nothing modified" })
}

/// The plan of a `delete`.
pub(super) fn delete(entity: Entity, line: &Line, records: &Records, site: &str, force: bool) -> Planned {
    let asks = !line.conditions.is_empty() || !line.settings.is_empty();
    if !asks {
        return Err(WordsError::new(" Name what to delete: where name=NAME"));
    }
    let force = Some(force);
    let (heading, changes) = match entity {
        Entity::Account => {
            let going = accounts(line, records, site).map(|account| account.name.clone());
            let delete = going.map(|name| Change::DeleteAccount(DeleteAccountRequest { name, force }));
            (" Deleting accounts...", delete.collect())
        }
        Entity::User => {
            let heading =
                if asks_membership(line) { " Deleting user associations..." } else { " Deleting users..." };
            (heading, delete_users(line, records, site))
        }
        Entity::Qos => {
            let going = records.qos.values().filter(|qos| qos_meets(line, qos)).map(|qos| qos.name.clone());
            let delete = going.map(|name| Change::DeleteQos(DeleteQosRequest { name, force }));
            (" Deleting QOS(s)...", delete.collect())
        }
        Entity::Coordinator => (" Removing Coordinators with user name", coordinators(line, records, false)?),
        Entity::Association => {
            return Err(WordsError::new(
                "an association is deleted with its user: delete user where name=USER account=ACCOUNT",
            ));
        }
    };
    Ok(Plan { heading, changes, nothing: " Nothing deleted" })
}

/// Coordinators, who are given alike in `add` and `delete`.
fn coordinators(line: &Line, records: &Records, add: bool) -> Result<Vec<Change>, WordsError> {
    let of = |field| -> Vec<String> {
        let pairs = line.settings.iter().chain(&line.conditions).filter(|pair| pair.field == field);
        pairs.flat_map(|pair| names(&pair.value)).collect()
    };
    let users: Vec<_> = of(Field::Name).iter().map(|name| records.user_name(name)).collect();
    let mut accounts: Vec<_> = of(Field::Account).iter().map(|name| records.account_name(name)).collect();
    if users.is_empty() && (add || accounts.is_empty()) {
        return Err(WordsError::new(" You need to specify a user with names=USER."));
    }
    if accounts.is_empty() && add {
        return Err(WordsError::new(" You need to specify an account with account=ACCOUNT."));
    }
    if accounts.is_empty() {
        accounts = records.accounts.keys().cloned().collect();
    }
    let mut changes = Vec::new();
    for name in accounts {
        let known = records.accounts.get(&name).map(|account| account.coordinators.clone());
        let has = known.clone().unwrap_or_default();
        let wanted: Vec<_> = match (add, users.is_empty()) {
            (true, _) => users.iter().filter(|user| !has.contains(user)).cloned().collect(),
            (false, true) => has,
            (false, false) => users.iter().filter(|user| has.contains(user)).cloned().collect(),
        };
        // That the account is not there is for the controller to say.
        if wanted.is_empty() && known.is_some() {
            continue;
        }
        let mut request = CreateAccountRequest {
            name,
            presence: Some(Presence::Present.into()),
            ..CreateAccountRequest::default()
        };
        if add {
            request.add_coordinators = wanted;
        } else {
            request.remove_coordinators = wanted;
        }
        changes.push(Change::CreateAccount(request));
    }
    Ok(changes)
}
