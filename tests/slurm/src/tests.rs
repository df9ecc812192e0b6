//! The lab on itself. Each test is skipped, with a line that says so, where no lab can run.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::keeper::{lives, wait_until};
use crate::{Slurm, skip};

/// Set in the process that is to be killed, see [`a_killed_test_leaves_nothing`].
const VICTIM: &str = "SPUR_TEST_SLURM_VICTIM";

fn daemons(folder: &Path) -> Result<Vec<u32>> {
    ["mariadbd", "slurmdbd"]
        .iter()
        .map(|name| {
            let file = folder.join(format!("run/{name}.pid"));
            let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
            Ok(text.trim().parse()?)
        })
        .collect()
}

#[test]
fn two_labs_at_once_hold_their_own_and_are_gone_when_dropped() -> Result<()> {
    if let Err(reason) = Slurm::available() {
        skip("two_labs_at_once_hold_their_own_and_are_gone_when_dropped", &reason);
        return Ok(());
    }
    let second = std::thread::spawn(Slurm::start);
    let first = Slurm::start()?;
    let second = second.join().map_err(|_| anyhow::anyhow!("the start of the second lab panicked"))??;

    let added =
        first.sacctmgr(&["add", "account", "physics", "GrpTRES=gres/gpu:mi300x=2,license/matlab=3"])?;
    assert!(added.status.success(), "{added:?}");
    let line = "Account - 'physics':Description='physics':Organization='physics':Fairshare=1:\
                GrpTRES=gres/gpu:mi300x=2,license/matlab=3\n";
    let dump = first.dump()?;
    assert!(dump.contains(line), "{dump}");
    assert!(!second.dump()?.contains("physics"));

    let text =
        "Cluster - 'alpha'\nParent - 'root'\nAccount - 'chemistry':GrpTRES='gres/gpu:mi300x=4':GrpJobs=3\n";
    second.load(text)?;
    let dump = second.dump()?;
    assert!(dump.contains("'chemistry':Fairshare=1:GrpTRES=gres/gpu:mi300x=4:GrpJobs=3\n"), "{dump}");

    let folders = [first.folder().to_owned(), second.folder().to_owned()];
    let pids = [daemons(&folders[0])?, daemons(&folders[1])?].concat();
    assert!(pids.iter().all(|pid| lives(*pid)), "{pids:?}");
    drop((first, second));
    assert!(!pids.iter().any(|pid| lives(*pid)), "{pids:?}");
    assert!(!folders.iter().any(|folder| folder.exists()), "{folders:?}");
    Ok(())
}

#[test]
fn what_sacctmgr_says_about_a_bad_load_is_in_the_error() -> Result<()> {
    let Some(slurm) = Slurm::start_or_skip("what_sacctmgr_says_about_a_bad_load_is_in_the_error")? else {
        return Ok(());
    };
    let head = "Cluster - 'alpha'\nParent - 'root'\n";
    let refused =
        slurm.load(&format!("{head}Account - 'a':GrpTRES=nodes=10\n")).expect_err("no TRES `nodes`");
    let message = refused.to_string();
    assert!(
        message.contains("no TRES known by type nodes") && message.contains("Problem with line(3)"),
        "{message}"
    );
    let taken =
        slurm.load(&format!("{head}Account - 'a':GrpTRES=cpu=1.5\n")).expect_err("a fraction of a CPU");
    assert!(taken.to_string().contains("Invalid unit type '.'"), "{taken}");
    assert!(slurm.dump_of("elsewhere").is_err());
    Ok(())
}

/// Runs itself a second time, in a process that starts a lab, says where, and is killed.
#[test]
fn a_killed_test_leaves_nothing() -> Result<()> {
    const NAME: &str = "a_killed_test_leaves_nothing";
    if std::env::var_os(VICTIM).is_some() {
        let slurm = Slurm::start()?;
        println!("\nlab={}", slurm.folder().display());
        std::thread::sleep(Duration::from_mins(1));
        return Ok(());
    }
    if let Err(reason) = Slurm::available() {
        skip(NAME, &reason);
        return Ok(());
    }
    let mut victim = Command::new(std::env::current_exe()?)
        .args([&format!("tests::{NAME}"), "--exact", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = BufReader::new(victim.stdout.take().context("piped above")?);
    let mut said = String::new();
    let folder = loop {
        let start = said.len();
        if output.read_line(&mut said)? == 0 {
            victim.wait()?;
            anyhow::bail!("the victim ended early: {said}");
        }
        if let Some(folder) = said[start..].strip_prefix("lab=") {
            break PathBuf::from(folder.trim_end());
        }
    };
    let pids = daemons(&folder)?;
    ensure!(pids.iter().all(|pid| lives(*pid)), "{pids:?}");
    victim.kill()?;
    victim.wait()?;
    wait_until(Duration::from_secs(20), || !folder.exists()).context("the folder stays")?;
    ensure!(!pids.iter().any(|pid| lives(*pid)), "{pids:?}");
    // Nobody else holds the victim's output open: no process of it is left.
    output.read_to_string(&mut said)?;
    Ok(())
}
