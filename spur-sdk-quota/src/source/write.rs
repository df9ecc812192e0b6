//! A model written back: as our own file, or as what `sacctmgr load` takes.

use std::collections::{BTreeMap, BTreeSet};

use spur_sdk::{AccountName, Limit, MemorySpelling, QosName, Tres, TresLimits, UserName, format_tres};

use super::fields::Table;
use crate::model::{
    Account, AdminLevel, Association, AssociationKey, CountLimit, Fairshare, Limits, Model, Qos,
    QosSelection, ROOT, Sourced, Subject, Terms, Tree, TresLimit, User,
};

/// What of a model can be written: a limit that could not be read must not be written as none.
struct Sound<'m> {
    tree: Tree<'m>,
    model: &'m Model,
    /// QoS with a problem.
    unread_qos: BTreeSet<&'m QosName>,
}

impl<'m> Sound<'m> {
    fn of(model: &'m Model) -> Self {
        let unread_qos = model.problems.iter().filter_map(|problem| match &problem.subject {
            Subject::Qos(name) => Some(name),
            _ => None,
        });
        Self { tree: Tree::of(model), model, unread_qos: unread_qos.collect() }
    }

    fn accounts(&self) -> impl Iterator<Item = &'m Account> {
        self.model.accounts.values().filter(|account| self.tree.stopped(&account.name).is_none())
    }

    fn qos(&self) -> impl Iterator<Item = &'m Qos> {
        let sound = self.tree.whole().is_none();
        self.model.qos.values().filter(move |qos| sound && !self.unread_qos.contains(&qos.name))
    }

    fn users(&self) -> impl Iterator<Item = &'m User> {
        let sound = self.tree.whole().is_none();
        self.model.users.values().filter(move |user| sound && !self.tree.is_unread_everywhere(&user.name))
    }

    fn associations(&self) -> impl Iterator<Item = (&'m AssociationKey, &'m Association)> {
        self.model.associations.iter().filter(|(key, _)| {
            let known = self.model.accounts.contains_key(&key.account) || Model::is_root(&key.account);
            known
                && self.tree.stopped(&key.account).is_none()
                && !self.tree.is_unread(&key.account, &key.user)
        })
    }
}

/// Writes a model as our own file, TOML. Reading it back gives an equal model but for the places.
///
/// What a problem stops is left out: without the part that could not be read it would say something else.
#[must_use]
pub fn to_accounts_toml(model: &Model) -> String {
    let mut text = String::new();
    let sound = Sound::of(model);
    if sound.tree.whole().is_some() {
        return text;
    }
    let mut cluster = Entry::default();
    if let Some(name) = &model.cluster.name {
        cluster.text("name", name.value.as_str());
    }
    cluster.terms(&model.cluster.terms);
    if !cluster.0.is_empty() {
        cluster.write(&mut text, "[cluster]");
    }
    for account in sound.accounts() {
        let mut entry = Entry::default();
        entry.text("name", account.name.as_str());
        entry.optional("parent", account.parent.as_ref().map(|p| p.value.as_str()));
        entry.optional("description", account.description.as_ref().map(|d| d.value.as_str()));
        entry.optional("organization", account.organization.as_ref().map(|o| o.value.as_str()));
        if !account.coordinators.is_empty() {
            entry.list("coordinators", account.coordinators.keys().map(UserName::as_str));
        }
        entry.terms(&account.terms);
        entry.write(&mut text, &heading(Table::Account));
    }
    let mut accounts: BTreeMap<&UserName, Vec<&str>> = BTreeMap::new();
    for (key, _) in sound.associations().filter(|(key, _)| key.partition.is_none()) {
        accounts.entry(&key.user).or_default().push(key.account.as_str());
    }
    for user in sound.users() {
        let mut entry = Entry::default();
        entry.text("name", user.name.as_str());
        if let Some(accounts) = accounts.get(&user.name) {
            entry.list("accounts", accounts.iter().copied());
        }
        entry.optional("default_account", user.default_account.as_ref().map(|a| a.value.as_str()));
        if let Some(level) = &user.admin_level {
            entry.text("admin_level", &level.value.to_string());
        }
        entry.optional("default_wckey", user.default_wckey.as_ref().map(|w| w.value.as_str()));
        if let Some(keys) = &user.wckeys {
            entry.list("wckeys", keys.value.iter().map(String::as_str));
        }
        entry.optional("comment", user.comment.as_ref().map(|c| c.value.as_str()));
        entry.write(&mut text, &heading(Table::User));
    }
    for (key, association) in sound.associations() {
        // The user's own entry already says a bare membership.
        if key.partition.is_none() && association.terms == Terms::default() {
            continue;
        }
        let mut entry = Entry::default();
        entry.text("account", key.account.as_str());
        entry.text("user", key.user.as_str());
        entry.optional("partition", key.partition.as_ref().map(spur_sdk::PartitionName::as_str));
        entry.terms(&association.terms);
        entry.write(&mut text, &heading(Table::Association));
    }
    for qos in sound.qos() {
        let mut entry = Entry::default();
        entry.text("name", qos.name.as_str());
        entry.optional("description", qos.description.as_ref().map(|d| d.value.as_str()));
        entry.limits(&qos.limits);
        for (setting, value) in &qos.settings {
            entry.text(setting.keys().0, &value.value);
        }
        entry.write(&mut text, &heading(Table::Qos));
    }
    text
}

fn heading(table: Table) -> String {
    format!("[[{}]]", table.key())
}

/// A table's lines.
#[derive(Default)]
struct Entry(Vec<String>);

/// A TOML basic string. JSON's escapes are all TOML's too; only DEL is raw in JSON and not allowed in TOML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

impl Entry {
    fn text(&mut self, key: &str, value: &str) {
        self.0.push(format!("{key} = {}", quoted(value)));
    }

    fn optional(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(key, value);
        }
    }

    fn list<'t>(&mut self, key: &str, values: impl Iterator<Item = &'t str>) {
        let values: Vec<_> = values.map(quoted).collect();
        self.0.push(format!("{key} = [{}]", values.join(", ")));
    }

    fn terms(&mut self, terms: &Terms) {
        match terms.fairshare.as_ref().map(|share| share.value) {
            Some(Fairshare::Shares(shares)) => self.0.push(format!("fairshare = {shares}")),
            Some(Fairshare::Parent) => self.text("fairshare", "parent"),
            None => {}
        }
        if let Some(selection) = &terms.qos {
            self.list("qos", selected(&selection.value).iter().map(String::as_str));
        }
        self.optional("default_qos", terms.default_qos.as_ref().map(|q| q.value.as_str()));
        self.limits(&terms.limits);
    }

    fn limits(&mut self, limits: &Limits) {
        for (limit, value) in &limits.counts {
            match value.value {
                Limit::Value(count) => self.0.push(format!("{} = {count}", limit.spec().key)),
                Limit::Unset => self.0.push(format!("{} = -1", limit.spec().key)),
                Limit::Parent => self.text(limit.spec().key, "parent"),
            }
        }
        for (limit, amounts) in &limits.tres {
            let amounts = plain(amounts);
            if !amounts.is_empty() {
                self.text(limit.spec().key, &format_tres(&amounts, MemorySpelling::Spur));
            }
        }
    }

    fn write(self, text: &mut String, heading: &str) {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(heading);
        text.push('\n');
        for line in self.0 {
            text.push_str(&line);
            text.push('\n');
        }
    }
}

fn plain(amounts: &BTreeMap<Tres, Sourced<Limit<u64>>>) -> TresLimits {
    amounts.iter().map(|(tres, limit)| (tres.clone(), limit.value)).collect()
}

fn selected(selection: &QosSelection) -> Vec<String> {
    match selection {
        QosSelection::Only(names) => names.iter().map(ToString::to_string).collect(),
        QosSelection::Changed { add, remove } => {
            let add = add.iter().map(|name| format!("+{name}"));
            add.chain(remove.iter().map(|name| format!("-{name}"))).collect()
        }
    }
}

/// Writes a model as a file that `sacctmgr load` takes, and says what that file cannot hold.
///
/// QoS definitions are left out: they are lines that Slurm knows from 25.05 on, and older releases refuse the
/// whole file; the QoS must exist before the load. CPUs are rounded down to whole ones, memory to MiB. What a
/// problem stops is left out: without the part that could not be read it would say something else.
#[must_use]
pub fn to_dump(model: &Model) -> (String, Vec<String>) {
    let sound = Sound::of(model);
    let mut dump = Dump {
        model,
        text: String::new(),
        notes: Vec::new(),
        children: BTreeMap::new(),
        members: BTreeMap::new(),
        coordinated: BTreeMap::new(),
        introduced: BTreeSet::new(),
    };
    if let Some(problem) = sound.tree.whole() {
        dump.notes.push(format!("nothing is written: {problem}"));
        return (dump.text, dump.notes);
    }
    for account in sound.accounts() {
        for user in account.coordinators.keys() {
            dump.coordinated.entry(user).or_default().push(&account.name);
        }
        if !Model::is_root(&account.name) {
            let parent = account.parent.as_ref().map_or(ROOT, |parent| parent.value.as_str());
            dump.children.entry(parent).or_default().push(account);
        }
    }
    for (key, association) in sound.associations() {
        dump.members.entry(key.account.as_str()).or_default().push((key, association));
    }
    dump.write();
    dump.left_out(&sound);
    dump.lower_case(&sound);
    (dump.text, dump.notes)
}

type Member<'m> = (&'m AssociationKey, &'m Association);

struct Dump<'m> {
    model: &'m Model,
    text: String,
    notes: Vec<String>,
    children: BTreeMap<&'m str, Vec<&'m Account>>,
    members: BTreeMap<&'m str, Vec<Member<'m>>>,
    /// Accounts by their coordinators.
    coordinated: BTreeMap<&'m UserName, Vec<&'m AccountName>>,
    /// Users whose own keys have been written.
    introduced: BTreeSet<&'m UserName>,
}

/// A text without quotes and line breaks.
fn as_slurm_keeps(text: &str) -> String {
    let kept = text.chars().map(|c| match c {
        '\'' | '"' => '`',
        '\n' | '\r' => ' ',
        c => c,
    });
    kept.collect()
}

/// Adds what `more` says; of two limits the smaller holds.
fn tighten(terms: &mut Terms, more: &Terms) {
    fn smaller<K: Ord + Clone>(
        own: &mut BTreeMap<K, Sourced<Limit<u64>>>,
        more: &BTreeMap<K, Sourced<Limit<u64>>>,
    ) {
        for (key, value) in more {
            let wins = own.get(key).is_none_or(|own| match (own.value, value.value) {
                (Limit::Value(own), Limit::Value(more)) => more < own,
                (own, _) => own.value().is_none(),
            });
            if wins {
                own.insert(key.clone(), value.clone());
            }
        }
    }
    terms.fairshare = terms.fairshare.take().or_else(|| more.fairshare.clone());
    terms.qos = terms.qos.take().or_else(|| more.qos.clone());
    terms.default_qos = terms.default_qos.take().or_else(|| more.default_qos.clone());
    smaller(&mut terms.limits.counts, &more.limits.counts);
    for (limit, amounts) in &more.limits.tres {
        smaller(terms.limits.tres.entry(*limit).or_default(), amounts);
    }
}

/// The longest line that Slurm reads, in bytes (`BUFFER_SIZE` in `src/sacctmgr/sacctmgr.h`).
const MAX_LINE: usize = 4096;

impl<'m> Dump<'m> {
    fn write(&mut self) {
        if !self.model.qos.is_empty() {
            let names: Vec<_> = self.model.qos.keys().map(ToString::to_string).collect();
            self.notes.push(format!(
                "QoS are left out, create them first: {} (Slurm before 25.05 refuses a file with QOS lines)",
                names.join(", ")
            ));
        }
        let name = self.model.cluster.name.as_ref().map_or("cluster", |name| name.value.as_str());
        // In Slurm the cluster line is root's association, so what root has belongs there.
        let mut terms = self.model.cluster.terms.clone();
        if let Some(root) = self.model.accounts.get(ROOT) {
            if !terms.limits.is_empty() && !root.terms.limits.is_empty() {
                self.notes.push(
                    "limits of the cluster and of account root stand on one line: of two the smaller is written, and \
                     beside a count without a type those by type are its breakdown"
                        .to_owned(),
                );
            }
            tighten(&mut terms, &root.terms);
        }
        let cluster = format!("Cluster - {}", self.quote(name, "cluster"));
        let pairs = self.terms("cluster", &terms);
        self.line(cluster, pairs);
        self.line("Parent - 'root'".to_owned(), Vec::new());
        self.users(ROOT);
        // A stack instead of recursion: a tree may be as deep as it has accounts.
        let mut open = vec![ROOT];
        let mut first = true;
        while let Some(parent) = open.pop() {
            let children = self.children.get(parent).cloned().unwrap_or_default();
            if !std::mem::take(&mut first) {
                if children.is_empty() && !self.members.contains_key(parent) {
                    continue;
                }
                let quoted = self.quote(parent, parent);
                self.line(format!("Parent - {quoted}"), Vec::new());
                self.users(parent);
            }
            for child in &children {
                self.account(child);
            }
            open.extend(children.iter().rev().map(|child| child.name.as_str()));
        }
    }

    fn account(&mut self, account: &Account) {
        let holder = format!("account {}", account.name);
        let mut pairs = Vec::new();
        for (key, value) in [("Description", &account.description), ("Organization", &account.organization)] {
            if let Some(value) = value.as_ref().filter(|value| !value.value.is_empty()) {
                pairs.push(format!("{key}={}", self.quote(&value.value, &holder)));
            }
        }
        pairs.extend(self.terms(&holder, &account.terms));
        let name = self.quote(account.name.as_str(), &holder);
        self.line(format!("Account - {name}"), pairs);
    }

    fn users(&mut self, account: &str) {
        for (key, association) in self.members.get(account).cloned().unwrap_or_default() {
            let holder = key.to_string();
            let mut pairs = Vec::new();
            if let Some(partition) = &key.partition {
                pairs.push(format!("Partition={}", self.quote(partition.as_str(), &holder)));
            }
            if let Some(user) = self.model.users.get(&key.user) {
                // On each line, as Slurm's own dump has it: its loader takes no account where the user is not yet.
                if let Some(account) = &user.default_account {
                    pairs.push(format!("DefaultAccount={}", self.quote(account.value.as_str(), &holder)));
                }
                if self.introduced.insert(&user.name) {
                    pairs.extend(self.user(user, &holder));
                }
            }
            pairs.extend(self.terms(&holder, &association.terms));
            let name = self.quote(key.user.as_str(), &holder);
            self.line(format!("User - {name}"), pairs);
        }
    }

    fn user(&mut self, user: &'m User, holder: &str) -> Vec<String> {
        let mut pairs = Vec::new();
        if let Some(key) = &user.default_wckey {
            pairs.push(format!("DefaultWCKey={}", self.quote(&key.value, holder)));
        }
        match user.admin_level.as_ref().map(|level| level.value) {
            Some(AdminLevel::Operator) => pairs.push("AdminLevel='Operator'".to_owned()),
            Some(AdminLevel::Administrator) => pairs.push("AdminLevel='Administrator'".to_owned()),
            Some(AdminLevel::None) | None => {}
        }
        let accounts = self.coordinated.get(&user.name).cloned().unwrap_or_default();
        pairs.extend(self.list("Coordinator=", accounts.iter().map(|account| account.as_str()), holder));
        if let Some(keys) = &user.wckeys {
            pairs.extend(self.list("WCKeys=", keys.value.iter().map(String::as_str), holder));
        }
        if user.comment.is_some() {
            self.notes.push(format!("{holder}: the comment is left out, sacctmgr load takes none"));
        }
        pairs
    }

    fn terms(&mut self, holder: &str, terms: &Terms) -> Vec<String> {
        let mut pairs = Vec::new();
        if let Some(name) = &terms.default_qos {
            pairs.push(format!("DefaultQOS={}", self.quote(name.value.as_str(), holder)));
        }
        match terms.fairshare.as_ref().map(|share| share.value) {
            Some(Fairshare::Shares(shares)) => pairs.push(format!("Fairshare={shares}")),
            Some(Fairshare::Parent) => pairs.push("Fairshare=parent".to_owned()),
            None => {}
        }
        for (limit, amounts) in &terms.limits.tres {
            pairs.extend(self.tres(holder, *limit, amounts));
        }
        for (limit, value) in &terms.limits.counts {
            if let Limit::Value(count) = value.value {
                pairs.push(format!("{}={count}", limit.spec().slurm));
            }
            if *limit == CountLimit::MinPrioThreshold {
                self.notes
                    .push(format!("{holder}: Slurm 22.05 takes MinPrioThresh and does not dump it again"));
            }
        }
        match terms.qos.as_ref().map(|qos| &qos.value) {
            Some(QosSelection::Only(names)) => {
                pairs.extend(self.list("QOS=", names.iter().map(QosName::as_str), holder));
            }
            Some(QosSelection::Changed { add, remove }) => {
                pairs.extend(self.list("QOS+=", add.iter().map(QosName::as_str), holder));
                pairs.extend(self.list("QOS-=", remove.iter().map(QosName::as_str), holder));
            }
            None => {}
        }
        pairs
    }

    fn tres(
        &mut self,
        holder: &str,
        limit: TresLimit,
        amounts: &BTreeMap<Tres, Sourced<Limit<u64>>>,
    ) -> Option<String> {
        let set: TresLimits =
            plain(amounts).into_iter().filter(|(_, limit)| limit.value().is_some()).collect();
        if set.is_empty() {
            return None;
        }
        let written = format_tres(&set, MemorySpelling::Slurm);
        let mut rounded = set;
        if let Ok(kept) = spur_sdk::parse_tres(&written, MemorySpelling::Slurm) {
            rounded.retain(|tres, limit| kept.get(tres) != Some(limit));
        }
        if !rounded.is_empty() {
            let spelled = |spelling| format_tres(&rounded, spelling);
            let (exact, down) = (spelled(MemorySpelling::Spur), spelled(MemorySpelling::Slurm));
            self.notes.push(format!("{holder}: {} = {exact} is rounded down to {down}", limit.spec().key));
        }
        // Quoted, since the colon of a typed GRES would end the value.
        Some(format!("{}='{written}'", limit.spec().slurm))
    }

    /// A key with a list of names; `None` without any. Slurm has no way to write a comma in a name.
    fn list<'t>(&mut self, key: &str, names: impl Iterator<Item = &'t str>, holder: &str) -> Option<String> {
        let (plain, others): (Vec<_>, Vec<_>) = names.partition(|name| !name.contains(','));
        for name in others {
            let key = key.trim_end_matches('=');
            self.notes.push(format!("{holder}: {key} lacks \"{name}\", since a list cannot hold its comma"));
        }
        (!plain.is_empty()).then(|| format!("{key}{}", self.quote(&plain.join(","), holder)))
    }

    /// Says what has no place in the file.
    fn left_out(&mut self, sound: &Sound<'_>) {
        for problem in sound.tree.problems() {
            if let Subject::Account(_) | Subject::Member(..) | Subject::User(_) = problem.subject {
                self.notes.push(format!("{} is left out: {problem}", problem.subject));
            }
        }
        for user in sound.users().filter(|user| !self.introduced.contains(&user.name)) {
            self.notes.push(format!("user {} is left out, as a member of no account", user.name));
        }
        for account in sound.accounts() {
            for user in account.coordinators.keys().filter(|user| !self.introduced.contains(*user)) {
                self.notes.push(format!(
                    "account {}: coordinator {user} is left out, as a member of no account",
                    account.name
                ));
            }
        }
    }

    /// Says what `sacctmgr load` turns to lower case.
    fn lower_case(&mut self, sound: &Sound<'_>) {
        let upper = |text: &str| text.bytes().any(|b| b.is_ascii_uppercase());
        let mut seen: BTreeMap<String, &AccountName> = BTreeMap::new();
        for account in sound.accounts() {
            let kept = as_slurm_keeps(account.name.as_str()).to_ascii_lowercase();
            if let Some(first) = seen.insert(kept, &account.name) {
                self.notes.push(format!(
                    "accounts {first} and {} are one to Slurm, which keeps neither upper case nor quotes",
                    account.name
                ));
            }
        }
        let accounts = sound.accounts().filter(|account| upper(account.name.as_str())).count();
        let users = sound.users().filter(|user| upper(user.name.as_str())).count();
        let texts = sound
            .accounts()
            .flat_map(|account| [&account.description, &account.organization])
            .filter(|text| text.as_ref().is_some_and(|text| upper(&text.value)))
            .count();
        if accounts > 0 || users > 0 || texts > 0 {
            self.notes.push(format!(
                "sacctmgr load turns upper case to lower case: in {accounts} names of accounts, {users} of users \
                 (unless PreserveCaseUser is set), {texts} descriptions and organisations"
            ));
        }
    }

    /// Quotes a text for a dump. Slurm keeps no quotes in a value: it stores them as backquotes.
    fn quote(&mut self, text: &str, holder: &str) -> String {
        let flat = as_slurm_keeps(text);
        if flat != text {
            self.notes
                .push(format!("{holder}: quotes and line breaks become ` and blanks, as Slurm keeps none"));
        }
        format!("'{}'", flat.replace('\\', "\\\\").replace('#', "\\#"))
    }

    fn line(&mut self, head: String, pairs: Vec<String>) {
        let mut line = head;
        for pair in pairs {
            line.push(':');
            line.push_str(&pair);
        }
        if line.len() >= MAX_LINE {
            self.notes.push(format!(
                "a line has {} bytes, sacctmgr reads {MAX_LINE}: {:.60}…",
                line.len(),
                line
            ));
        }
        self.text.push_str(&line);
        self.text.push('\n');
    }
}
