//! A certificate with its key as text, to be kept or handed to another process of its owner.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A certificate with its key and its authority, in PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityPem {
    /// The certificate, with those between it and its authority.
    pub certificate: String,
    /// Its key, which nobody else has.
    pub key: String,
    /// Whom it believes.
    pub authority: String,
}

impl IdentityPem {
    pub(super) fn new(certificate: &str, key: &str, authority: &str) -> Self {
        Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            authority: authority.to_owned(),
        }
    }
}

impl fmt::Debug for IdentityPem {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whatever is printed may be read by others.
        to.debug_struct("IdentityPem")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}
