//! Peak memory of projecting a site: `memory ACCOUNTS`, ten users each.

use anyhow::{Context, Result};
use spur_bench::site;
use spur_sdk_quota::{Policy, QuotaProjector};

/// Peak resident memory of this process so far, in MiB.
fn peak() -> Result<u64> {
    let status = spur_sdk::fs::read_text("/proc/self/status".as_ref(), 1 << 20)?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).context("no VmHWM")?;
    let kib: u64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    Ok(kib / 1024)
}

#[expect(clippy::print_stdout, reason = "this is a program")]
fn main() -> Result<()> {
    let accounts = std::env::args().nth(1).map_or(Ok(10_000), |text| text.parse())?;
    let model = site(accounts, 10)?;
    let with_model = peak()?;
    let projection = QuotaProjector::new(&Policy::default()).project(&model);
    let objects = projection.objects().count();
    println!(
        "{accounts} accounts: model {with_model} MiB, with the projection of {objects} objects {} MiB",
        peak()?
    );
    Ok(())
}
