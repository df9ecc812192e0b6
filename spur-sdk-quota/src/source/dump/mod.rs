//! What `sacctmgr dump` writes.
//!
//! Source: `man sacctmgr`, "FLAT FILE DUMP AND LOAD"; `src/sacctmgr/file_functions.c`.

mod keys;
mod lines;

use std::sync::Arc;

use spur_sdk::{
    AccountName, MemorySpelling, PartitionName, QosName, Tres, TresLimits, UserName, error_chain,
    parse_minutes, parse_tres,
};

use self::keys::{Key, Target, association_keys, find, qos_keys};
use self::lines::{Entry, Line, Operator, Pair};
use super::accounts::{admin_level, fairshare, qos_selection};
use super::fields::unknown_key;
use super::node::parse_count;
use crate::model::{
    Account, Association, AssociationKey, Limits, Model, Origin, Problem, Qos, QosSelection, Sourced,
    Subject, Terms, User,
};

/// Whether a line is one that a dump has.
pub(super) fn is_dump_line(line: &str) -> bool {
    let Some((kind, _)) = line.split_once('-') else { return false };
    let kind = kind.trim().to_ascii_lowercase();
    ["qos", "cluster", "machine", "parent", "account", "project", "user"].contains(&kind.as_str())
}

/// The keys of a dump: the key, where it stands, what it is read as or why it is not. Sorted as Slurm looks
/// them up; for the reference.
#[must_use]
pub fn dump_keys() -> Vec<(&'static str, &'static str, String)> {
    let row = |place: Option<&'static str>| {
        move |key: Key| {
            let place = place.unwrap_or(match key.target {
                Target::AdminLevel
                | Target::Comment
                | Target::Coordinator
                | Target::DefaultAccount
                | Target::DefaultWckey
                | Target::Partition
                | Target::Wckeys => "user",
                Target::Description | Target::Organization => "account",
                _ => "cluster, account, user",
            });
            let read = match key.target {
                Target::Count(limit) => format!("`{}`", limit.spec().key),
                Target::Tres(limit) => format!("`{}`", limit.spec().key),
                Target::OneTres(limit, tres) => format!("`{}`, {tres} (older key)", limit.spec().key),
                Target::Setting(setting) => format!("`{}`", setting.keys().0),
                Target::Fairshare => "`fairshare`".to_owned(),
                Target::QosList => "`qos`, with `+=` and `-=`".to_owned(),
                Target::DefaultQos => "`default_qos`".to_owned(),
                Target::Description => "`description`".to_owned(),
                Target::Organization => "`organization`".to_owned(),
                Target::Partition => "`partition` of the association".to_owned(),
                Target::DefaultAccount => "`default_account`".to_owned(),
                Target::DefaultWckey => "`default_wckey`".to_owned(),
                Target::AdminLevel => "`admin_level`".to_owned(),
                Target::Coordinator => "`coordinators` of the accounts named".to_owned(),
                Target::Wckeys => "`wckeys`".to_owned(),
                Target::Comment => "`comment`".to_owned(),
                Target::Ignored(reason) => format!("ignored: {reason}"),
            };
            (key.name, place, read)
        }
    };
    let association = association_keys().into_iter().map(row(None));
    association.chain(qos_keys().into_iter().map(row(Some("QOS")))).collect()
}

pub(super) fn read(text: &str, file: &Arc<str>) -> Model {
    let mut reader = Reader {
        file,
        model: Model::default(),
        parent: None,
        association: association_keys(),
        qos: qos_keys(),
        cluster_seen: false,
        coordinates: Vec::new(),
    };
    for line in lines::lines(text) {
        reader.line(&line);
    }
    reader.finish()
}

struct Reader<'a> {
    file: &'a Arc<str>,
    model: Model,
    /// The account that the last `Parent` line named; `None` is root.
    parent: Option<AccountName>,
    association: Vec<Key>,
    qos: Vec<Key>,
    cluster_seen: bool,
    /// Accounts that users coordinate; known whole only at the end.
    coordinates: Vec<(AccountName, UserName, Origin)>,
}

/// What a pair changes.
struct Object<'a> {
    terms: &'a mut Terms,
    account: Option<&'a mut Account>,
    user: Option<(&'a mut User, &'a mut AssociationKey)>,
    coordinates: &'a mut Vec<(AccountName, UserName, Origin)>,
}

impl Reader<'_> {
    fn problem(&mut self, line: &Line, subject: &Subject, field: &str, message: impl Into<String>) {
        let origin = Origin::line(self.file, line.number);
        self.model.problems.push(Problem {
            origin,
            subject: subject.clone(),
            field: field.to_owned(),
            message: message.into(),
        });
    }

    fn line(&mut self, line: &Line) {
        // Four letters tell a key from the type of a GRES.
        let is_key = |key: &str| {
            key.len() >= 4 && [&self.association, &self.qos].iter().any(|keys| find(keys, key).is_some())
        };
        let entry = match lines::entry(&line.text, is_key) {
            Ok(entry) => entry,
            // What the line is about is unknown: it may be a parent that the next accounts belong under.
            Err(message) => return self.problem(line, &Subject::Source, "", message),
        };
        match entry.kind.as_str() {
            "cluster" | "machine" => self.cluster(line, entry),
            "parent" => self.parent(line, &entry),
            "account" | "project" => self.account(line, entry),
            "user" => self.user(line, entry),
            "qos" => self.qos(line, entry),
            kind => {
                let kinds = "QOS, Cluster, Parent, Account or User";
                self.problem(line, &Subject::Source, "", format!("\"{kind}\" is no kind of line: {kinds}"));
            }
        }
    }

    /// A line that the file ends in the middle of may lack a limit, and must not become "no limit".
    fn cut(&mut self, line: &Line, subject: &Subject) {
        if line.unterminated {
            let message =
                "the file ends without an end of line here and may be cut; dump it anew, or end the line";
            self.problem(line, subject, "", message);
        }
    }

    fn cluster(&mut self, line: &Line, entry: Entry) {
        let subject = Subject::Source;
        if self.cluster_seen {
            return self.problem(line, &subject, "", "a second cluster; one file holds one");
        }
        self.cluster_seen = true;
        self.cut(line, &subject);
        let origin = Origin::line(self.file, line.number);
        let mut terms = Terms::default();
        match entry.name.parse() {
            Ok(name) => self.model.cluster.name = Some(Sourced::new(name, origin.clone())),
            Err(error) => self.problem(line, &subject, "name", error.to_string()),
        }
        let mut target =
            Object { terms: &mut terms, account: None, user: None, coordinates: &mut Vec::new() };
        let problems = self.pairs(entry.pairs, &mut target, &origin);
        self.tell(line, &subject, problems);
        self.model.cluster.terms = terms;
    }

    fn parent(&mut self, line: &Line, entry: &Entry) {
        self.cut(line, &Subject::Source);
        match entry.name.to_ascii_lowercase().parse::<AccountName>() {
            Ok(name) => self.parent = Some(name).filter(|name| !Model::is_root(name)),
            Err(error) => self.problem(line, &Subject::Source, "Parent", error.to_string()),
        }
    }

    fn account(&mut self, line: &Line, entry: Entry) {
        let name = match entry.name.to_ascii_lowercase().parse::<AccountName>() {
            Ok(name) => name,
            Err(error) => return self.problem(line, &Subject::Source, "Account", error.to_string()),
        };
        let subject = Subject::Account(name.clone());
        self.cut(line, &subject);
        let origin = Origin::line(self.file, line.number);
        let mut account = Account::new(name.clone(), origin.clone());
        account.parent = self.parent.clone().map(|parent| Sourced::new(parent, origin.clone()));
        let mut terms = Terms::default();
        let mut target = Object {
            terms: &mut terms,
            account: Some(&mut account),
            user: None,
            coordinates: &mut Vec::new(),
        };
        let problems = self.pairs(entry.pairs, &mut target, &origin);
        self.tell(line, &subject, problems);
        account.terms = terms;
        if let Some(first) = self.model.accounts.get(&name) {
            let message = format!("is already defined at {}; remove one of the two", first.origin);
            return self.problem(line, &subject, "", message);
        }
        self.model.accounts.insert(name, account);
    }

    fn user(&mut self, line: &Line, entry: Entry) {
        let account = match &self.parent {
            Some(parent) => Ok(parent.clone()),
            None => crate::model::ROOT.parse(),
        };
        // Case is kept: with PreserveCaseUser two users may differ in it alone.
        let (name, account) = match (entry.name.parse::<UserName>(), account) {
            (Ok(name), Ok(account)) => (name, account),
            (Err(error), _) | (_, Err(error)) => {
                // Whose membership it is cannot be said, so the account's members are not known.
                let subject = self.parent.clone().map_or(Subject::Source, Subject::Account);
                return self.problem(line, &subject, "User", error.to_string());
            }
        };
        let subject = Subject::Member(account.clone(), name.clone());
        self.cut(line, &subject);
        let origin = Origin::line(self.file, line.number);
        let mut user =
            self.model.users.remove(&name).unwrap_or_else(|| User::new(name.clone(), origin.clone()));
        let mut key = AssociationKey { account, user: name.clone(), partition: None };
        let mut terms = Terms::default();
        let mut coordinates = std::mem::take(&mut self.coordinates);
        let mut target = Object {
            terms: &mut terms,
            account: None,
            user: Some((&mut user, &mut key)),
            coordinates: &mut coordinates,
        };
        let problems = self.pairs(entry.pairs, &mut target, &origin);
        self.coordinates = coordinates;
        self.tell(line, &subject, problems);
        self.model.users.insert(name, user);
        let mut association = Association::new(origin);
        association.terms = terms;
        match self.model.associations.get(&key) {
            Some(first) if !first.terms.says_as(&association.terms) => {
                let message =
                    format!("is already defined otherwise at {}; remove one of the two", first.origin);
                self.problem(line, &subject, "", message);
            }
            Some(_) => {}
            None => drop(self.model.associations.insert(key, association)),
        }
    }

    fn qos(&mut self, line: &Line, entry: Entry) {
        let name = match entry.name.to_ascii_lowercase().parse::<QosName>() {
            Ok(name) => name,
            Err(error) => return self.problem(line, &Subject::Source, "QOS", error.to_string()),
        };
        let subject = Subject::Qos(name.clone());
        self.cut(line, &subject);
        let origin = Origin::line(self.file, line.number);
        let mut qos = Qos::new(name.clone(), origin.clone());
        let mut problems = Vec::new();
        for pair in entry.pairs {
            let result = pair.map_err(|message| (String::new(), message)).and_then(|pair| {
                let key = find(&self.qos, &pair.key);
                set_qos(&mut qos, key, &pair, &origin, &self.qos).map_err(|message| (pair.key, message))
            });
            problems.extend(result.err());
        }
        self.tell(line, &subject, problems);
        self.model.qos.insert(name, qos);
    }

    fn tell(&mut self, line: &Line, subject: &Subject, problems: Vec<(String, String)>) {
        for (field, message) in problems {
            self.problem(line, subject, &field, message);
        }
    }

    fn pairs(
        &self,
        pairs: Vec<Result<Pair, String>>,
        target: &mut Object<'_>,
        origin: &Origin,
    ) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        for pair in pairs {
            let result = pair.map_err(|message| (String::new(), message)).and_then(|pair| {
                let key = find(&self.association, &pair.key);
                set(target, key, &pair, origin, &self.association).map_err(|message| (pair.key, message))
            });
            problems.extend(result.err());
        }
        problems
    }

    fn finish(mut self) -> Model {
        for (account, user, origin) in std::mem::take(&mut self.coordinates) {
            // A dump has no line for root, whom a user may coordinate all the same.
            if Model::is_root(&account) {
                let root = || Account::new(account.clone(), origin.clone());
                self.model.accounts.entry(account.clone()).or_insert_with(root);
            }
            match self.model.accounts.get_mut(&account) {
                Some(account) => drop(account.coordinators.insert(user, origin)),
                None => self.model.problems.push(Problem {
                    origin,
                    subject: Subject::User(user),
                    field: "Coordinator".to_owned(),
                    message: format!("there is no account {account}"),
                }),
            }
        }
        self.model
    }
}

fn unknown(keys: &[Key], written: &str) -> String {
    // Suggestions compare in lower case; the answer is given in Slurm's spelling.
    let lower: Vec<String> = keys.iter().map(|key| key.name.to_ascii_lowercase()).collect();
    let message = unknown_key(&written.to_ascii_lowercase(), lower.iter().map(String::as_str));
    let spelled = message.rsplit_once("did you mean ").and_then(|(_, rest)| {
        let close = rest.trim_end_matches('?');
        keys.iter().find(|key| key.name.eq_ignore_ascii_case(close))
    });
    match spelled {
        Some(key) => format!("is no key of a dump; did you mean {}?", key.name),
        None => "is no key of a dump; the reference lists all that are read".to_owned(),
    }
}

fn set_limit(limits: &mut Limits, target: &Target, value: &str, origin: &Origin) -> Result<bool, String> {
    let spelling = MemorySpelling::Slurm;
    match target {
        Target::Count(limit) => {
            let value = if limit.is_minutes() {
                parse_minutes(value).map_err(|error| error.to_string())?
            } else {
                parse_count(value)?
            };
            limits.counts.insert(*limit, Sourced::new(value, origin.clone()));
        }
        Target::Tres(limit) => {
            let amounts = parse_tres(value, spelling).map_err(|error| error_chain(&error))?;
            limits.set_tres(*limit, amounts, origin);
        }
        Target::OneTres(limit, tres) => {
            let amounts = one_tres(tres, value)?;
            limits.set_tres(*limit, amounts, origin);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn one_tres(tres: &Tres, value: &str) -> Result<TresLimits, String> {
    if value.contains(',') {
        return Err(format!("\"{value}\" is no amount"));
    }
    parse_tres(&format!("{tres}={value}"), MemorySpelling::Slurm).map_err(|error| error_chain(&error))
}

fn set_qos(
    qos: &mut Qos,
    key: Option<&Key>,
    pair: &Pair,
    origin: &Origin,
    keys: &[Key],
) -> Result<(), String> {
    let key = key.ok_or_else(|| unknown(keys, &pair.key))?;
    if pair.value.is_empty() {
        return Ok(());
    }
    if set_limit(&mut qos.limits, &key.target, &pair.value, origin)? {
        return Ok(());
    }
    match &key.target {
        Target::Setting(setting) => {
            qos.settings.insert(*setting, Sourced::new(pair.value.clone(), origin.clone()));
        }
        Target::Description => qos.description = Some(Sourced::new(pair.value.clone(), origin.clone())),
        _ => {}
    }
    Ok(())
}

fn set(
    target: &mut Object<'_>,
    key: Option<&Key>,
    pair: &Pair,
    origin: &Origin,
    keys: &[Key],
) -> Result<(), String> {
    let key = key.ok_or_else(|| unknown(keys, &pair.key))?;
    let value = pair.value.as_str();
    // Slurm takes a key without a value as one that is not given.
    if value.is_empty() {
        return Ok(());
    }
    if pair.operator != Operator::Set && key.target != Target::QosList {
        return Err("only QOS takes += and -=".to_owned());
    }
    if set_limit(&mut target.terms.limits, &key.target, value, origin)? {
        return Ok(());
    }
    let text = || Sourced::new(value.to_owned(), origin.clone());
    let list = || value.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    match (&key.target, &mut target.account, &mut target.user) {
        (Target::Fairshare, ..) => {
            target.terms.fairshare = Some(Sourced::new(fairshare(value)?, origin.clone()));
        }
        (Target::QosList, ..) => {
            let lower = value.to_ascii_lowercase();
            let entries = lower.split(',').map(str::trim).filter(|entry| !entry.is_empty());
            let signed: Vec<String> = match pair.operator {
                Operator::Set => entries.map(str::to_owned).collect(),
                Operator::Add => entries.map(|name| format!("+{name}")).collect(),
                Operator::Remove => entries.map(|name| format!("-{name}")).collect(),
            };
            let selection = qos_selection(signed.iter().map(String::as_str))?;
            let merged = merge_selection(target.terms.qos.take(), selection);
            target.terms.qos = Some(Sourced::new(merged, origin.clone()));
        }
        (Target::DefaultQos, ..) => {
            let name =
                value.to_ascii_lowercase().parse().map_err(|error: spur_sdk::NameError| error.to_string())?;
            target.terms.default_qos = Some(Sourced::new(name, origin.clone()));
        }
        (Target::Description, Some(account), _) => account.description = Some(text()),
        (Target::Organization, Some(account), _) => account.organization = Some(text()),
        (Target::Partition, _, Some((_, key))) => {
            let name: PartitionName =
                value.parse().map_err(|error: spur_sdk::NameError| error.to_string())?;
            key.partition = Some(name);
        }
        (Target::DefaultAccount, _, Some((user, _))) => {
            let name =
                value.to_ascii_lowercase().parse().map_err(|error: spur_sdk::NameError| error.to_string())?;
            user.default_account.get_or_insert(Sourced::new(name, origin.clone()));
        }
        (Target::AdminLevel, _, Some((user, _))) => {
            user.admin_level = Some(Sourced::new(admin_level(value)?, origin.clone()));
        }
        (Target::Coordinator, _, Some((user, _))) => {
            for account in list() {
                let account = account
                    .to_ascii_lowercase()
                    .parse()
                    .map_err(|error: spur_sdk::NameError| error.to_string())?;
                target.coordinates.push((account, user.name.clone(), origin.clone()));
            }
        }
        (Target::DefaultWckey, _, Some((user, _))) => user.default_wckey = Some(text()),
        (Target::Comment, _, Some((user, _))) => user.comment = Some(text()),
        (Target::Wckeys, _, Some((user, _))) => {
            user.wckeys = Some(Sourced::new(list().map(str::to_owned).collect(), origin.clone()));
        }
        (Target::Ignored(_), ..) => {}
        _ => return Err("does not belong on a line of this kind".to_owned()),
    }
    Ok(())
}

/// `QOS=a:QOS+=b` on one line, and `QOS+=a:QOS-=b`.
fn merge_selection(before: Option<Sourced<QosSelection>>, next: QosSelection) -> QosSelection {
    match (before.map(|before| before.value), next) {
        (None, next) | (_, next @ QosSelection::Only(_)) => next,
        (Some(QosSelection::Only(mut names)), QosSelection::Changed { add, remove }) => {
            names.extend(add);
            names.retain(|name| !remove.contains(name));
            QosSelection::Only(names)
        }
        (Some(QosSelection::Changed { add: a, remove: r }), QosSelection::Changed { add, remove }) => {
            QosSelection::Changed {
                add: a.into_iter().chain(add).collect(),
                remove: r.into_iter().chain(remove).collect(),
            }
        }
    }
}
