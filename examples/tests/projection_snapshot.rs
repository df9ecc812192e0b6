//! How a project pins the projection of its accounts in its CI: a change of an account, of the policy or of the
//! SDK shows as a diff of the files in `snapshots/`, one per account.

use spur_sdk_quota::source::{ReadOptions, read};
use spur_sdk_quota::{Policy, QuotaProjector, assert_projection_snapshots};

#[test]
fn the_projection_of_our_accounts_is_as_reviewed() -> Result<(), Box<dyn std::error::Error>> {
    let model = read(include_str!("../accounts.toml"), "accounts.toml", ReadOptions::default())?;
    let projection = QuotaProjector::new(&Policy::default()).project(&model);
    assert!(projection.problems.is_empty(), "{:?}", projection.problems);
    assert_projection_snapshots!("snapshots", projection);
    Ok(())
}
