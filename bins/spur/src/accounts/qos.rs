//! `spur qos`.

use std::ops::ControlFlow;

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use spur_sdk::rpc::Client;
use spur_sdk::rpc::messages::slurm::{CreateQosRequest, DeleteQosRequest, Presence, QosInfo};

use super::change::{Change, make_and_tell, missing};
use super::records::{Records, amounts};
use super::values::{self, or_dash, shown};
use crate::controller::{Controller, block_on};
use crate::exit::{self, Exit};
use crate::output;

/// `spur qos`.
#[derive(Args, Debug)]
pub(crate) struct Qos {
    #[command(flatten)]
    controller: Controller,
    #[command(subcommand)]
    command: QosCommand,
}

#[derive(Subcommand, Debug)]
enum QosCommand {
    /// List QoS.
    List {
        /// Format.
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Show one QoS.
    Show {
        /// The QoS.
        name: String,
        /// Format.
        #[arg(short, long, value_enum, default_value = "table")]
        output: output::Format,
    },
    /// Add QoS.
    #[command(after_help = exit::help("Example: spur qos add gpu --priority 10 --max-wall 1-00:00:00"))]
    Add {
        /// The new QoS.
        #[arg(required = true, value_name = "QOS")]
        names: Vec<String>,
        /// Leave QoS that exist as they are, instead of an error.
        #[arg(long)]
        if_not_exists: bool,
        #[command(flatten)]
        fields: Box<Fields>,
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Change QoS. Only what is named changes.
    #[command(after_help = exit::help("Example: spur qos modify gpu --grp-tres gres/gpu=64 --clear max-wall"))]
    Modify {
        /// The QoS.
        #[arg(required = true, value_name = "QOS")]
        names: Vec<String>,
        #[command(flatten)]
        fields: Box<Fields>,
        /// TRES options change just what they name, and -1 takes one away; otherwise they replace all.
        #[arg(long)]
        merge_tres: bool,
        /// Take a field's value away: no limit, no text.
        #[arg(long, value_enum, value_name = "FIELD", value_delimiter = ',')]
        clear: Vec<Field>,
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete QoS.
    Delete {
        /// The QoS.
        #[arg(required = true, value_name = "QOS")]
        names: Vec<String>,
        /// Take them from whoever has them as well.
        #[arg(long)]
        force: bool,
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
    },
}

/// What a QoS has.
#[derive(Args, Debug, Default)]
struct Fields {
    /// What it is, in words.
    #[arg(long, value_name = "TEXT", value_parser = values::text)]
    description: Option<String>,
    /// Its weight in the order of the queue.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// How a job is preempted, such as requeue or cancel; none is the cluster's way.
    #[arg(long, value_name = "MODE", value_parser = values::text)]
    preempt_mode: Option<String>,
    /// QoS whose jobs this one preempts, between commas.
    #[arg(long, value_name = "QOS", value_parser = values::text)]
    preempt: Option<String>,
    /// How long a job runs before it may be preempted: seconds or [D-]HH:MM:SS.
    #[arg(long, value_name = "TIME", value_parser = values::seconds)]
    preempt_exempt_time: Option<u32>,
    /// Factor on usage; 1 if nothing is said.
    #[arg(long, value_name = "NUMBER", value_parser = values::share)]
    usage_factor: Option<f64>,
    /// Flags in Slurm's words, between commas.
    #[arg(long, value_name = "FLAGS", value_parser = values::text)]
    flags: Option<String>,
    /// Jobs running at once per user; 0 blocks, none is no limit.
    #[arg(long, value_name = "NUMBER", value_parser = values::number, allow_negative_numbers = true)]
    max_jobs_per_user: Option<u32>,
    /// Jobs pending or running per user; 0 blocks, none is no limit.
    #[arg(long, value_name = "NUMBER", value_parser = values::number, allow_negative_numbers = true)]
    max_submit_jobs_per_user: Option<u32>,
    /// Jobs pending or running per account; 0 blocks, none is no limit.
    #[arg(long, value_name = "NUMBER", value_parser = values::number, allow_negative_numbers = true)]
    max_submit_jobs_per_account: Option<u32>,
    /// Jobs pending or running in all; 0 blocks, none is no limit.
    #[arg(long, value_name = "NUMBER", value_parser = values::number, allow_negative_numbers = true)]
    grp_submit_jobs: Option<u32>,
    /// Wall time of a job: minutes or [D-]HH:MM:SS; none is no limit.
    #[arg(long, value_name = "TIME", value_parser = values::minutes, allow_negative_numbers = true)]
    max_wall: Option<u32>,
    /// Wall time of all jobs: minutes or [D-]HH:MM:SS; none is no limit.
    #[arg(long, value_name = "TIME", value_parser = values::minutes, allow_negative_numbers = true)]
    grp_wall: Option<u32>,
    /// What a job may use; none is no limit.
    #[arg(long, value_name = "TRES", value_parser = values::amounts)]
    max_tres_per_job: Option<String>,
    /// What a user may use at once; none is no limit.
    #[arg(long, value_name = "TRES", value_parser = values::amounts)]
    max_tres_per_user: Option<String>,
    /// What all may use at once; none is no limit.
    #[arg(long, value_name = "TRES", value_parser = values::amounts)]
    grp_tres: Option<String>,
}

/// A field whose value can be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Field {
    Description,
    Priority,
    PreemptMode,
    Preempt,
    PreemptExemptTime,
    UsageFactor,
    Flags,
    MaxJobsPerUser,
    MaxSubmitJobsPerUser,
    MaxSubmitJobsPerAccount,
    GrpSubmitJobs,
    MaxWall,
    GrpWall,
    MaxTresPerJob,
    MaxTresPerUser,
    GrpTres,
}

impl Fields {
    fn request(&self, name: &str, presence: Presence) -> CreateQosRequest {
        CreateQosRequest {
            name: name.to_owned(),
            description: self.description.clone(),
            priority: self.priority,
            preempt_mode: self.preempt_mode.clone(),
            usage_factor: self.usage_factor,
            max_jobs_per_user: self.max_jobs_per_user,
            max_wall_minutes: self.max_wall,
            max_tres_per_job: self.max_tres_per_job.clone(),
            max_submit_jobs_per_user: self.max_submit_jobs_per_user,
            max_tres_per_user: self.max_tres_per_user.clone(),
            grp_tres: self.grp_tres.clone(),
            grp_wall_minutes: self.grp_wall,
            preempt: self.preempt.clone(),
            preempt_exempt_time: self.preempt_exempt_time,
            max_submit_jobs_per_account: self.max_submit_jobs_per_account,
            grp_submit_jobs: self.grp_submit_jobs,
            flags: self.flags.clone(),
            presence: Some(presence.into()),
            ..CreateQosRequest::default()
        }
    }
}

impl Field {
    fn clear(self, request: &mut CreateQosRequest) {
        let none = Some(String::new());
        let unlimited = Some(values::NO_LIMIT);
        match self {
            Self::Description => request.description = none,
            Self::Priority => request.priority = Some(0),
            Self::PreemptMode => request.preempt_mode = none,
            Self::Preempt => request.preempt = none,
            Self::PreemptExemptTime => request.clear_preempt_exempt_time = true,
            Self::UsageFactor => request.usage_factor = Some(1.0),
            Self::Flags => request.flags = none,
            Self::MaxJobsPerUser => request.max_jobs_per_user = unlimited,
            Self::MaxSubmitJobsPerUser => request.max_submit_jobs_per_user = unlimited,
            Self::MaxSubmitJobsPerAccount => request.max_submit_jobs_per_account = unlimited,
            Self::GrpSubmitJobs => request.grp_submit_jobs = unlimited,
            Self::MaxWall => request.max_wall_minutes = unlimited,
            Self::GrpWall => request.grp_wall_minutes = unlimited,
            Self::MaxTresPerJob => request.max_tres_per_job = none,
            Self::MaxTresPerUser => request.max_tres_per_user = none,
            Self::GrpTres => request.grp_tres = none,
        }
    }
}

/// A QoS, as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    description: String,
    priority: i32,
    usage_factor: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    flags: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    preempt: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    preempt_mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    preempt_exempt_time: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_jobs_per_user: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_submit_jobs_per_user: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_submit_jobs_per_account: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grp_submit_jobs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_wall_minutes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grp_wall_minutes: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    max_tres_per_job: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    max_tres_per_user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    grp_tres: String,
}

impl Shown {
    fn new(qos: &QosInfo) -> Self {
        Self {
            name: qos.name.clone(),
            description: qos.description.clone(),
            priority: qos.priority,
            usage_factor: qos.usage_factor,
            flags: values::list(&qos.flags),
            preempt: values::list(&qos.preempt),
            preempt_mode: qos.preempt_mode.clone(),
            preempt_exempt_time: qos.preempt_exempt_time,
            max_jobs_per_user: values::set(qos.max_jobs_per_user),
            max_submit_jobs_per_user: values::set(qos.max_submit_jobs_per_user),
            max_submit_jobs_per_account: values::set(qos.max_submit_jobs_per_account),
            grp_submit_jobs: values::set(qos.grp_submit_jobs),
            max_wall_minutes: values::set(qos.max_wall_minutes),
            grp_wall_minutes: values::set(qos.grp_wall_minutes),
            max_tres_per_job: amounts(&qos.max_tres_per_job, qos.max_tres_per_job_exact.as_ref()).to_owned(),
            max_tres_per_user: amounts(&qos.max_tres_per_user, qos.max_tres_per_user_exact.as_ref())
                .to_owned(),
            grp_tres: amounts(&qos.grp_tres, qos.grp_tres_exact.as_ref()).to_owned(),
        }
    }

    /// What it has, by field.
    fn fields(&self) -> Vec<(&'static str, String)> {
        vec![
            ("qos", self.name.clone()),
            ("description", or_dash(&self.description)),
            ("priority", self.priority.to_string()),
            ("usage factor", self.usage_factor.to_string()),
            ("flags", or_dash(&self.flags.join(","))),
            ("preempt", or_dash(&self.preempt.join(","))),
            ("preempt mode", or_dash(&self.preempt_mode)),
            (
                "preempt exempt time",
                self.preempt_exempt_time.map_or("-".to_owned(), |time| format!("{time} s")),
            ),
            ("max jobs per user", shown(self.max_jobs_per_user)),
            ("max submit jobs per user", shown(self.max_submit_jobs_per_user)),
            ("max submit jobs per account", shown(self.max_submit_jobs_per_account)),
            ("grp submit jobs", shown(self.grp_submit_jobs)),
            ("max wall, minutes", shown(self.max_wall_minutes)),
            ("grp wall, minutes", shown(self.grp_wall_minutes)),
            ("max tres per job", or_dash(&self.max_tres_per_job)),
            ("max tres per user", or_dash(&self.max_tres_per_user)),
            ("grp tres", or_dash(&self.grp_tres)),
        ]
    }

    /// What it has beyond the columns of the list, in words.
    fn limits(&self) -> String {
        let limits = self.fields().into_iter().skip(4).filter(|(_, value)| value != "-");
        or_dash(&limits.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join("; "))
    }
}

pub(crate) fn qos(command: &Qos) -> anyhow::Result<Exit> {
    block_on(async {
        let client = command.controller.client()?;
        carry_out(&client, &command.command).await
    })
}

async fn carry_out(client: &Client, command: &QosCommand) -> anyhow::Result<Exit> {
    match command {
        QosCommand::List { output } => {
            let records = Records::read(client).await?;
            let qos: Vec<_> = records.qos.values().map(Shown::new).collect();
            output::value(*output, &qos, || {
                let rows = qos.iter().map(|qos| {
                    [qos.name.clone(), qos.priority.to_string(), or_dash(&qos.description), qos.limits()]
                });
                output::table(["QOS", "PRIORITY", "DESCRIPTION", "LIMITS"], rows)
            })?;
            Ok(Exit::Done)
        }
        QosCommand::Show { name, output } => {
            let records = Records::read(client).await?;
            let Some(qos) = records.qos.get(name).map(Shown::new) else { bail!("qos {name} does not exist") };
            output::value(*output, &qos, || {
                let lines = qos.fields().into_iter().map(|(name, value)| format!("{name:<28} {value}"));
                lines.collect::<Vec<_>>().join("\n")
            })?;
            Ok(Exit::Done)
        }
        QosCommand::Add { names, if_not_exists, fields, dry_run } => {
            let mut wanted: Vec<_> = names.iter().collect();
            if *if_not_exists {
                let records = Records::read(client).await?;
                match missing(names, "qos", |name| records.qos.contains_key(name)) {
                    ControlFlow::Break(()) => return Ok(Exit::Done),
                    ControlFlow::Continue(missing) => wanted = missing,
                }
            }
            let requests = wanted.into_iter().map(|name| fields.request(name, Presence::Absent));
            let changes: Vec<_> = requests.map(Change::CreateQos).collect();
            make_and_tell(client, &changes, *dry_run).await
        }
        QosCommand::Modify { names, fields, merge_tres, clear, dry_run } => {
            let requests = names.iter().map(|name| {
                let mut request = fields.request(name, Presence::Present);
                request.merge_tres = Some(*merge_tres);
                for field in clear {
                    field.clear(&mut request);
                }
                Change::CreateQos(request)
            });
            let changes: Vec<_> = requests.collect();
            make_and_tell(client, &changes, *dry_run).await
        }
        QosCommand::Delete { names, force, dry_run } => {
            let requests =
                names.iter().map(|name| DeleteQosRequest { name: name.clone(), force: Some(*force) });
            let changes: Vec<_> = requests.map(Change::DeleteQos).collect();
            make_and_tell(client, &changes, *dry_run).await
        }
    }
}
