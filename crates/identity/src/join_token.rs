//! What somebody needs to join a cluster.

use std::fmt;
use std::str::FromStr;

use tessera_core::{Error, Result, parse_hex, write_hex};

use crate::fingerprint::Fingerprint;
use crate::secret::{JoinSecret, random_bytes};

/// How a token begins: what it is, and how it is written.
const PREFIX: &str = "tsr1";

/// The part of a token that is no secret: how it is listed and revoked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId([u8; 4]);

/// Whom to believe, and what lets in: `tsr1.FINGERPRINT.ID.SECRET`.
#[derive(Clone, Debug)]
pub struct JoinToken {
    /// Of the cluster's authority.
    pub authority: Fingerprint,
    /// How it is listed.
    pub id: TokenId,
    /// What lets in.
    pub secret: JoinSecret,
}

impl JoinToken {
    /// A new one for the cluster of an authority.
    pub fn generate(authority: Fingerprint) -> Result<Self> {
        let (id, secret) = (TokenId(random_bytes()?), JoinSecret::generate()?);
        Ok(Self { authority, id, secret })
    }
}

/// With its secret: for whoever is to join, and not for logs.
impl fmt::Display for JoinToken {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{PREFIX}.{}.{}.", self.authority, self.id)?;
        self.secret.write_digits(to)
    }
}

impl FromStr for JoinToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // Without the text itself, which may be a secret with a slip in it.
        let wrong = || {
            Error::usage(format!(
                "that is no token: expected {PREFIX}.FINGERPRINT.ID.SECRET as `tessera token \
                 create` prints it, of {} characters",
                PREFIX.len() + 3 + 64 + 8 + 32
            ))
        };
        let parts: Vec<&str> = text.trim().split('.').collect();
        let [PREFIX, authority, id, secret] = parts[..] else { return Err(wrong()) };
        Ok(Self {
            authority: authority.parse().map_err(|_| wrong())?,
            id: id.parse().map_err(|_| wrong())?,
            secret: secret.parse().map_err(|_| wrong())?,
        })
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, to)
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

impl FromStr for TokenId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::usage(format!("{text:?} is no token's id: expected 8 hex digits"));
        parse_hex(text).map(Self).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written_and_slips_are_noticed() {
        let token = JoinToken::generate(Fingerprint::of_certificate(b"der")).unwrap();
        let text = token.to_string();
        let again: JoinToken = format!(" {text}\n").parse().unwrap();
        assert_eq!((again.authority, again.id), (token.authority, token.id));
        assert!(token.secret.to_hash().matches(&again.secret));
        assert!(!JoinSecret::generate().unwrap().to_hash().matches(&again.secret));
        let secret = text.rsplit('.').next().unwrap();
        assert!(!format!("{token:?}").contains(secret));
        for wrong in [
            &text[1..],
            &text[..text.len() - 1],
            &text.replace('.', ""),
            "",
            "....",
            &text.replacen('.', ".x", 2),
        ] {
            let error = wrong.parse::<JoinToken>().unwrap_err().to_string();
            assert!(error.contains("that is no token") && !error.contains(secret), "{error}");
        }
    }
}
