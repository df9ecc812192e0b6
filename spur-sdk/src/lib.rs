#![doc = include_str!("../README.md")]

mod clock;
mod deadline;
mod error;
pub mod fs;
#[cfg(feature = "identity")]
pub mod identity;
#[cfg(feature = "rpc")]
pub mod rpc;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod types;

pub use clock::{Clock, ManualClock, SystemClock};
pub use deadline::Deadlines;
pub use error::{Classify, ErrorKind, error_chain};
pub use types::hostlist::{Hostlist, HostlistError};
pub use types::limit::Limit;
pub use types::name::{
    AccountName, ClusterName, LabelMapping, NameError, PartitionName, QosName, UserName, is_dns_label,
};
pub use types::node::NodeName;
pub use types::quantity::{Bytes, MemorySpelling, Millicores, QuantityError};
pub use types::time::{TimeError, parse_minutes};
pub use types::tres::{Tres, TresError, TresLimits, TresUnit, format_tres, parse_tres};
