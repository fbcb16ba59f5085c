//! A short proof of which certificate is meant.

use std::fmt;
use std::str::FromStr;

use ring::digest::{SHA256, digest};
use tessera_core::{Error, Result, parse_hex, write_hex};

/// SHA-256 of a certificate, as `openssl x509 -fingerprint -sha256` has it, without colons.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Of a certificate in DER.
    pub fn of_certificate(der: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, der).as_ref());
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, to)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

impl FromStr for Fingerprint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_hex(text).map(Self).ok_or_else(|| Error::usage("a fingerprint has 64 hex digits"))
    }
}
