//! A kubeconfig as a value, and as YAML.

use k8s_openapi::ByteString;
use serde::Serialize;
use spur_sdk::{AccountName, UserName};
use zeroize::Zeroizing;

use super::{BearerToken, Endpoint, ExecPlugin, KubeconfigError};
use crate::project::names;

/// With what a kubeconfig authenticates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// By a command that fetches tokens; there is no secret in the file.
    Exec(ExecPlugin),
    /// By a token in the file.
    Token(BearerToken),
}

/// A user's kubeconfig: one context for each account, the default account first.
///
/// A context is named `CLUSTER/ACCOUNT`. Since the name of a cluster holds no `/`, no two of any clusters and accounts
/// are the same. The user's entry is `CLUSTER/user/USER`, so that files of several users can be merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubeconfig {
    cluster: String,
    endpoint: Endpoint,
    user: UserName,
    accounts: Vec<AccountName>,
    credential: Credential,
}

impl Kubeconfig {
    pub(crate) fn new(
        cluster: &str,
        endpoint: Endpoint,
        user: &UserName,
        accounts: Vec<AccountName>,
        credential: Credential,
    ) -> Self {
        Self { cluster: cluster.to_owned(), endpoint, user: user.clone(), accounts, credential }
    }

    /// The accounts in the order of their contexts, the current one first.
    #[must_use]
    pub fn accounts(&self) -> &[AccountName] {
        &self.accounts
    }

    /// The name of an account's context.
    #[must_use]
    pub fn context(&self, account: &AccountName) -> String {
        format!("{}/{account}", self.cluster)
    }

    /// How it authenticates.
    #[must_use]
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// The file. With a token it is as secret as that: mode 0600.
    ///
    /// # Errors
    /// None is known; what the YAML writer says is passed on.
    pub fn to_yaml(&self) -> Result<Zeroizing<String>, KubeconfigError> {
        let user = format!("{}/user/{}", self.cluster, self.user);
        let context = |account: &AccountName| NamedContext {
            name: self.context(account),
            context: Context {
                cluster: &self.cluster,
                namespace: names::NAMESPACES.map(account.as_str()),
                user: &user,
            },
        };
        let (exec, token) = match &self.credential {
            Credential::Exec(plugin) => (Some(Exec::new(plugin)), None),
            Credential::Token(token) => (None, Some(token.expose())),
        };
        let file = File {
            api_version: "v1",
            kind: "Config",
            clusters: [NamedCluster {
                name: &self.cluster,
                cluster: Cluster {
                    server: &self.endpoint.server,
                    certificate_authority_data: self
                        .endpoint
                        .authorities
                        .as_ref()
                        .map(|pem| ByteString(pem.as_bytes().to_vec())),
                    tls_server_name: self.endpoint.tls_server_name.as_deref(),
                },
            }],
            users: [NamedUser { name: &user, user: User { exec, token } }],
            contexts: self.accounts.iter().map(context).collect(),
            current_context: self.accounts.first().map(|account| self.context(account)),
        };
        let text = serde_saphyr::to_string(&file);
        text.map(Zeroizing::new).map_err(|error| KubeconfigError::Write(error.to_string()))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    api_version: &'static str,
    kind: &'static str,
    clusters: [NamedCluster<'a>; 1],
    users: [NamedUser<'a>; 1],
    contexts: Vec<NamedContext<'a>>,
    #[serde(rename = "current-context", skip_serializing_if = "Option::is_none")]
    current_context: Option<String>,
}

#[derive(Serialize)]
struct NamedCluster<'a> {
    name: &'a str,
    cluster: Cluster<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster<'a> {
    server: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority_data: Option<ByteString>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<&'a str>,
}

#[derive(Serialize)]
struct NamedUser<'a> {
    name: &'a str,
    user: User<'a>,
}

#[derive(Serialize)]
struct User<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    exec: Option<Exec<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Exec<'a> {
    api_version: &'static str,
    command: &'a str,
    args: &'a [String],
    install_hint: &'a str,
    interactive_mode: &'static str,
    provide_cluster_info: bool,
}

impl<'a> Exec<'a> {
    fn new(plugin: &'a ExecPlugin) -> Self {
        Self {
            api_version: "client.authentication.k8s.io/v1",
            command: &plugin.command,
            args: &plugin.arguments,
            install_hint: &plugin.install_hint,
            interactive_mode: "Never",
            provide_cluster_info: false,
        }
    }
}

#[derive(Serialize)]
struct NamedContext<'a> {
    name: String,
    context: Context<'a>,
}

#[derive(Serialize)]
struct Context<'a> {
    cluster: &'a str,
    namespace: String,
    user: &'a str,
}
