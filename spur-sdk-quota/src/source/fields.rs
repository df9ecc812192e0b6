//! The keys of our own files, as tables that reader, schema and suggestions share.

use crate::model::{CountLimit, LimitSpec, QosSetting, TresLimit};

/// What a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Name,
    Text,
    Names,
    Count,
    Minutes,
    Tres,
    Fairshare,
    AdminLevel,
    Setting,
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) key: &'static str,
    pub(crate) kind: Kind,
    pub(crate) doc: &'static str,
    pub(crate) required: bool,
}

/// The tables of an accounts file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    Cluster,
    Account,
    User,
    Association,
    Qos,
}

impl Table {
    pub(crate) const ALL: [Self; 5] =
        [Self::Cluster, Self::Account, Self::User, Self::Association, Self::Qos];

    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Account => "account",
            Self::User => "user",
            Self::Association => "association",
            Self::Qos => "qos",
        }
    }

    pub(crate) fn doc(self) -> &'static str {
        match self {
            Self::Cluster => "Limits that bind everybody.",
            Self::Account => "An account; each becomes a namespace.",
            Self::User => "A user and the accounts that the user is a member of.",
            Self::Association => "Terms of one user in one account, perhaps on one partition.",
            Self::Qos => "A quality of service.",
        }
    }

    /// The keys of the table, in the order of the reference.
    pub(crate) fn fields(self) -> Vec<Field> {
        let mut fields = match self {
            Self::Cluster => {
                vec![field("name", Kind::Name, "The cluster's name in the accounting database.")]
            }
            Self::Account => vec![
                required("name", "The account's name; any text."),
                field("parent", Kind::Name, "The account above; left out: directly under root."),
                field("description", Kind::Text, "What it is, in words."),
                field("organization", Kind::Text, "Whose it is."),
                field("coordinators", Kind::Names, "Users who administer it."),
            ],
            Self::User => vec![
                required("name", "The user's name."),
                field("accounts", Kind::Names, "Accounts that the user is a member of."),
                field(
                    "default_account",
                    Kind::Name,
                    "The account of a job that names none; one of accounts.",
                ),
                field(
                    "admin_level",
                    Kind::AdminLevel,
                    "none, operator or administrator, in the accounting database.",
                ),
                field("default_wckey", Kind::Text, "The workload key of a job that names none."),
                field("wckeys", Kind::Names, "Workload keys that may be used."),
                field("comment", Kind::Text, "A comment."),
            ],
            Self::Association => vec![
                required("account", "The account."),
                required("user", "The user."),
                field("partition", Kind::Name, "The partition that it is for; left out: all."),
            ],
            Self::Qos => vec![
                required("name", "The QoS's name."),
                field("description", Kind::Text, "What it is, in words."),
            ],
        };
        let (associated, qos) = match self {
            Self::Cluster | Self::Account | Self::Association => (true, false),
            Self::User => (false, false),
            Self::Qos => (false, true),
        };
        if associated {
            fields.extend([
                field("fairshare", Kind::Fairshare, "Shares relative to the siblings, or parent."),
                field(
                    "qos",
                    Kind::Names,
                    "QoS that may be used; +name adds to the parent's, -name takes away.",
                ),
                field("default_qos", Kind::Name, "The QoS of a job that names none."),
            ]);
        }
        let stands =
            |spec: LimitSpec| associated && spec.carrier.on_association() || qos && spec.carrier.on_qos();
        for limit in CountLimit::ALL.iter().filter(|limit| stands(limit.spec())) {
            let (kind, doc) = if limit.is_minutes() {
                (Kind::Minutes, "Minutes, or a time as [D-]HH:MM:SS; -1: no limit.")
            } else {
                (Kind::Count, "A count; -1: no limit, 0 blocks.")
            };
            fields.push(field(limit.spec().key, kind, doc));
        }
        for limit in TresLimit::ALL.iter().filter(|limit| stands(limit.spec())) {
            fields.push(field(
                limit.spec().key,
                Kind::Tres,
                "Amounts by TRES; a bare mem is MB (10^6 bytes).",
            ));
        }
        if qos {
            fields.extend(
                QosSetting::ALL.iter().map(|setting| field(setting.keys().0, Kind::Setting, "As in Slurm.")),
            );
        }
        fields
    }
}

fn field(key: &'static str, kind: Kind, doc: &'static str) -> Field {
    Field { key, kind, doc, required: false }
}

fn required(key: &'static str, doc: &'static str) -> Field {
    Field { key, kind: Kind::Name, doc, required: true }
}

/// What to say of a key that is not known: the one that was probably meant, otherwise all.
pub(crate) fn unknown_key<'a>(key: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let lower = key.to_ascii_lowercase().replace('-', "_");
    let close = known
        .clone()
        .map(|known| (strsim::jaro_winkler(&lower, known), known))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(similarity, _)| *similarity > 0.8);
    match close {
        Some((_, close)) => format!("is no key here; did you mean {close}?"),
        None => format!("is no key here; known are {}", known.collect::<Vec<_>>().join(", ")),
    }
}
