//! `spur` as an operator runs it: the built program, files, pipes, and a real API server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams, WatchEvent, WatchParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use spur_sdk_quota::{Carrier, CountLimit, TresLimit};
use spur_test_control_plane::{Component, ControlPlane};
use tempfile::TempDir;

const ACCOUNTS: &str = include_str!("../../../examples/accounts.toml");

/// `good` and `bad` beside each other; line 7 has a key that there is not.
const ONE_BAD: &str = "[[account]]
name = \"good\"
grp_tres = \"cpu=1\"

[[account]]
name = \"bad\"
grp_trs = \"cpu=1\"
";

const COMMANDS: [&str; 9] = [
    "quota",
    "quota render",
    "quota plan",
    "quota apply",
    "quota explain",
    "quota report",
    "quota convert",
    "quota schema",
    "completions",
];

/// The program, built once as it stands.
fn spur() -> &'static Path {
    static PROGRAM: OnceLock<Result<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(build).as_ref().expect("build spur")
}

fn build() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).context("the folder of the profile")?;
    let target = profile.parent().context("the target folder")?;
    let name = profile.file_name().context("the profile")?.to_str().context("the profile")?;
    let name = if name == "debug" { "dev" } else { name };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", "spur", "--profile", name, "--target-dir"]).arg(target);
    // What cargo tells this test of its package is not meant for others, and would have some of them built anew.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            build.env_remove(name);
        }
    }
    // The workspace's own cargo configuration is found from there.
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    ensure!(build.status().context("run cargo")?.success(), "cargo build");
    Ok(profile.join("spur"))
}

/// How a run of `spur` ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    /// Asserts the exit code.
    #[track_caller]
    fn with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Asserts the exit code, and that standard error holds these texts and standard output nothing.
    #[track_caller]
    fn failed(self, code: i32, texts: &[&str]) {
        let ended = self.with(code);
        assert_eq!(ended.out, "", "{ended:#?}");
        for text in texts {
            assert!(ended.err.contains(text), "no {text:?} in {ended:#?}");
        }
    }

    /// Asserts that standard output holds these texts.
    #[track_caller]
    fn shows(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.out.contains(text), "no {text:?} in {self:#?}");
        }
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// A folder with files, in which `spur` runs.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        // Building takes what time it takes, before any is measured.
        spur();
        let folder = Self(tempfile::tempdir().unwrap());
        folder.file("accounts.toml", ACCOUNTS).file("one-bad.toml", ONE_BAD);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, text: &str) -> &Self {
        std::fs::write(self.path(name), text).unwrap();
        self
    }

    /// A command of `spur`, its words in one text, in an environment without a home or settings.
    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(spur());
        command.args(words.split_whitespace()).current_dir(self.0.path()).env_clear();
        command.env("HOME", self.0.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &str) -> Ended {
        ended(self.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn pipe(&self, input: &str, words: &str) -> Ended {
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // What is longer than a pipe holds would need a thread.
        assert!(input.len() < 1 << 16);
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        ended(child)
    }
}

fn ended(child: Child) -> Ended {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn the_help_teaches() {
    let folder = Folder::new();
    insta::assert_snapshot!("help", folder.run("--help").with(0).out);
    insta::assert_snapshot!("help_quota", folder.run("quota --help").with(0).out);
    for command in COMMANDS {
        let help = folder.run(&format!("{command} --help")).with(0);
        assert!(help.out.contains("\nExample") && help.out.contains("\nExit codes: 0 "), "{help:#?}");
        assert_eq!(help.err, "");
    }
}

#[test]
fn a_wrong_command_line_ends_with_64() {
    let folder = Folder::new();
    let plain: [(&str, &[&str]); 14] = [
        ("", &["Usage: spur <COMMAND>"]),
        ("quota", &["Usage: spur quota <COMMAND>"]),
        ("quota rendr accounts.toml", &["rendr", "similar", "'render'"]),
        ("quota render", &["<SOURCE>..."]),
        ("quota explain accounts.toml", &["Usage: spur quota explain <SOURCE>... <ACCOUNT>"]),
        ("quota render accounts.toml -o xml", &["xml", "yaml"]),
        ("quota render accounts.toml --format ini", &["ini", "dump"]),
        ("quota render accounts.toml --adopt", &["--adopt"]),
        ("quota convert accounts.toml --policy policy.toml", &["--policy"]),
        ("quota apply accounts.toml --concurrency 0", &["0 is not in 1..=256"]),
        ("quota schema", &["<OF>"]),
        ("completions tcsh", &["tcsh", "zsh"]),
        ("quota render - -", &["standard input (-) can be named once"]),
        ("quota render --policy - -", &["standard input (-) can be named once"]),
    ];
    for (words, texts) in plain {
        folder.run(words).failed(64, texts);
    }
}

#[test]
fn the_format_of_a_source_is_told_by_its_content() {
    let folder = Folder::new();
    let toml = "[[account]]\nname = \"x\"\ngrp_tres = \"cpu=7\"\n";
    let yaml = "account:\n- name: x\n  grp_tres: cpu=7\n";
    let dump = "# made by hand\nCluster - 'alpha'\nParent - 'root'\nAccount - 'x':GrpTRES=cpu=7\n";
    for text in [toml, yaml, dump] {
        folder.pipe(text, "quota render -o table -").with(0).shows(&[" x        spur-acct-x  7 "]);
    }
    // In any order, without an end that a name could have.
    folder.file("site", dump).run("quota render site -o table").with(0).shows(&["spur-acct-x"]);
    folder.run("quota render site --format toml").failed(1, &["error: site:2: "]);
    folder.run("quota render site --format dump -o table").with(0).shows(&["spur-acct-x"]);
    folder.pipe(toml, "quota render - --format dump").failed(1, &["stdin:1: is no line of a dump"]);
    folder.pipe("hello\n", "quota render -").failed(1, &["stdin:1: expected a table"]);
    // What stood before a pipe may have failed.
    let empty = folder.pipe("", "quota render - -o table").with(0);
    assert_eq!(empty.err, "warning: the sources name no account\n");
    folder.pipe("", "quota apply -").failed(1, &["error: the sources name no account"]);
}

#[test]
fn several_sources_are_one_and_what_two_define_is_named() {
    let folder = Folder::new();
    folder.file("tree.toml", "[[account]]\nname = \"a\"\ngrp_tres = \"cpu=8\"\n");
    folder.file("more.yaml", "account:\n- name: b\n  parent: a\n  grp_tres: cpu=9\n");
    let users = "[[user]]\nname = \"u\"\naccounts = [\"b\"]\n";
    let table = folder.pipe(users, "quota render tree.toml more.yaml - -o table").with(0);
    table.shows(&[
        "a        spur-acct-a  8    -       -            0",
        "b        spur-acct-b  8    -       -            1",
    ]);

    folder.file(
        "again.toml",
        "\n[[account]]\nname = \"a\"\ngrp_tres = \"cpu=800\"\n[[account]]\nname = \"c\"\n",
    );
    let twice = folder.run("quota render tree.toml again.toml -o table").with(3).shows(&["spur-acct-c"]);
    let message =
        "error: again.toml:2: account a: is already defined at tree.toml:1; remove one of the two\n";
    assert!(twice.err.starts_with(message), "{twice:#?}");
    assert!(!twice.out.contains("spur-acct-a"), "{twice:#?}");
}

#[test]
fn one_bad_account_is_named_by_its_place_and_stops_alone() {
    let folder = Folder::new();
    let problem = "error: one-bad.toml:7: account bad: grp_trs: is no key here; did you mean grp_tres?\n";
    let stopped = "error: 1 of 2 accounts are stopped by these errors: bad\n";
    let yaml = folder.run("quota render one-bad.toml").with(3).shows(&["name: spur-acct-good"]);
    assert_eq!(yaml.err, format!("{problem}{stopped}"));
    assert!(!yaml.out.contains("spur-acct-bad"));
    let table = folder.run("quota render one-bad.toml -o table").with(3).shows(&["\n bad "]);
    assert!(table.out.lines().last().unwrap().ends_with("stopped"), "{table:#?}");
    folder.run("quota report one-bad.toml").with(3);
    folder.run("quota convert one-bad.toml").failed(1, &[problem, "nothing is written"]);
    folder.run("quota explain one-bad.toml good").with(0).shows(&["requests.cpu = 1\n"]);
    folder.run("quota explain one-bad.toml bad").with(1).shows(&["stopped    one-bad.toml:7: account bad: "]);

    folder.file("all-bad.toml", &ONE_BAD.replace("grp_tres", "grp_trs"));
    folder
        .run("quota render all-bad.toml")
        .failed(1, &["error: 2 of 2 accounts are stopped by these errors: bad, good\n"]);
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = Folder::new();
    folder.run("quota render nowhere.toml").failed(1, &["error: read nowhere.toml: No such file"]);
    folder.run("quota render accounts.toml .").failed(1, &["error: read .: Is a directory"]);
    folder
        .run("quota render accounts.toml --policy nowhere.toml")
        .failed(1, &["error: read nowhere.toml: No such file"]);
    std::fs::write(folder.path("latin1"), b"[[account]]\nname = \"\xe4\"\n").unwrap();
    folder.run("quota render latin1").failed(1, &["error: read latin1: ", "UTF-8"]);

    folder
        .run("quota plan accounts.toml")
        .failed(1, &["error: no cluster is configured, name one with --kubeconfig"]);
    let absent = folder.run("quota plan accounts.toml --kubeconfig none");
    assert_eq!(absent.err, "error: read kubeconfig none: No such file or directory (os error 2)\n");
    folder.file("empty", "apiVersion: v1\nkind: Config\n");
    folder
        .run("quota plan accounts.toml --kubeconfig empty")
        .failed(1, &["error: kubeconfig empty: ", "context"]);
    folder
        .run("quota plan accounts.toml --kubeconfig accounts.toml")
        .failed(1, &["error: kubeconfig accounts.toml: "]);
    // Where nothing is left of a disk.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let full =
        folder.command("quota render accounts.toml").stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    ended(full).failed(1, &["error: write to standard output: No space left"]);
}

#[test]
fn a_policy_is_told_all_that_is_wrong_with_it() {
    let folder = Folder::new();
    let policy = "prefix = \"-x\"\npod_securty = \"restricted\"\nno_allocation = \"shut\"\n[objects]\npods = \"some\"\n";
    folder.file("policy.toml", policy).run("quota render accounts.toml --policy policy.toml").failed(
        1,
        &[
            "error: policy.toml:1: prefix: ",
            "\npolicy.toml:2: pod_securty: is no key here; did you mean pod_security?\n",
            "\npolicy.toml:3: no_allocation: \"shut\" is no choice: closed or open\n",
            "\npolicy.toml:5: objects.pods: ",
        ],
    );
    folder.file("open.yaml", "pod_security: restricted\n");
    let render = folder.run("quota render accounts.toml --policy open.yaml").with(0);
    assert!(!render.out.contains("pod-security.kubernetes.io/enforce: baseline"));
}

#[test]
fn what_is_rendered_is_the_same_in_each_format() {
    let folder = Folder::new();
    let list = folder.run("quota render accounts.toml -o json").with(0).json();
    assert_eq!((&list["apiVersion"], &list["kind"]), (&json!("v1"), &json!("List")));
    let items = list["items"].as_array().unwrap();
    let yaml = folder.run("quota render accounts.toml").with(0).out;
    let documents: Vec<_> = yaml.split("---\n").filter(|document| !document.is_empty()).collect();
    assert_eq!(documents.len(), items.len());
    for (document, item) in documents.iter().zip(items) {
        let kind = format!("kind: {}\n", item["kind"].as_str().unwrap());
        let name = format!("  name: {}\n", item["metadata"]["name"].as_str().unwrap());
        assert!(document.contains(&kind) && document.contains(&name), "{item}\n{document}");
    }
    let table = folder.run("quota render accounts.toml -o table").with(0);
    assert_eq!(table.out.lines().count(), 13, "a header and twelve accounts:\n{}", table.out);
    table.shows(&["ACCOUNT", "AMD.COM/GPU", "spur-acct-quantum-chemistry-", " guests "]);
}

#[test]
fn colours_are_for_terminals_and_can_be_had_or_refused() {
    let folder = Folder::new();
    let run = |settings: &[&str]| {
        let mut command = folder.command("quota render nowhere.toml");
        command.envs(settings.iter().map(|name| (name, "1"))).stdout(Stdio::piped()).stderr(Stdio::piped());
        ended(command.spawn().unwrap()).err
    };
    assert!(run(&[]).starts_with("error: read"), "a pipe gets none");
    assert!(run(&["CLICOLOR_FORCE"]).starts_with("\u{1b}[1m\u{1b}[31merror:\u{1b}[0m read"));
    assert!(run(&["CLICOLOR_FORCE", "NO_COLOR"]).starts_with("error: read"));
    for command in ["--help", "quota render", "quota render one-bad.toml"] {
        let ended = folder.run(command);
        assert!(!format!("{}{}", ended.out, ended.err).contains('\u{1b}'), "{ended:#?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = Folder::new();
    for (words, code) in [
        ("--help", 0),
        ("completions bash", 0),
        ("quota schema accounts", 0),
        ("quota render accounts.toml", 0),
        ("quota render accounts.toml -o json", 0),
        ("quota convert accounts.toml", 0),
        ("quota report accounts.toml", 0),
        ("quota explain accounts.toml physics", 0),
        ("quota render one-bad.toml", 3),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = ended(folder.command(words).stdout(writer).stderr(Stdio::piped()).spawn().unwrap());
        assert_eq!(ended.code, Some(code), "{words}: {ended:#?}");
        assert!(!ended.err.contains("panicked") && !ended.err.contains("pipe"), "{words}: {ended:#?}");
    }
}

#[test]
fn each_shell_gets_its_completions() {
    let folder = Folder::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        folder.run(&format!("completions {shell}")).with(0).shows(&["kubeconfig", "exit-code", "explain"]);
    }
    let script = folder.run("completions bash").out;
    folder.file("spur.bash", &script);
    let mut bash = Command::new("bash");
    let line = "source ./spur.bash && COMP_WORDS=(spur quota pl) COMP_CWORD=2 && _spur spur pl quota && echo ${COMPREPLY[@]}";
    bash.args(["-c", line]).current_dir(folder.0.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    assert_eq!(ended(bash.spawn().unwrap()).with(0).out, "plan\n");
}

#[test]
fn an_account_is_explained() {
    let folder = Folder::new();
    folder.run("quota explain accounts.toml optics").with(0).shows(&[
        "namespace  spur-acct-optics\n",
        "path       account optics < account physics < account science < the cluster\n",
        "members    alice\n",
        "requests.cpu = 64\n  -> 64           account optics (accounts.toml:28)\n",
        "requests.memory = 1048576Mi\n  -> 1048576Mi    account physics (accounts.toml:21)\n",
    ]);
    let json = folder.run("quota explain accounts.toml optics -o json").with(0).json();
    assert_eq!(json["dimensions"][0]["key"], "requests.cpu");
    folder.run("quota explain accounts.toml guests").with(0).shows(&["closed     no pod can be created: "]);
    let unknown =
        ["there is no account physik in the sources; they have Quantum_Chemistry, archive", " and 2 more"];
    folder.run("quota explain accounts.toml physik").failed(1, &unknown);
}

#[test]
fn the_report_names_each_limit_that_is_not_enforced() {
    let folder = Folder::new();
    let mut account = String::from("[[account]]\nname = \"a\"\ngrp_tres = \"cpu=1,node=2,license/x=3\"\n");
    let mut qos = String::from("[[qos]]\nname = \"q\"\ngrp_tres = \"cpu=1\"\n");
    let mut limits = Vec::new();
    let counts = CountLimit::ALL.iter().map(|limit| (limit.spec(), "3"));
    let amounts = TresLimit::ALL.iter().filter(|limit| **limit != TresLimit::GrpTres);
    for (spec, value) in counts.chain(amounts.map(|limit| (limit.spec(), "\"cpu=3\""))) {
        let line = format!("{} = {value}\n", spec.key);
        if spec.carrier != Carrier::Qos {
            account.push_str(&line);
            limits.push(format!("account a: {}", spec.key));
        }
        if spec.carrier != Carrier::Association {
            qos.push_str(&line);
            limits.push(format!("qos q: {}", spec.key));
        }
    }
    limits.extend(
        ["account a: grp_tres node", "account a: grp_tres license/x", "qos q: grp_tres cpu"]
            .map(str::to_owned),
    );
    folder.file("all.toml", &format!("{account}{qos}"));
    let report = folder.run("quota report all.toml").with(0);
    for limit in &limits {
        let named = report.out.lines().filter(|line| {
            let rest = line.strip_prefix(limit.as_str()).unwrap_or_default();
            rest.starts_with(" = ") || rest.starts_with(" cpu = ")
        });
        let named: Vec<_> = named.collect();
        let [line] = named.as_slice() else { panic!("{limit}: {named:?} in {}", report.out) };
        assert!(line.contains(" (all.toml:") && line.contains(") is not enforced: "), "{line}");
    }
    let json = folder.run("quota report all.toml -o json").with(0).json();
    assert_eq!(json["unenforced"].as_array().unwrap().len(), limits.len());
}

#[test]
fn accounts_are_converted_both_ways() {
    let folder = Folder::new();
    let own = folder.run("quota convert accounts.toml").with(0).out;
    assert_eq!(folder.pipe(&own, "quota convert -").with(0).out, own);
    let both = |source: &str| folder.run(&format!("quota render {source} -o table")).with(0).out;
    assert_eq!(both("accounts.toml"), {
        folder.file("own.toml", &own);
        both("own.toml")
    });

    let dump = folder.run("quota convert accounts.toml --to dump").with(0);
    assert!(dump.err.contains("note: QoS are left out, create them first: gpu"), "{dump:#?}");
    // Slurm takes a default account only from a line on which the user is in it already, so it stands on each.
    let mut users = dump.out.lines().filter(|line| line.starts_with("User - "));
    assert!(users.all(|line| line.contains(":DefaultAccount='")), "{}", dump.out);
    // Slurm turns the names of accounts to lower case, and so do we in reading a dump; this one gets another namespace.
    assert!(dump.err.contains("note: sacctmgr load turns upper case to lower case: in 1 names of accounts"));
    let lower = dump.out.replace("Quantum_Chemistry", "quantum_chemistry");
    let again = folder.file("site.dump", &dump.out).run("quota convert site.dump --to dump").with(0);
    assert_eq!(again.out, lower);
    let back = folder.run("quota convert site.dump").with(0).out;
    assert_eq!(folder.file("back.toml", &back).run("quota convert back.toml --to dump").with(0).out, lower);
    assert_eq!(both("back.toml"), both("site.dump"));
}

#[test]
fn a_cluster_that_does_not_answer_is_named_within_seconds() {
    let folder = Folder::new();
    // Nobody has this port any more.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("https://127.0.0.1:{port}") } }],
        "users": [{ "name": "u", "user": { "token": "t" } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
    });
    folder.file("kubeconfig", &kubeconfig.to_string());
    let begin = Instant::now();
    let apply = folder.run("quota apply accounts.toml --kubeconfig kubeconfig");
    apply.failed(1, &[&format!("error: cluster at https://127.0.0.1:{port}/: list namespaces: "), "refused"]);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    folder
        .run("quota plan accounts.toml --kubeconfig kubeconfig --context d")
        .failed(1, &["kubeconfig kubeconfig: ", "d"]);
}

/// The control plane that the rest runs against, with its kubeconfig in the folder.
struct Cluster {
    folder: Folder,
    control_plane: ControlPlane,
    client: kube::Client,
}

impl Cluster {
    async fn up() -> Result<Self> {
        let control_plane = ControlPlane::start().await?;
        let client = control_plane.client().await?;
        let folder = Folder::new();
        std::fs::copy(control_plane.kubeconfig(), folder.path("kubeconfig"))?;
        Ok(Self { folder, control_plane, client })
    }

    fn quota(&self, words: &str) -> Ended {
        self.folder.run(&format!("quota {words} --kubeconfig kubeconfig"))
    }

    /// Runs kubectl with `input`; what it printed when it succeeded.
    async fn kubectl(&self, words: &str, input: &str) -> Result<String> {
        self.folder.file("objects", input);
        let mut kubectl = self.control_plane.kubectl().await?;
        kubectl.args(words.split(' ')).stdin(std::fs::File::open(self.folder.path("objects"))?);
        let output = kubectl.output().await?;
        let (out, err) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        ensure!(output.status.success(), "kubectl {words}: {err}{out}");
        Ok(out)
    }

    /// The namespaces that are ours.
    async fn namespaces(&self) -> Result<usize> {
        let ours = ListParams::default().labels("app.kubernetes.io/managed-by=spur-quota");
        Ok(Api::<Namespace>::all(self.client.clone()).list(&ours).await?.items.len())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_an_empty_cluster_to_one_in_step() -> Result<()> {
    let cluster = Cluster::up().await?;
    planning_writes_nothing(&cluster).await?;
    kubectl_takes_what_is_rendered(&cluster).await?;
    what_is_applied_is_in_step(&cluster).await?;
    foreign_namespaces_are_refused_or_adopted(&cluster).await?;
    who_may_not_read_the_cluster_is_told(&cluster)?;
    a_run_that_could_not_let_members_in_is_gone_on_with(&cluster)?;
    runs_that_are_killed_let_nobody_in_too_early(&cluster).await?;
    cluster.control_plane.stop().await
}

async fn planning_writes_nothing(cluster: &Cluster) -> Result<()> {
    let plan = cluster.quota("plan accounts.toml").with(0);
    let plan =
        plan.shows(&["+ Namespace spur-acct-physics\n", "+ RoleBinding spur-acct-physics/spur-members\n"]);
    assert_eq!(plan.err, "");
    plan.shows(&[" 12 accounts to change, 0 in step, 0 refused\n"]);
    cluster.quota("plan accounts.toml --exit-code").with(2);
    let json = cluster.quota("plan accounts.toml --exit-code -o json").with(2).json();
    assert_eq!(json["accounts"].as_array().unwrap().len(), 12);
    cluster.quota("plan accounts.toml -o yaml").with(0).shows(&["action: create\n"]);
    cluster
        .quota("plan one-bad.toml --exit-code")
        .with(3)
        .shows(&["+ Namespace spur-acct-good", "refused: account bad: "]);
    cluster.quota("apply accounts.toml --dry-run").with(0).shows(&["+ Namespace spur-acct-physics\n"]);
    assert_eq!(cluster.quota("apply accounts.toml --dry-run -o json").with(0).json(), json);
    assert_eq!(cluster.namespaces().await?, 0);
    Ok(())
}

async fn kubectl_takes_what_is_rendered(cluster: &Cluster) -> Result<()> {
    let list = cluster.folder.run("quota render accounts.toml -o json").with(0);
    let mut namespaces = list.json();
    let items = namespaces["items"].as_array_mut().unwrap();
    let objects = items.len();
    items.retain(|item| item["kind"] == "Namespace");
    cluster.kubectl("apply --server-side -f -", &namespaces.to_string()).await?;
    let dry_run = "apply --server-side --dry-run=server -f -";
    let yaml = cluster.folder.run("quota render accounts.toml").with(0);
    for rendered in [yaml.out, list.out] {
        let taken = cluster.kubectl(dry_run, &rendered).await?;
        let taken =
            taken.lines().filter(|line| line.ends_with(" serverside-applied (server dry run)")).count();
        assert_eq!(taken, objects);
    }
    Ok(())
}

async fn what_is_applied_is_in_step(cluster: &Cluster) -> Result<()> {
    cluster.quota("apply accounts.toml").with(0).shows(&["12 accounts applied, 0 in step, 0 not; "]);
    cluster
        .quota("plan accounts.toml --exit-code")
        .with(0)
        .shows(&["0 steps: 0 accounts to change, 12 in step"]);
    let again = cluster.quota("apply accounts.toml -o json").with(0).json();
    assert_eq!((&again["writes"], &again["unchanged"]), (&json!(0), &json!(12)));
    // kubectl sees no difference either, as the manager that wrote it.
    let rendered = cluster.folder.run("quota render accounts.toml").with(0).out;
    let difference = cluster.kubectl("diff --server-side --field-manager spur-quota -f -", &rendered).await?;
    assert_eq!(difference, "");

    let partly =
        cluster.quota("apply one-bad.toml").with(3).shows(&["1 accounts applied", "refused: account bad: "]);
    assert!(
        partly
            .err
            .contains("note: left alone, since the sources do not name the account: spur-acct-archive, ")
    );
    let outcome = cluster.quota("apply one-bad.toml -o json").with(3).json();
    assert_eq!((&outcome["unchanged"], &outcome["refused"][0]["account"]), (&json!(1), &json!("bad")));
    Ok(())
}

async fn foreign_namespaces_are_refused_or_adopted(cluster: &Cluster) -> Result<()> {
    let theirs = serde_json::from_value(json!({ "metadata": { "name": "spur-acct-theirs" } }))?;
    Api::<Namespace>::all(cluster.client.clone()).create(&PostParams::default(), &theirs).await?;
    let foreign = "[[account]]\nname = \"theirs\"\ngrp_tres = \"cpu=1\"\n";
    cluster.folder.file("theirs.toml", foreign);
    let refused = "refused: account theirs: Namespace spur-acct-theirs exists and is not ours; rename or delete it, or \
        take it over with --adopt\n";
    cluster.quota("plan accounts.toml theirs.toml --exit-code").with(3).shows(&[refused]);
    cluster.quota("apply accounts.toml theirs.toml").with(3).shows(&[refused]);
    cluster.quota("apply theirs.toml").with(1).shows(&[refused]);
    cluster
        .quota("apply accounts.toml theirs.toml --adopt")
        .with(0)
        .shows(&["1 accounts applied, 12 in step, 0 not"]);
    cluster.quota("plan accounts.toml theirs.toml --exit-code").with(0);
    Ok(())
}

fn who_may_not_read_the_cluster_is_told(cluster: &Cluster) -> Result<()> {
    let stranger = cluster.control_plane.kubeconfig_for("mallory", &[])?;
    let words = format!("quota plan accounts.toml --kubeconfig {}", stranger.display());
    let message =
        ["error: cluster at https://127.0.0.1:", "namespaces is forbidden: User \"mallory\" cannot list"];
    cluster.folder.run(&words).failed(1, &message);
    Ok(())
}

fn a_run_that_could_not_let_members_in_is_gone_on_with(cluster: &Cluster) -> Result<()> {
    let late = "[[account]]\nname = \"late\"\ngrp_tres = \"cpu=1\"\n[[user]]\nname = \"alice\"\naccounts = [\"late\"]\n";
    cluster.folder.file("late.toml", late);
    cluster.control_plane.pause(Component::ControllerManager)?;
    let waited = cluster.quota("apply late.toml --binding-timeout 1");
    cluster.control_plane.resume(Component::ControllerManager)?;
    waited.with(3).shows(&[
        "not let in: account late: ",
        "run again",
        "0 accounts applied, 0 in step, 1 not; ",
    ]);
    cluster.quota("apply late.toml").with(0).shows(&["1 accounts applied, 0 in step, 0 not; 1 writes"]);
    cluster.quota("plan late.toml --exit-code").with(0);
    Ok(())
}

/// Sixty accounts with a member each, applied by runs that are killed until one gets to its end.
async fn runs_that_are_killed_let_nobody_in_too_early(cluster: &Cluster) -> Result<()> {
    const MANY: usize = 60;
    let entry = |n| {
        let account = format!("[[account]]\nname = \"many-{n}\"\ngrp_tres = \"cpu={}\"\n", n + 1);
        format!("{account}[[user]]\nname = \"u-{n}\"\naccounts = [\"many-{n}\"]\n")
    };
    cluster.folder.file("many.toml", &(0..MANY).map(entry).collect::<Vec<_>>().concat());
    let history = History::of(&cluster.client).await?;
    let (mut kills, mut random) = (0, u64::from(std::process::id()));
    loop {
        let mut apply = cluster.folder.command("quota apply many.toml --kubeconfig kubeconfig");
        let mut apply = apply.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Later runs get more time, so that one gets to its end on any machine.
        tokio::time::sleep(Duration::from_millis(50 + 5 * kills + (random >> 33) % 300)).await;
        if apply.try_wait()?.is_some() {
            ended(apply).with(0);
            break;
        }
        // SIGKILL. What is under way in the API server may be written all the same.
        apply.kill()?;
        apply.wait()?;
        kills += 1;
    }
    println!("{kills} runs were killed");
    assert!(kills >= 3, "too few runs were killed to tell");
    cluster.quota("plan many.toml --exit-code").with(0).shows(&["0 steps: 0 accounts to change, 60 in step"]);
    assert_eq!(history.admitted("spur-acct-many-").await?, MANY);

    // One that is let in too early would have been seen.
    let metadata = json!({ "name": "spur-acct-early" });
    let namespace = serde_json::from_value(json!({ "metadata": metadata }))?;
    Api::<Namespace>::all(cluster.client.clone()).create(&PostParams::default(), &namespace).await?;
    let role =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "spur-tenant" });
    let binding = serde_json::from_value(json!({ "metadata": metadata, "roleRef": role }))?;
    let bindings = Api::<RoleBinding>::namespaced(cluster.client.clone(), "spur-acct-early");
    bindings.create(&PostParams::default(), &binding).await?;
    let early = history.admitted("spur-acct-early").await.unwrap_err().to_string();
    assert!(early.contains("spur-acct-early"), "{early}");
    Ok(())
}

/// What the API server's store went through, by revision. Revisions count all writes, whatever their kind: so it can be
/// said of each moment what was there.
struct History {
    apis: [Api<DynamicObject>; 2],
    changes: Arc<Mutex<BTreeMap<u64, Change>>>,
}

struct Change {
    kind: String,
    namespace: String,
    name: String,
    /// `None` when it was deleted.
    object: Option<Value>,
}

impl History {
    /// Of quotas and RoleBindings, from now on.
    async fn of(client: &kube::Client) -> Result<Self> {
        let api = |group, kind| {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
            Api::<DynamicObject>::all_with(client.clone(), &resource)
        };
        let apis = [api("", "ResourceQuota"), api("rbac.authorization.k8s.io", "RoleBinding")];
        let changes = Arc::default();
        for api in &apis {
            let list = api.list(&ListParams::default().limit(1)).await?;
            let now = list.metadata.resource_version.context("a list without a version")?;
            let (api, changes) = (api.clone(), Arc::clone(&changes));
            tokio::spawn(async move { follow(&api, &now, &changes).await.expect("watch") });
        }
        Ok(Self { apis, changes })
    }

    /// How many RoleBindings were written in namespaces that begin so; an error when one was before the quotas bound.
    async fn admitted(&self, namespaces: &str) -> Result<usize> {
        for api in &self.apis {
            let last = api.list(&ListParams::default()).await?.items.iter().map(revision).max();
            let begin = Instant::now();
            while !last.is_none_or(|last| self.changes.lock().unwrap().contains_key(&last)) {
                ensure!(begin.elapsed() < Duration::from_secs(20), "the watch lags behind");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let changes = self.changes.lock().unwrap();
        let (mut bound, mut admitted) = (BTreeMap::new(), 0);
        for (revision, Change { kind, namespace, name, object }) in &*changes {
            if !namespace.starts_with(namespaces) {
                continue;
            }
            if kind == "ResourceQuota" {
                bound.insert((namespace, name.as_str()), object.as_ref().is_some_and(binds));
            } else if object.is_some() {
                for quota in ["spur-quota", "spur-priority"] {
                    let binds = bound.get(&(namespace, quota)) == Some(&true);
                    ensure!(binds, "{namespace}/{name} was written at {revision}, when {quota} did not bind");
                }
                admitted += 1;
            }
        }
        Ok(admitted)
    }
}

fn revision(object: &DynamicObject) -> u64 {
    object.metadata.resource_version.as_deref().unwrap_or_default().parse().unwrap()
}

/// Kubernetes has taken in the quota as it stands, and counts.
fn binds(quota: &Value) -> bool {
    let (hard, status) = (&quota["spec"]["hard"], &quota["status"]);
    let keys = hard.as_object().into_iter().flat_map(serde_json::Map::keys);
    status["hard"] == *hard
        && keys.clone().count() > 0
        && keys.clone().all(|key| !status["used"][key].is_null())
}

async fn follow(api: &Api<DynamicObject>, from: &str, changes: &Mutex<BTreeMap<u64, Change>>) -> Result<()> {
    let mut events = std::pin::pin!(api.watch(&WatchParams::default(), from).await?);
    while let Some(event) = events.try_next().await? {
        let (object, there) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
            WatchEvent::Deleted(object) => (object, false),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(error) => anyhow::bail!("{error:?}"),
        };
        let change = Change {
            kind: object.types.clone().unwrap_or_default().kind,
            namespace: object.metadata.namespace.clone().unwrap_or_default(),
            name: object.metadata.name.clone().unwrap_or_default(),
            object: there.then(|| object.data.clone()),
        };
        changes.lock().unwrap().insert(revision(&object), change);
    }
    Ok(())
}
