//! Nodes that enrol, renew and go; certificates that are revoked.

mod certificates;
mod record;
mod roster;
mod token;

use std::time::{Duration, SystemTime};

pub use certificates::IssuedCertificate;
use record::{CertificateRecord, Held, NodeRecord, Revocation, TokenRecord, TokenUse};
pub use roster::Roster;
pub use token::{DEFAULT_TOKEN_LIFETIME, JoinGrant, JoinToken, MAX_TOKEN_LIFETIME};

use super::certificate::CLOCK_SKEW;
use super::secret::hex;
use super::{
    Authority, Caller, Certificate, CertificateRequest, Grant, IdentityError, JoinRefusal, Lifetimes, Serial,
    Subject,
};
use crate::store::{
    Change, Commit, Comparison, Entry, Key, Record, Revision, Store, StoreError, Transaction, Write, decode,
};
use crate::{Clock, NodeName};

/// How often a write is tried anew when another one comes between.
const TRIES: usize = 5;
/// How many records a transaction of the sweep deletes.
const BATCH: usize = 100;
/// How long a token is kept when its time is over, so that the audit can tell why it is refused.
const KEEP_TOKEN: Duration = Duration::from_hours(24);
/// How long the record of a revoked certificate is kept when its time is over: were the clock wrong by less when it was
/// swept, the certificate would come back.
const KEEP_REVOKED: Duration = Duration::from_hours(366 * 24);

/// A node that was enrolled once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EnrolledNode {
    /// The name.
    pub name: NodeName,
    /// The certificate that was issued last.
    pub serial: Serial,
    /// When that one ends.
    pub not_after: SystemTime,
    /// When it was enrolled last.
    pub enrolled: SystemTime,
    /// Whether it may vouch for users.
    pub login: bool,
    /// Whether it was removed, and is refused.
    pub removed: bool,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Swept {
    /// Join tokens that were deleted.
    pub tokens: usize,
    /// Records of certificates that were deleted.
    pub certificates: usize,
    /// Nodes whose earlier certificate was struck out, since they have used the later one.
    pub settled: usize,
}

/// Writes down who belongs to the site. The leader has one, over the store behind its fence; what it writes shows in
/// its [`Roster`] at once, and in those of the others by their watch.
#[derive(Debug)]
pub struct Registry<S, C> {
    store: S,
    authority: Authority,
    roster: Roster,
    clock: C,
    lifetimes: Lifetimes,
}

impl<S: Store, C: Clock> Registry<S, C> {
    /// A registry with the default lifetimes.
    #[must_use]
    pub fn new(store: S, authority: Authority, roster: Roster, clock: C) -> Self {
        Self { store, authority, roster, clock, lifetimes: Lifetimes::default() }
    }

    /// Sets how long certificates live.
    #[must_use]
    pub fn lifetimes(mut self, value: Lifetimes) -> Self {
        self.lifetimes = value;
        self
    }

    /// The site's authority.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Makes a join token, and says when its time is over. The token is not stored: who loses it makes another.
    ///
    /// # Errors
    /// [`IdentityError::Lifetime`]; [`IdentityError::Denied`] for one that makes any node a login node.
    pub async fn create_token(
        &self,
        grant: &JoinGrant,
        by: &Caller,
    ) -> Result<(JoinToken, SystemTime), IdentityError> {
        let lifetime = grant.lifetime.unwrap_or(DEFAULT_TOKEN_LIFETIME);
        if lifetime < Duration::from_secs(1) || lifetime > MAX_TOKEN_LIFETIME {
            let what = "a join token";
            return Err(IdentityError::Lifetime { what, asked: lifetime, most: MAX_TOKEN_LIFETIME });
        }
        if grant.login && grant.node.is_none() {
            return Err(IdentityError::Denied("a token for a login node names the node"));
        }
        let token = JoinToken::generate(self.authority.fingerprint())?;
        let created = record::seconds(self.clock.now());
        let expires = created.saturating_add(lifetime.as_secs());
        let record = TokenRecord {
            hash: hex(&token.hash()),
            node: grant.node.clone(),
            login: grant.login,
            created,
            expires,
            by: by.to_string(),
            used: None,
        };
        let key = record::token_key(token.id())?;
        let transaction = Transaction::new().when(Comparison::Absent(key.clone()));
        self.write(transaction, &[(key, record::written(&record)?)])
            .await?
            .ok_or_else(|| IdentityError::Conflict("the join token".to_owned()))?;
        let node = grant.node.as_ref().map(NodeName::as_str);
        tracing::info!(token = token.id(), node, login = grant.login, %by, "made a join token");
        Ok((token, record::time(expires)))
    }

    /// Gives the node `name` a certificate for the token, which is used up in the same transaction. Certificates that
    /// the node had before are void.
    ///
    /// # Errors
    /// [`IdentityError::Join`] for a token that is wrong, over, used or for another node: its text is always the same,
    /// and the log says why. [`IdentityError::Request`] leaves the token as it is.
    ///
    /// # Cancellation
    /// The token may be used up and the certificate lost: then another token is needed.
    pub async fn enrol(
        &self,
        token: &str,
        request: &str,
        name: &NodeName,
    ) -> Result<Certificate, IdentityError> {
        let result = self.try_enrol(token, request, name).await;
        match &result {
            Ok(certificate) => {
                tracing::info!(node = %name, serial = %certificate.serial(), "enrolled a node");
            }
            Err(IdentityError::Join(refusal)) => {
                let id = token.parse::<JoinToken>().map(|token| token.id().to_owned()).unwrap_or_default();
                tracing::warn!(node = %name, token = id, reason = %refusal, "refused a join token");
            }
            Err(_) => {}
        }
        result
    }

    async fn try_enrol(
        &self,
        token: &str,
        request: &str,
        name: &NodeName,
    ) -> Result<Certificate, IdentityError> {
        let token: JoinToken = token.parse()?;
        if !token.recognizes(self.authority.certificate_der()) {
            return Err(IdentityError::Join(JoinRefusal::Authority));
        }
        let request = CertificateRequest::from_pem(request)?;
        let (token_key, node_key) = (record::token_key(token.id())?, record::node_key(name)?);
        for _ in 0..TRIES {
            let now = self.clock.now();
            let entry = self.store.get(&token_key).await?;
            let entry = entry.ok_or(IdentityError::Join(JoinRefusal::Unknown))?;
            let mut stored: TokenRecord = decode(&entry)?;
            judge_token(&stored, &token, name, now).map_err(IdentityError::Join)?;
            let known = self.node(&node_key).await?;
            if known.is_some() && stored.node.is_none() {
                return Err(IdentityError::Join(JoinRefusal::Node));
            }
            let certificate = self.issue_node(&request, name, now)?;
            let serial = certificate.serial();
            let login = stored.login || known.as_ref().is_some_and(|(_, node)| node.login && !node.removed);
            let node = NodeRecord {
                current: Held::of(certificate.content()),
                previous: None,
                removed: false,
                login,
                enrolled: record::seconds(now),
            };
            stored.used = Some(TokenUse { node: name.clone(), serial, at: record::seconds(now) });
            let transaction = Transaction::new()
                .when(Comparison::Modified(token_key.clone(), entry.modified))
                .when(unchanged(&node_key, known.as_ref().map(|(at, _)| *at)));
            let writes =
                [(node_key.clone(), record::written(&node)?), (token_key.clone(), record::written(&stored)?)];
            if self.write(transaction, &writes).await?.is_some() {
                return Ok(certificate);
            }
        }
        Err(IdentityError::Conflict(format!("node {name}")))
    }

    /// Gives a node its next certificate. The one that it comes with, `serial`, stays valid until the next is first
    /// used, or its own time is over.
    ///
    /// # Errors
    /// [`IdentityError::Void`] if the one that it comes with is not valid; [`IdentityError::Request`].
    ///
    /// # Cancellation
    /// May be called again with the same certificate.
    pub async fn renew(
        &self,
        name: &NodeName,
        serial: Serial,
        request: &str,
    ) -> Result<Certificate, IdentityError> {
        let request = CertificateRequest::from_pem(request)?;
        let key = record::node_key(name)?;
        for _ in 0..TRIES {
            let now = self.clock.now();
            let void = |void| IdentityError::Void { subject: Subject::Node(name.clone()), serial, void };
            let (at, mut node) = self.node(&key).await?.ok_or_else(|| void(super::Void::Unknown))?;
            roster::judge(&node, serial, now).map_err(void)?;
            let certificate = self.issue_node(&request, name, now)?;
            if node.current.serial == serial {
                node.previous = Some(node.current);
            }
            node.current = Held::of(certificate.content());
            let transaction = Transaction::new().when(Comparison::Modified(key.clone(), at));
            if self.write(transaction, &[(key.clone(), record::written(&node)?)]).await?.is_some() {
                tracing::info!(node = %name, serial = %certificate.serial(), "renewed a node's certificate");
                return Ok(certificate);
            }
        }
        Err(IdentityError::Conflict(format!("node {name}")))
    }

    /// Refuses a node from now on, until it is enrolled again with a token that names it.
    ///
    /// # Errors
    /// [`IdentityError::NoNode`].
    ///
    /// # Cancellation
    /// May be called again.
    pub async fn remove(&self, name: &NodeName, by: &Caller) -> Result<(), IdentityError> {
        self.change_node(name, |node| {
            node.removed = true;
            node.previous = None;
            node.login = false;
        })
        .await?;
        tracing::info!(node = %name, %by, "removed a node");
        Ok(())
    }

    /// Says whether a node may vouch for users. Where it no longer may, what it vouched for is void.
    ///
    /// # Errors
    /// [`IdentityError::NoNode`], also for one that was removed.
    ///
    /// # Cancellation
    /// May be called again.
    pub async fn mark_login(&self, name: &NodeName, login: bool, by: &Caller) -> Result<(), IdentityError> {
        let removed = self.change_node(name, |node| node.login = login && !node.removed).await?.removed;
        if removed {
            return Err(IdentityError::NoNode(name.clone()));
        }
        tracing::info!(node = %name, login, %by, "marked a node");
        Ok(())
    }

    /// Whether a node may vouch for users, as the store has it now.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn is_login(&self, name: &NodeName) -> Result<bool, IdentityError> {
        let node = self.node(&record::node_key(name)?).await?;
        Ok(node.is_some_and(|(_, node)| node.login && !node.removed))
    }

    /// All nodes that were ever enrolled, sorted by name.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn nodes(&self) -> Result<Vec<EnrolledNode>, IdentityError> {
        let mut nodes = Vec::new();
        for entry in self.store.range(record::NODES).await?.entries {
            let name = record::node_of(&entry.key)
                .ok_or_else(|| StoreError::damaged(&entry.key, "the key names no node"))?;
            let node: NodeRecord = decode(&entry)?;
            nodes.push(EnrolledNode {
                name,
                serial: node.current.serial,
                not_after: record::time(node.current.not_after),
                enrolled: record::time(node.enrolled),
                login: node.login,
                removed: node.removed,
            });
        }
        Ok(nodes)
    }

    /// Deletes what is over: join tokens, and records of certificates. Also strikes out the earlier certificates of
    /// nodes that have used their later one. A host calls it every minute or so.
    ///
    /// # Errors
    /// Those of the store; what was done remains done.
    ///
    /// # Cancellation
    /// May be called again.
    pub async fn sweep(&self) -> Result<Swept, IdentityError> {
        let now = self.clock.now();
        let over = |seconds: u64, keep: Duration| {
            record::time(seconds).checked_add(keep).is_some_and(|until| until < now)
        };
        let mut swept = Swept::default();
        for (name, serial) in self.roster.settled() {
            let settled = self.change_node(&name, |node| {
                if node.current.serial == serial {
                    node.previous = None;
                }
            });
            settled.await?;
            swept.settled += 1;
        }
        swept.tokens =
            self.delete_where(record::TOKENS, |token: &TokenRecord| over(token.expires, KEEP_TOKEN)).await?;
        swept.certificates = self
            .delete_where(record::CERTIFICATE, |certificate: &CertificateRecord| {
                let keep = if certificate.revoked.is_some() { KEEP_REVOKED } else { Duration::ZERO };
                over(certificate.not_after, keep.max(CLOCK_SKEW))
            })
            .await?;
        Ok(swept)
    }

    fn revocation(&self, by: &Caller) -> Revocation {
        Revocation { at: record::seconds(self.clock.now()), by: by.to_string() }
    }

    fn issue_node(
        &self,
        request: &CertificateRequest,
        name: &NodeName,
        now: SystemTime,
    ) -> Result<Certificate, IdentityError> {
        self.authority.issue(request, &Grant::new(Subject::Node(name.clone()), self.lifetimes.node), now)
    }

    async fn node(&self, key: &Key) -> Result<Option<(Revision, NodeRecord)>, IdentityError> {
        let Some(entry) = self.store.get(key).await? else { return Ok(None) };
        Ok(Some((entry.modified, decode(&entry)?)))
    }

    /// Changes a node's record, and gives what it then is.
    async fn change_node(
        &self,
        name: &NodeName,
        change: impl Fn(&mut NodeRecord) + Send + Sync,
    ) -> Result<NodeRecord, IdentityError> {
        let key = record::node_key(name)?;
        for _ in 0..TRIES {
            let (at, mut node) = self.node(&key).await?.ok_or_else(|| IdentityError::NoNode(name.clone()))?;
            let before = node.clone();
            change(&mut node);
            if node == before {
                return Ok(node);
            }
            let transaction = Transaction::new().when(Comparison::Modified(key.clone(), at));
            if self.write(transaction, &[(key.clone(), record::written(&node)?)]).await?.is_some() {
                return Ok(node);
            }
        }
        Err(IdentityError::Conflict(format!("node {name}")))
    }

    /// Writes, and shows it to the roster; `None` if something else was written in between.
    async fn write(
        &self,
        transaction: Transaction,
        writes: &[(Key, Vec<u8>)],
    ) -> Result<Option<Revision>, IdentityError> {
        let transaction = writes
            .iter()
            .fold(transaction, |transaction, (key, value)| transaction.put(key.clone(), value.clone()));
        let revision = match self.store.commit(transaction).await {
            Ok(Commit::Done(revision)) => revision,
            Ok(Commit::Conflict(_)) => return Ok(None),
            Err(error @ StoreError::Unconfirmed { .. }) => self.confirm(writes, error).await?,
            Err(error) => return Err(error.into()),
        };
        let changes: Vec<_> = writes
            .iter()
            .map(|(key, value)| Change { key: key.clone(), value: Some(value.clone()) })
            .collect();
        self.roster.apply(revision, &changes);
        Ok(Some(revision))
    }

    /// Looks whether a write came through. What is written holds a random serial number or hash in most cases, and
    /// says the same as another's in the others.
    async fn confirm(&self, writes: &[(Key, Vec<u8>)], error: StoreError) -> Result<Revision, IdentityError> {
        let Some((key, value)) = writes.first() else { return Err(error.into()) };
        match self.store.get(key).await? {
            Some(entry) if entry.value == *value => Ok(entry.modified),
            _ => Err(error.into()),
        }
    }

    async fn delete_where<R: Record>(
        &self,
        prefix: &str,
        over: impl Fn(&R) -> bool + Send + Sync,
    ) -> Result<usize, IdentityError> {
        let is_over = |entry: &Entry| decode::<R>(entry).is_ok_and(|record| over(&record));
        let entries: Vec<_> = self.store.range(prefix).await?.entries.into_iter().filter(is_over).collect();
        let mut deleted = 0;
        for batch in entries.chunks(BATCH) {
            let transaction = batch.iter().fold(Transaction::new(), |transaction, entry| {
                transaction
                    .when(Comparison::Modified(entry.key.clone(), entry.modified))
                    .delete(entry.key.clone())
            });
            let gone: Vec<_> = transaction
                .writes()
                .iter()
                .map(|write| match write {
                    Write::Put(key, _) | Write::Delete(key) => Change { key: key.clone(), value: None },
                })
                .collect();
            // Where one was changed in between, the next sweep sees it.
            if let Commit::Done(revision) = self.store.commit(transaction).await? {
                deleted += batch.len();
                self.roster.apply(revision, &gone);
            }
        }
        Ok(deleted)
    }
}

fn unchanged(key: &Key, at: Option<Revision>) -> Comparison {
    match at {
        Some(at) => Comparison::Modified(key.clone(), at),
        None => Comparison::Absent(key.clone()),
    }
}

/// The secret first: who does not have it learns nothing, not even from the time that this takes.
fn judge_token(
    stored: &TokenRecord,
    token: &JoinToken,
    name: &NodeName,
    now: SystemTime,
) -> Result<(), JoinRefusal> {
    if !token.matches(&stored.hash) {
        return Err(JoinRefusal::Secret);
    }
    if stored.used.is_some() {
        return Err(JoinRefusal::Used);
    }
    // Before it was made: the clock was set back, and how long the token has lived is not known.
    let begins = record::time(stored.created).checked_sub(CLOCK_SKEW).unwrap_or(SystemTime::UNIX_EPOCH);
    if now >= record::time(stored.expires) || now < begins {
        return Err(JoinRefusal::Expired);
    }
    if stored.node.as_ref().is_some_and(|node| node != name) {
        return Err(JoinRefusal::Node);
    }
    Ok(())
}
