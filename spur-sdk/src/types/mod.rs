//! Validated values; each is made only by its parser.

pub(crate) mod hostlist;
pub(crate) mod limit;
pub(crate) mod name;
pub(crate) mod node;
pub(crate) mod quantity;
pub(crate) mod time;
pub(crate) mod tres;
