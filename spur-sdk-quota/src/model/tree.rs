//! The tree of accounts: who is whose ancestor, and what a problem stops.

use std::collections::{BTreeMap, BTreeSet};

use spur_sdk::{AccountName, UserName};

use super::{Account, Model, Problem, Subject};

/// A model's accounts as a tree, with all that a problem stops worked out.
#[derive(Debug)]
pub struct Tree<'m> {
    model: &'m Model,
    /// Why an account is not projected.
    stopped: BTreeMap<&'m AccountName, Problem>,
    /// Members whose terms could not be read, by account.
    unread: BTreeMap<AccountName, BTreeSet<UserName>>,
    /// Users none of whose memberships could be read.
    unread_users: BTreeSet<UserName>,
    /// What was found wrong with the tree itself.
    problems: Vec<Problem>,
    /// What stops everything.
    whole: Option<Problem>,
}

/// What is known of the account while paths are walked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    Open,
    Done,
}

impl<'m> Tree<'m> {
    /// Works out the tree, in time linear in the accounts.
    #[must_use]
    pub fn of(model: &'m Model) -> Self {
        let mut tree = Self {
            model,
            stopped: BTreeMap::new(),
            unread: BTreeMap::new(),
            unread_users: BTreeSet::new(),
            problems: Vec::new(),
            whole: None,
        };
        for problem in &model.problems {
            tree.take(problem);
        }
        tree.root();
        let mut visits = BTreeMap::new();
        for account in model.accounts.values() {
            tree.visit(account, &mut visits);
        }
        for (key, association) in &model.associations {
            if !model.accounts.contains_key(&key.account) && !Model::is_root(&key.account) {
                tree.problems.push(Problem {
                    origin: association.origin.clone(),
                    subject: Subject::Member(key.account.clone(), key.user.clone()),
                    field: "accounts".to_owned(),
                    message: format!("there is no account {}", key.account),
                });
            }
        }
        tree.problems.sort();
        tree.problems.dedup();
        tree
    }

    fn take(&mut self, problem: &'m Problem) {
        match &problem.subject {
            Subject::Source => {
                self.whole.get_or_insert_with(|| problem.clone());
            }
            Subject::Account(name) if Model::is_root(name) => {
                self.whole.get_or_insert_with(|| problem.clone());
            }
            Subject::Account(name) => {
                self.stopped.entry(name).or_insert_with(|| problem.clone());
            }
            Subject::Member(account, user) => {
                self.unread.entry(account.clone()).or_default().insert(user.clone());
            }
            Subject::User(user) => {
                self.unread_users.insert(user.clone());
            }
            Subject::Qos(_) => {}
        }
    }

    /// Above root there is only the cluster.
    fn root(&mut self) {
        let parent =
            self.model.accounts.get(super::ROOT).and_then(|root| Some((root, root.parent.as_ref()?)));
        if let Some((root, parent)) = parent.filter(|(_, parent)| !Model::is_root(&parent.value)) {
            let problem = Problem {
                origin: parent.origin.clone(),
                subject: Subject::Account(root.name.clone()),
                field: "parent".to_owned(),
                message: "root has no parent; leave it out".to_owned(),
            };
            self.problems.push(problem.clone());
            self.whole.get_or_insert(problem);
        }
    }

    /// Walks up from `account` until something known, then settles the whole path.
    fn visit(&mut self, account: &'m Account, visits: &mut BTreeMap<&'m AccountName, Visit>) {
        let mut path: Vec<&'m Account> = Vec::new();
        let mut at = Some(account);
        let mut cause: Option<Problem> = None;
        while let Some(current) = at {
            match visits.get(&current.name) {
                Some(Visit::Done) => {
                    cause = self.stopped.get(&current.name).cloned();
                    break;
                }
                Some(Visit::Open) => {
                    cause = Some(Problem {
                        origin: current.parent.as_ref().map_or(&current.origin, |p| &p.origin).clone(),
                        subject: Subject::Account(current.name.clone()),
                        field: "parent".to_owned(),
                        message: "the account is its own ancestor; name another parent".to_owned(),
                    });
                    self.problems.extend(cause.clone());
                    break;
                }
                None => {}
            }
            visits.insert(&current.name, Visit::Open);
            path.push(current);
            at = match &current.parent {
                Some(parent) if !Model::is_root(&parent.value) && !Model::is_root(&current.name) => {
                    let found = self.model.accounts.get(&parent.value);
                    if found.is_none() {
                        let problem = Problem {
                            origin: parent.origin.clone(),
                            subject: Subject::Account(current.name.clone()),
                            field: "parent".to_owned(),
                            message: format!("there is no account {}", parent.value),
                        };
                        self.problems.push(problem.clone());
                        self.stopped.entry(&current.name).or_insert(problem);
                    }
                    found
                }
                _ => None,
            };
        }
        for account in path.into_iter().rev() {
            visits.insert(&account.name, Visit::Done);
            if let Some(problem) = self.stopped.get(&account.name) {
                cause = Some(problem.clone());
            } else if let Some(cause) = &cause {
                self.stopped.insert(&account.name, cause.clone());
            }
        }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &'m Model {
        self.model
    }

    /// What stops everything, if anything does.
    #[must_use]
    pub fn whole(&self) -> Option<&Problem> {
        self.whole.as_ref()
    }

    /// Why an account is not projected; `None` when it is.
    #[must_use]
    pub fn stopped(&self, account: &AccountName) -> Option<&Problem> {
        self.whole.as_ref().or_else(|| self.stopped.get(account))
    }

    /// The account, its ancestors from the nearest on, and root if it has an entry. Finite also where the
    /// accounts form a ring.
    pub fn path(&self, account: &'m Account) -> impl Iterator<Item = &'m Account> + use<'m> {
        let model = self.model;
        let parent = move |account: &&'m Account| match &account.parent {
            _ if Model::is_root(&account.name) => None,
            Some(parent) => model.accounts.get(&parent.value),
            None => model.accounts.get(super::ROOT),
        };
        std::iter::successors(Some(account), parent).take(model.accounts.len().saturating_add(1))
    }

    /// Whether the terms of a membership could not be read, so that nothing is known of it.
    #[must_use]
    pub fn is_unread(&self, account: &AccountName, user: &UserName) -> bool {
        self.unread_users.contains(user) || self.unread.get(account).is_some_and(|users| users.contains(user))
    }

    /// Whether none of a user's memberships could be read.
    #[must_use]
    pub fn is_unread_everywhere(&self, user: &UserName) -> bool {
        self.unread_users.contains(user)
    }

    /// Members of an account whose terms could not be read.
    #[must_use]
    pub fn unread(&self, account: &AccountName) -> BTreeSet<UserName> {
        let named = self.unread.get(account).into_iter().flatten();
        named.chain(&self.unread_users).cloned().collect()
    }

    /// All problems, those of the model and those of the tree, sorted by place.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.model.problems.clone();
        problems.extend(self.problems.iter().cloned());
        problems.sort();
        problems.dedup();
        problems
    }
}
