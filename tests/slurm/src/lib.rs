#![doc = include_str!("../README.md")]

mod command;
mod keeper;
mod lab;
mod port;
mod programs;
mod settings;
mod skip;
#[cfg(test)]
mod tests;

pub use command::Output;
pub use lab::{CLUSTER, Slurm};
pub use skip::skip;
