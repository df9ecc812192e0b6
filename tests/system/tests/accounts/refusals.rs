//! Bad input: a precise error, and nothing is stored.

use anyhow::Result;

use crate::lab::Lab;

/// What is typed, the exit code and what is said.
type Case<'c> = (&'c [&'c str], i32, &'c str);

const CASES: &[Case<'_>] = &[
    (&["account", "add", "--", "-x"], 1, "name: \"-x\" begins with a sign"),
    (&["account", "add", "-x"], 64, "unexpected argument '-x'"),
    (&["account", "add", "a\tb"], 1, "name: a name must not hold the control character '\\t'"),
    (&["account", "add", "a\u{202e}b"], 1, "name: a name must not hold the control character"),
    (&["account", "add", ""], 1, "name: a name must not be empty"),
    (&["account", "add", "a/b"], 1, "name: \"a/b\" holds '/'"),
    (&["account", "add", "x", "--description", "a\nb"], 1, "description: holds the control character '\\n'"),
    (&["account", "add", "x", "--parent", "nowhere"], 1, "parent_account: account nowhere does not exist"),
    (&["account", "add", "x", "--grp-tres", "nodes=3"], 64, "\"nodes\" is no TRES: did you mean node?"),
    (&["account", "add", "x", "--grp-tres", "cpu=99999999999999999999"], 64, "--grp-tres"),
    (&["account", "add", "x", "--max-running-jobs", "-2"], 64, "is no number from 0 (blocks)"),
    (&["account", "add", "x", "--fairshare", "nan"], 64, "is no number from 0 to"),
    (
        &["account", "add", "x", "--coordinator", "nobody"],
        1,
        "user nobody, who is to be a coordinator, does not exist",
    ),
    (
        &["account", "modify", "physics", "--parent", "physics"],
        1,
        "parent_account: physics is physics itself or below it",
    ),
    (&["account", "add", "x", "x"], 1, "account x exists already"),
    (&["user", "add", "--account", "physics", "--", "-bob"], 1, "user: \"-bob\" begins with a sign"),
    (
        &["user", "add", "bob\u{7}", "--account", "physics"],
        1,
        "user: a name must not hold the control character",
    ),
    (&["user", "add", "bob", "--account", "nowhere"], 1, "account nowhere does not exist"),
    (
        &["user", "add", "bob", "--account", "physics", "--admin-level", "king"],
        1,
        "admin_level: \"king\" is none of",
    ),
    (
        &["user", "add", "bob", "--account", "physics", "--default-qos", "none-such"],
        1,
        "default_qos: qos none-such does not exist",
    ),
    (&["user", "modify", "alice", "--account", "physics", "--max-wall", "soon"], 64, "\"soon\" is no time"),
    (&["qos", "add", "--", "+x"], 1, "name: \"+x\" begins with a sign"),
    (&["qos", "add", "x", "--preempt", "none-such"], 1, "preempt: qos none-such does not exist"),
    (&["qos", "add", "x", "--priority", "99999999999"], 64, "--priority"),
    (&["sacctmgr", "-i", "add", "account", "name=-x"], 1, "name: \"-x\" begins with a sign"),
    (
        &["sacctmgr", "-i", "add", "account", "name=a\u{1}b"],
        1,
        "name: a name must not hold the control character",
    ),
    (&["sacctmgr", "-i", "add", "account", "x", "grptres=mem=lots"], 64, "grptres=mem=lots: "),
    (
        &["sacctmgr", "-i", "add", "account", "x", "parent=nowhere"],
        1,
        "parent_account: account nowhere does not exist",
    ),
    (&["sacctmgr", "-i", "add", "account", "x", "shape=round"], 64, "Unknown option: shape=round"),
    (
        &["sacctmgr", "-i", "add", "user", "name=--all", "account=physics"],
        1,
        "user: \"--all\" begins with a sign",
    ),
    (&["sacctmgr", "-i", "modify", "user", "alice", "set", "maxjobs=x"], 64, "maxjobs=x: is no number"),
    (&["sacctmgr", "-i", "delete", "account", "physics"], 1, "1 members (alice): use --force"),
    (&["sacctmgr", "add", "account", "x"], 64, "there is no terminal to ask on: write -i"),
    (&["sacctmgr", "-r", "-i", "add", "account", "x"], 64, "readonly"),
    (&["sacctmgr", "frobnicate"], 64, "invalid keyword: frobnicate"),
    (&["sacctmgr", "show", "cluster"], 64, "cluster: name one of account"),
    (&["sacctmgr", "dump", "beta"], 1, "cluster beta does not exist; the controller's is alpha"),
];

#[test]
fn bad_input_is_told_precisely_and_nothing_is_stored() -> Result<()> {
    let lab = Lab::start()?;
    lab.done(&["account", "add", "physics"])?;
    lab.done(&["user", "add", "alice", "--account", "physics"])?;
    let (huge, long) = ("x".repeat(100_000), "x".repeat(2000));
    let tres = format!("cpu=1{}", ",cpu=1".repeat(10_000));
    let name = |name: &str| format!("name={name}");
    let description = format!("description={huge}");
    let large: &[Case] = &[
        (&["account", "add", &huge], 1, "name: 100000 bytes; at most 255"),
        (&["account", "add", "x", "--description", &long], 1, "description: 2000 bytes; at most 1024"),
        (&["account", "add", "x", "--grp-tres", &tres], 64, "cpu is given twice"),
        (&["user", "add", &huge, "--account", "physics"], 1, "user: 100000 bytes; at most 255"),
        (&["sacctmgr", "-i", "add", "account", &name(&huge)], 1, "name: 100000 bytes; at most 255"),
        (
            &["sacctmgr", "-i", "add", "account", "x", &description],
            1,
            "description: 100000 bytes; at most 1024",
        ),
    ];
    let (before, revision) = (lab.model()?, lab.revision()?);
    for (arguments, code, message) in CASES.iter().chain(large) {
        let said = lab.spur(arguments)?;
        let shown: Vec<String> = arguments.iter().map(|word| word.chars().take(40).collect()).collect();
        let stderr: String = said.stderr.chars().take(1000).collect();
        assert_eq!(said.code, *code, "{shown:?}: {stderr}");
        assert!(said.stderr.contains(message), "{shown:?}: {stderr}");
    }
    assert_eq!(lab.revision()?, revision);
    assert_eq!(lab.model()?, before);
    Ok(())
}

#[test]
fn a_controller_that_is_not_there_is_named_with_the_way_out() -> Result<()> {
    let said = crate::lab::run("unix:/nowhere/s", &["account", "list"], "")?;
    assert!(said.code == 1 && said.stderr.contains("name another with --controller"), "{said:#?}");
    Ok(())
}
