//! The controller against a model of a cluster, in virtual time: replicas crash and stand still, the source lies,
//! requests fail and are lost, somebody edits by hand. Whatever happens, what must never happen does not; and when the
//! faults are over, the cluster is as the source says.
//!
//! One weakness is known and let pass: a RoleBinding that is written as new replaces one that the writer cannot know of
//! yet, so that a member who was let in seconds ago is taken out again by a reading that does not name everybody (see
//! `was_just_let_in`).
//!
//! `SPUR_SIMULATION_SEEDS` raises the number of runs, `SPUR_SIMULATION_SEED` picks one.

#![cfg(all(feature = "apply", feature = "testing"))]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test that fails says why"
)]

#[path = "simulation/facts.rs"]
mod facts;
#[path = "simulation/hand.rs"]
mod hand;
#[path = "simulation/invariants.rs"]
mod invariants;
#[path = "simulation/outcome.rs"]
mod outcome;
#[path = "simulation/replica.rs"]
mod replica;
#[path = "simulation/site.rs"]
mod site;
#[path = "simulation/world.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::runtime::Builder;

use crate::world::World;

/// Runs without being asked for more.
const SEEDS: u64 = 2000;

/// How much of what happened is shown of a run that went wrong.
const SHOWN: usize = 60;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

/// One run; its story, and what went wrong.
fn run(seed: u64) -> (World, Result<(), String>) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(seed);
        world.live().await;
        world.heal().await;
        let settled = outcome::settle(&mut world).await;
        let broken = invariants::violation(&world).map_or(Ok(()), Err);
        let result = broken.and(settled);
        for replica in &mut world.replicas {
            replica.shut_down().await;
        }
        (world, result)
    })
}

fn last(lines: &[String], shown: usize) -> String {
    let lines = lines.iter().skip(lines.len().saturating_sub(shown));
    lines.flat_map(|line| ["  ", line, "\n"]).collect()
}

/// Runs a seed; what went wrong with what happened before.
fn failure(seed: u64) -> Option<String> {
    let run = catch_unwind(AssertUnwindSafe(|| run(seed)));
    let Ok((world, result)) = run else { return Some(format!("seed {seed}: panicked, see above")) };
    let error = result.err()?;
    let mut lines = world.story.clone();
    if std::env::var_os("SPUR_SIMULATION_SEED").is_some() {
        let audit = world.cluster.audit();
        lines.extend(audit.iter().map(|record| record.to_string().chars().take(400).collect()));
    }
    let shown = if std::env::var_os("SPUR_SIMULATION_SEED").is_some() { usize::MAX } else { SHOWN };
    Some(format!(
        "seed {seed}, {} {:?}:\n{}{error}",
        if world.calm { "calm" } else { "stormy" },
        world.grace,
        last(&lines, shown)
    ))
}

#[test]
fn whatever_happens_nobody_is_let_in_too_early_and_all_is_well_in_the_end() {
    let seeds = match number("SPUR_SIMULATION_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("SPUR_SIMULATION_SEEDS").unwrap_or(SEEDS),
    };
    let count = seeds.clone().count();
    // Runs share nothing, so each core takes its part of them.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let part =
            |core: usize| seeds.clone().skip(core).step_by(cores).filter_map(failure).collect::<Vec<_>>();
        let threads: Vec<_> = (0..cores).map(|core| scope.spawn(move || part(core))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for failure in failures.iter().take(5) {
        eprintln!("{failure}\n");
    }
    let seeds: Vec<&str> = failures.iter().filter_map(|failure| failure.split([',', ':']).next()).collect();
    assert!(failures.is_empty(), "{} of {count} runs failed: {}", failures.len(), seeds.join(", "));
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let history = |seed| {
        let (world, _) = run(seed);
        world.cluster.audit().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for seed in 1..=20 {
        let (first, second) = (history(seed), history(seed));
        let differs = first.iter().zip(&second).position(|(first, second)| first != second);
        assert_eq!(differs.map(|at| (&first[at], &second[at])), None, "seed {seed}");
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}
