//! Who may ask a port, and for what.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::Method;
use tessera_core::{Error, Result};
use tessera_http::{Role, Tokens, WebAccess};

use crate::reloading::Reloading;
use crate::tls::{TlsFiles, TlsSource};

/// What a port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// The protocol over HTTP.
    Http,
    /// The protocol over gRPC.
    Grpc,
    /// Prometheus' metrics.
    Metrics,
    /// The control plane.
    Control,
    /// Nodes of a cluster, which have certificates of their own.
    Cluster,
}

/// Who may ask a server.
#[derive(Clone, Debug, Default)]
pub struct AccessConfig {
    /// Which web pages, and for which hosts.
    pub web: WebAccess,
    /// A file of tokens, and of certificates with their roles; without one, anybody may ask for
    /// everything who may connect.
    pub token_file: Option<PathBuf>,
    /// What TLS needs; without it, anybody on the way reads along.
    pub tls: Option<TlsFiles>,
}

/// Who may ask a server, with all files read.
pub(crate) struct Access {
    pub(crate) web: WebAccess,
    pub(crate) tokens: Option<Reloading<Tokens>>,
    pub(crate) tls: Option<TlsSource>,
}

impl AccessConfig {
    /// Reads the files.
    pub(crate) fn open(&self) -> Result<Arc<Access>> {
        let has_clients = self.tls.as_ref().is_some_and(|tls| tls.client_authority.is_some());
        let open = |file| open_tokens(file, has_clients);
        let tokens = self.token_file.clone().map(open).transpose()?;
        let tls = self.tls.as_ref().map(TlsFiles::open).transpose()?;
        Ok(Arc::new(Access { web: self.web.clone(), tokens, tls }))
    }
}

/// Reads a file of tokens; `has_clients` says whether clients have certificates.
fn open_tokens(file: PathBuf, has_clients: bool) -> Result<Reloading<Tokens>> {
    let read = {
        let file = file.clone();
        move || read_tokens(&file, has_clients)
    };
    #[cfg(unix)]
    if let Ok(found) = std::fs::metadata(&file) {
        use std::os::unix::fs::PermissionsExt;
        if found.permissions().mode() & 0o077 != 0 {
            tracing::warn!(file = %file.display(), "others than its owner may read the tokens");
        }
    }
    Reloading::new(vec![file], read)
}

fn read_tokens(file: &Path, has_clients: bool) -> Result<Tokens> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Error::usage(format!("--token-file {}: {error}", file.display())))?;
    let parsed = Tokens::parse_file(&text).and_then(|tokens| {
        if tokens.names_certificates() && !has_clients {
            let message = "lines name certificates, which clients have with --tls-client-ca";
            return Err(Error::usage(message));
        }
        Ok(tokens)
    });
    parsed.map_err(|error| error.with_context(format!("--token-file {}", file.display())))
}

/// What a request needs: one of these roles, or none where everybody may ask.
pub(crate) fn required_roles(port: PortKind, method: &Method, path: &str) -> &'static [Role] {
    const ANYBODY: &[Role] = &[];
    const USERS: &[Role] = &[Role::Infer, Role::Observe];
    const INFERRING: &[Role] = &[Role::Infer];
    const OBSERVING: &[Role] = &[Role::Observe];
    const CHANGING: &[Role] = &[Role::Change];
    let is_reading = method == Method::GET || method == Method::HEAD;
    // Probes have no tokens.
    let is_probe = path.starts_with("/health/") || path.starts_with("/grpc.health.v1.Health/");
    match port {
        PortKind::Cluster => ANYBODY,
        PortKind::Metrics | PortKind::Control if is_probe => ANYBODY,
        PortKind::Metrics => OBSERVING,
        PortKind::Control if is_reading => OBSERVING,
        PortKind::Control => CHANGING,
        // Probes have no tokens.
        PortKind::Http if path.starts_with("/v2/health/") => ANYBODY,
        PortKind::Http if path.ends_with("/infer") => INFERRING,
        PortKind::Http if is_about_regions(path) && !is_reading => INFERRING,
        // The index of models is asked for with POST.
        PortKind::Http if is_reading || path == "/v2/repository/index" => USERS,
        PortKind::Http => CHANGING,
        PortKind::Grpc => match path.rsplit_once('/').unwrap_or(("", path)) {
            _ if is_probe => ANYBODY,
            (_, "ServerLive" | "ServerReady") => ANYBODY,
            (_, "ModelInfer" | "ModelStreamInfer") => INFERRING,
            (
                _,
                "SystemSharedMemoryRegister"
                | "SystemSharedMemoryUnregister"
                | "CudaSharedMemoryRegister"
                | "CudaSharedMemoryUnregister",
            ) => INFERRING,
            (_, "RepositoryModelLoad" | "RepositoryModelUnload") => CHANGING,
            // They read and write in one.
            (_, "TraceSetting" | "LogSettings") => CHANGING,
            _ => USERS,
        },
    }
}

/// Whether a request is about shared memory, which is for those who infer.
fn is_about_regions(path: &str) -> bool {
    path.starts_with("/v2/systemsharedmemory/") || path.starts_with("/v2/cudasharedmemory/")
}

/// Whether a request of the protocol's port changes what is served or how, or registers memory.
pub(crate) fn is_protocol_change(method: &Method, path: &str) -> bool {
    let roles = required_roles(PortKind::Http, method, path);
    is_change(roles) || is_about_regions(path) && !matches!(*method, Method::GET | Method::HEAD)
}

/// Whether a request changes what is served, or how.
pub(crate) fn is_change(roles: &[Role]) -> bool {
    roles == [Role::Change]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_needs_the_role_that_fits() {
        let needs = |port, method: Method, path: &str| {
            let names: Vec<&str> =
                required_roles(port, &method, path).iter().map(|role| role.name()).collect();
            names.join(",")
        };
        for (port, method, path, expected) in [
            (PortKind::Http, Method::GET, "/v2/health/ready", ""),
            (PortKind::Http, Method::GET, "/v2", "infer,observe"),
            (PortKind::Http, Method::GET, "/v2/models/a/config", "infer,observe"),
            (PortKind::Http, Method::POST, "/v2/models/a/infer", "infer"),
            (PortKind::Http, Method::POST, "/v2/models/a/versions/1/infer", "infer"),
            (PortKind::Http, Method::POST, "/v2/repository/index", "infer,observe"),
            (PortKind::Http, Method::POST, "/v2/repository/models/a/load", "change"),
            (PortKind::Http, Method::POST, "/v2/repository/models/infer/unload", "change"),
            (PortKind::Http, Method::POST, "/v2/systemsharedmemory/region/a/register", "infer"),
            (PortKind::Http, Method::POST, "/v2/systemsharedmemory/unregister", "infer"),
            (PortKind::Http, Method::POST, "/v2/repository/models/sharedmemory/load", "change"),
            (PortKind::Http, Method::POST, "/v2/logging", "change"),
            (PortKind::Http, Method::PUT, "/anything/else", "change"),
            (PortKind::Grpc, Method::POST, "/grpc.health.v1.Health/Check", ""),
            (PortKind::Grpc, Method::POST, "/inference.GRPCInferenceService/ServerReady", ""),
            (PortKind::Grpc, Method::POST, "/inference.GRPCInferenceService/ModelInfer", "infer"),
            (
                PortKind::Grpc,
                Method::POST,
                "/inference.GRPCInferenceService/RepositoryModelLoad",
                "change",
            ),
            (
                PortKind::Grpc,
                Method::POST,
                "/inference.GRPCInferenceService/ModelMetadata",
                "infer,observe",
            ),
            (PortKind::Metrics, Method::GET, "/metrics", "observe"),
            (PortKind::Metrics, Method::GET, "/health/ready", ""),
            (PortKind::Control, Method::POST, "/grpc.health.v1.Health/Check", ""),
            (PortKind::Control, Method::GET, "/health", "observe"),
            (PortKind::Control, Method::GET, "/v1/system", "observe"),
            (PortKind::Control, Method::DELETE, "/v1/tasks/a", "change"),
        ] {
            assert_eq!(needs(port, method.clone(), path), expected, "{method} {path}");
        }
    }
}
