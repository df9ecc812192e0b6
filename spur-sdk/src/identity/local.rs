//! Callers on this machine: the kernel says which number they have, the system who that is.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::{Caller, Identity, IdentityError};
use crate::UserName;

/// How long a look-up may take where nobody says otherwise.
pub const DEFAULT_LOOK_UP_DEADLINE: Duration = Duration::from_secs(2);
/// How long an answer is good for.
const REMEMBERED: Duration = Duration::from_secs(10);
/// How many answers are remembered.
const MOST_REMEMBERED: usize = 4096;
/// How many look-ups run at once: each takes a thread, and one that hangs keeps it.
const MOST_LOOK_UPS: usize = 16;
/// What the kernel says of a user whom the other end's name space does not have: nobody in particular.
const UNMAPPED: [u32; 2] = [65_534, u32::MAX];

/// A user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalUser {
    /// The number.
    pub uid: u32,
    /// The name.
    pub name: UserName,
    /// The names of the groups, the primary one among them.
    pub groups: BTreeSet<String>,
}

impl LocalUser {
    /// A user.
    #[must_use]
    pub fn new(uid: u32, name: UserName, groups: BTreeSet<String>) -> Self {
        Self { uid, name, groups }
    }
}

/// Knows the users of this machine.
pub trait LocalUsers: Send + Sync {
    /// The user of a number.
    ///
    /// # Errors
    /// [`IdentityError::LookUp`] if there is none or the system failed to say, [`IdentityError::LookUpTimeout`] if it
    /// took too long. The caller is refused then.
    fn look_up(&self, uid: u32) -> impl Future<Output = Result<LocalUser, IdentityError>> + Send;
}

/// The users that the system knows, whether from files, LDAP or elsewhere (NSS).
#[derive(Clone)]
pub struct SystemUsers {
    deadline: Duration,
    permits: Arc<Semaphore>,
    remembered: Arc<Mutex<BTreeMap<u32, (Instant, LocalUser)>>>,
}

impl Default for SystemUsers {
    fn default() -> Self {
        Self::new(DEFAULT_LOOK_UP_DEADLINE)
    }
}

impl SystemUsers {
    /// Look-ups with a deadline. An answer is remembered for ten seconds, a failure is not.
    #[must_use]
    pub fn new(deadline: Duration) -> Self {
        Self { deadline, permits: Arc::new(Semaphore::new(MOST_LOOK_UPS)), remembered: Arc::default() }
    }

    fn remembered(&self, uid: u32) -> Option<LocalUser> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, user) = remembered.get(&uid)?;
        (at.elapsed() < REMEMBERED).then(|| user.clone())
    }

    fn remember(&self, user: &LocalUser) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= MOST_REMEMBERED {
            remembered.retain(|_, (at, _)| at.elapsed() < REMEMBERED);
        }
        if remembered.len() < MOST_REMEMBERED {
            remembered.insert(user.uid, (Instant::now(), user.clone()));
        }
    }

    /// The look-up itself, in a thread that may hang for as long as a name server does.
    async fn ask(
        &self,
        uid: u32,
        ask: fn(u32) -> Result<LocalUser, IdentityError>,
    ) -> Result<LocalUser, IdentityError> {
        let asked = async {
            let gone = |what: &str| IdentityError::LookUp { uid, what: what.to_owned() };
            // The thread holds it, also when nobody waits for it any more.
            let permit = self.permits.clone().acquire_owned().await.map_err(|_| gone("no more look-ups"))?;
            let thread = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                ask(uid)
            });
            thread.await.map_err(|_| gone("the look-up did not end"))?
        };
        match timeout(self.deadline, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(IdentityError::LookUpTimeout { uid, after: self.deadline }),
        }
    }
}

impl LocalUsers for SystemUsers {
    async fn look_up(&self, uid: u32) -> Result<LocalUser, IdentityError> {
        if let Some(user) = self.remembered(uid) {
            return Ok(user);
        }
        let user = self.ask(uid, ask_system).await?;
        self.remember(&user);
        Ok(user)
    }
}

impl fmt::Debug for SystemUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemUsers").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

fn ask_system(uid: u32) -> Result<LocalUser, IdentityError> {
    let failed = |what: String| IdentityError::LookUp { uid, what };
    let user = User::from_uid(Uid::from_raw(uid)).map_err(|error| failed(error.to_string()))?;
    let user = user.ok_or_else(|| failed("no such user".to_owned()))?;
    let name = CString::new(user.name.as_str()).map_err(|error| failed(error.to_string()))?;
    let numbers = getgrouplist(&name, user.gid).map_err(|error| failed(format!("groups: {error}")))?;
    let group = |gid: Gid| match Group::from_gid(gid) {
        Ok(group) => Ok(group.map(|group| group.name)),
        Err(error) => Err(failed(format!("group {gid}: {error}"))),
    };
    // One without a name is no group that somebody could have configured.
    let groups = numbers.into_iter().filter_map(|gid| group(gid).transpose()).collect::<Result<_, _>>()?;
    Ok(LocalUser { uid, name: user.name.try_into()?, groups })
}

/// Who the callers of a local socket are: root and the members of one group are admins, the others users.
#[derive(Debug, Clone)]
pub struct LocalCallers<L> {
    users: L,
    admin_group: Option<String>,
}

impl<L: LocalUsers> LocalCallers<L> {
    /// Callers among `users`; `admin_group` is the group whose members are admins, `None` for root alone.
    #[must_use]
    pub fn new(users: L, admin_group: Option<String>) -> Self {
        Self { users, admin_group }
    }

    /// Who the process at the other end of a socket is, by what the kernel says of it. Root is known without a
    /// look-up, so that a broken name server locks nobody out for good.
    ///
    /// # Errors
    /// As [`LocalUsers::look_up`], and for a user whom the name space of the process does not have.
    pub async fn identify(&self, uid: u32, pid: u32) -> Result<Caller, IdentityError> {
        if uid == 0 {
            return Ok(Caller::local(Identity::Admin { name: "root".parse()? }, uid, pid));
        }
        if UNMAPPED.contains(&uid) {
            let what = "what the kernel says of a user that it cannot name".to_owned();
            return Err(IdentityError::LookUp { uid, what });
        }
        let user = self.users.look_up(uid).await?;
        let is_admin = self.admin_group.as_ref().is_some_and(|group| user.groups.contains(group));
        let identity = if is_admin {
            Identity::Admin { name: user.name }
        } else {
            Identity::User { name: user.name, uid: Some(uid) }
        };
        Ok(Caller::local(identity, uid, pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Classify, ErrorKind};

    #[tokio::test]
    async fn the_system_knows_root_and_its_group() {
        let root = SystemUsers::default().look_up(0).await.unwrap();
        assert_eq!(root.name.as_str(), "root");
        assert!(root.groups.contains("root"), "{root:?}");
    }

    #[tokio::test]
    async fn a_number_without_a_user_is_refused() {
        let users = SystemUsers::default();
        let error = users.look_up(3_999_999_999).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(users.remembered(3_999_999_999).is_none());
    }

    #[tokio::test]
    async fn a_look_up_that_hangs_is_refused_in_time_and_the_next_one_is_not() {
        let users = SystemUsers::new(Duration::from_millis(50));
        let hang = |_: u32| {
            std::thread::sleep(Duration::from_millis(400));
            Err(IdentityError::Stale)
        };
        let begun = std::time::Instant::now();
        let error = users.ask(7, hang).await.unwrap_err();
        assert!(matches!(error, IdentityError::LookUpTimeout { uid: 7, .. }), "{error:?}");
        assert!(begun.elapsed() < Duration::from_millis(350));
        assert!(users.ask(0, ask_system).await.is_ok());
    }

    #[tokio::test]
    async fn look_ups_that_hang_take_a_bounded_number_of_threads() {
        let users = SystemUsers::new(Duration::from_millis(100));
        let hang = |_: u32| {
            std::thread::sleep(Duration::from_millis(600));
            Err(IdentityError::Stale)
        };
        let all: Vec<_> = (0..3 * u32::try_from(MOST_LOOK_UPS).unwrap())
            .map(|uid| {
                let users = users.clone();
                tokio::spawn(async move { users.ask(uid, hang).await })
            })
            .collect();
        for one in all {
            assert!(matches!(one.await.unwrap(), Err(IdentityError::LookUpTimeout { .. })));
        }
        assert_eq!(users.permits.available_permits(), 0);
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(users.permits.available_permits(), MOST_LOOK_UPS);
    }
}
