//! Who asks, and what they may do.
//!
//! | | |
//! |---|---|
//! | [`Authority`], [`Credentials`] | the site's certificate authority and what it issues |
//! | [`Registry`], [`Roster`] | nodes that enrol, renew and go; which certificates are valid |
//! | [`LocalCallers`], [`LoginIssuer`] | users of this machine, and those who log in |
//! | [`Caller`], [`Role`], [`table`] | who asks, what they are, what that allows |
//!
//! Nothing here opens a connection; feature `rpc` does. See `docs/reference/identity.md`.

mod authority;
mod caller;
mod certificate;
mod credentials;
mod error;
mod key;
mod local;
mod login;
mod pem;
mod registry;
mod role;
mod secret;
mod subject;
pub mod table;

pub use authority::{Authority, Grant, Lifetimes, MAX_USER_LIFETIME};
pub use caller::{Caller, Identity, Via};
pub use certificate::{CLOCK_SKEW, Certificate, PeerCertificate, Serial, fingerprint};
pub use credentials::Credentials;
pub use error::{IdentityError, JoinRefusal, Void};
pub use key::{CertificateRequest, KeyRequest, MAX_REQUEST_BYTES, PrivateKey};
pub use local::{DEFAULT_LOOK_UP_DEADLINE, LocalCallers, LocalUser, LocalUsers, SystemUsers};
pub use login::{ExternalIssuer, LoginIssuer, MAX_CREDENTIAL_BYTES, NoExternalIssuer, VouchedUser};
pub use registry::{
    DEFAULT_TOKEN_LIFETIME, EnrolledNode, IssuedCertificate, JoinGrant, JoinToken, MAX_TOKEN_LIFETIME,
    Registry, Roster, Swept,
};
pub use role::{AdminLevel, OnlyUsers, Role, UserRoles, UserStanding};
pub use secret::{Secret, SiteKey};
pub use subject::{SiteName, Subject};
pub use table::{Access, decide};
