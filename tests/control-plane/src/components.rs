//! The programs and their arguments.

use std::fmt;
use std::path::Path;

/// A program of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The store.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

impl Component {
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

/// Where the programs find each other.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) etcd: u16,
    pub(crate) etcd_peer: u16,
    pub(crate) api_server: u16,
}

impl Places<'_> {
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.api_server)
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn certificate(&self, name: &str) -> String {
        self.path(&format!("certificates/{name}"))
    }

    pub(crate) fn etcd_arguments(&self) -> Vec<String> {
        let client = format!("https://127.0.0.1:{}", self.etcd);
        let peer = format!("https://127.0.0.1:{}", self.etcd_peer);
        let (certificate, key, ca) =
            (self.certificate("etcd.crt"), self.certificate("etcd.key"), self.certificate("etcd-ca.crt"));
        vec![
            "--name=test".into(),
            format!("--data-dir={}", self.path("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=test={peer}"),
            format!("--cert-file={certificate}"),
            format!("--key-file={key}"),
            "--client-cert-auth".into(),
            format!("--trusted-ca-file={ca}"),
            format!("--peer-cert-file={certificate}"),
            format!("--peer-key-file={key}"),
            "--peer-client-cert-auth".into(),
            format!("--peer-trusted-ca-file={ca}"),
            "--unsafe-no-fsync".into(),
        ]
    }

    pub(crate) fn api_server_arguments(&self, more: &[String]) -> Vec<String> {
        let mut arguments = vec![
            format!("--etcd-servers=https://127.0.0.1:{}", self.etcd),
            format!("--etcd-cafile={}", self.certificate("etcd-ca.crt")),
            format!("--etcd-certfile={}", self.certificate("etcd-client.crt")),
            format!("--etcd-keyfile={}", self.certificate("etcd-client.key")),
            format!("--secure-port={}", self.api_server),
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=127.0.0.1".into(),
            format!("--cert-dir={}", self.path("api-server")),
            format!("--tls-cert-file={}", self.certificate("api-server.crt")),
            format!("--tls-private-key-file={}", self.certificate("api-server.key")),
            format!("--client-ca-file={}", self.certificate("ca.crt")),
            format!("--service-account-key-file={}", self.certificate("service-account.pub")),
            format!("--service-account-signing-key-file={}", self.certificate("service-account.key")),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            "--authorization-mode=Node,RBAC".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            "--enable-bootstrap-token-auth".into(),
            "--allow-privileged".into(),
            // It would go on failing to publish 127.0.0.1, which no endpoint may have.
            "--endpoint-reconciler-type=none".into(),
        ];
        arguments.extend_from_slice(more);
        arguments
    }

    /// Ports of its own would only add listeners that can fail: nothing asks for them.
    fn client_arguments(&self) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.path("kubeconfig")),
            "--secure-port=0".into(),
            "--leader-elect=false".into(),
        ]
    }

    pub(crate) fn controller_manager_arguments(&self) -> Vec<String> {
        let mut arguments = self.client_arguments();
        arguments.extend([
            "--use-service-account-credentials".into(),
            format!("--service-account-private-key-file={}", self.certificate("service-account.key")),
            format!("--root-ca-file={}", self.certificate("ca.crt")),
            format!("--cluster-signing-cert-file={}", self.certificate("ca.crt")),
            format!("--cluster-signing-key-file={}", self.certificate("ca.key")),
            "--controllers=*,bootstrapsigner,tokencleaner".into(),
        ]);
        arguments
    }

    pub(crate) fn scheduler_arguments(&self) -> Vec<String> {
        self.client_arguments()
    }
}
