//! How somebody becomes a node of a cluster.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tessera_core::{Error, ErrorKind, Result};
use tessera_identity::{CertificateRequest, JoinToken, NodeName};
use tonic::Code;

use crate::controller_channel::{ControllerAddress, connect_with_fingerprint};
use crate::wire::membership_client::MembershipClient;
use crate::wire::{JoinRequest, NodeCertificate};

/// How long a controller may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

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

/// Becomes a node of the cluster that a token is for.
pub async fn join_cluster(
    address: &ControllerAddress,
    token: &JoinToken,
    name: &NodeName,
) -> Result<JoinedNode> {
    let channel = connect_with_fingerprint(address, token.authority).await?;
    let request = CertificateRequest::generate(name)?;
    let mut call = tonic::Request::new(JoinRequest {
        token_id: token.id.to_string(),
        secret: token.secret.to_text(),
        name: name.to_string(),
        certificate_request: request.request_pem().to_owned(),
    });
    call.set_timeout(ANSWER_TIMEOUT);
    let reply = MembershipClient::new(channel).join(call).await;
    let reply = reply.map_err(|status| status_error(address, &status))?.into_inner();
    let certificate = reply
        .certificate
        .ok_or_else(|| Error::invalid(format!("controller {address}: there is no certificate")))?;
    let node = JoinedNode {
        name: name.clone(),
        cluster: reply.cluster,
        certificate_pem: String::new(),
        key_pem: request.key_pem(),
        authority_pem: String::new(),
        expires: SystemTime::UNIX_EPOCH,
        renewed: SystemTime::UNIX_EPOCH,
    };
    node.with_certificate(certificate)
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

/// What a controller's refusal means.
pub(crate) fn status_error(address: &ControllerAddress, status: &tonic::Status) -> Error {
    Error::new(status_kind(status), format!("controller {address}: {}", status.message()))
}

/// What kind of error a refusal is.
pub(crate) fn status_kind(status: &tonic::Status) -> ErrorKind {
    match status.code() {
        Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated => ErrorKind::Usage,
        Code::AlreadyExists | Code::FailedPrecondition => ErrorKind::Usage,
        Code::NotFound => ErrorKind::NotFound,
        Code::DataLoss => ErrorKind::Corrupt,
        Code::ResourceExhausted => ErrorKind::Full,
        Code::DeadlineExceeded => ErrorKind::TimedOut,
        _ => ErrorKind::Lost,
    }
}
