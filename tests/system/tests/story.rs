//! The whole story on real parts: an account with GPUs is typed as in Slurm, the reconciler projects it, the user gets
//! a kubeconfig and works with kubectl in the namespace and nowhere else, and is locked out when removed.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use spur_system_tests::program::{Program, spur, spurctld};
use spur_test_control_plane::ControlPlane;

/// A user of this machine beside root: every system has it.
const USER: (&str, u32) = ("daemon", 1);

struct Lab {
    folder: tempfile::TempDir,
    control_plane: ControlPlane,
    port: u16,
    spurctld: Program,
    watch: Program,
}

fn mode(path: &Path, mode: u32) -> Result<()> {
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?)
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

impl Lab {
    async fn up() -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        let folder = tempfile::tempdir()?;
        let path = folder.path();
        mode(path, 0o755)?;
        // What the user runs must not lie in a folder of root's.
        let bin = path.join("bin");
        std::fs::create_dir(&bin)?;
        mode(&bin, 0o755)?;
        let kubectl = control_plane.kubectl().await?;
        for program in [spur()?, Path::new(kubectl.as_std().get_program())] {
            let to = bin.join(program.file_name().context("a program has a name")?);
            std::fs::copy(program, &to)?;
            mode(&to, 0o755)?;
        }
        let home = path.join("home");
        std::fs::create_dir(&home)?;
        std::os::unix::fs::chown(&home, Some(USER.1), Some(USER.1))?;
        let config = path.join("spurctld.toml");
        let here = path.display();
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        std::fs::write(
            &config,
            format!(
                "site = \"lab\"\n[controller]\nname = \"head1\"\nlisten = \"127.0.0.1:{port}\"\nadvertise = \"127.0.0.1:{port}\"\n\
                 socket = \"{here}/run/s\"\nstate = \"{here}/state\"\n[kubernetes]\nkubeconfig = \"{}\"\nname = \"lab\"\n",
                control_plane.kubeconfig().display()
            ),
        )?;
        let init = Command::new(spurctld()?).arg("--config").arg(&config).arg("init").output()?;
        ensure!(init.status.success(), "{}", text(&init));
        let arguments = ["--config".into(), config.into_os_string(), "run".into()];
        let daemon = Program::run(spurctld()?, arguments, &path.join("spurctld.log"))?;
        let socket = format!("unix:{here}/run/s");
        let kubeconfig = control_plane.kubeconfig().display().to_string();
        let watch = ["quota", "watch", "--from-spur", &socket, "--kubeconfig", &kubeconfig];
        let start = Instant::now();
        while !path.join("run/s").exists() {
            ensure!(start.elapsed() < Duration::from_secs(20), "{}", daemon.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let watch = Program::start(watch, &path.join("watch.log"))?;
        Ok(Self { port, control_plane, spurctld: daemon, watch, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `spur`, as root.
    fn spur(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(self.path("bin/spur"));
        command.args(arguments).env("SPUR_CONTROLLER_ADDR", format!("unix:{}", self.path("run/s").display()));
        let output = command.output()?;
        ensure!(output.status.success(), "spur {}: {}", arguments.join(" "), text(&output));
        Ok(text(&output))
    }

    /// A program of the user's.
    fn user(&self, program: &str, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(self.path("bin").join(program));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("HOME", self.path("home"))
            .env("SPUR_CONTROLLER_ADDR", format!("unix:{}", self.path("run/s").display()))
            .current_dir(self.path("home"))
            .uid(USER.1)
            .gid(USER.1);
        Ok(command.output()?)
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        self.user("kubectl", &[&["--kubeconfig", "kubeconfig"], arguments].concat())
    }

    /// Until kubectl does what the user asks, or no more.
    async fn until(&self, allowed: bool, arguments: &[&str], within: Duration) -> Result<Duration> {
        let start = Instant::now();
        loop {
            let output = self.kubectl(arguments)?;
            if output.status.success() == allowed {
                return Ok(start.elapsed());
            }
            if start.elapsed() > within {
                bail!(
                    "kubectl {}: {}\nspurctld: {}\nwatch: {}",
                    arguments.join(" "),
                    text(&output),
                    self.spurctld.said(),
                    self.watch.said()
                );
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_typed_projected_used_and_locked_out() -> Result<()> {
    if std::fs::metadata("/proc/self")?.uid() != 0 {
        spur_test_slurm::skip(
            "an_account_is_typed_projected_used_and_locked_out",
            "it runs programs as another user, which needs root",
        );
        return Ok(());
    }
    let lab = Lab::up().await?;
    lab.spur(&["sacctmgr", "-i", "add", "account", "name=physics", "grptres=cpu=64,mem=131072,gres/gpu=8"])?;
    lab.spur(&["sacctmgr", "-i", "add", "user", "name=daemon", "account=physics"])?;
    let told = Instant::now();
    // Who one is is the kernel's word.
    let who = text(&lab.user("spur", &["whoami"])?);
    ensure!(who.starts_with("user daemon\nroles: user\n"), "{who}");
    // kubectl's tokens come over the network, with the credentials of a login.
    let login = lab.user("spur", &["login"])?;
    ensure!(login.status.success(), "{}", text(&login));
    let got = lab.user("spur", &["k8s", "kubeconfig", "--user", "daemon", "--save", "kubeconfig"])?;
    ensure!(got.status.success(), "{}", text(&got));
    let kubeconfig = std::fs::read_to_string(lab.path("home/kubeconfig"))?;
    ensure!(
        kubeconfig.contains("kube-token") && !kubeconfig.contains("token:"),
        "a secret is in the file: {kubeconfig}"
    );
    let pods = ["get", "pods"];
    let projected = lab.until(true, &pods, Duration::from_secs(40)).await?;
    println!("from sacctmgr to kubectl: {:?}, of which kubectl {projected:?}", told.elapsed());
    let controller = format!("127.0.0.1:{}", lab.port);
    let mut kept = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        let token = lab.user("spur", &["kube-token", "--cluster", "lab", "--controller", &controller])?;
        kept.push(start.elapsed());
        ensure!(token.status.success() && text(&token).contains("ExecCredential"), "{}", text(&token));
    }
    kept.sort();
    println!("a token from the cache: median {:?} of 21, by a program that was not optimised", kept[10]);
    // In the namespace, within the quota.
    let made = lab.kubectl(&["create", "configmap", "mine", "--from-literal=a=b"])?;
    ensure!(made.status.success(), "{}", text(&made));
    let quota = text(&lab.kubectl(&["get", "resourcequota", "spur-quota", "-o", "jsonpath={.spec.hard}"])?);
    ensure!(quota.contains("\"requests.cpu\":\"64\"") && quota.contains("131072M"), "{quota}");
    // And nowhere else.
    for elsewhere in [
        ["get", "pods", "--namespace", "default"],
        ["get", "secrets", "--namespace", "spur-users"],
        ["get", "nodes", "--all-namespaces", "--output=name"],
    ] {
        let output = lab.kubectl(&elsewhere)?;
        ensure!(
            !output.status.success() && text(&output).contains("orbidden"),
            "{elsewhere:?}: {}",
            text(&output)
        );
    }
    // Nobody gets a token for another.
    lab.spur(&["sacctmgr", "-i", "add", "user", "name=alice", "account=physics"])?;
    let other = lab.user("spur", &["k8s", "kubeconfig", "--user", "alice", "--static"])?;
    ensure!(!other.status.success() && text(&other).contains("gets nothing of alice"), "{}", text(&other));
    // A revoked session is refused within 15 s, while the user may get another.
    let sessions = lab.spur(&["k8s", "kubeconfig", "sessions", "-o", "json"])?;
    ensure!(sessions.contains("\"user\": \"daemon\""), "{sessions}");
    let fixed = lab.user("spur", &["k8s", "kubeconfig", "--static", "--save", "fixed"])?;
    ensure!(fixed.status.success(), "{}", text(&fixed));
    let with = ["--kubeconfig", "fixed", "get", "pods"];
    ensure!(lab.user("kubectl", &with)?.status.success(), "a kubeconfig with a token in it does not work");
    lab.spur(&["k8s", "kubeconfig", "revoke", "daemon"])?;
    let start = Instant::now();
    while lab.user("kubectl", &with)?.status.success() {
        ensure!(start.elapsed() < Duration::from_secs(15), "a revoked token is still taken after 15 s");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("revoked: refused after {:?}", start.elapsed());
    lab.until(true, &pods, Duration::from_secs(15)).await?;
    // Removal locks out.
    lab.spur(&["sacctmgr", "-i", "delete", "user", "name=daemon"])?;
    let out = lab.until(false, &pods, Duration::from_secs(15)).await?;
    println!("removed: refused after {out:?}");
    let again = lab.user("spur", &["k8s", "kubeconfig", "--static"])?;
    ensure!(!again.status.success() && text(&again).contains("daemon"), "{}", text(&again));
    lab.control_plane.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_controller_on_the_same_store_is_refused_and_the_first_is_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let here = folder.path().display();
    let config = |name: &str| -> Result<PathBuf> {
        let path = folder.path().join(format!("{name}.toml"));
        let text = format!(
            "site = \"lab\"\n[controller]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nsocket = \"{here}/{name}/s\"\nstate = \"{here}/state\"\n"
        );
        std::fs::write(&path, text)?;
        Ok(path)
    };
    let (first, second) = (config("head1")?, config("head2")?);
    let run = |path: &Path, command: &str| {
        Command::new(spurctld()?).arg("--config").arg(path).arg(command).output().map_err(anyhow::Error::from)
    };
    ensure!(!run(&first, "run")?.status.success(), "it starts without a site");
    ensure!(text(&run(&first, "run")?).contains("spurctld init"), "the way out is not named");
    ensure!(run(&first, "init")?.status.success(), "init");
    let mut daemon = Program::run(
        spurctld()?,
        ["--config".into(), first.into_os_string(), "run".into()],
        &folder.path().join("log"),
    )?;
    let start = Instant::now();
    while !folder.path().join("head1/s").exists() {
        ensure!(start.elapsed() < Duration::from_secs(20), "{}", daemon.said());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = text(&run(&second, "run")?);
    ensure!(refused.contains("in use by") && refused.contains("spurctld"), "{refused}");
    daemon.signal("TERM")?;
    let start = Instant::now();
    while daemon.runs()? {
        ensure!(start.elapsed() < Duration::from_secs(15), "it does not stop: {}", daemon.said());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
