//! `spur account`, `spur user`, `spur qos`, `spur sacctmgr`: a controller's accounts.

mod account;
mod change;
mod import;
mod importing;
mod older;
mod qos;
mod records;
mod sacctmgr;
mod user;
mod values;

pub(crate) use self::account::{Account, account};
pub(crate) use self::qos::{Qos, qos};
pub(crate) use self::sacctmgr::{EXAMPLES as SACCTMGR_EXAMPLES, Sacctmgr, sacctmgr};
pub(crate) use self::user::{User, user};
