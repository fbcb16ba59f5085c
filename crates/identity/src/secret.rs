//! A secret that lets somebody in, and what is kept of it.

use std::fmt;
use std::str::FromStr;

use ring::rand::{SecureRandom, SystemRandom};
use tessera_core::{Error, Result, parse_hex, write_hex};

/// A secret: 128 random bits. Written out only by [`JoinToken`](crate::JoinToken).
#[derive(Clone)]
pub struct JoinSecret(pub(crate) [u8; 16]);

/// What is kept of a secret by those who check it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretHash(blake3::Hash);

impl JoinSecret {
    /// A new one.
    pub fn generate() -> Result<Self> {
        random_bytes().map(Self)
    }

    /// To send it to whoever checks it: 32 hex digits.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What is kept of it.
    pub fn to_hash(&self) -> SecretHash {
        SecretHash(blake3::hash(&self.0))
    }

    pub(crate) fn write_digits(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, to)
    }
}

impl fmt::Debug for JoinSecret {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("JoinSecret")
    }
}

impl FromStr for JoinSecret {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_hex(text).map(Self).ok_or_else(|| Error::usage("a secret has 32 hex digits"))
    }
}

impl SecretHash {
    /// As it was kept: 64 hex digits.
    pub fn from_text(text: &str) -> Result<Self> {
        let hash = blake3::Hash::from_hex(text);
        hash.map(Self).map_err(|error| Error::invalid(format!("the hash of a secret: {error}")))
    }

    /// To keep it.
    pub fn to_text(&self) -> String {
        self.0.to_hex().to_string()
    }

    /// Whether it is this secret's; takes as long whether it is or not.
    pub fn matches(&self, secret: &JoinSecret) -> bool {
        // The hashes are compared in constant time.
        *self == secret.to_hash()
    }
}

pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Error::engine("the system has no random numbers"))?;
    Ok(bytes)
}
