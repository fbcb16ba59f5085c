//! A node of a cluster, as it keeps itself.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};
use tessera_identity::NodeName;

use crate::wire::NodeCertificate;

/// A node of a cluster, as it keeps itself.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedNode {
    /// What it is called.
    pub name: NodeName,
    /// What its cluster is called.
    pub cluster: String,
    /// Its certificate, in PEM.
    pub certificate_pem: String,
    /// Its key, in PEM, which nobody else has.
    pub key_pem: String,
    /// Whom it believes, in PEM.
    pub authority_pem: String,
    /// Until when its certificate is believed, and since when it has it.
    pub expires: SystemTime,
    /// See `expires`.
    pub renewed: SystemTime,
}

impl JoinedNode {
    /// The same with another certificate.
    pub(crate) fn with_certificate(&self, certificate: NodeCertificate) -> Result<Self> {
        let NodeCertificate { certificate, authority, expires } = certificate;
        if certificate.is_empty() || authority.is_empty() {
            return Err(Error::invalid("a certificate of the cluster: there is nothing in it"));
        }
        Ok(Self {
            certificate_pem: certificate,
            authority_pem: authority,
            expires: SystemTime::UNIX_EPOCH + Duration::from_secs(expires),
            renewed: SystemTime::now(),
            ..self.clone()
        })
    }

    /// When to ask for another certificate: half of its life is left then.
    pub fn renew_at(&self) -> SystemTime {
        let life = self.expires.duration_since(self.renewed).unwrap_or_default();
        self.renewed + life / 2
    }
}
