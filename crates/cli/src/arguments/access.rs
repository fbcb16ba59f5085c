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
    /// requests carry one as Authorization: Bearer TOKEN [default: anybody may ask]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate of the server (PEM), for TLS on every port
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authority of clients' certificates (PEM): clients without one are refused
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
