//! What a client is called by its certificate: the name that it has roles by, and that the audit
//! trail has.

use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// What a client is called by its certificate; nothing where it has none.
///
/// Not to be mistaken for the names of nodes, which are names of hosts alone: a common name is
/// whatever whoever asked for the certificate wished, and says something only where the authority
/// looks at it, as one for clients does.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientNames(Arc<[String]>);

impl ClientNames {
    /// The common name, then the alternative ones: hosts, addresses of mail and URIs. One without a
    /// name goes by its serial number.
    pub(crate) fn of_certificate(certificate: &CertificateDer<'_>) -> Self {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
            return Self(Arc::from(["unreadable certificate".to_owned()]));
        };
        let common = certificate.subject().iter_common_name();
        let common = common.filter_map(|name| name.as_str().ok()).map(str::to_owned);
        let mut names: Vec<String> = common.collect();
        if let Ok(Some(alternative)) = certificate.subject_alternative_name() {
            names.extend(alternative.value.general_names.iter().filter_map(general_name));
        }
        names.retain(|name| !name.trim().is_empty());
        if names.is_empty() {
            names.push(format!("serial {}", certificate.raw_serial_as_string()));
        }
        Self(names.into())
    }

    /// All of them, the first first.
    pub(crate) fn names(&self) -> &[String] {
        &self.0
    }
}

fn general_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
            Some((*name).to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn a_client_is_called_by_its_common_name_and_then_by_the_others() {
        let pem = include_bytes!("../tests/certificates/client.pem");
        let certificate = CertificateDer::from_pem_slice(pem).unwrap();
        assert_eq!(ClientNames::of_certificate(&certificate).names(), ["client", "localhost"]);
        let broken = CertificateDer::from(vec![1, 2, 3]);
        assert_eq!(ClientNames::of_certificate(&broken).names(), ["unreadable certificate"]);
        assert!(ClientNames::default().names().is_empty());
    }
}
