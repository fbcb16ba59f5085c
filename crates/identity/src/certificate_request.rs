//! A key, and the wish for a certificate.

use rcgen::{CertificateParams, KeyPair};
use tessera_core::Result;

use crate::identity_error::identity_error;
use crate::node_name::NodeName;

/// A key that stays where it was made, and a request that an authority signs.
pub struct CertificateRequest {
    key: KeyPair,
    request: String,
}

impl CertificateRequest {
    /// With a new key (ECDSA, P-256). Whatever name it asks for, the authority decides.
    pub fn generate(name: &NodeName) -> Result<Self> {
        let key = KeyPair::generate().map_err(identity_error("a key"))?;
        Self::with_key(name, key)
    }

    /// For a key that there is, in PEM: a certificate that is renewed.
    pub fn from_key(name: &NodeName, key_pem: &str) -> Result<Self> {
        Self::with_key(name, KeyPair::from_pem(key_pem).map_err(identity_error("the key"))?)
    }

    fn with_key(name: &NodeName, key: KeyPair) -> Result<Self> {
        let fail = identity_error("a certificate request");
        let parameters = CertificateParams::new(vec![name.certificate_name()]).map_err(&fail)?;
        let request = parameters.serialize_request(&key).map_err(&fail)?;
        let request = request.pem().map_err(&fail)?;
        Ok(Self { key, request })
    }

    /// What the authority gets, in PEM.
    pub fn request_pem(&self) -> &str {
        &self.request
    }

    /// What nobody else gets, in PEM.
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }
}
