//! Where etcd is.

use std::path::PathBuf;

use tessera_core::{Error, Result};
use tonic::transport::Uri;

/// Where etcd is, and what it is spoken to with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Where its members answer clients: `http://HOST:PORT` or `https://HOST:PORT` each.
    pub endpoints: Vec<String>,
    /// What TLS needs, for members at `https://`.
    pub tls: Option<EtcdTlsFiles>,
}

/// The files that TLS needs, in PEM. They are read for every new connection, so that they may be
/// renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTlsFiles {
    /// Whose certificates are believed.
    pub authority: PathBuf,
    /// What is shown to members that want a certificate of clients.
    pub identity: Option<EtcdIdentityFiles>,
}

/// A certificate, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdIdentityFiles {
    /// The certificate, with those between it and its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Where one member answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberAddress {
    /// As it was written.
    pub(crate) url: String,
    pub(crate) uri: Uri,
    /// Its host, without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) uses_tls: bool,
}

impl EtcdConfig {
    /// Where the members are; an error that names all that are wrong.
    pub(crate) fn member_addresses(&self) -> Result<Vec<MemberAddress>> {
        let (mut addresses, mut wrong) = (Vec::new(), Vec::new());
        for url in &self.endpoints {
            match parse_address(url) {
                None => wrong.push(format!(
                    "{url:?} is no address of etcd: expected http://HOST:PORT or https://HOST:PORT"
                )),
                Some(address) if address.uses_tls && self.tls.is_none() => {
                    wrong.push(format!("etcd at {url}: TLS needs a file with its authority"));
                }
                Some(address) => addresses.push(address),
            }
        }
        if self.endpoints.is_empty() {
            wrong.push("no address of etcd is given, expected one at least".to_owned());
        }
        let is_plain = |address: &MemberAddress| !address.uses_tls;
        if let (Some(address), true) = (addresses.iter().find(|a| is_plain(a)), self.tls.is_some())
        {
            wrong.push(format!(
                "etcd at {}: an authority is given, expected an address with https://",
                address.url
            ));
        }
        if wrong.is_empty() { Ok(addresses) } else { Err(Error::usage(wrong.join("; "))) }
    }
}

fn parse_address(url: &str) -> Option<MemberAddress> {
    let uri: Uri = url.parse().ok()?;
    let uses_tls = match uri.scheme_str()? {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let authority = uri.authority()?.as_str();
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().filter(|port| *port > 0)?;
    let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
    if host.is_empty() || !is_bare || authority.contains('@') {
        return None;
    }
    Some(MemberAddress { url: url.to_owned(), uri, host, port, uses_tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_endpoints(endpoints: &[&str], has_tls: bool) -> Result<Vec<MemberAddress>> {
        let files = EtcdTlsFiles { authority: "ca.pem".into(), identity: None };
        let endpoints = endpoints.iter().map(|&url| url.to_owned()).collect();
        EtcdConfig { endpoints, tls: has_tls.then_some(files) }.member_addresses()
    }

    #[test]
    fn addresses_are_read() {
        let read = with_endpoints(&["http://10.0.0.1:2379", "http://[::1]:2379/"], false).unwrap();
        assert_eq!((read[0].host.as_str(), read[0].port), ("10.0.0.1", 2379));
        assert_eq!((read[1].host.as_str(), read[1].uses_tls), ("::1", false));
        assert!(with_endpoints(&["https://etcd.example:2379"], true).unwrap()[0].uses_tls);
    }

    #[test]
    fn everything_that_is_wrong_is_named() {
        for url in ["", "etcd:2379", "ftp://etcd:1", "http://etcd", "http://a:1/b", "http://u@a:1"]
        {
            let error = with_endpoints(&[url, "10.0.0.1"], false).unwrap_err().to_string();
            assert!(error.contains(&format!("{url:?} is no address of etcd")), "{error}");
            assert!(error.contains("\"10.0.0.1\" is no address of etcd"), "{error}");
        }
        for (urls, has_tls, expected) in [
            (&[][..], false, "no address of etcd is given"),
            (&["https://a:1"][..], false, "TLS needs a file with its authority"),
            (&["http://a:1"][..], true, "expected an address with https://"),
        ] {
            let error = with_endpoints(urls, has_tls).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
