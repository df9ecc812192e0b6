//! Starting, using and stopping a control plane.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::certificates::Certificates;
use crate::components::{Component, Places};
use crate::folder::Folder;
use crate::options::Options;
use crate::ports;
use crate::process::Server;
use crate::programs::Programs;

/// The namespace of the cluster's own parts.
const SYSTEM: &str = "kube-system";
/// Names of the controllers' ServiceAccounts, one a line; a controller that is missing here makes its own, later.
const CONTROLLERS_ACCOUNTS: &str = include_str!("controllers.txt");
/// Far more than a loaded machine needs.
const START_DEADLINE: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(50);
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// For one request while starting: a program that has ended is seen after that time at the latest.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often other ports are tried when somebody took one meanwhile.
const PORT_ATTEMPTS: u32 = 5;

/// Of etcd, its peers, and the API server.
type Ports = [u16; 3];

/// A running control plane; gone, with its folder, when this value or the process is.
#[derive(Debug)]
pub struct ControlPlane {
    // Dropped in this order: programs first, then the folder.
    servers: Vec<Server>,
    folder: Folder,
    certificates: Certificates,
    programs: Programs,
    options: Options,
    url: String,
    kubeconfig: PathBuf,
    identities: AtomicU32,
    start_time: Duration,
}

/// A control plane that was left running.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Kept {
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// A script that stops the control plane and removes its folder.
    pub stop: PathBuf,
}

impl ControlPlane {
    /// Starts a control plane with default options; see [`Self::start_with`].
    ///
    /// # Errors
    /// As [`Self::start_with`].
    ///
    /// # Cancellation
    /// As [`Self::start_with`].
    pub async fn start() -> Result<Self> {
        Self::start_with(Options::default()).await
    }

    /// Builds the programs that are missing, starts them, and waits until the API server is ready and the controller
    /// manager, if there is one, works.
    ///
    /// # Errors
    /// A program cannot be built, ends, or is not ready within two minutes. Its log's end is in the message, and all
    /// logs are kept.
    ///
    /// # Cancellation
    /// What was started is stopped and its folder removed.
    pub async fn start_with(options: Options) -> Result<Self> {
        Self::start_on(options, None).await
    }

    /// Tries `ports` first, if given.
    async fn start_on(options: Options, ports: Option<Ports>) -> Result<Self> {
        let programs = Programs::new(options.kubernetes.as_deref(), options.progress.clone()).await?;
        let mut components = vec![Component::Etcd, Component::ApiServer];
        components.extend(options.controller_manager.then_some(Component::ControllerManager));
        components.extend(options.scheduler.then_some(Component::Scheduler));
        let tools: Vec<&str> = components.iter().map(|component| component.program()).collect();
        let paths = programs.find(&tools).await?;
        let paths: Vec<(Component, PathBuf)> = components.into_iter().zip(paths).collect();

        let begin = Instant::now();
        let folder = Folder::new()?;
        let certificates = Certificates::write(&folder.path().join("certificates"))?;
        let kubeconfig = folder.path().join("kubeconfig");
        let mut control_plane = Self {
            servers: Vec::new(),
            folder,
            certificates,
            programs,
            options,
            url: String::new(),
            kubeconfig,
            identities: AtomicU32::new(0),
            start_time: Duration::ZERO,
        };
        if let Err(error) = control_plane.launch(&paths, ports).await {
            control_plane.stop_servers();
            return Err(match control_plane.folder.save_logs() {
                Ok(place) => {
                    error.context(format!("the control plane did not start; logs: {}", place.display()))
                }
                Err(second) => error.context(format!("the control plane did not start; no logs: {second:#}")),
            });
        }
        control_plane.start_time = begin.elapsed();
        Ok(control_plane)
    }

    async fn launch(&mut self, paths: &[(Component, PathBuf)], mut ports: Option<Ports>) -> Result<()> {
        let mut attempt = 1;
        loop {
            let next = ports.take().map_or_else(ports::pick, Ok)?;
            let error = match timeout(START_DEADLINE, self.attempt(paths, next)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => anyhow!("not ready after {} s", START_DEADLINE.as_secs()),
            };
            if attempt == PORT_ATTEMPTS || !self.lost_a_port() {
                return Err(error);
            }
            attempt += 1;
            self.options.progress.say("A port was taken by somebody else meanwhile: trying others.");
            self.stop_servers();
            let data = self.folder.path().join("etcd");
            std::fs::remove_dir_all(&data).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
        }
    }

    async fn attempt(&mut self, paths: &[(Component, PathBuf)], ports: Ports) -> Result<()> {
        let [etcd, etcd_peer, api_server] = ports;
        let folder = self.folder.path().to_owned();
        let places = Places { folder: &folder, etcd, etcd_peer, api_server };
        self.url = places.url();
        let admin = self.certificates.kubeconfig(&self.url, "admin", &["system:masters"])?;
        std::fs::write(&self.kubeconfig, admin)
            .with_context(|| format!("write {}", self.kubeconfig.display()))?;
        for (component, program) in paths {
            let arguments = match component {
                Component::Etcd => places.etcd_arguments(),
                Component::ApiServer => places.api_server_arguments(&self.options.api_server_args),
                Component::ControllerManager => places.controller_manager_arguments(),
                Component::Scheduler => places.scheduler_arguments(),
            };
            self.servers.push(Server::start(&folder, *component, program, &arguments)?);
            if *component == Component::Etcd {
                // An API server that finds no etcd loses most of a second before it tries again.
                while TcpStream::connect((Ipv4Addr::LOCALHOST, etcd)).await.is_err() {
                    self.check_running()?;
                    sleep(POLL / 5).await;
                }
            }
            if *component == Component::ApiServer {
                if self.options.controller_manager {
                    self.make_controllers_accounts().await?;
                }
                self.wait_for_api_server().await?;
            }
        }
        if self.options.controller_manager {
            self.wait_for_controller_manager().await?;
        }
        self.check_running()
    }

    /// A controller manager that finds the API server not ready looks again only after a second, and ends after ten:
    /// started at this point it loses least.
    async fn wait_for_api_server(&mut self) -> Result<()> {
        let client = self.client().await?;
        loop {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            if let Ok(Ok(_)) = timeout(PATIENCE, client.request_text(request)).await {
                return Ok(());
            }
            self.check_running()?;
            sleep(POLL).await;
        }
    }

    /// Makes the ServiceAccounts that the controller manager's controllers act as, while the API server, not ready yet,
    /// waits for itself.
    ///
    /// The controller manager would make them one after the other, slowed down to its 20 requests per second, which
    /// takes longer than all the rest; that rate stays as it is, for what tests measure.
    async fn make_controllers_accounts(&mut self) -> Result<()> {
        let client = self.client().await?;
        let namespaces = Api::<Namespace>::all(client.clone());
        while !matches!(timeout(PATIENCE, namespaces.get_opt(SYSTEM)).await, Ok(Ok(Some(_)))) {
            self.check_running()?;
            sleep(POLL).await;
        }
        let accounts = Api::<ServiceAccount>::namespaced(client, SYSTEM);
        let mut made = JoinSet::new();
        for name in CONTROLLERS_ACCOUNTS.lines() {
            let accounts = accounts.clone();
            made.spawn(async move {
                let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
                let account = ServiceAccount { metadata, ..ServiceAccount::default() };
                timeout(REQUEST_DEADLINE, accounts.create(&PostParams::default(), &account)).await
            });
        }
        // Where this fails, the controller manager does it: later, and that is all.
        while made.join_next().await.is_some() {}
        Ok(())
    }

    /// It works when it has made the first object that is its own to make.
    async fn wait_for_controller_manager(&mut self) -> Result<()> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client().await?, "default");
        loop {
            if let Ok(Ok(Some(_))) = timeout(PATIENCE, accounts.get_opt("default")).await {
                return Ok(());
            }
            self.check_running()?;
            sleep(POLL).await;
        }
    }

    /// Fails with the log's end of a program that has ended.
    fn check_running(&mut self) -> Result<()> {
        for server in &mut self.servers {
            if let Some(status) = server.ended()? {
                bail!("{} ended ({status}); its log ends:\n{}", server.component, server.last_lines(15));
            }
        }
        Ok(())
    }

    /// Whether a program has ended because its port was taken.
    fn lost_a_port(&mut self) -> bool {
        self.servers.iter_mut().any(|server| {
            matches!(server.ended(), Ok(Some(_))) && server.last_lines(50).contains("address already in use")
        })
    }

    fn stop_servers(&mut self) {
        for mut server in self.servers.drain(..).rev() {
            server.kill();
        }
    }

    /// Kubeconfig file of the administrator, a member of `system:masters`; its one context is `test`.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Writes a kubeconfig for this user and these groups, with a client certificate and the one context `test`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        let number = self.identities.fetch_add(1, Ordering::Relaxed);
        let path = self.dir().join(format!("kubeconfig-{number}"));
        let text = self.certificates.kubeconfig(&self.url, user, groups)?;
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// A client of the administrator.
    ///
    /// # Errors
    /// The client cannot be made; nothing is asked of the API server.
    pub async fn client(&self) -> Result<Client> {
        client_of(Kubeconfig::read_from(&self.kubeconfig)?).await
    }

    /// A client of this user in these groups; Kubernetes adds `system:authenticated`.
    ///
    /// # Errors
    /// The client cannot be made; nothing is asked of the API server.
    pub async fn client_for(&self, user: &str, groups: &[&str]) -> Result<Client> {
        client_of(Kubeconfig::from_yaml(&self.certificates.kubeconfig(&self.url, user, groups)?)?).await
    }

    /// A client with a token of a ServiceAccount, valid for an hour.
    ///
    /// # Errors
    /// There is no such ServiceAccount.
    pub async fn client_for_service_account(&self, namespace: &str, name: &str) -> Result<Client> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let answer = accounts.create_token_request(name, &PostParams::default(), &request).await;
        let answer = answer.with_context(|| format!("token of ServiceAccount {namespace}/{name}"))?;
        let token = answer.status.context("an answer without a token")?.token;
        let mut kubeconfig = Kubeconfig::read_from(&self.kubeconfig)?;
        for user in &mut kubeconfig.auth_infos {
            user.auth_info = Some(AuthInfo { token: Some(token.clone().into()), ..AuthInfo::default() });
        }
        client_of(kubeconfig).await
    }

    /// The API server's address, `https://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The folder of this control plane, readable by its owner alone; removed with it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// The certificate of the authority that signed the API server's and the users' certificates, PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.certificates.authority.pem()
    }

    /// How long starting took, without building.
    #[must_use]
    pub fn start_time(&self) -> Duration {
        self.start_time
    }

    /// The kubectl of this version, built if it is missing, with the administrator's kubeconfig.
    ///
    /// # Errors
    /// It cannot be built.
    pub async fn kubectl(&self) -> Result<Command> {
        let paths = self.programs.find(&["kubectl"]).await?;
        let path = paths.first().context("no kubectl")?;
        let mut command = Command::new(path);
        command.env_remove("KUBECONFIG").arg("--kubeconfig").arg(&self.kubeconfig).kill_on_drop(true);
        Ok(command)
    }

    /// The process ids of the programs.
    #[must_use]
    pub fn pids(&self) -> Vec<(Component, u32)> {
        self.servers.iter().map(|server| (server.component, server.pid())).collect()
    }

    /// Stops a program from running until [`Self::resume`] (SIGSTOP): its connections stay open, nothing answers.
    ///
    /// # Errors
    /// It does not run.
    pub fn pause(&self, component: Component) -> Result<()> {
        self.server(component)?.signal("STOP")
    }

    /// Lets a paused program go on.
    ///
    /// # Errors
    /// It does not run.
    pub fn resume(&self, component: Component) -> Result<()> {
        self.server(component)?.signal("CONT")
    }

    fn server(&self, component: Component) -> Result<&Server> {
        let found = self.servers.iter().find(|server| server.component == component);
        found.with_context(|| format!("this control plane has no {component}"))
    }

    /// The API server's metrics in the text format of Prometheus: `apiserver_request_total` counts requests.
    ///
    /// # Errors
    /// The API server does not answer within 10 s.
    pub async fn metrics(&self) -> Result<String> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let client = self.client().await?;
        Ok(timeout(REQUEST_DEADLINE, client.request_text(request))
            .await
            .context("metrics of the API server")??)
    }

    /// Stops the programs and removes the folder.
    ///
    /// # Errors
    /// A program had ended before.
    pub async fn stop(mut self) -> Result<()> {
        let running = self.check_running();
        tokio::task::spawn_blocking(move || drop(self)).await?;
        running
    }

    /// Leaves the control plane running when this process ends.
    ///
    /// # Errors
    /// The script that would remove it does not answer.
    pub fn keep(mut self) -> Result<Kept> {
        self.folder.keep()?;
        self.servers.clear();
        Ok(Kept { kubeconfig: self.kubeconfig.clone(), stop: self.folder.stop_script() })
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let wanted = std::env::var_os("SPUR_TEST_KEEP_LOGS").is_some_and(|value| !value.is_empty());
        let saves = !self.servers.is_empty() && (wanted || std::thread::panicking());
        self.stop_servers();
        if saves {
            self.options.progress.say(&match self.folder.save_logs() {
                Ok(place) => format!("Logs of the control plane: {}", place.display()),
                Err(error) => format!("The logs of the control plane could not be kept: {error:#}"),
            });
        }
    }
}

async fn client_of(kubeconfig: Kubeconfig) -> Result<Client> {
    // Several providers may be compiled in, and then rustls picks none; an error means that one is installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    #[ignore = "long: starts three control planes"]
    async fn a_port_that_was_taken_meanwhile_is_replaced() -> Result<()> {
        for place in 0..3 {
            let ports: Ports = ports::pick()?;
            let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, ports[place]))?;
            let options = Options::default().controller_manager(false).scheduler(false);
            let control_plane = ControlPlane::start_on(options, Some(ports)).await?;
            assert!(!control_plane.url().ends_with(&format!(":{}", ports[2])), "it cannot have that port");
            drop(taken);
            control_plane.stop().await?;
        }
        Ok(())
    }
}
