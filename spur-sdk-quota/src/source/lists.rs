//! What the three calls answer, as a model.

use spur_sdk::rpc::messages::slurm::{
    AccountInfo, ListAccountsResponse, ListQosResponse, ListUsersResponse, QosInfo, UserInfo,
};
use spur_sdk::{AccountName, Limit, MemorySpelling, NameError, QosName, UserName, error_chain, parse_tres};

use crate::model::{
    Account, AdminLevel, Association, AssociationKey, Completeness, CountLimit, Fairshare, Limits, Model,
    Origin, Problem, Qos, QosSelection, QosSetting, ROOT, Sourced, Subject, TresLimit, User,
};

/// No limit on the wire.
const NO_LIMIT: u32 = u32::MAX;

/// What the three calls answered.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Lists {
    pub(crate) accounts: ListAccountsResponse,
    pub(crate) users: ListUsersResponse,
    pub(crate) qos: ListQosResponse,
}

impl Lists {
    #[cfg(feature = "source-spur")]
    pub(crate) fn revisions(&self) -> [Option<u64>; 3] {
        [self.accounts.revision, self.users.revision, self.qos.revision]
    }

    #[cfg(feature = "source-spur")]
    pub(crate) fn are_partial(&self) -> bool {
        [self.accounts.partial, self.users.partial, self.qos.partial].contains(&Some(true))
    }

    /// The model that they mean.
    pub(crate) fn model(&self, source: &str) -> Model {
        let mut reading = Reading { origin: Origin::store(source), model: Model::default() };
        for qos in &self.qos.qos_list {
            reading.qos(qos);
        }
        for account in &self.accounts.accounts {
            reading.account(account);
        }
        for user in &self.users.users {
            reading.user(user);
        }
        let mut model = reading.model;
        let stopped = model.problems.iter().any(|problem| problem.subject == Subject::Source);
        let full = !stopped && !model.accounts.is_empty();
        model.completeness = if full { Completeness::Full } else { Completeness::Partial };
        model
    }
}

struct Reading {
    origin: Origin,
    model: Model,
}

impl Reading {
    fn problem(&mut self, subject: Subject, field: &str, message: String) {
        self.model.problems.push(Problem {
            origin: self.origin.clone(),
            subject,
            field: field.to_owned(),
            message,
        });
    }

    fn sourced<T>(&self, value: T) -> Sourced<T> {
        Sourced::new(value, self.origin.clone())
    }

    fn text(&self, value: &str) -> Option<Sourced<String>> {
        (!value.is_empty()).then(|| self.sourced(value.to_owned()))
    }

    /// A name, or a problem of what it is the name of.
    fn name<T: std::str::FromStr<Err = NameError>>(
        &mut self,
        subject: Subject,
        field: &str,
        text: &str,
    ) -> Option<T> {
        match text.parse() {
            Ok(name) => Some(name),
            Err(error) => {
                self.problem(subject, field, error.to_string());
                None
            }
        }
    }

    fn count(&self, limits: &mut Limits, limit: CountLimit, value: u32) {
        if value != NO_LIMIT {
            limits.counts.insert(limit, self.sourced(Limit::Value(u64::from(value))));
        }
    }

    fn tres(
        &mut self,
        limits: &mut Limits,
        subject: &Subject,
        limit: TresLimit,
        rounded: &str,
        exact: Option<&str>,
    ) {
        match parse_tres(exact.unwrap_or(rounded), MemorySpelling::Spur) {
            Ok(amounts) => limits.set_tres(limit, amounts, &self.origin),
            Err(error) => self.problem(subject.clone(), limit.spec().key, error_chain(&error)),
        }
    }

    fn account(&mut self, info: &AccountInfo) {
        // An account without a name that can be read may be one that is known already.
        let Some(name) = self.name::<AccountName>(Subject::Source, "name", &info.name) else { return };
        let subject = Subject::Account(name.clone());
        let mut account = Account::new(name.clone(), self.origin.clone());
        if !info.parent_account.is_empty() && info.parent_account != ROOT {
            let parent = self.name(subject.clone(), "parent_account", &info.parent_account);
            account.parent = parent.map(|parent| self.sourced(parent));
        }
        account.description = self.text(&info.description);
        account.organization = self.text(&info.organization);
        for user in &info.coordinators {
            if let Some(user) = self.name::<UserName>(subject.clone(), "coordinators", user) {
                account.coordinators.insert(user, self.origin.clone());
            }
        }
        let mut limits = Limits::default();
        self.count(&mut limits, CountLimit::GrpJobs, info.max_running_jobs);
        self.tres(&mut limits, &subject, TresLimit::GrpTres, &info.grp_tres, info.grp_tres_exact.as_deref());
        account.terms.limits = limits;
        account.terms.fairshare = self.shares(info.fairshare_weight);
        if self.model.accounts.insert(name, account).is_some() {
            self.problem(subject, "", "is listed twice".to_owned());
        }
    }

    fn shares(&self, weight: f64) -> Option<Sourced<Fairshare>> {
        let most = f64::from(i32::MAX);
        if !(weight.is_finite() && (0.0..=most).contains(&weight)) {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the range is checked above"
        )]
        let shares = weight.round() as u32;
        Some(self.sourced(Fairshare::Shares(shares)))
    }

    fn user(&mut self, info: &UserInfo) {
        let Some(name) = self.name::<UserName>(Subject::Source, "name", &info.name) else { return };
        let mut user = User::new(name.clone(), self.origin.clone());
        if !info.default_account.is_empty() {
            let account = self.name(Subject::User(name.clone()), "default_account", &info.default_account);
            user.default_account = account.map(|account| self.sourced(account));
        }
        let level = match info.admin_level.to_lowercase().as_str() {
            "operator" => AdminLevel::Operator,
            "admin" | "administrator" => AdminLevel::Administrator,
            _ => AdminLevel::None,
        };
        user.admin_level = Some(self.sourced(level));
        self.model.users.entry(name.clone()).or_insert(user);
        if info.account.is_empty() {
            return;
        }
        // Of a member without a readable account nobody knows whose access it is.
        let Some(account) = self.name::<AccountName>(Subject::Source, "account", &info.account) else {
            return;
        };
        let subject = Subject::Member(account.clone(), name.clone());
        let mut member = Association::new(self.origin.clone());
        let mut limits = Limits::default();
        self.count(&mut limits, CountLimit::MaxJobs, info.max_running_jobs);
        self.count(&mut limits, CountLimit::MaxSubmitJobs, info.max_submit_jobs);
        self.count(&mut limits, CountLimit::GrpSubmitJobs, info.grp_submit_jobs);
        self.count(&mut limits, CountLimit::MaxWall, info.max_wall_minutes);
        let (job, all) = (info.max_tres_per_job_exact.as_deref(), info.grp_tres_exact.as_deref());
        self.tres(&mut limits, &subject, TresLimit::MaxTresPerJob, &info.max_tres_per_job, job);
        self.tres(&mut limits, &subject, TresLimit::GrpTres, &info.grp_tres, all);
        member.terms.limits = limits;
        if !info.default_qos.is_empty() {
            let qos = self.name(subject.clone(), "default_qos", &info.default_qos);
            member.terms.default_qos = qos.map(|qos| self.sourced(qos));
        }
        if !info.allowed_qos.is_empty() {
            let names = info.allowed_qos.split(',');
            let names =
                names.filter_map(|name| self.name::<QosName>(subject.clone(), "allowed_qos", name.trim()));
            let selection = QosSelection::Only(names.collect());
            member.terms.qos = Some(self.sourced(selection));
        }
        self.model.associations.insert(AssociationKey { account, user: name, partition: None }, member);
    }

    fn qos(&mut self, info: &QosInfo) {
        let Some(name) = self.name::<QosName>(Subject::Source, "name", &info.name) else { return };
        let subject = Subject::Qos(name.clone());
        let mut qos = Qos::new(name.clone(), self.origin.clone());
        qos.description = self.text(&info.description);
        let mut limits = Limits::default();
        for (limit, value) in [
            (CountLimit::MaxJobsPerUser, info.max_jobs_per_user),
            (CountLimit::MaxSubmitJobsPerUser, info.max_submit_jobs_per_user),
            (CountLimit::MaxSubmitJobsPerAccount, info.max_submit_jobs_per_account),
            (CountLimit::GrpSubmitJobs, info.grp_submit_jobs),
            (CountLimit::MaxWall, info.max_wall_minutes),
            (CountLimit::GrpWall, info.grp_wall_minutes),
        ] {
            self.count(&mut limits, limit, value);
        }
        if let Ok(priority @ 1..) = u64::try_from(info.priority) {
            limits.counts.insert(CountLimit::Priority, self.sourced(Limit::Value(priority)));
        }
        for (limit, rounded, exact) in [
            (TresLimit::MaxTresPerJob, &info.max_tres_per_job, &info.max_tres_per_job_exact),
            (TresLimit::MaxTresPerUser, &info.max_tres_per_user, &info.max_tres_per_user_exact),
            (TresLimit::GrpTres, &info.grp_tres, &info.grp_tres_exact),
        ] {
            self.tres(&mut limits, &subject, limit, rounded, exact.as_deref());
        }
        qos.limits = limits;
        let exempt = info.preempt_exempt_time.map(|seconds| seconds.to_string()).unwrap_or_default();
        for (setting, value) in [
            (QosSetting::Flags, info.flags.as_str()),
            (QosSetting::Preempt, info.preempt.as_str()),
            (QosSetting::PreemptMode, info.preempt_mode.as_str()),
            (QosSetting::PreemptExemptTime, exempt.as_str()),
        ] {
            if let Some(value) = self.text(value) {
                qos.settings.insert(setting, value);
            }
        }
        if info.usage_factor.is_finite() && (info.usage_factor - 1.0).abs() > f64::EPSILON {
            let factor = self.sourced(info.usage_factor.to_string());
            qos.settings.insert(QosSetting::UsageFactor, factor);
        }
        self.model.qos.insert(name, qos);
    }
}
