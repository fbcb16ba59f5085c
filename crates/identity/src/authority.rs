//! Whom those of a cluster believe.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tessera_core::{Error, Result};
use time::OffsetDateTime;

use crate::fingerprint::Fingerprint;
use crate::identity_error::identity_error;

/// How long an authority is believed.
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// How much a clock may be behind ours.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Whom those of a cluster believe: what it signs is one of them.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
    fingerprint: Fingerprint,
}

/// A certificate with what was signed.
#[derive(Clone, Debug)]
pub struct SignedCertificate {
    /// In PEM.
    pub certificate_pem: String,
    /// Until when it is believed.
    pub expires: SystemTime,
}

impl Authority {
    /// A new one, with a new key.
    pub fn generate(cluster: &str) -> Result<Self> {
        let key = KeyPair::generate().map_err(identity_error("a key"))?;
        let fail = identity_error("an authority");
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = named(&format!("Tessera cluster {cluster}"));
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let now = SystemTime::now();
        parameters.not_before = OffsetDateTime::from(now - CLOCK_SKEW);
        parameters.not_after = OffsetDateTime::from(now + AUTHORITY_LIFE);
        let certificate = parameters.self_signed(&key).map_err(&fail)?;
        let (certificate_pem, key_pem) = (certificate.pem(), key.serialize_pem());
        Self::from_pem(&certificate_pem, &key_pem)
    }

    /// One that was kept.
    pub fn from_pem(certificate_pem: &str, key_pem: &str) -> Result<Self> {
        let key = KeyPair::from_pem(key_pem).map_err(identity_error("the authority's key"))?;
        let fail = identity_error("the authority's certificate");
        let issuer = Issuer::from_ca_cert_pem(certificate_pem, key).map_err(&fail)?;
        let fingerprint = fingerprint_of_pem(certificate_pem)?;
        Ok(Self { issuer, certificate_pem: certificate_pem.to_owned(), fingerprint })
    }

    /// What everybody may know, in PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// What controllers alone know, in PEM.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// What a token says of it.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Signs a request: its key, and nothing else that it asks for, gets these names.
    pub fn sign_request(
        &self,
        request_pem: &str,
        names: &[String],
        life: Duration,
    ) -> Result<SignedCertificate> {
        let fail = identity_error("the certificate request");
        let mut request = CertificateSigningRequestParams::from_pem(request_pem).map_err(&fail)?;
        let expires = SystemTime::now() + life;
        request.params = certificate_parameters(names, SystemTime::now() - CLOCK_SKEW, expires)?;
        let certificate = request.signed_by(&self.issuer).map_err(&fail)?;
        Ok(SignedCertificate { certificate_pem: certificate.pem(), expires })
    }
}

fn certificate_parameters(
    names: &[String],
    from: SystemTime,
    until: SystemTime,
) -> Result<CertificateParams> {
    let fail = identity_error("a certificate");
    let mut parameters = CertificateParams::default();
    for name in names {
        let name = match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.as_str().try_into().map_err(&fail)?),
        };
        parameters.subject_alt_names.push(name);
    }
    parameters.distinguished_name = named(names.first().map_or("", String::as_str));
    parameters.is_ca = IsCa::ExplicitNoCa;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    parameters.use_authority_key_identifier_extension = true;
    parameters.not_before = OffsetDateTime::from(from);
    parameters.not_after = OffsetDateTime::from(until);
    Ok(parameters)
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn fingerprint_of_pem(pem: &str) -> Result<Fingerprint> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| Error::invalid(format!("the authority's certificate: {error}")))?;
    Ok(Fingerprint::of_certificate(&der))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{RootCertStore, crypto};

    use super::*;
    use crate::certificate_request::CertificateRequest;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Whether those who believe `authority` believe that a certificate has this name, so long from
    /// now.
    fn is_believed(authority: &Authority, certificate: &str, name: &str, later: Duration) -> bool {
        let mut roots = RootCertStore::empty();
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        roots.add(der(authority.certificate_pem())).unwrap();
        let provider = Arc::new(crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let now = UnixTime::since_unix_epoch(UnixTime::now().as_secs_duration() + later);
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let certificate = der(certificate);
        verifier.build().unwrap().verify_server_cert(&certificate, &[], &name, &[], now).is_ok()
    }

    trait SinceEpoch {
        fn as_secs_duration(&self) -> Duration;
    }

    impl SinceEpoch for UnixTime {
        fn as_secs_duration(&self) -> Duration {
            Duration::from_secs(self.as_secs())
        }
    }

    #[test]
    fn what_an_authority_signs_is_believed_for_its_names_and_its_time() {
        let authority = Authority::generate("test").unwrap();
        let name: crate::NodeName = "edge".parse().unwrap();
        let request = CertificateRequest::generate(&name).unwrap();
        let names = [name.certificate_name(), "10.0.0.7".to_owned()];
        let signed = authority.sign_request(request.request_pem(), &names, HOUR).unwrap();
        let believed = |who: &Authority, name: &str, later: Duration| {
            is_believed(who, &signed.certificate_pem, name, later)
        };
        assert!(believed(&authority, &names[0], Duration::ZERO));
        assert!(believed(&authority, "10.0.0.7", HOUR / 2));
        assert!(!believed(&authority, "other.node.tessera", Duration::ZERO));
        assert!(!believed(&authority, &names[0], HOUR * 2));
        assert!(!believed(&Authority::generate("test").unwrap(), &names[0], Duration::ZERO));
        // Kept, it is the same.
        let again = Authority::from_pem(authority.certificate_pem(), &authority.key_pem()).unwrap();
        assert_eq!(again.fingerprint(), authority.fingerprint());
        let renewed = CertificateRequest::from_key(&name, &request.key_pem()).unwrap();
        let signed = again.sign_request(renewed.request_pem(), &names, HOUR).unwrap();
        assert!(is_believed(&authority, &signed.certificate_pem, &names[0], Duration::ZERO));
    }

    #[test]
    fn a_request_gets_nothing_but_what_is_decided() {
        let authority = Authority::generate("test").unwrap();
        // It asks to be an authority, under the name of a controller.
        let key = KeyPair::generate().unwrap();
        let mut wish = CertificateParams::new(vec!["x.controller.tessera".to_owned()]).unwrap();
        wish.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let wish = wish.serialize_request(&key).unwrap().pem().unwrap();
        let names = ["edge.node.tessera".to_owned()];
        let signed = authority.sign_request(&wish, &names, HOUR).unwrap().certificate_pem;
        let now = Duration::ZERO;
        assert!(is_believed(&authority, &signed, "edge.node.tessera", now));
        assert!(!is_believed(&authority, &signed, "x.controller.tessera", now));
        let usurper = Issuer::from_ca_cert_pem(&signed, key).unwrap();
        let other = KeyPair::generate().unwrap();
        let wanted = CertificateParams::new(vec!["a.controller.tessera".to_owned()]).unwrap();
        let forged = wanted.signed_by(&other, &usurper).unwrap().pem();
        assert!(!is_believed(&authority, &forged, "a.controller.tessera", now));
        for wrong in ["", "no PEM", authority.certificate_pem()] {
            assert!(authority.sign_request(wrong, &names, HOUR).is_err(), "{wrong}");
        }
    }
}
