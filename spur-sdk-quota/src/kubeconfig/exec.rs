//! The command that a kubeconfig without a secret names.

/// A client-go credential plugin, as a kubeconfig names it.
///
/// It is never interactive: a login needs no terminal, and kubectl then leaves standard input to what reads it, such
/// as `kubectl apply -f -`. It gets no `KUBERNETES_EXEC_INFO` with the cluster, since its arguments say all, and no
/// environment of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExecPlugin {
    /// The command: a name that is looked up in PATH, or a path.
    pub command: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// What kubectl tells where there is no such command.
    pub install_hint: String,
}

impl ExecPlugin {
    /// A command without arguments.
    #[must_use]
    pub fn new(command: impl Into<String>) -> Self {
        let command = command.into();
        let install_hint = format!(
            "{command} is needed to sign in to this cluster. It is part of the SPUR command line; ask your site where \
             it is installed, or for a kubeconfig with a token in it (spur k8s kubeconfig --static)."
        );
        Self { command, arguments: Vec::new(), install_hint }
    }

    /// `spur kube-token --cluster CLUSTER [--controller URL]`.
    #[must_use]
    pub fn spur(cluster: &str, controller: Option<&str>) -> Self {
        let plugin = Self::new("spur").argument("kube-token").argument("--cluster").argument(cluster);
        match controller {
            Some(controller) => plugin.argument("--controller").argument(controller),
            None => plugin,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets what kubectl tells where there is no such command.
    #[must_use]
    pub fn install_hint(mut self, hint: impl Into<String>) -> Self {
        self.install_hint = hint.into();
        self
    }
}
