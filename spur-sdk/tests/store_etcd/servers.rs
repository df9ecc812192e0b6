//! Real etcd servers for tests, on loopback and in a temporary folder.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use spur_sdk::store::etcd::{EtcdSettings, EtcdStore};
use spur_sdk::store::{Key, Store as _};
use tempfile::TempDir;

/// Starts a program, says its process id, and ends it when its own input ends: also when the test is killed.
const KEEPER: &str = r#"log=$1; shift; "$@" </dev/null >>"$log" 2>&1 & echo $!; read -r _; kill -CONT $!; kill -KILL $!; wait"#;

/// The etcd program: `KUBEBUILDER_ASSETS` has it, or `tests/control-plane/build.sh` builds it into the cache.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(etcd) =
            set("KUBEBUILDER_ASSETS").map(|folder| folder.join("etcd")).filter(|etcd| etcd.is_file())
        {
            return etcd;
        }
        let base = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        let cache = set("SPUR_TEST_CACHE")
            .or_else(|| Some(base()?.join("spur-sdk")))
            .expect("HOME or SPUR_TEST_CACHE");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/control-plane/build.sh");
        let built =
            Command::new("bash").arg(script).arg(cache).args(["default", "etcd"]).output().expect("bash");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        PathBuf::from(String::from_utf8(built.stdout).expect("a path").trim())
    })
}

/// Free ports below those that the kernel gives to outgoing connections.
fn free_ports(count: usize) -> Vec<u16> {
    let random = RandomState::new();
    let mut held: Vec<TcpListener> = Vec::new();
    for attempt in 0..10_000_u32 {
        if held.len() == count {
            break;
        }
        let port = 10_000 + u16::try_from(random.hash_one(attempt) % 20_000).expect("small");
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    }
    held.iter().map(|listener| listener.local_addr().expect("an address").port()).collect()
}

pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status().expect("kill");
    assert!(status.success(), "kill -s {name} {pid}");
}

/// Stops a process: `SIGSTOP` itself returns before all of its threads stand still.
pub(crate) fn stop(pid: u32) {
    signal(pid, "STOP");
    let begin = Instant::now();
    let stands = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.expect("a thread").path().join("stat"));
        // PID (NAME) STATE …; a thread that has just ended is none.
        stat.map_or(true, |stat| {
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        })
    };
    while !std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process").all(stands) {
        assert!(begin.elapsed() < Duration::from_secs(5), "{pid} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A certificate authority with a server's and a client's certificate, as PEM.
pub(crate) struct Certificates {
    pub(crate) ca: String,
    pub(crate) server: (String, String),
    pub(crate) client: (String, String),
}

impl Certificates {
    pub(crate) fn new(user: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("key")).expect("authority");
        let issue = |name: &str| {
            let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("name");
            params.distinguished_name.push(DnType::CommonName, name);
            let key = KeyPair::generate().expect("key");
            (params.signed_by(&key, &ca).expect("certificate").pem(), key.serialize_pem())
        };
        Self { ca: ca.pem(), server: issue("etcd"), client: issue(user) }
    }
}

/// A member of a cluster, running or not.
pub(crate) struct Member {
    name: String,
    folder: PathBuf,
    arguments: Vec<String>,
    pub(crate) url: String,
    pub(crate) peer: String,
    keeper: Option<(Child, u32)>,
}

impl Member {
    pub(crate) fn start(&mut self, state: &str, cluster: &str) {
        let log = self.folder.join(format!("{}.log", self.name));
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "sh"])
            .arg(log)
            .arg(program())
            .args([format!("--name={}", self.name), format!("--data-dir={}", self.data().display())])
            .args([
                format!("--listen-client-urls={}", self.url),
                format!("--advertise-client-urls={}", self.url),
            ])
            .args([
                format!("--listen-peer-urls={}", self.peer),
                format!("--initial-advertise-peer-urls={}", self.peer),
            ])
            .args([format!("--initial-cluster={cluster}"), format!("--initial-cluster-state={state}")])
            .args(["--unsafe-no-fsync", "--log-level=warn"])
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().expect("output")).read_line(&mut line).expect("process id");
        self.keeper = Some((keeper, line.trim().parse().expect("process id")));
    }

    fn data(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.keeper.as_ref().expect("it runs").1
    }

    /// `SIGKILL`.
    pub(crate) fn kill(&mut self) {
        if let Some((mut keeper, _)) = self.keeper.take() {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
    }

    pub(crate) fn wipe(&self) {
        std::fs::remove_dir_all(self.data()).expect("data");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A cluster; its processes end with it.
pub(crate) struct Etcd {
    pub(crate) members: Vec<Member>,
    _folder: TempDir,
}

impl Etcd {
    pub(crate) async fn single(arguments: &[&str]) -> Self {
        let etcd = Self::new(1, arguments, None);
        etcd.ready().await;
        etcd
    }

    pub(crate) async fn three() -> Self {
        // Half of etcd's defaults: elections are waited for.
        let etcd = Self::new(3, &["--heartbeat-interval=50", "--election-timeout=500"], None);
        etcd.ready().await;
        etcd
    }

    pub(crate) fn tls(certificates: &Certificates, arguments: &[&str]) -> Self {
        Self::new(1, arguments, Some(certificates))
    }

    fn new(count: usize, arguments: &[&str], certificates: Option<&Certificates>) -> Self {
        let folder = tempfile::Builder::new().prefix("spur-etcd-").tempdir().expect("folder");
        let mut arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut scheme = "http";
        if let Some(certificates) = certificates {
            scheme = "https";
            let (certificate, key) = &certificates.server;
            for (flag, pem) in
                [("cert-file", certificate), ("key-file", key), ("trusted-ca-file", &certificates.ca)]
            {
                let path = folder.path().join(flag);
                std::fs::write(&path, pem).expect("pem");
                arguments.push(format!("--{flag}={}", path.display()));
            }
            arguments.push("--client-cert-auth".to_owned());
        }
        let ports = free_ports(count * 2);
        let member = |(index, ports): (usize, &[u16])| Member {
            name: format!("m{index}"),
            folder: folder.path().to_owned(),
            arguments: arguments.clone(),
            url: format!("{scheme}://127.0.0.1:{}", ports[0]),
            peer: format!("http://127.0.0.1:{}", ports[1]),
            keeper: None,
        };
        let members = ports.chunks(2).enumerate().map(member).collect();
        let mut etcd = Self { members, _folder: folder };
        let cluster = etcd.cluster();
        etcd.members.iter_mut().for_each(|member| member.start("new", &cluster));
        etcd
    }

    /// As `--initial-cluster` takes it.
    pub(crate) fn cluster(&self) -> String {
        let member = |member: &Member| format!("{}={}", member.name, member.peer);
        self.members.iter().map(member).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.members.iter().map(|member| member.url.clone()).collect()
    }

    pub(crate) fn settings(&self) -> EtcdSettings {
        EtcdSettings::new(self.urls())
    }

    /// Starts a member that ran before.
    pub(crate) fn restart(&mut self, index: usize) {
        let cluster = self.cluster();
        self.members[index].start("existing", &cluster);
    }

    async fn ready(&self) {
        for member in &self.members {
            let store = EtcdStore::new(&EtcdSettings::new([&member.url])).await.expect("settings");
            answers(&store).await;
        }
    }

    /// A client of one member, for what the store cannot do. Some of it would wait for ever where etcd changes its
    /// leader meanwhile.
    pub(crate) async fn client(&self, index: usize) -> Client {
        let options = ConnectOptions::new().with_timeout(Duration::from_secs(2));
        Client::connect([&self.members[index].url], Some(options)).await.expect("client")
    }

    /// The member that leads etcd's own cluster.
    pub(crate) async fn leader(&self) -> usize {
        for index in 0..self.members.len() {
            let status = self.client(index).await.status().await;
            if status
                .is_ok_and(|status| status.header().is_some_and(|own| own.member_id() == status.leader()))
            {
                return index;
            }
        }
        panic!("etcd has no leader")
    }
}

/// Waits until a store answers.
pub(crate) async fn answers(store: &EtcdStore) {
    let begin = Instant::now();
    let key: Key = "any".parse().expect("a key");
    while let Err(error) = store.get(&key).await {
        assert!(begin.elapsed() < Duration::from_secs(30), "{}", spur_sdk::error_chain(&error));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
