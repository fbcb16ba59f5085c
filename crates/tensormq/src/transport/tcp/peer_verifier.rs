//! Looks at the certificate of whoever connects to us, and at whether it still belongs to us.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use tessera_core::lock;
use webpki::EndEntityCert;

/// Names that are refused, though their certificates are good.
#[derive(Clone, Debug, Default)]
pub(super) struct RemovedPeers(Arc<Mutex<HashSet<String>>>);

impl RemovedPeers {
    pub(super) fn set_names(&self, names: HashSet<String>) {
        *lock(&self.0) = names;
    }

    pub(super) fn list_names(&self) -> Vec<String> {
        lock(&self.0).iter().cloned().collect()
    }

    /// Whether somebody with these names is refused.
    pub(super) fn contains_any(&self, names: &[String]) -> bool {
        let removed = lock(&self.0);
        names.iter().any(|name| removed.contains(name))
    }
}

/// The names in a certificate.
pub fn certificate_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    EndEntityCert::try_from(certificate)
        .map(|certificate| certificate.valid_dns_names().map(str::to_owned).collect())
        .unwrap_or_default()
}

/// Believes whom `believed` does, but for those that were removed: they hear that in the handshake.
#[derive(Debug)]
pub(super) struct PeerVerifier {
    pub(super) believed: Arc<dyn ClientCertVerifier>,
    pub(super) removed: RemovedPeers,
}

impl ClientCertVerifier for PeerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.believed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.believed.verify_client_cert(certificate, intermediates, now)?;
        if self.removed.contains_any(&certificate_names(certificate)) {
            return Err(CertificateError::Revoked.into());
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.believed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.believed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.believed.supported_verify_schemes()
    }
}
