//! SPUR's accounting service over a store: accounts, users, memberships and QoS.
//!
//! [`Accounting`] keeps them; [`routes`] answers SPUR's calls with it. See `docs/reference/accounting.md`.

mod book;
mod draft;
mod edit;
mod error;
mod records;
mod routes;
mod service;
mod source;
mod wire;

pub use book::Book;
pub use error::AccountingError;
pub use records::{AccountRecord, Amounts, HistoryRecord, MemberRecord, QosRecord, UserRecord};
pub use routes::{AccountRoles, routes};
pub use service::{Accounting, Changed, HistoryEntry, HistoryQuery};
pub use source::AccountingSource;
