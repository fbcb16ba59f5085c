//! How somebody becomes a node of a cluster.

use std::time::{Duration, SystemTime};

use tessera_core::{Error, ErrorKind, Result};
use tessera_identity::{CertificateRequest, JoinToken, NodeName};
use tonic::Code;

use crate::controller_channel::{ControllerAddress, connect_with_fingerprint};
use crate::joined_node::JoinedNode;
use crate::wire::JoinRequest;
use crate::wire::membership_client::MembershipClient;

/// How long a controller may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

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
