//! What nodes ask a controller over gRPC.

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use bytes::Bytes;
use futures_util::{Stream, stream};
use serde::de::DeserializeOwned;
use tessera_cluster::wire::content_server::{Content, ContentServer};
use tessera_cluster::wire::membership_server::{Membership, MembershipServer};
use tessera_cluster::wire::node_control_server::{NodeControl, NodeControlServer};
use tessera_cluster::wire::{
    ContentChunk, ContentRequest, JoinReply, JoinRequest, NodeCertificate, NodeOrder, NodeReport,
    RenewRequest, node_report,
};
use tessera_cluster::{PeerNames, UnitProfile, read_document, refusal_of_epoch};
use tessera_core::{ContentHash, Error, ErrorKind, Result};
use tessera_identity::{JoinSecret, NodeName, SignedCertificate};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::node_table::{NodeTable, SessionId, read_unit_reports, removed_nodes_order};
use crate::members::MemberRegistry;
use crate::run_apart::run_blocking;

/// Bytes of a chunk of content: what is lost at most when a node dies meanwhile.
const CHUNK_BYTES: usize = 256 << 10;
/// Largest report of a node.
const LARGEST_REPORT: usize = 64 << 20;

/// A part of some content.
#[derive(Clone, Debug)]
pub struct ContentSlice {
    /// The length of all of it.
    pub total: u64,
    /// What is there from the offset on, as much as was asked for or less.
    pub bytes: Bytes,
}

/// Reads content of the cluster's repository; called where waiting for a disk does no harm.
pub trait ContentReader: Send + Sync + 'static {
    /// At most so many bytes of some content, from an offset on.
    fn read_content(
        &self,
        kind: &str,
        hash: ContentHash,
        offset: u64,
        most: usize,
    ) -> Result<ContentSlice>;

    /// Bytes of a block's weights.
    fn weight_bytes(&self, block: ContentHash) -> Result<u64>;
}

/// The services of a controller, to be answered where [`PeerNames`] says who asks.
pub fn cluster_services(
    members: Arc<MemberRegistry>,
    nodes: Arc<NodeTable>,
    content: Arc<dyn ContentReader>,
) -> Router {
    let service = Arc::new(ControllerService { members, nodes, content });
    let control =
        NodeControlServer::from_arc(Arc::clone(&service)).max_decoding_message_size(LARGEST_REPORT);
    Routes::new(MembershipServer::from_arc(Arc::clone(&service)))
        .add_service(control)
        .add_service(ContentServer::from_arc(service))
        .into_axum_router()
}

struct ControllerService {
    members: Arc<MemberRegistry>,
    nodes: Arc<NodeTable>,
    content: Arc<dyn ContentReader>,
}

impl ControllerService {
    /// The node of the cluster that asks.
    fn asking_node<T>(&self, request: &Request<T>) -> Result<NodeName, Status> {
        let names = request.extensions().get::<PeerNames>();
        let mut names = names.into_iter().flat_map(|names| &names.0);
        let name = names.find_map(|name| NodeName::from_certificate_name(name));
        let name = name.ok_or_else(|| {
            Status::unauthenticated("nodes of the cluster ask for that, and show a certificate")
        })?;
        if !self.members.is_member(&name) {
            let reason = format!("node \"{name}\" does not belong to the cluster any more");
            return Err(refusal_of_epoch(Status::permission_denied(reason), self.nodes.epoch()));
        }
        Ok(name)
    }

    fn node_certificate(&self, signed: SignedCertificate) -> NodeCertificate {
        let expires = signed.expires.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        NodeCertificate {
            certificate: signed.certificate_pem,
            authority: self.members.authority().certificate_pem().to_owned(),
            expires: expires.as_secs(),
        }
    }
}

/// Does what may wait for a disk, for a node.
async fn run_for_node<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T, Status> {
    run_blocking(work).await.map_err(|error| refusal(&error))
}

/// How an error is said over gRPC.
fn refusal(error: &Error) -> Status {
    let message = error.to_string();
    match error.kind() {
        ErrorKind::Usage => Status::permission_denied(message),
        ErrorKind::Invalid => Status::invalid_argument(message),
        ErrorKind::NotFound => Status::not_found(message),
        ErrorKind::Full => Status::resource_exhausted(message),
        _ => {
            tracing::error!(%error, "a node's request failed");
            Status::internal(message)
        }
    }
}

#[tonic::async_trait]
impl Membership for ControllerService {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinReply>, Status> {
        let JoinRequest { token_id, secret, name, certificate_request } = request.into_inner();
        let name: NodeName = name.parse().map_err(|error| refusal(&error))?;
        let secret: JoinSecret = secret.parse().map_err(|error| refusal(&error))?;
        let members = Arc::clone(&self.members);
        let joining = name.clone();
        let admitted = run_for_node(move || {
            members.admit_node(&token_id, &secret, &joining, &certificate_request)
        })
        .await
        .inspect_err(|status| tracing::warn!(node = %name, reason = status.message(), "refused"))?;
        tracing::info!(node = %name, "a node has joined");
        // It may have been removed under this name before.
        self.nodes.send_to_all(&removed_nodes_order(self.members.removed_certificate_names()));
        let certificate = Some(self.node_certificate(admitted.certificate));
        let cluster = self.members.cluster().to_owned();
        Ok(Response::new(JoinReply { certificate, cluster }))
    }
}

#[tonic::async_trait]
impl NodeControl for ControllerService {
    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<NodeCertificate>, Status> {
        let name = self.asking_node(&request)?;
        let members = Arc::clone(&self.members);
        let certificate_request = request.into_inner().certificate_request;
        let renew = move || members.renew_certificate(&name, &certificate_request);
        Ok(Response::new(self.node_certificate(run_for_node(renew).await?)))
    }

    type AttachStream = Pin<Box<dyn Stream<Item = Result<NodeOrder, Status>> + Send>>;

    async fn attach(
        &self,
        request: Request<Streaming<NodeReport>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let name = self.asking_node(&request)?.to_string();
        let reports = request.into_inner();
        let (session, orders) = self.nodes.attach(&name);
        let removed = removed_nodes_order(self.members.removed_certificate_names());
        self.nodes.send_order(&name, removed).ok();
        let nodes = Arc::clone(&self.nodes);
        tokio::spawn(async move {
            let reason = take_reports(&nodes, &name, session, reports).await;
            nodes.detach(&name, session, &reason);
        });
        let orders =
            stream::unfold(orders, |mut orders| async { Some((Ok(orders.recv().await?), orders)) });
        Ok(Response::new(Box::pin(orders)))
    }
}

/// Notes a document that a node has sent; whether it was understood.
fn note_document<T: DeserializeOwned>(
    what: &str,
    node: &str,
    document: &[u8],
    note: impl FnOnce(T),
) -> bool {
    match read_document(what, document) {
        Ok(read) => {
            note(read);
            true
        }
        Err(error) => {
            tracing::error!(node, %error, "a report is not understood");
            false
        }
    }
}

/// Takes what a node reports until its stream ends; returns why it did.
async fn take_reports(
    nodes: &NodeTable,
    name: &str,
    session: SessionId,
    mut reports: Streaming<NodeReport>,
) -> String {
    loop {
        let report = match reports.message().await {
            Ok(Some(NodeReport { report: Some(report) })) => report,
            Ok(Some(_)) => continue,
            Ok(None) => return "it closed its stream".to_owned(),
            Err(status) => return status.message().to_owned(),
        };
        let is_news = match report {
            node_report::Report::Description(description) => {
                nodes.describe(name, session, description);
                false
            }
            node_report::Report::State(state) => {
                nodes.update(name, session, |node| node.node_state = state);
                false
            }
            node_report::Report::Pong(pong) => {
                nodes.note_pong(name, session, pong.number);
                false
            }
            node_report::Report::Units(reports) => match read_unit_reports(&reports.document) {
                Ok(units) => nodes.report_units(name, session, units),
                Err(error) => {
                    tracing::error!(node = name, %error, "a report is not understood");
                    false
                }
            },
            node_report::Report::Links(links) => {
                note_document("links", name, &links.document, |links| {
                    nodes.update(name, session, |node| node.links = links);
                });
                false
            }
            node_report::Report::Profiles(profiles) => {
                note_document("profiles", name, &profiles.document, |profiles: Vec<UnitProfile>| {
                    let profiles = profiles.into_iter();
                    let profiles =
                        profiles.map(|profile| (profile.unit.clone(), profile)).collect();
                    nodes.update(name, session, |node| node.profiles = profiles);
                })
            }
            node_report::Report::Traffic(traffic) => {
                note_document("traffic", name, &traffic.document, |traffic| {
                    nodes.update(name, session, |node| node.take_traffic(traffic));
                });
                false
            }
            node_report::Report::Applied(applied) => {
                nodes.update(name, session, |node| {
                    node.applied = node.applied.max(applied.number);
                });
                nodes.note_progress();
                false
            }
            node_report::Report::Drained(drained) => {
                nodes.update(name, session, |node| {
                    node.drained = node.drained.max(drained.number);
                });
                nodes.note_progress();
                false
            }
        };
        if is_news {
            nodes.note_change();
        }
    }
}

#[tonic::async_trait]
impl Content for ControllerService {
    type FetchStream = Pin<Box<dyn Stream<Item = Result<ContentChunk, Status>> + Send>>;

    async fn fetch(
        &self,
        request: Request<ContentRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        self.asking_node(&request)?;
        let ContentRequest { kind, hash, offset } = request.into_inner();
        let hash: ContentHash = hash
            .parse()
            .map_err(|_| Status::invalid_argument(format!("\"{hash}\" is no hash of content")))?;
        let content = Arc::clone(&self.content);
        let chunks = stream::try_unfold(Some(offset), move |offset| {
            let (content, kind) = (Arc::clone(&content), kind.clone());
            async move {
                let Some(offset) = offset else { return Ok(None) };
                let read = move || content.read_content(&kind, hash, offset, CHUNK_BYTES);
                let ContentSlice { total, bytes } = run_for_node(read).await?;
                let end = offset + bytes.len() as u64;
                let next = (end < total && !bytes.is_empty()).then_some(end);
                Ok(Some((ContentChunk { total, bytes }, next)))
            }
        });
        Ok(Response::new(Box::pin(chunks)))
    }
}
