//! A token as it is kept: without its secret.

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};
use tessera_identity::{JoinSecret, SecretHash};

/// A token as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// How it is listed and revoked.
    pub id: String,
    /// What is kept of its secret.
    pub(crate) secret_hash: String,
    /// When it was made and until when it lets in, in seconds since 1970.
    pub created: u64,
    /// See `created`.
    pub expires: u64,
    /// The node that it let in.
    pub used_by: Option<String>,
    /// Whether it lets nobody in any more.
    pub revoked: bool,
}

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenState {
    /// It lets somebody in.
    Valid,
    /// It has let somebody in.
    Used,
    /// Nobody used it in time.
    Expired,
    /// It was revoked.
    Revoked,
}

impl TokenRecord {
    /// What it is good for at this time, in seconds since 1970.
    pub fn state_at(&self, now: u64) -> TokenState {
        match () {
            () if self.revoked => TokenState::Revoked,
            () if self.used_by.is_some() => TokenState::Used,
            () if now >= self.expires => TokenState::Expired,
            () => TokenState::Valid,
        }
    }

    /// Refuses whoever it does not let in.
    pub(crate) fn check_admission(&self, secret: &JoinSecret, now: u64) -> Result<()> {
        // First: whoever does not have the secret learns nothing of the token.
        if !SecretHash::from_text(&self.secret_hash)?.matches(secret) {
            return Err(unknown_token());
        }
        let refused = |why: &str| Err(Error::usage(format!("token {}: {why}", self.id)));
        match self.state_at(now) {
            TokenState::Valid => Ok(()),
            TokenState::Used => refused("it was used already, each lets in one node"),
            TokenState::Expired => refused("it has expired"),
            TokenState::Revoked => refused("it was revoked"),
        }
    }
}

/// The same where there is no such token and where the secret is another.
pub(crate) fn unknown_token() -> Error {
    Error::usage("the token is none of this cluster's, expected one of `tessera token create`")
}
