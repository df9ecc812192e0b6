//! Invented sites of any size.

use anyhow::Result;
use spur_sdk_quota::{Completeness, Model, Origin};

/// A site with `accounts` accounts in a tree of ten children each, and `users` users in each account.
///
/// # Errors
/// None, unless names or allocations stop being legal.
pub fn site(accounts: usize, users: usize) -> Result<Model> {
    let origin = Origin::store("bench");
    let mut model = Model::default();
    for number in 0..accounts {
        let parent = number.checked_sub(1).map(|above| format!("account-{}", above / 10));
        let allocation =
            format!("cpu={},mem={},gres/gpu={}", 64 + number % 64, 256_000 + number, 1 + number % 8);
        model.add_account(&origin, &format!("account-{number}"), parent.as_deref(), &allocation)?;
        for user in 0..users {
            // Half of the members are in this account alone, half in several.
            let user = if user % 2 == 0 { number * users + user } else { user };
            model.add_member(&origin, &format!("account-{number}"), &format!("user-{user}"))?;
        }
    }
    model.completeness = Completeness::Full;
    Ok(model)
}
