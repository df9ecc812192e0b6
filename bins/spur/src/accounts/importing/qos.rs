//! QoS.

use std::collections::BTreeSet;

use spur_sdk::rpc::messages::slurm::{CreateQosRequest, QosInfo};
use spur_sdk_quota::{CountLimit, Qos, QosSelection, QosSetting, Subject, TresLimit};

use super::kept::{count, text, tres, unkept_limits};
use super::{Fields, Planning, Step};
use crate::accounts::change::Change;
use crate::accounts::values::{NO_LIMIT, list, seconds};

const QOS_COUNTS: &[CountLimit] = &[
    CountLimit::Priority,
    CountLimit::MaxJobsPerUser,
    CountLimit::MaxSubmitJobsPerUser,
    CountLimit::MaxSubmitJobsPerAccount,
    CountLimit::GrpSubmitJobs,
    CountLimit::MaxWall,
    CountLimit::GrpWall,
];
const QOS_AMOUNTS: &[TresLimit] = &[TresLimit::MaxTresPerJob, TresLimit::MaxTresPerUser, TresLimit::GrpTres];

impl Planning<'_> {
    /// Makes the QoS; gives the steps that must come when all are there.
    pub(super) fn qos(&mut self) -> Vec<Step> {
        let mut later = Vec::new();
        let model = self.model;
        let unread: BTreeSet<_> = self
            .tree
            .problems()
            .into_iter()
            .filter_map(|problem| match problem.subject {
                Subject::Qos(name) => Some(name),
                _ => None,
            })
            .collect();
        for qos in model.qos.values().filter(|qos| !unread.contains(&qos.name)) {
            self.one_qos(qos, &mut later);
        }
        let of_members = model
            .associations
            .iter()
            .filter(|(key, _)| key.partition.is_none())
            .map(|(_, member)| &member.terms);
        let mut named = BTreeSet::new();
        for terms in of_members {
            named.extend(terms.default_qos.iter().map(|name| name.value.clone()));
            if let Some(QosSelection::Only(names)) = terms.qos.as_ref().map(|qos| &qos.value) {
                named.extend(names.iter().cloned());
            }
        }
        for name in named {
            if !model.qos.contains_key(&name) && !self.records.qos.contains_key(name.as_str()) {
                let request = CreateQosRequest { name: name.to_string(), ..CreateQosRequest::default() };
                self.step(Change::CreateQos(request), format!("qos {name}: create, as members name it"));
                self.import
                    .notes
                    .push(format!("qos {name} is named and not defined: it is created without limits"));
            }
        }
        later
    }

    fn one_qos(&mut self, qos: &Qos, later: &mut Vec<Step>) {
        let known = self.records.qos.get(qos.name.as_str());
        let none = QosInfo {
            usage_factor: 1.0,
            max_jobs_per_user: NO_LIMIT,
            max_wall_minutes: NO_LIMIT,
            max_submit_jobs_per_user: NO_LIMIT,
            grp_wall_minutes: NO_LIMIT,
            max_submit_jobs_per_account: NO_LIMIT,
            grp_submit_jobs: NO_LIMIT,
            ..QosInfo::default()
        };
        let old = known.unwrap_or(&none);
        let subject = format!("qos {}", qos.name);
        let setting = |setting| text(qos.settings.get(&setting));
        let (mut unkept, mut fields) =
            (unkept_limits(&qos.limits, QOS_COUNTS, QOS_AMOUNTS), Fields::default());
        for name in [QosSetting::GraceTime, QosSetting::LimitFactor, QosSetting::UsageThreshold] {
            if !setting(name).is_empty() {
                unkept.push(format!("{}={}", name.keys().0, setting(name)));
            }
        }
        let mut request = CreateQosRequest { name: qos.name.to_string(), ..CreateQosRequest::default() };
        request.description = fields.set("description", text(qos.description.as_ref()), &old.description);
        let priority =
            qos.limits.counts.get(&CountLimit::Priority).and_then(|priority| priority.value.value());
        match i32::try_from(priority.unwrap_or_default()) {
            Ok(priority) => request.priority = fields.set("priority", priority, &old.priority),
            Err(_) => unkept.push(format!("priority={}", priority.unwrap_or_default())),
        }
        request.preempt_mode =
            fields.set("preempt_mode", setting(QosSetting::PreemptMode), &old.preempt_mode);
        let factor = setting(QosSetting::UsageFactor);
        match factor.parse::<f64>() {
            Ok(factor) => request.usage_factor = fields.set("usage_factor", factor, &old.usage_factor),
            Err(_) if factor.is_empty() => {
                request.usage_factor = fields.set("usage_factor", 1.0, &old.usage_factor);
            }
            Err(_) => unkept.push(format!("usage_factor={factor}")),
        }
        let sorted = |text: &str| list(text).into_iter().collect::<BTreeSet<_>>();
        let flags = fields.set("flags", sorted(&setting(QosSetting::Flags)), &sorted(&old.flags));
        request.flags = flags.map(|flags| flags.into_iter().collect::<Vec<_>>().join(","));
        let exempt = setting(QosSetting::PreemptExemptTime);
        match (exempt.is_empty(), seconds(&exempt)) {
            (true, _) => {
                let cleared = fields.set("preempt_exempt_time", None, &old.preempt_exempt_time);
                request.clear_preempt_exempt_time = cleared.is_some();
            }
            (false, Ok(time)) => {
                let time = fields.set("preempt_exempt_time", Some(time), &old.preempt_exempt_time);
                request.preempt_exempt_time = time.flatten();
            }
            (false, Err(_)) => unkept.push(format!("preempt_exempt_time={exempt}")),
        }
        let limits = &qos.limits;
        let mut number = |field, limit, old: u32| fields.set(field, count(limits, limit), &old);
        request.max_jobs_per_user =
            number("max_jobs_per_user", CountLimit::MaxJobsPerUser, old.max_jobs_per_user);
        request.max_submit_jobs_per_user = number(
            "max_submit_jobs_per_user",
            CountLimit::MaxSubmitJobsPerUser,
            old.max_submit_jobs_per_user,
        );
        request.max_submit_jobs_per_account = number(
            "max_submit_jobs_per_account",
            CountLimit::MaxSubmitJobsPerAccount,
            old.max_submit_jobs_per_account,
        );
        request.grp_submit_jobs = number("grp_submit_jobs", CountLimit::GrpSubmitJobs, old.grp_submit_jobs);
        request.max_wall_minutes = number("max_wall", CountLimit::MaxWall, old.max_wall_minutes);
        request.grp_wall_minutes = number("grp_wall", CountLimit::GrpWall, old.grp_wall_minutes);
        let mut sum = |field, limit, rounded: &str, exact: Option<&String>| {
            fields.amounts(field, &tres(limits, limit), rounded, exact)
        };
        let (job, user) = (old.max_tres_per_job_exact.as_ref(), old.max_tres_per_user_exact.as_ref());
        request.max_tres_per_job =
            sum("max_tres_per_job", TresLimit::MaxTresPerJob, &old.max_tres_per_job, job);
        request.max_tres_per_user =
            sum("max_tres_per_user", TresLimit::MaxTresPerUser, &old.max_tres_per_user, user);
        request.grp_tres = sum("grp_tres", TresLimit::GrpTres, &old.grp_tres, old.grp_tres_exact.as_ref());
        let preempt = sorted(&setting(QosSetting::Preempt));
        if preempt != sorted(&old.preempt) {
            let preempt = Some(preempt.into_iter().collect::<Vec<_>>().join(","));
            let name = qos.name.to_string();
            let request = CreateQosRequest { name, preempt, ..CreateQosRequest::default() };
            // When all that are to be preempted are there.
            later.push(Step {
                change: Change::CreateQos(request),
                words: format!("{subject}: change preempt"),
            });
        }
        if known.is_none() || !fields.0.is_empty() {
            let words = fields.words(&subject, known.is_none());
            self.step(Change::CreateQos(request), words);
        }
        self.note(&subject, &unkept);
    }
}
