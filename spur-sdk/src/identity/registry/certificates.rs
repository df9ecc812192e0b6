//! Certificates of controllers, admins and users: issued, listed, revoked.

use std::time::SystemTime;

use super::record::{self, CertificateRecord};
use super::{Registry, TRIES};
use crate::Clock;
use crate::identity::{Caller, Certificate, CertificateRequest, Grant, IdentityError, Serial, Subject};
use crate::store::{Comparison, Store, StoreError, Transaction, decode};

/// A certificate of a controller, an admin or a user.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IssuedCertificate {
    /// Whom it is for.
    pub subject: Subject,
    /// Its serial number.
    pub serial: Serial,
    /// When it was issued.
    pub issued: SystemTime,
    /// When it ends.
    pub not_after: SystemTime,
    /// Who got it issued.
    pub by: String,
    /// Whether it was revoked.
    pub revoked: bool,
}

impl<S: Store, C: Clock> Registry<S, C> {
    /// Issues a certificate for a controller, an admin or a user, and notes that.
    ///
    /// # Errors
    /// Those of [`Authority::issue`](crate::identity::Authority::issue); [`IdentityError::Denied`] for a node, which enrols.
    ///
    /// # Cancellation
    /// It may be noted and lost.
    pub async fn issue(
        &self,
        request: &str,
        grant: &Grant,
        by: &Caller,
    ) -> Result<Certificate, IdentityError> {
        if matches!(grant.subject, Subject::Node(_)) {
            return Err(IdentityError::Denied("a node enrols"));
        }
        let request = CertificateRequest::from_pem(request)?;
        let now = self.clock.now();
        let certificate = self.authority.issue(&request, grant, now)?;
        let record = CertificateRecord {
            subject: grant.subject.uri(self.authority.site()),
            issued: record::seconds(now),
            not_after: record::seconds(certificate.not_after()),
            by: by.to_string(),
            revoked: None,
        };
        let key = record::certificate_key(certificate.serial())?;
        let transaction = Transaction::new().when(Comparison::Absent(key.clone()));
        self.write(transaction, &[(key, record::written(&record)?)])
            .await?
            .ok_or_else(|| IdentityError::Conflict("the certificate".to_owned()))?;
        tracing::info!(subject = %grant.subject, serial = %certificate.serial(), %by, "issued a certificate");
        Ok(certificate)
    }

    /// As [`issue`](Self::issue), with the lifetime that the site has for such certificates.
    ///
    /// # Errors
    /// As [`issue`](Self::issue).
    pub async fn issue_for(
        &self,
        request: &str,
        subject: Subject,
        by: &Caller,
    ) -> Result<Certificate, IdentityError> {
        let lifetime = self.lifetimes.of(&subject);
        self.issue(request, &Grant::new(subject, lifetime), by).await
    }

    /// The certificates of controllers, admins and users that are noted, sorted by serial number.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn certificates(&self) -> Result<Vec<IssuedCertificate>, IdentityError> {
        let mut certificates = Vec::new();
        for entry in self.store.range(record::CERTIFICATE).await?.entries {
            let serial = record::serial_of(&entry.key)
                .ok_or_else(|| StoreError::damaged(&entry.key, "the key names no certificate"))?;
            let record: CertificateRecord = decode(&entry)?;
            let (_, subject) = Subject::parse(&record.subject)
                .map_err(|_| StoreError::damaged(&entry.key, "the subject cannot be read"))?;
            certificates.push(IssuedCertificate {
                subject,
                serial,
                issued: record::time(record.issued),
                not_after: record::time(record.not_after),
                by: record.by,
                revoked: record.revoked.is_some(),
            });
        }
        Ok(certificates)
    }

    /// Makes a certificate of a controller, an admin or a user void.
    ///
    /// # Errors
    /// [`IdentityError::Certificate`] for one that is not noted: it is of a node, which is removed instead, or its time
    /// is long over.
    ///
    /// # Cancellation
    /// May be called again.
    pub async fn revoke(&self, serial: Serial, by: &Caller) -> Result<(), IdentityError> {
        let key = record::certificate_key(serial)?;
        for _ in 0..TRIES {
            let entry = self.store.get(&key).await?;
            let entry = entry.ok_or(IdentityError::Certificate("no such certificate was issued"))?;
            let mut record: CertificateRecord = decode(&entry)?;
            if record.revoked.is_some() {
                return Ok(());
            }
            record.revoked = Some(self.revocation(by));
            let transaction = Transaction::new().when(Comparison::Modified(key.clone(), entry.modified));
            if self.write(transaction, &[(key.clone(), record::written(&record)?)]).await?.is_some() {
                tracing::info!(subject = record.subject, %serial, %by, "revoked a certificate");
                return Ok(());
            }
        }
        Err(IdentityError::Conflict(format!("certificate {serial}")))
    }

    /// Makes all certificates void that are noted for a subject, for a user also those for which a node vouched, and
    /// says how many. One that is issued at the same time may remain: first see to it that none is.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancellation
    /// Some may remain; may be called again.
    pub async fn revoke_all(&self, subject: &Subject, by: &Caller) -> Result<usize, IdentityError> {
        let mut revoked = 0;
        for certificate in self.certificates().await? {
            let same =
                certificate.subject.role() == subject.role() && certificate.subject.name() == subject.name();
            if same && !certificate.revoked {
                self.revoke(certificate.serial, by).await?;
                revoked += 1;
            }
        }
        Ok(revoked)
    }
}
