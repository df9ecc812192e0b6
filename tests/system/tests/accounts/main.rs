//! Accounts on the command line: a real `spurctld`, a real `spur`, and beside them a real Slurm.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod confirm;
mod differences;
mod everyday;
mod import;
mod lab;
mod older;
mod refusals;
mod slurm;
