//! Our own file of accounts, TOML or YAML.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use spur_sdk::{
    AccountName, Limit, MemorySpelling, QosName, TresLimits, UserName, error_chain, parse_minutes, parse_tres,
};

use super::fields::{Table, unknown_key};
use super::node::{Entry, Node, Value, parse_count};
use crate::model::{
    Account, AdminLevel, Association, AssociationKey, CountLimit, Fairshare, Model, Origin, Problem, Qos,
    QosSelection, QosSetting, Sourced, Subject, Terms, TresLimit, User,
};

/// Reads the tree; also says whether every entry's name was understood.
pub(super) fn read(tree: &Node, file: &Arc<str>) -> (Model, bool) {
    let mut reader = Reader { file, model: Model::default(), understood: true };
    reader.document(tree);
    (reader.model, reader.understood)
}

struct Reader<'a> {
    file: &'a Arc<str>,
    model: Model,
    understood: bool,
}

impl Reader<'_> {
    fn origin(&self, line: u32) -> Origin {
        Origin::line(self.file, line)
    }

    fn problem(&mut self, line: u32, subject: &Subject, field: &str, message: impl Into<String>) {
        self.model.problems.push(Problem {
            origin: self.origin(line),
            subject: subject.clone(),
            field: field.to_owned(),
            message: message.into(),
        });
    }

    fn document(&mut self, tree: &Node) {
        let entries = match tree.map() {
            Ok(entries) => entries,
            Err(message) => return self.problem(tree.line, &Subject::Source, "", message),
        };
        // Accounts first, then what refers to them.
        for table in Table::ALL {
            if let Some(entry) = entries.iter().find(|entry| entry.key == table.key()) {
                self.table(table, &entry.node);
            }
        }
        self.default_accounts();
        for entry in entries {
            if !Table::ALL.iter().any(|table| table.key() == entry.key) {
                let message = unknown_key(&entry.key, Table::ALL.iter().map(|table| table.key()));
                // It may hold accounts that were not read.
                self.problem(entry.line, &Subject::Source, &entry.key, message);
            }
        }
    }

    fn table(&mut self, table: Table, node: &Node) {
        if table == Table::Cluster {
            return self.entry(table, node);
        }
        let Ok(nodes) = node.list() else {
            let key = table.key();
            let message =
                format!("expected a list of entries: [[{key}]] before each in TOML, a dash in YAML");
            return self.problem(node.line, &Subject::Source, key, message);
        };
        for node in nodes {
            self.entry(table, node);
        }
    }

    fn entry(&mut self, table: Table, node: &Node) {
        let entries = match node.map() {
            Ok(entries) => entries,
            Err(message) => {
                self.understood = false;
                return self.problem(node.line, &Subject::Source, table.key(), message);
            }
        };
        match table {
            Table::Cluster => self.cluster(entries),
            Table::Account => self.account(node.line, entries),
            Table::User => self.user(node.line, entries),
            Table::Association => self.association(node.line, entries),
            Table::Qos => self.qos(node.line, entries),
        }
    }

    /// The name that an entry is about. Without one nothing can be said of the entry, not even whom it
    /// stops, so the source as a whole does not count.
    fn name<T: FromStr<Err: std::fmt::Display>>(
        &mut self,
        line: u32,
        entries: &[Entry],
        table: Table,
        key: &str,
    ) -> Option<T> {
        let found = entries.iter().find(|entry| entry.key == key);
        let (line, message) = match found {
            Some(entry) => {
                match entry.node.text().and_then(|text| text.parse().map_err(|e: T::Err| e.to_string())) {
                    Ok(name) => return Some(name),
                    Err(message) => (entry.line, message),
                }
            }
            None => (line, format!("is missing; each [[{}]] has one", table.key())),
        };
        self.understood = false;
        self.problem(line, &Subject::Source, &format!("{}.{key}", table.key()), message);
        None
    }

    /// Hands each entry to `read`; what it refuses becomes a problem of `subject`.
    fn each(
        &mut self,
        table: Table,
        subject: &Subject,
        entries: &[Entry],
        mut read: impl FnMut(&Entry, Origin) -> Result<bool, String>,
    ) {
        for entry in entries {
            let message = match read(entry, self.origin(entry.line)) {
                Ok(true) => continue,
                Ok(false) => unknown_key(&entry.key, table.fields().iter().map(|field| field.key)),
                Err(message) => message,
            };
            self.problem(entry.line, subject, &entry.key, message);
        }
    }

    fn cluster(&mut self, entries: &[Entry]) {
        let mut cluster = crate::model::Cluster::default();
        self.each(Table::Cluster, &Subject::Source, entries, |entry, origin| {
            if entry.key == "name" {
                cluster.name = Some(Sourced::new(parsed(&entry.node)?, origin));
                return Ok(true);
            }
            terms(&mut cluster.terms, entry, &origin)
        });
        self.model.cluster = cluster;
    }

    fn account(&mut self, line: u32, entries: &[Entry]) {
        let Some(name) = self.name::<AccountName>(line, entries, Table::Account, "name") else { return };
        let subject = Subject::Account(name.clone());
        let mut account = Account::new(name.clone(), self.origin(line));
        self.each(Table::Account, &subject, entries, |entry, origin| {
            let node = &entry.node;
            match entry.key.as_str() {
                "name" => {}
                "parent" => account.parent = Some(Sourced::new(parsed(node)?, origin)),
                "description" => account.description = Some(Sourced::new(node.text()?.to_owned(), origin)),
                "organization" => account.organization = Some(Sourced::new(node.text()?.to_owned(), origin)),
                "coordinators" => {
                    for (user, line) in names::<UserName>(node)? {
                        account.coordinators.insert(user, origin.clone().at(line));
                    }
                }
                _ => return terms(&mut account.terms, entry, &origin),
            }
            Ok(true)
        });
        if let Some(first) = self.model.accounts.get(&name) {
            let message = format!("is already defined at {}; remove one of the two", first.origin);
            return self.problem(line, &subject, "", message);
        }
        self.model.accounts.insert(name, account);
    }

    fn user(&mut self, line: u32, entries: &[Entry]) {
        let Some(name) = self.name::<UserName>(line, entries, Table::User, "name") else { return };
        let subject = Subject::User(name.clone());
        let mut user = User::new(name.clone(), self.origin(line));
        let mut accounts = Vec::new();
        self.each(Table::User, &subject, entries, |entry, origin| {
            let node = &entry.node;
            match entry.key.as_str() {
                "name" => {}
                "accounts" => accounts = names::<AccountName>(node)?,
                "default_account" => user.default_account = Some(Sourced::new(parsed(node)?, origin)),
                "admin_level" => user.admin_level = Some(Sourced::new(admin_level(node.text()?)?, origin)),
                "default_wckey" => user.default_wckey = Some(Sourced::new(node.text()?.to_owned(), origin)),
                "comment" => user.comment = Some(Sourced::new(node.text()?.to_owned(), origin)),
                "wckeys" => {
                    let keys = node.list()?.iter().map(|key| key.text().map(str::to_owned));
                    user.wckeys = Some(Sourced::new(keys.collect::<Result<BTreeSet<_>, _>>()?, origin));
                }
                _ => return Ok(false),
            }
            Ok(true)
        });
        if let Some(first) = self.model.users.get(&name) {
            let message = format!("is already defined at {}; list all accounts in one entry", first.origin);
            self.problem(line, &subject, "", message);
        }
        for (account, line) in accounts {
            let key = AssociationKey { account, user: name.clone(), partition: None };
            let association = Association::new(self.origin(line));
            self.model.associations.entry(key).or_insert(association);
        }
        self.model.users.entry(name).or_insert(user);
    }

    /// A default account must be one that the user is a member of, by the user's entry or by an association.
    fn default_accounts(&mut self) {
        let mut problems = Vec::new();
        for user in self.model.users.values() {
            let Some(Sourced { value: account, origin }) = &user.default_account else { continue };
            let least = AssociationKey { account: account.clone(), user: user.name.clone(), partition: None };
            let nearest = self.model.associations.range(&least..).next();
            if !nearest.is_some_and(|(key, _)| key.account == *account && key.user == user.name) {
                problems.push(Problem {
                    origin: origin.clone(),
                    subject: Subject::User(user.name.clone()),
                    field: "default_account".to_owned(),
                    message: format!("{account} is not among the user's accounts; add it there"),
                });
            }
        }
        self.model.problems.extend(problems);
    }

    fn association(&mut self, line: u32, entries: &[Entry]) {
        let account = self.name::<AccountName>(line, entries, Table::Association, "account");
        let user = self.name::<UserName>(line, entries, Table::Association, "user");
        let (Some(account), Some(user)) = (account, user) else { return };
        let subject = Subject::Member(account.clone(), user.clone());
        let mut key = AssociationKey { account, user, partition: None };
        let mut association = Association::new(self.origin(line));
        self.each(Table::Association, &subject, entries, |entry, origin| {
            match entry.key.as_str() {
                "account" | "user" => {}
                "partition" => key.partition = Some(parsed(&entry.node)?),
                _ => return terms(&mut association.terms, entry, &origin),
            }
            Ok(true)
        });
        let user = key.user.clone();
        let place = self.origin(line);
        // The user's own entry makes a bare association; this one says its terms.
        match self.model.associations.get_mut(&key) {
            Some(bare) if bare.terms == Terms::default() => bare.terms = association.terms,
            Some(first) => {
                let message = format!("is already defined at {}; remove one of the two", first.origin);
                self.problem(line, &subject, "", message);
            }
            None => drop(self.model.associations.insert(key, association)),
        }
        self.model.users.entry(user.clone()).or_insert_with(|| User::new(user, place));
    }

    fn qos(&mut self, line: u32, entries: &[Entry]) {
        let Some(name) = self.name::<QosName>(line, entries, Table::Qos, "name") else { return };
        let subject = Subject::Qos(name.clone());
        let mut qos = Qos::new(name.clone(), self.origin(line));
        self.each(Table::Qos, &subject, entries, |entry, origin| {
            if let Some(setting) = QosSetting::ALL.iter().find(|setting| setting.keys().0 == entry.key) {
                qos.settings.insert(*setting, Sourced::new(setting_text(&entry.node)?, origin));
                return Ok(true);
            }
            match entry.key.as_str() {
                "name" => {}
                "description" => qos.description = Some(Sourced::new(entry.node.text()?.to_owned(), origin)),
                _ => return limit(&mut qos.limits, entry, &origin, false),
            }
            Ok(true)
        });
        if let Some(first) = self.model.qos.get(&name) {
            let message = format!("is already defined at {}; remove one of the two", first.origin);
            return self.problem(line, &subject, "", message);
        }
        self.model.qos.insert(name, qos);
    }
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(node: &Node) -> Result<T, String> {
    node.text()?.parse().map_err(|error: T::Err| error.to_string())
}

fn names<T: FromStr<Err: std::fmt::Display>>(node: &Node) -> Result<Vec<(T, u32)>, String> {
    node.list()?.iter().map(|node| Ok((parsed(node)?, node.line))).collect()
}

/// A setting is any scalar, or a list that Slurm writes with commas.
fn setting_text(node: &Node) -> Result<String, String> {
    match &node.value {
        Value::List(nodes) => Ok(nodes.iter().map(Node::scalar).collect::<Result<Vec<_>, _>>()?.join(",")),
        _ => node.scalar().map(str::to_owned),
    }
}

pub(super) fn admin_level(text: &str) -> Result<AdminLevel, String> {
    match text.to_ascii_lowercase().as_str() {
        "none" | "" => Ok(AdminLevel::None),
        "operator" => Ok(AdminLevel::Operator),
        "administrator" | "admin" => Ok(AdminLevel::Administrator),
        _ => Err(format!("\"{text}\" is no admin level: none, operator or administrator")),
    }
}

pub(super) fn fairshare(text: &str) -> Result<Fairshare, String> {
    match parse_count(text)? {
        // Slurm's SLURMDB_FS_USE_PARENT.
        Limit::Value(2_147_483_647) | Limit::Parent => Ok(Fairshare::Parent),
        Limit::Value(shares) => match u32::try_from(shares) {
            Ok(shares) => Ok(Fairshare::Shares(shares)),
            Err(_) => Err(format!("{shares} shares are too many")),
        },
        // Slurm: -1 puts back the default, one share.
        Limit::Unset => Ok(Fairshare::Shares(1)),
    }
}

/// A list of QoS; entries with a sign change the parent's list.
pub(super) fn qos_selection<'t>(entries: impl Iterator<Item = &'t str>) -> Result<QosSelection, String> {
    let (mut only, mut add, mut remove) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for entry in entries {
        let (set, name) = match (entry.strip_prefix('+'), entry.strip_prefix('-')) {
            (Some(name), _) => (&mut add, name),
            (_, Some(name)) => (&mut remove, name),
            _ => (&mut only, entry),
        };
        set.insert(name.parse::<QosName>().map_err(|error| error.to_string())?);
    }
    match (only.is_empty(), add.is_empty() && remove.is_empty()) {
        (_, true) => Ok(QosSelection::Only(only)),
        (true, false) => Ok(QosSelection::Changed { add, remove }),
        (false, false) => Err("mixes a whole list with changes to the parent's (+name, -name)".to_owned()),
    }
}

fn terms(terms: &mut Terms, entry: &Entry, origin: &Origin) -> Result<bool, String> {
    let node = &entry.node;
    match entry.key.as_str() {
        "fairshare" => terms.fairshare = Some(Sourced::new(fairshare(node.scalar()?)?, origin.clone())),
        "qos" => {
            let names = node.list()?.iter().map(Node::text).collect::<Result<Vec<_>, _>>()?;
            terms.qos = Some(Sourced::new(qos_selection(names.into_iter())?, origin.clone()));
        }
        "default_qos" => terms.default_qos = Some(Sourced::new(parsed(node)?, origin.clone())),
        _ => return limit(&mut terms.limits, entry, origin, true),
    }
    Ok(true)
}

fn limit(
    limits: &mut crate::model::Limits,
    entry: &Entry,
    origin: &Origin,
    association: bool,
) -> Result<bool, String> {
    let stands = |spec: crate::model::LimitSpec| {
        spec.key == entry.key
            && if association { spec.carrier.on_association() } else { spec.carrier.on_qos() }
    };
    if let Some(limit) = CountLimit::ALL.iter().find(|limit| stands(limit.spec())) {
        let value = if limit.is_minutes() {
            parse_minutes(entry.node.scalar()?).map_err(|error| error.to_string())?
        } else {
            entry.node.count()?
        };
        limits.counts.insert(*limit, Sourced::new(value, origin.clone()));
        return Ok(true);
    }
    if let Some(limit) = TresLimit::ALL.iter().find(|limit| stands(limit.spec())) {
        return tres(&entry.node, origin, |amounts, origin| limits.set_tres(*limit, amounts, origin))
            .map(|()| true);
    }
    Ok(false)
}

/// A TRES string, or a table of amounts.
fn tres(node: &Node, origin: &Origin, mut set: impl FnMut(TresLimits, &Origin)) -> Result<(), String> {
    let read = |text: &str| parse_tres(text, MemorySpelling::Spur).map_err(|error| error_chain(&error));
    let Value::Map(entries) = &node.value else {
        set(read(node.text()?)?, origin);
        return Ok(());
    };
    // A whole table is read before any of it is set.
    let mut amounts = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in entries {
        let amount = entry.node.scalar().map_err(|message| format!("{}: {message}", entry.key))?;
        if entry.key.contains([',', '=']) || amount.contains([',', '=']) {
            return Err(format!("\"{}\" is no TRES", entry.key));
        }
        let one = read(&format!("{}={amount}", entry.key))?;
        if !one.keys().all(|tres| seen.insert(tres.clone())) {
            return Err(format!("{} is given twice", entry.key));
        }
        amounts.push((one, origin.clone().at(entry.line)));
    }
    for (amounts, origin) in amounts {
        set(amounts, &origin);
    }
    Ok(())
}
