//! Without `-i`, on a terminal, `spur sacctmgr` asks first.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use spur_system_tests::program::spur;
use spur_test_slurm::skip;

use crate::lab::Lab;

/// Runs `spur` on a terminal of its own, and types an answer.
fn on_terminal(lab: &Lab, words: &str, answer: &str) -> Result<String> {
    let line = format!("{} sacctmgr --controller unix:{} {words}", spur()?.display(), lab.socket().display());
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--echo", "never", "--command", &line, "/dev/null"]);
    let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start script")?;
    let mut input = child.stdin.take().context("its input")?;
    input.write_all(answer.as_bytes())?;
    let output = child.wait_with_output()?;
    drop(input);
    Ok(String::from_utf8_lossy(&output.stdout).replace('\r', ""))
}

#[test]
fn only_yes_commits() -> Result<()> {
    if Command::new("script").arg("--version").output().is_err() {
        skip("only_yes_commits", "there is no script(1), which makes a terminal");
        return Ok(());
    }
    let lab = Lab::start()?;
    let said = on_terminal(&lab, "add account physics grptres=cpu=4", "y\n")?;
    let asked = " Adding Account(s)\n  account physics: created; description: physics; grp_tres: cpu=4; organization: \
        physics\nWould you like to commit changes? (You have 30 seconds to decide)\n(N/y): \n";
    assert!(said.starts_with(asked), "{said}");
    assert_eq!(lab.model()?.accounts.len(), 1);
    let said = on_terminal(&lab, "delete account physics", "what\nn\n")?;
    assert!(said.contains("Y or N please") && said.contains(" Changes Discarded"), "{said}");
    assert_eq!(lab.model()?.accounts.len(), 1);
    lab.done(&["user", "add", "alice", "--account", "physics"])?;
    // Whoever is asked sees all that goes, and needs no --force.
    let said = on_terminal(&lab, "delete account physics", "y\n")?;
    assert!(said.contains("user alice in account physics: deleted\n"), "{said}");
    assert_eq!(lab.model()?.accounts.len(), 0);
    Ok(())
}
