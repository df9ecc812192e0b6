//! What a unit needs now: nothing, patience, or work. Pure but for the states of units that it reads.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::ControllerOptions;
use super::report::State;
use super::term::{Term, Wanted};
use super::units::{Mark, Unit};
use super::work::{Done, Purpose};
use crate::check::Finding;
use crate::cluster::plan::removal::retired_at;
use crate::cluster::plan::{AccountPlan, Plan, Skipped, Step, check_plan, subjects};
use crate::cluster::{ClusterApi, EventApi, Key, Kind, LeaseApi, Live, Observed, RemovalsDecision};
use crate::model::Completeness;
use crate::project::names;
use crate::source::Source;

/// What is known of the tenant guard, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// What the API server has answered to the probe since the guard was last seen to differ: which version is in force.
    pub(super) answered: Option<String>,
    /// Whether somebody is to be let in, so that it has to be asked.
    pub(super) asked_for: bool,
    /// Accounts that let nobody in before it answers.
    pub(super) blocked: BTreeSet<Unit>,
}

/// What is asked to learn whether the guard is in force.
pub(super) struct Question {
    /// What the probe has to be answered.
    pub(super) answer: String,
    /// The policies, which have to be type-checked.
    pub(super) policies: Vec<Key>,
}

/// What a unit needs.
pub(super) enum Judged {
    /// It is none of ours.
    Nothing,
    /// Nothing now, and how it stands.
    Stands(State, String),
    /// Work.
    Work(Box<Ready>),
}

/// Work that is ready to be done.
pub(super) enum Ready {
    Account(AccountPlan, Done),
    User(Vec<Step>, Done),
    Shared(Vec<Step>, Option<Question>, Done),
    Delete { namespace: String, uid: String, version: String, done: Done },
}

impl Guard {
    /// Whether the guard that is wanted is in force; one without rules always is.
    fn is_in_force(&self, wanted: &Wanted) -> bool {
        wanted.guard().is_none_or(|answer| self.answered.as_deref() == Some(answer))
    }
}

impl Judged {
    fn stands(state: State, reason: &str) -> Self {
        Self::Stands(state, reason.to_owned())
    }
}

impl<S: Source, A: ClusterApi + LeaseApi + EventApi> Term<'_, '_, S, A> {
    pub(super) fn judge(&mut self, unit: &Unit, observed: &Observed, options: &ControllerOptions) -> Judged {
        let Some(wanted) = self.wanted.take() else { return Judged::Nothing };
        let judged = match unit {
            Unit::Shared => self.judge_shared(&wanted, observed),
            Unit::User(name) => self.judge_user(&wanted, name, observed),
            Unit::Account(namespace) => match wanted.account_in(namespace) {
                Some(_) => self.judge_account(&wanted, namespace, observed),
                // Stopped or out of scope: it stays as it is.
                None if wanted.is_known(namespace) => match wanted.stopped_in(namespace) {
                    Some(reason) => Judged::stands(State::Refused, reason),
                    None => Judged::Nothing,
                },
                None => self.judge_gone(&wanted, namespace, observed, options),
            },
        };
        self.wanted = Some(wanted);
        judged
    }

    fn removals_allowed(&self) -> bool {
        self.removals.as_ref().is_some_and(crate::cluster::Removals::allowed)
    }

    /// A change by somebody else, or one of the source.
    fn purpose(&self, unit: &Unit) -> Purpose {
        let tracked = self.units.get(unit);
        match tracked.and_then(|tracked| tracked.owed) {
            Some(owed) => owed,
            None if tracked.is_some_and(|tracked| tracked.was_in_step) => Purpose::Revert,
            None => Purpose::Change,
        }
    }

    fn judge_shared(&mut self, wanted: &Wanted, observed: &Observed) -> Judged {
        // What may be written is, also beside what may not.
        let (mut steps, refused) = wanted.shared(observed, &self.plan_options);
        if !refused.is_empty() {
            self.guard.answered = None;
        }
        if steps.is_empty() && !refused.is_empty() {
            return Judged::Stands(State::Refused, refused.join("; "));
        }
        let done_with = |removals: &crate::cluster::Removals| {
            removals.vanished.is_empty() && removals.decision == RemovalsDecision::Allowed
        };
        let mut purpose = self.purpose(&Unit::Shared);
        if steps.is_empty() && self.removals.as_ref().is_some_and(done_with) {
            steps.extend(wanted.forget_confirmation(observed));
            purpose = Purpose::Change;
        }
        if let Some(finding) = findings(steps.clone(), None).first() {
            return Judged::Stands(State::Refused, format!("unsafe plan: {finding}"));
        }
        if steps.iter().any(|step| step.target.name.starts_with(names::GUARD)) {
            self.guard.answered = None;
            self.guard.asked_for = true;
        }
        let ask = self.guard.asked_for && !self.guard.is_in_force(wanted);
        if steps.is_empty() && !ask {
            return Judged::stands(State::InStep, "");
        }
        let question = wanted
            .guard()
            .filter(|_| ask)
            .map(|answer| Question { answer: answer.to_owned(), policies: wanted.guard_policies() });
        let done = Done::new(Unit::Shared, purpose, steps.iter());
        Judged::Work(Box::new(Ready::Shared(steps, question, done)))
    }

    fn judge_user(&mut self, wanted: &Wanted, name: &str, observed: &Observed) -> Judged {
        if wanted.is_paused(names::USERS_NAMESPACE, observed) {
            self.guard.blocked.insert(Unit::User(name.to_owned()));
            return Judged::stands(State::Paused, "namespace spur-users has an annotation that suspends us");
        }
        let key = Key::cluster(Kind::Namespace, names::USERS_NAMESPACE);
        match observed.get(&key) {
            None => {
                self.guard.blocked.insert(Unit::User(name.to_owned()));
                return Judged::stands(State::NotLetIn, "namespace spur-users is not there yet");
            }
            Some(live) if !live.is_ours() && !self.plan_options.adopt => {
                self.guard.blocked.insert(Unit::User(name.to_owned()));
                return Judged::stands(State::Refused, "namespace spur-users exists and is not ours");
            }
            Some(_) => {}
        }
        match wanted.user(name, observed, &self.plan_options, self.removals_allowed()) {
            Err(reason) => Judged::Stands(State::Refused, reason),
            Ok(steps) if !steps.is_empty() => {
                let unit = Unit::User(name.to_owned());
                if !wanted.has_user(name) && self.is_bound(name, observed) {
                    self.leaving.insert(unit);
                    return Judged::stands(State::Held, "a RoleBinding of ours still names the user");
                }
                if let Some(finding) = findings(steps.clone(), None).first() {
                    return Judged::Stands(State::Refused, format!("unsafe plan: {finding}"));
                }
                let purpose = if wanted.has_user(name) { self.purpose(&unit) } else { Purpose::Remove };
                let done = Done::new(unit, purpose, steps.iter());
                Judged::Work(Box::new(Ready::User(steps, done)))
            }
            Ok(_) if wanted.has_user(name) => Judged::stands(State::InStep, ""),
            Ok(_) => Judged::Nothing,
        }
    }

    fn judge_account(&mut self, wanted: &Wanted, namespace: &str, observed: &Observed) -> Judged {
        let Some(account) = wanted.account_in(namespace) else { return Judged::Nothing };
        let unit = Unit::Account(namespace.to_owned());
        let completeness =
            if self.removals_allowed() { wanted.projection().completeness } else { Completeness::Partial };
        let mut plan = match wanted.account(account, observed, &self.plan_options, completeness) {
            Ok(plan) => plan,
            Err(Skipped::Refused(reason)) => return Judged::Stands(State::Refused, reason),
            Err(Skipped::Paused) => return Judged::stands(State::Paused, PAUSED),
        };
        if plan.is_empty() {
            return Judged::stands(State::InStep, "");
        }
        if let Some(finding) = findings(Vec::new(), Some(&plan)).first() {
            return Judged::Stands(State::Refused, format!("unsafe plan: {finding}"));
        }
        let lets_in = !plan.admit.is_empty() && !plan.wait;
        // Not while somebody's change of it waits to be looked at.
        let shared = self.units.get(&Unit::Shared);
        let at_rest = shared.is_some_and(|shared| shared.state == State::InStep && shared.is_idle());
        let in_place = at_rest && self.guard.is_in_force(wanted);
        if lets_in && !in_place {
            self.guard.blocked.insert(unit.clone());
            if at_rest {
                self.guard.asked_for = true;
                self.units.mark(Unit::Shared, Mark::Ahead);
            }
        }
        if plan.restrict.is_empty() && plan.wait {
            return Judged::stands(
                State::Waiting,
                "the quota does not bind yet; is the controller manager running?",
            );
        }
        if plan.restrict.is_empty() && !in_place {
            return Judged::stands(State::NotLetIn, "what all accounts share is not in place yet");
        }
        let retired = observed.get(&Key::cluster(Kind::Namespace, namespace));
        let restored = retired.is_some_and(|live| retired_at(live, &wanted.projection().prefix).is_some());
        let purpose = if restored { Purpose::Restore } else { self.purpose(&unit) };
        if !lets_in || !in_place {
            plan.admit.clear();
        }
        let done = Done::new(unit, purpose, plan.restrict.iter().chain(&plan.admit));
        Judged::Work(Box::new(Ready::Account(plan, done)))
    }

    /// A namespace whose account the source does not name.
    fn judge_gone(
        &mut self,
        wanted: &Wanted,
        namespace: &str,
        observed: &Observed,
        options: &ControllerOptions,
    ) -> Judged {
        let Some(live) = observed.get(&Key::cluster(Kind::Namespace, namespace)) else {
            return Judged::Nothing;
        };
        if !live.is_ours() || live.is_terminating() || !names::NAMESPACES.is_mapped(namespace) {
            return Judged::Nothing;
        }
        let retired = retired_at(live, &wanted.projection().prefix).is_some();
        if wanted.is_paused(namespace, observed) {
            return Judged::stands(State::Paused, PAUSED);
        }
        let Some(removals) = &self.removals else { return Judged::Nothing };
        let allowed = removals.allowed();
        if !retired {
            if !removals.vanished.iter().any(|vanished| vanished == namespace) {
                return Judged::Nothing;
            }
            match removals.decision {
                RemovalsDecision::NotReadInFull => return Judged::Nothing,
                RemovalsDecision::Held => {
                    let reason = format!(
                        "the source does not name its account any more ({} vanished within 24 h); confirm with: spur \
                         quota confirm {}",
                        removals.vanished.len().saturating_add(removals.recent.len()),
                        removals.digest
                    );
                    return Judged::Stands(State::Held, reason);
                }
                RemovalsDecision::Allowed | RemovalsDecision::Confirmed => {}
            }
        }
        let unit = Unit::Account(namespace.to_owned());
        let plan = match wanted.retire(namespace, observed, &self.plan_options, options.clock.now()) {
            Ok(plan) => plan,
            Err(Skipped::Refused(reason)) => return Judged::Stands(State::Refused, reason),
            Err(Skipped::Paused) => return Judged::stands(State::Paused, PAUSED),
        };
        if plan.is_empty() {
            if self.grace_left(namespace, observed, options) != Some(Duration::ZERO) || !allowed {
                self.units.entry(&unit).over_since = None;
                return Judged::stands(State::Retired, "");
            }
            // There is no way back, and a clock may be ahead for a while.
            let over_since = *self.units.entry(&unit).over_since.get_or_insert_with(Instant::now);
            if over_since.elapsed() < options.deletion_delay {
                return Judged::stands(State::Retired, "");
            }
            let kept = self.units.get(&unit).and_then(|tracked| tracked.kept.as_ref());
            if let Some((_, what)) = kept.filter(|(until, _)| Instant::now() < *until) {
                let reason = format!("its grace period is over, and it is kept since it holds {what}");
                return Judged::Stands(State::Retired, reason);
            }
            return Judged::Work(Box::new(Ready::Delete {
                namespace: namespace.to_owned(),
                uid: live.text("/metadata/uid").to_owned(),
                version: live.text("/metadata/resourceVersion").to_owned(),
                done: Done::new(unit, Purpose::Delete, std::iter::empty()),
            }));
        }
        if let Some(finding) = findings(Vec::new(), Some(&plan)).first() {
            return Judged::Stands(State::Refused, format!("unsafe plan: {finding}"));
        }
        let purpose = match self.purpose(&unit) {
            Purpose::Revert if retired => Purpose::Revert,
            // Also what another replica has begun.
            _ => Purpose::Retire,
        };
        let done = Done::new(unit, purpose, plan.restrict.iter());
        Judged::Work(Box::new(Ready::Account(plan, done)))
    }

    /// Whether a RoleBinding of ours names a user's ServiceAccount: one that is suspended, or another controller's.
    fn is_bound(&mut self, name: &str, observed: &Observed) -> bool {
        let ours = |namespace: &Key| observed.get(namespace).is_some_and(Live::is_ours);
        let bound = self.bound.get_or_insert_with(|| {
            let bindings = observed.of_kind(Kind::RoleBinding).filter(|(key, _)| {
                let namespace = key.namespace.as_deref().unwrap_or_default();
                names::NAMESPACES.is_mapped(namespace) && ours(&Key::cluster(Kind::Namespace, namespace))
            });
            let subjects = bindings.flat_map(|(_, live)| subjects(live.value()));
            let users = subjects.filter(|(namespace, _)| namespace == names::USERS_NAMESPACE);
            users.map(|(_, name)| name).collect()
        });
        bound.contains(name)
    }

    /// What is left of a retired account's grace period; `None` without one.
    pub(super) fn grace_left(
        &self,
        namespace: &str,
        observed: &Observed,
        options: &ControllerOptions,
    ) -> Option<Duration> {
        let grace = options.delete_retired_after?;
        let prefix = &self.prefix;
        let live = observed.get(&Key::cluster(Kind::Namespace, namespace))?;
        let since = options.clock.now().duration_since(retired_at(live, prefix)?).unwrap_or_default();
        Some(grace.saturating_sub(since))
    }
}

const PAUSED: &str = "its namespace has an annotation that suspends us";

/// What the independent judge of plans says to a part of one.
fn findings(shared: Vec<Step>, account: Option<&AccountPlan>) -> Vec<Finding> {
    let plan = Plan { shared, accounts: account.cloned().into_iter().collect(), ..Plan::default() };
    check_plan(&plan)
}
