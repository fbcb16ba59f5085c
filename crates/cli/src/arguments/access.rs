//! Where a role listens, and who may ask it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use tessera_core::{Error, Result};
use tessera_server::{AccessConfig, ListenSetting, PortKind, TlsFiles, WebAccess};

#[derive(Args)]
pub(crate) struct AccessArguments {
    /// Address to listen on; 0.0.0.0 or :: for all of this machine's
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,
    /// Answer requests that ask for this host, beside addresses and names that nobody else can own;
    /// * for any; repeat for more
    #[arg(long = "allow-host", value_name = "NAME")]
    pub(crate) allowed_hosts: Vec<String>,
    /// Let web pages of this origin (SCHEME://HOST:PORT) ask; * for any; repeat for more
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    pub(crate) allowed_origins: Vec<String>,
    /// File of tokens, a line each: NAME ROLES TOKEN, with roles from infer, observe and change;
    /// requests carry one as Authorization: Bearer TOKEN; for --tls-client-ca lines certificate NAME
    /// ROLES [default: anybody may ask]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate of the server (PEM), for TLS on every port
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authority of clients' certificates (PEM): clients without one are refused, those with one may
    /// do what --token-file says, or everything without it
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Listen beyond this machine though there are no tokens or no TLS
    #[arg(long)]
    pub(crate) insecure: bool,
}

impl AccessArguments {
    /// Who may ask; tells of every flag that is wrong.
    pub(crate) fn access_config(&self) -> Result<AccessConfig> {
        let web = WebAccess::new(&self.allowed_hosts, &self.allowed_origins);
        let exposed = self.check_exposure();
        match (web, exposed) {
            (Ok(web), Ok(())) => {
                let (token_file, tls) = (self.token_file.clone(), self.tls_files());
                Ok(AccessConfig { web, token_file, tls })
            }
            (Err(web), Err(exposed)) => Err(Error::usage(format!("{web}; {exposed}"))),
            (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
        }
    }

    /// A port of the address that was asked for.
    pub(crate) fn listen_on(&self, name: &'static str, kind: PortKind, port: u16) -> ListenSetting {
        ListenSetting { name, kind, address: SocketAddr::new(self.host, port) }
    }

    fn tls_files(&self) -> Option<TlsFiles> {
        Some(TlsFiles {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_authority: self.tls_client_ca.clone(),
        })
    }

    /// Whether a server that others reach keeps them from what is not theirs.
    fn check_exposure(&self) -> Result<()> {
        if self.host.is_loopback() || self.insecure {
            return Ok(());
        }
        let mut missing = Vec::new();
        if self.token_file.is_none() && self.tls_client_ca.is_none() {
            missing.push("--token-file (or --tls-client-ca)");
        }
        if self.tls_cert.is_none() {
            missing.push("--tls-cert and --tls-key");
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "--host {}: others than this machine reach the server, which needs {}; --insecure \
             serves without",
            self.host,
            missing.join(" and ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        access: AccessArguments,
    }

    fn config(arguments: &[&str]) -> Result<AccessConfig> {
        let arguments = ["serve"].iter().chain(arguments);
        Arguments::try_parse_from(arguments).unwrap().access.access_config()
    }

    const TLS: [&str; 4] = ["--tls-cert", "a.pem", "--tls-key", "a.key"];
    const TOKENS: [&str; 2] = ["--token-file", "tokens"];
    const CLIENTS: [&str; 2] = ["--tls-client-ca", "ca.pem"];

    #[test]
    fn who_listens_beyond_this_machine_needs_tokens_and_tls() {
        for host in ["0.0.0.0", "::", "10.1.2.3", "fe80::1"] {
            let host = ["--host", host];
            for (given, missing) in [
                (&[][..], "--token-file (or --tls-client-ca) and --tls-cert and --tls-key"),
                (&TOKENS, "which needs --tls-cert and --tls-key;"),
                (&TLS, "which needs --token-file (or --tls-client-ca);"),
            ] {
                let error = config(&[&host, given].concat()).unwrap_err().to_string();
                assert!(error.contains(missing) && error.contains("--insecure"), "{error}");
                assert!(config(&[&host, given, &["--insecure"]].concat()).is_ok());
            }
            assert!(config(&[&host[..], &TOKENS, &TLS].concat()).is_ok());
            assert!(config(&[&host[..], &CLIENTS, &TLS].concat()).is_ok());
        }
        for host in ["127.0.0.1", "127.8.9.10", "::1"] {
            assert!(config(&["--host", host]).is_ok(), "{host}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let error = config(&["--host", "0.0.0.0", "--allow-origin", "page"]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("--allow-origin \"page\"") && error.contains("--host"), "{error}");
    }
}
