#![doc = include_str!("../README.md")]

mod certificates;
mod components;
mod control_plane;
mod folder;
mod options;
mod ports;
mod process;
mod programs;

pub use components::Component;
pub use control_plane::{ControlPlane, Kept};
pub use options::{Options, Progress};
pub use programs::cache_dir;
