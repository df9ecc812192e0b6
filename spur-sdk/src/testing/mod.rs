//! Doubles and suites for hosts' tests.
//!
//! - [`MemoryStore`] is a store in memory that can be told to fail.
//! - [`conformance`] is what every [`Store`](crate::store::Store) must pass; a host runs it on its own.
//! - [`linearizability`] judges what concurrent clients of a store have seen.

pub mod conformance;
mod dice;
pub mod linearizability;
mod memory;

pub use memory::{MemoryFault, MemoryStore};
