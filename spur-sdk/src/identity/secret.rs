//! Secrets: what they are made of, how they are sealed at rest, how two are compared.

use std::fmt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key as CipherKey, XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::IdentityError;
use crate::fs;

/// Fills with random bytes of the system.
pub(super) fn random<const N: usize>() -> Result<[u8; N], IdentityError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| IdentityError::Cryptography(error.to_string()))?;
    Ok(bytes)
}

/// Whether two are equal, in a time that does not depend on where they differ.
pub(super) fn equal<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    let different = a.iter().zip(b).fold(0_u8, |different, (a, b)| std::hint::black_box(different | (a ^ b)));
    std::hint::black_box(different) == 0
}

pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// `N` bytes as `2 N` digits `0-9a-f`; no other spelling is taken.
pub(super) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// A secret that was opened; wiped when it is dropped.
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// The secret.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What stands in front of the key in its file.
const FILE_HEAD: &str = "spur-site-key-1 ";
/// The most bytes of that file.
const FILE_LIMIT: u64 = 4096;
/// The first byte of what is sealed, and the length of what else comes before the ciphertext: which key, and the nonce.
const FORMAT: u8 = 1;
const KEY_ID: usize = 4;
const NONCE: usize = 24;

/// The key that seals secrets of the site where they are stored: 32 random bytes in a file outside the store.
///
/// Every controller has a copy. Without it a copy of the store gives away no secret, and a restored one is of no use.
pub struct SiteKey(Zeroizing<[u8; 32]>);

impl SiteKey {
    /// A new key.
    ///
    /// # Errors
    /// [`IdentityError::Cryptography`] if the system has no random numbers.
    pub fn generate() -> Result<Self, IdentityError> {
        Ok(Self(Zeroizing::new(random()?)))
    }

    /// Makes a new key and the file for it, with mode 0600. The folder must exist. Blocks.
    ///
    /// # Errors
    /// [`IdentityError::File`], also if there is a file: a site key that is overwritten is lost with all that it
    /// sealed.
    pub fn create(path: &Path) -> Result<Self, IdentityError> {
        let key = Self::generate()?;
        let text =
            Zeroizing::new(format!("{FILE_HEAD}{}\n", *Zeroizing::new(STANDARD.encode(key.0.as_slice()))));
        fs::create_file(path, text.as_bytes(), 0o600)?;
        Ok(key)
    }

    /// Reads the file. Blocks.
    ///
    /// # Errors
    /// [`IdentityError::File`] if it cannot be read, or group or others can; [`IdentityError::Credentials`] if no site
    /// key is in it.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let bytes = Zeroizing::new(fs::read_secret(path, FILE_LIMIT)?);
        let read = || {
            let text = std::str::from_utf8(&bytes).ok()?.strip_prefix(FILE_HEAD)?;
            let decoded = Zeroizing::new(STANDARD.decode(text.trim_end()).ok()?);
            Some(Self(Zeroizing::new(decoded.as_slice().try_into().ok()?)))
        };
        read().ok_or_else(|| IdentityError::Credentials {
            place: path.display().to_string(),
            what: "no site key is in it; copy the file from another controller or from the backup".to_owned(),
        })
    }

    /// The first bytes of a hash, so that a wrong key is told from a damaged record.
    fn id(&self) -> [u8; KEY_ID] {
        let named = Zeroizing::new([b"spur site key ".as_slice(), self.0.as_slice()].concat());
        let [a, b, c, d, ..] = sha256(&named);
        [a, b, c, d]
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&CipherKey::from(*self.0))
    }

    /// Seals a secret that will stand at `place`, by convention a record's key; it can be opened only there.
    ///
    /// XChaCha20-Poly1305 with a random nonce of 192 bits. The length of the secret shows.
    ///
    /// # Errors
    /// [`IdentityError::Cryptography`].
    pub fn seal(&self, place: &str, secret: &[u8]) -> Result<Vec<u8>, IdentityError> {
        let nonce: [u8; NONCE] = random()?;
        let payload = Payload { msg: secret, aad: place.as_bytes() };
        let sealed = self
            .cipher()
            .encrypt(&XNonce::from(nonce), payload)
            .map_err(|_| IdentityError::Cryptography("seal".to_owned()))?;
        Ok([&[FORMAT], self.id().as_slice(), &nonce, &sealed].concat())
    }

    /// Opens what was sealed for `place`.
    ///
    /// # Errors
    /// [`IdentityError::Sealed`] if it was sealed by another key or for another place, or was changed.
    pub fn open(&self, place: &str, sealed: &[u8]) -> Result<Secret, IdentityError> {
        let failed = |what| IdentityError::Sealed { place: place.to_owned(), what };
        let (format, rest) = sealed.split_first().ok_or_else(|| failed("it is empty"))?;
        if *format != FORMAT {
            return Err(failed("a later version wrote it"));
        }
        let (id, rest) = rest.split_first_chunk::<KEY_ID>().ok_or_else(|| failed("it is cut off"))?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE>().ok_or_else(|| failed("it is cut off"))?;
        if *id != self.id() {
            return Err(failed(
                "another site key sealed it; copy the key's file from the controller that did",
            ));
        }
        let payload = Payload { msg: sealed, aad: place.as_bytes() };
        let secret = self.cipher().decrypt(&XNonce::from(*nonce), payload);
        secret
            .map(|secret| Secret(Zeroizing::new(secret)))
            .map_err(|_| failed("it was changed, or belongs elsewhere"))
    }
}

impl fmt::Debug for SiteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SiteKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_only_where_it_belongs_and_unchanged() {
        let key = SiteKey::generate().unwrap();
        let sealed = key.seal("identity/authority", b"secret").unwrap();
        assert_eq!(key.open("identity/authority", &sealed).unwrap().bytes(), b"secret");
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        assert_ne!(sealed, key.seal("identity/authority", b"secret").unwrap(), "the nonce is random");
        assert!(key.open("identity/other", &sealed).is_err());
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut changed = sealed.clone();
                changed[at] ^= 1 << bit;
                assert!(key.open("identity/authority", &changed).is_err(), "bit {bit} of byte {at}");
            }
            assert!(key.open("identity/authority", &sealed[..at]).is_err(), "cut at {at}");
        }
        let mut longer = sealed.clone();
        longer.push(0);
        assert!(key.open("identity/authority", &longer).is_err());
        let other = SiteKey::generate().unwrap().open("identity/authority", &sealed).unwrap_err();
        assert!(other.to_string().contains("another site key"), "{other}");
    }

    #[test]
    fn nothing_shows_a_key() {
        assert_eq!(format!("{:?}", SiteKey::generate().unwrap()), "SiteKey(..)");
    }

    #[test]
    fn comparison_and_hexadecimal_are_exact() {
        assert!(equal(&[1, 2, 3], &[1, 2, 3]));
        for at in 0..3 {
            let mut other = [1, 2, 3];
            other[at] ^= 0x80;
            assert!(!equal(&[1, 2, 3], &other));
        }
        assert_eq!(unhex::<2>("00ff"), Some([0, 255]));
        for text in ["00f", "00FF", "+0ff", "00ff0", "éf"] {
            assert_eq!(unhex::<2>(text), None, "{text}");
        }
    }
}
