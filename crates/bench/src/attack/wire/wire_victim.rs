//! A server that is attacked over gRPC or over TLS.

use std::time::{Duration, Instant};

use tempfile::TempDir;
use tessera_core::{Error, Result};
use tessera_deploy::Isolation;
use tessera_identity::{Authority, CertificateRequest};
use tessera_repository::unfinished_files::temporary_folder;
use tessera_zoo::TinyModel;
use tokio::runtime::Runtime;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use super::WireKind;
use super::wire_connection::WireTarget;
use super::wire_request::WireRequest;
use crate::attack::Victim;
use crate::server_footprint::ServerFootprint;

/// How long the certificate of a server is good.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(86_400);

/// After so much silence a server has given back what it needed once.
const SILENCE_BEFORE_CALM: Duration = Duration::from_secs(6);

/// A server that is attacked, with a runtime for its clients.
pub(super) struct WireVictim {
    pub(super) victim: Victim,
    pub(super) target: WireTarget,
    pub(super) runtime: Runtime,
    _certificates: Option<TempDir>,
}

impl WireVictim {
    /// Starts a server of these models.
    pub(super) fn start_victim(
        kind: WireKind,
        isolation: Isolation,
        models: &[TinyModel],
        arguments: &[&str],
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::from_io("a runtime", &error))?;
        if kind == WireKind::Grpc {
            let victim = Victim::start_victim(isolation, models, arguments)?;
            let target = WireTarget::grpc(victim.server.announced.grpc);
            return Ok(Self { victim, target, runtime, _certificates: None });
        }
        let (folder, roots) = make_certificates()?;
        let [certificate, key] = ["server.pem", "server.key"]
            .map(|name| folder.path().join(name).to_string_lossy().into_owned());
        let mut all = vec!["--tls-cert", certificate.as_str(), "--tls-key", key.as_str()];
        all.extend(arguments);
        let victim = Victim::start_victim(isolation, models, &all)?;
        let target = WireTarget::tls(victim.address(), roots)?;
        Ok(Self { victim, target, runtime, _certificates: Some(folder) })
    }

    /// What it takes when it has answered a little, and nobody has asked for a while.
    pub(super) fn calm_footprint(&self) -> Result<ServerFootprint> {
        for _ in 0..20 {
            let small = self.target.ask(WireRequest::small(self.target.kind));
            let status = self.runtime.block_on(small)?;
            if !status.is_ok() {
                return Err(Error::engine(format!("a small request: the server said {status}")));
            }
        }
        std::thread::sleep(SILENCE_BEFORE_CALM);
        self.victim.footprint()
    }

    /// Whether it answers a small request within so long.
    pub(super) fn answers_within(&self, limit: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < limit {
            let small = self.target.ask(WireRequest::small(self.target.kind));
            if self.runtime.block_on(small).is_ok_and(|status| status.is_ok()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        false
    }
}

/// A certificate for this machine with its key, in a folder, and the authority that signed it.
fn make_certificates() -> Result<(TempDir, RootCertStore)> {
    let folder = temporary_folder()?;
    let authority = Authority::generate("attacked")?;
    let request = CertificateRequest::generate(&"server".parse()?)?;
    let names = ["127.0.0.1".to_owned()];
    let signed = authority.sign_request(request.request_pem(), &names, CERTIFICATE_LIFE)?;
    let key = request.key_pem();
    for (name, text) in [("server.pem", &signed.certificate_pem), ("server.key", &key)] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).map_err(|error| Error::from_io(path.display(), &error))?;
    }
    let wrong = |error: &dyn std::fmt::Display| Error::engine(format!("an authority: {error}"));
    let root = CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes());
    let mut roots = RootCertStore::empty();
    roots.add(root.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
    Ok((folder, roots))
}
