//! `spur account`, `spur user`, `spur qos` from day to day.

use anyhow::Result;
use serde_json::json;

use crate::lab::Lab;

fn stderr(lab: &Lab, arguments: &[&str], code: i32) -> Result<String> {
    let said = lab.spur(arguments)?;
    assert_eq!(said.code, code, "{arguments:?}: {said:#?}");
    Ok(said.stderr)
}

#[test]
fn accounts_are_added_shown_changed_and_deleted() -> Result<()> {
    let lab = Lab::start()?;
    let added = lab.done(&[
        "account",
        "add",
        "science",
        "--grp-tres",
        "cpu=512,mem=2000000,gres/gpu=64",
        "--organization",
        "uni",
    ])?;
    assert_eq!(
        added.stdout,
        "account science: created; grp_tres: cpu=512,mem=2000000,gres/gpu=64; organization: uni\n"
    );
    lab.done(&[
        "account",
        "add",
        "physics",
        "chem",
        "--parent",
        "science",
        "--fairshare",
        "2.5",
        "--max-running-jobs",
        "10",
    ])?;
    assert!(stderr(&lab, &["account", "add", "physics"], 1)?.contains("account physics exists already"));
    let again = stderr(&lab, &["account", "add", "physics", "new", "--if-not-exists"], 0)?;
    assert!(again.contains("account physics exists already and is left as it is"), "{again}");
    assert!(
        stderr(&lab, &["account", "modify", "nobody", "--fairshare", "2"], 1)?
            .contains("account nobody does not exist")
    );
    assert_eq!(
        lab.json(&["account", "list", "--under", "science"])?[1],
        json!({"name": "physics", "parent": "science", "fairshare": 2.5, "max_running_jobs": 10, "members": 0})
    );
    let dry = lab.done(&["account", "modify", "physics", "--max-running-jobs", "none", "--dry-run"])?;
    assert_eq!(dry.stdout, "account physics: max_running_jobs: 10 -> none\n");
    lab.done(&["account", "modify", "science", "--grp-tres", "gres/gpu=32,mem=-1", "--merge-tres"])?;
    assert_eq!(lab.json(&["account", "show", "science"])?["grp_tres"], "cpu=512,gres/gpu=32");
    lab.done(&["account", "modify", "science", "--clear", "grp-tres,organization"])?;
    assert_eq!(
        lab.json(&["account", "show", "science"])?,
        json!({"name": "science", "fairshare": 1.0, "members": 0, "above": [], "below": ["chem", "physics"], "memberships": []})
    );
    let same = stderr(&lab, &["account", "modify", "science", "--clear", "grp-tres"], 0)?;
    assert!(same.contains("nothing to change"), "{same}");
    let held = stderr(&lab, &["account", "delete", "science"], 1)?;
    assert!(held.contains("account science has 2 accounts below (chem, physics): use --force"), "{held}");
    let gone = lab.done(&["account", "delete", "science", "--force"])?;
    assert_eq!(gone.stdout, "account physics: deleted\naccount chem: deleted\naccount science: deleted\n");
    Ok(())
}

#[test]
fn users_are_let_in_limited_and_taken_out() -> Result<()> {
    let lab = Lab::start()?;
    lab.done(&["account", "add", "physics", "chem"])?;
    lab.done(&["qos", "add", "gpu", "long", "--priority", "10", "--max-wall", "1-00:00:00"])?;
    lab.done(&[
        "user",
        "add",
        "alice",
        "bob",
        "--account",
        "physics,chem",
        "--default",
        "chem",
        "--allowed-qos",
        "gpu",
    ])?;
    lab.done(&[
        "user",
        "modify",
        "alice",
        "--account",
        "physics",
        "--max-running-jobs",
        "3",
        "--max-wall",
        "90",
        "--default-qos",
        "gpu",
    ])?;
    lab.done(&["user", "modify", "alice", "--default", "physics", "--admin-level", "operator"])?;
    assert_eq!(
        lab.json(&["user", "show", "alice"])?,
        json!({"name": "alice", "admin_level": "operator", "default_account": "physics", "memberships": [
            {"user": "alice", "account": "chem", "allowed_qos": ["gpu"]},
            {"user": "alice", "account": "physics", "allowed_qos": ["gpu"], "default_qos": "gpu", "max_running_jobs": 3,
             "max_wall_minutes": 90},
        ]})
    );
    assert!(
        stderr(&lab, &["user", "modify", "alice", "--max-running-jobs", "3"], 64)?
            .contains("name it with --account")
    );
    assert!(
        stderr(&lab, &["user", "add", "carl", "--account", "chem", "--default", "physics"], 64)?
            .contains("--default")
    );
    let left = stderr(&lab, &["user", "add", "alice", "--account", "chem", "--if-not-exists"], 0)?;
    assert!(left.contains("in account chem user alice exists already"), "{left}");
    lab.done(&[
        "user",
        "modify",
        "alice",
        "--account",
        "physics",
        "--clear",
        "max-wall,default-qos,allowed-qos",
    ])?;
    assert_eq!(
        lab.json(&["user", "list", "--account", "physics"])?[0]["memberships"][0]["max_wall_minutes"],
        json!(null)
    );
    let table = lab.done(&["user", "list"])?.stdout;
    assert!(table.contains("physics (default)") && table.contains("max-running-jobs 3"), "{table}");
    let used = stderr(&lab, &["qos", "delete", "gpu"], 1)?;
    assert!(used.contains("qos gpu has 3 memberships that name it"), "{used}");
    lab.done(&["account", "modify", "physics", "--coordinator", "bob"])?;
    lab.done(&["user", "delete", "bob", "--account", "physics"])?;
    let gone = lab.done(&["user", "delete", "bob"])?.stdout;
    assert!(
        gone.contains("user bob: deleted") && gone.contains("account physics: coordinators: bob -> none"),
        "{gone}"
    );
    assert!(stderr(&lab, &["user", "show", "bob"], 1)?.contains("user bob does not exist"));
    let history = lab.done(&["site", "history", "--subject", "user bob"])?.stdout;
    assert!(history.contains("deleted"), "{history}");
    Ok(())
}

#[test]
fn a_qos_is_added_shown_changed_and_deleted() -> Result<()> {
    let lab = Lab::start()?;
    lab.done(&["qos", "add", "low"])?;
    lab.done(&[
        "qos",
        "add",
        "high",
        "--preempt",
        "low",
        "--preempt-exempt-time",
        "00:02:00",
        "--flags",
        "NoDecay,DenyOnLimit",
        "--usage-factor",
        "2",
        "--grp-tres",
        "gres/gpu=64",
        "--max-jobs-per-user",
        "0",
    ])?;
    let expected = json!({"name": "high", "priority": 0, "usage_factor": 2.0, "flags": ["DenyOnLimit", "NoDecay"],
        "preempt": ["low"], "preempt_exempt_time": 120, "max_jobs_per_user": 0, "grp_tres": "gres/gpu=64"});
    assert_eq!(lab.json(&["qos", "show", "high"])?, expected);
    lab.done(&[
        "qos",
        "modify",
        "high",
        "--clear",
        "preempt,preempt-exempt-time,flags,usage-factor,max-jobs-per-user",
        "--priority",
        "-5",
    ])?;
    let expected = json!({"name": "high", "priority": -5, "usage_factor": 1.0, "grp_tres": "gres/gpu=64"});
    assert_eq!(lab.json(&["qos", "list"])?[0], expected);
    lab.done(&["qos", "delete", "low", "high"])?;
    assert_eq!(lab.json(&["qos", "list"])?, json!([]));
    Ok(())
}
