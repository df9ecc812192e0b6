//! Scoped kubeconfigs on a real API server with a real kubectl: minted, used, refreshed, revoked, refused, with exactly
//! the rights that the book gives the identity that mints.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "the helpers of tests fail as tests do"
)]

mod evicting;
mod exec;
mod lab;
mod refusals;
mod revoking;
mod rights;
mod work;

use std::time::Instant;

use anyhow::{Context, Result};

use self::lab::Lab;

/// Says how long a part took.
async fn timed(what: &str, part: impl Future<Output = Result<()>>) -> Result<()> {
    let start = Instant::now();
    part.await.with_context(|| what.to_owned())?;
    println!("{:>5.1} s  {what}", start.elapsed().as_secs_f64());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfigs_reach_the_accounts_of_their_user_until_they_are_revoked() -> Result<()> {
    let (lab, running) = Lab::up().await?;
    // What waits for the API server's caches runs beside the rest.
    tokio::try_join!(
        timed("revoke, and the rest goes on", revoking::a_session_ends_alone(&lab)),
        timed("take the user out", revoking::who_is_taken_out_is_locked_out(&lab)),
        timed("delete the ServiceAccount", revoking::without_the_service_account_nothing_is_left(&lab)),
        async {
            timed("work with a token", work::a_user_works_in_the_accounts_and_nowhere_else(&lab)).await?;
            timed("further tokens", work::a_session_gives_further_tokens_as_long_as_it_lasts(&lab)).await?;
            timed("exec plugin", exec::kubectl_takes_what_the_plugin_says(&lab)).await?;
            timed("exec plugin, refused token", exec::kubectl_asks_again_for_a_token_that_is_refused(&lab))
                .await?;
            timed("exec plugin, kuberc", exec::a_kuberc_may_forbid_plugins(&lab)).await?;
            timed("sweep", revoking::what_is_over_is_swept(&lab)).await
        },
    )?;
    timed("rights", rights::each_right_is_needed_and_no_other(&lab)).await?;
    timed("evict", evicting::pods_that_are_known_to_be_a_users_go(&lab)).await?;
    // What is made and deleted by hand is not put back from here on.
    running.stop().await?;
    timed("refusals", Box::pin(refusals::all(&lab))).await?;
    lab.control_plane.stop().await
}
