//! The one table of who may call what.

use std::fmt;

use super::Role;

/// What a role may do with an RPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Nothing.
    Deny,
    /// It may call it for what is its own; [`Rule::own`] says what that is, and the RPC sees to it.
    Own,
    /// It may call it.
    Allow,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Deny => "deny",
            Self::Own => "own",
            Self::Allow => "allow",
        })
    }
}

/// A row of the table: who may call one RPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// The RPC, `PACKAGE.SERVICE/NAME`.
    pub rpc: &'static str,
    /// Who may call it.
    pub allow: &'static [Role],
    /// Who may call it for what is its own.
    pub own: &'static [Role],
    /// What its own is, and the reason for the row.
    pub why: &'static str,
}

impl Rule {
    /// What a role may do with the RPC.
    #[must_use]
    pub fn access(&self, role: Role) -> Access {
        if self.allow.contains(&role) {
            Access::Allow
        } else if self.own.contains(&role) {
            Access::Own
        } else {
            Access::Deny
        }
    }
}

const fn rule(rpc: &'static str, allow: &'static [Role], own: &'static [Role], why: &'static str) -> Rule {
    Rule { rpc, allow, own, why }
}

use Role::{Admin, Anonymous, Controller, Coordinator, Node, Operator, User};

const NOBODY: &[Role] = &[];
const ADMIN: &[Role] = &[Admin];
const CONTROLLER: &[Role] = &[Controller];
const NODE: &[Role] = &[Node];
const USERS: &[Role] = &[User, Coordinator];
const OPERATORS: &[Role] = &[Operator, Admin];
const PEOPLE: &[Role] = &[User, Coordinator, Operator, Admin];
const NOT_ADMINS: &[Role] = &[User, Coordinator, Operator];
const KNOWN: &[Role] = &[User, Coordinator, Operator, Admin, Node, Controller];

/// The table: what is not in it nobody may call.
pub const TABLE: &[Rule] = &[
    rule("slurm.SlurmController/ClusterUp", ADMIN, NOBODY, "Changes what every node runs."),
    rule("slurm.SlurmController/ClusterDown", ADMIN, NOBODY, "Stops the cluster of all users."),
    rule("slurm.SlurmController/ClusterStatus", PEOPLE, NOBODY, "Which node is in the cluster is no secret."),
    rule(
        "slurm.SlurmController/ClusterKubeconfig",
        ADMIN,
        NOT_ADMINS,
        "Own: the caller's kubeconfig. An admin may ask for a user's, which the history shows.",
    ),
    rule("slurm.SlurmController/ClusterAddNodes", ADMIN, NOBODY, "Changes what nodes run."),
    rule("slurm.SlurmController/ClusterRemoveNodes", ADMIN, NOBODY, "Takes nodes from all users."),
    rule(
        "slurm.SlurmController/RegisterAgent",
        NOBODY,
        NODE,
        "Own: the hostname is the certificate's. Resources and addresses of another node are not its to say.",
    ),
    rule("slurm.SlurmController/Heartbeat", NOBODY, NODE, "Own: the hostname is the certificate's."),
    rule("slurm.SlurmController/GetNodes", KNOWN, NOBODY, "The inventory, as `sinfo` shows it to everybody."),
    rule("slurm.SlurmController/GetPartitions", KNOWN, NOBODY, "As `sinfo` shows them to everybody."),
    rule("slurm.SlurmController/Ping", KNOWN, NOBODY, "Names the host and its version: not for strangers."),
    rule(
        "slurm.SlurmAgent/StartClusterComponent",
        CONTROLLER,
        NOBODY,
        "Runs a program as root: only the controller decides that, whoever asked it to.",
    ),
    rule("slurm.SlurmAgent/StopClusterComponent", CONTROLLER, NOBODY, "As the start."),
    rule("slurm.SlurmAgent/GetClusterComponentStatus", CONTROLLER, NOBODY, "Others ask the controller."),
    rule(
        "slurm.SlurmAgent/CreateK0sJoinToken",
        CONTROLLER,
        NOBODY,
        "The token admits a node to the cluster.",
    ),
    rule("slurm.SlurmAgent/DrainK8sNode", CONTROLLER, NOBODY, "Ends users' pods."),
    rule("slurm.SlurmAgent/DeleteK8sNode", CONTROLLER, NOBODY, "Ends users' pods."),
    rule(
        "slurm.SlurmAgent/GetKubeconfig",
        CONTROLLER,
        NOBODY,
        "Gives out credentials of the cluster: users ask the controller, which knows their accounts.",
    ),
    rule("slurm.SlurmAgent/ApplyMesh", CONTROLLER, NOBODY, "Decides who reaches the node by which address."),
    rule(
        "slurm.SlurmAccounting/ListAccounts",
        OPERATORS,
        USERS,
        "Own: accounts that the caller is a member or coordinator of, and those above them, whose limits bind. \
         What was left out is said by the missing revision.",
    ),
    rule(
        "slurm.SlurmAccounting/ListUsers",
        OPERATORS,
        USERS,
        "Own: the caller's associations; a coordinator's: all of the accounts.",
    ),
    rule("slurm.SlurmAccounting/ListQos", PEOPLE, NOBODY, "Whoever submits chooses among them."),
    rule(
        "slurm.SlurmAccounting/GetUsage",
        OPERATORS,
        USERS,
        "Own: the caller's use; a coordinator's: all of the accounts.",
    ),
    rule(
        "slurm.SlurmAccounting/GetFairshareFactors",
        OPERATORS,
        USERS,
        "Own: the caller's factors; a coordinator's: all of the accounts.",
    ),
    rule(
        "slurm.SlurmAccounting/RecordJobStart",
        CONTROLLER,
        NOBODY,
        "What is used costs: only the scheduler says so.",
    ),
    rule("slurm.SlurmAccounting/RecordJobEnd", CONTROLLER, NOBODY, "As the start."),
    rule(
        "slurm.SlurmAccounting/CreateAccount",
        OPERATORS,
        NOBODY,
        "Gives resources. A coordinator decides who uses an account, not how much there is.",
    ),
    rule("slurm.SlurmAccounting/DeleteAccount", OPERATORS, NOBODY, "Ends what its members run."),
    rule(
        "slurm.SlurmAccounting/AddUser",
        OPERATORS,
        &[Coordinator],
        "Own: the account is one that the caller coordinates. A level is given only by those who have it: operators \
         make no admins, coordinators give none.",
    ),
    rule(
        "slurm.SlurmAccounting/RemoveUser",
        OPERATORS,
        &[Coordinator],
        "Own: the account is one that the caller coordinates. Nobody removes one of a higher level.",
    ),
    rule("slurm.SlurmAccounting/CreateQos", OPERATORS, NOBODY, "Gives priority."),
    rule("slurm.SlurmAccounting/DeleteQos", OPERATORS, NOBODY, "Changes what all may use."),
    rule(
        "spur.v1.Site/Enrol",
        &[Anonymous, Node],
        NOBODY,
        "The join token says who it is. All that a stranger may call; a node may enrol anew.",
    ),
    rule("spur.v1.Site/RenewNode", NOBODY, NODE, "Own: the name of the certificate that it comes with."),
    rule("spur.v1.Site/CreateJoinToken", ADMIN, NOBODY, "Whoever has one becomes a node."),
    rule("spur.v1.Site/ListNodes", OPERATORS, NOBODY, "Serial numbers and which nodes vouch for users."),
    rule("spur.v1.Site/MarkNode", ADMIN, NOBODY, "A node that is marked `login` vouches for users."),
    rule("spur.v1.Site/RemoveNode", ADMIN, NOBODY, "Shuts a node out."),
    rule(
        "spur.v1.Site/Login",
        NOBODY,
        PEOPLE,
        "Own: the caller of the local socket, as user and nothing more. A certificate gets no other: it would never end.",
    ),
    rule(
        "spur.v1.Site/LoginFor",
        NOBODY,
        NODE,
        "Own: the node is marked `login`. The user's certificate names it.",
    ),
    rule("spur.v1.Site/WhoAmI", KNOWN, NOBODY, "Tells callers about themselves."),
    rule("spur.v1.Site/Status", KNOWN, NOBODY, "Versions and who leads, which clients need."),
    rule("spur.v1.Site/WaitForChange", KNOWN, NOBODY, "A number that grows, and nothing else."),
    rule(
        "spur.v1.Site/ChangeAccounts",
        OPERATORS,
        &[Coordinator],
        "Own: each change is one that `AddUser` or `RemoveUser` would let the caller make. Also for a dry run.",
    ),
    rule("spur.v1.Site/ListHistory", OPERATORS, NOBODY, "Who changed what, of all accounts."),
    rule(
        "spur.v1.Site/KubeToken",
        ADMIN,
        NOT_ADMINS,
        "Own: the caller's ServiceAccount. An admin may ask for a user's, which the history shows.",
    ),
    rule("spur.v1.Site/ListSessions", ADMIN, NOT_ADMINS, "Own: the caller's sessions."),
    rule("spur.v1.Site/RevokeSessions", ADMIN, NOT_ADMINS, "Own: the caller's sessions and pods."),
    rule("spur.v1.Site/Backup", ADMIN, NOBODY, "A copy of all that is known, sealed keys among it."),
    rule(
        "grpc.health.v1.Health/Check",
        KNOWN,
        NOBODY,
        "A probe without a certificate sees whether the connection opens; a stranger may only enrol.",
    ),
    rule("grpc.health.v1.Health/Watch", KNOWN, NOBODY, "As the check."),
    rule("grpc.health.v1.Health/List", KNOWN, NOBODY, "As the check."),
];

/// The row of an RPC, by its full name, with or without the slash that HTTP puts before it.
#[must_use]
pub fn find(rpc: &str) -> Option<&'static Rule> {
    let rpc = rpc.strip_prefix('/').unwrap_or(rpc);
    TABLE.iter().find(|rule| rule.rpc == rpc)
}

/// What a caller with these roles may do: the most that one of them may. An RPC that the table lacks is denied.
#[must_use]
pub fn decide<'a>(rpc: &str, roles: impl IntoIterator<Item = &'a Role>) -> Access {
    let Some(rule) = find(rpc) else { return Access::Deny };
    roles.into_iter().map(|role| rule.access(*role)).max().unwrap_or(Access::Deny)
}

/// The table as a page, `docs/reference/authorization.md`.
#[must_use]
pub fn markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    // Writing to a string does not fail.
    let _ = write_table(&mut page);
    page
}

fn write_table(page: &mut impl fmt::Write) -> fmt::Result {
    let mut service = "";
    for rule in TABLE {
        let (of, name) = rule.rpc.split_once('/').unwrap_or((rule.rpc, ""));
        if of != service {
            service = of;
            write!(page, "\n## {service}\n\n| RPC |")?;
            for role in Role::ALL {
                write!(page, " {role} |")?;
            }
            page.write_str(" |\n|---|---|---|---|---|---|---|---|---|\n")?;
        }
        write!(page, "| {name} |")?;
        for role in Role::ALL {
            match rule.access(role) {
                Access::Deny => page.write_str(" |")?,
                access => write!(page, " {access} |")?,
            }
        }
        writeln!(page, " {} |", rule.why)?;
    }
    Ok(())
}

const INTRODUCTION: &str = "\
# Who may call what

<!-- Written from `spur_sdk::identity::table`; a test compares them. -->

One table decides, before a call's fields are read. What is not in it, nobody may call; an empty cell is a refusal. A
caller with several roles gets the most that one of them gets. `own` is a yes for what is the caller's own, which the
last column says; for anything else the call is refused.

Roles come from what is verified, never from a field of a request:

| role | who |
|---|---|
| anonymous | over the network without a certificate |
| user | by the local socket, by a certificate of at most 12 h |
| coordinator | a user whom the accounts name as coordinator |
| operator | a user whose level is `operator` |
| admin | root and members of the configured group on the socket, an admin certificate, a user whose level is `admin` |
| node | a node's certificate |
| controller | a controller's certificate |

An operator, coordinator or admin is a user too, an admin also an operator. A user for whom a login node vouches is a
user and nothing more, whatever the accounts say: whoever breaks into a login node could otherwise become admin. A
controller is no admin: it forwards a call under the identity that it verified, and acts on its own only at agents. A
node may speak for itself alone, so that one that was broken into cannot move the others.
";

#[cfg(test)]
mod tests;
