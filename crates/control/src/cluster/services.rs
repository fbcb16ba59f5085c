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
    ContentRequest, JoinReply, JoinRequest, LocateReply, LocateRequest, NodeCertificate, NodeOrder,
    NodeReport, RenewRequest, TreeReply, TreeRequest, node_report,
};
use tessera_cluster::{PeerNames, UnitProfile, read_document, refusal_of_epoch};
use tessera_core::{ContentHash, Error, Result};
use tessera_identity::{JoinSecret, NodeName, SignedCertificate};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::content_directory::ContentDirectory;
use super::content_reader::ContentReader;
use super::content_service::{FetchStream, refusal, run_for_node, send_content, send_tree};
use super::node_table::{NodeTable, SessionId, read_unit_reports, removed_nodes_order};
use crate::members::MemberRegistry;

/// Largest report of a node.
const LARGEST_REPORT: usize = 64 << 20;

/// The services of a controller, to be answered where [`PeerNames`] says who asks.
pub fn cluster_services(
    members: Arc<MemberRegistry>,
    nodes: Arc<NodeTable>,
    content: Arc<dyn ContentReader>,
) -> Router {
    let directory = Arc::new(ContentDirectory::new(Arc::clone(&nodes), Arc::clone(&content)));
    let service = Arc::new(ControllerService { members, nodes, content, directory });
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
    directory: Arc<ContentDirectory>,
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
            node_report::Report::Held(held) => {
                match read_hashes(&held.hashes) {
                    Ok(blocks) => {
                        let blocks = Arc::new(blocks.into_iter().collect());
                        nodes.update(name, session, |node| node.held_blocks = blocks);
                    }
                    Err(error) => {
                        tracing::error!(node = name, %error, "a report is not understood");
                    }
                }
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
    type FetchStream = FetchStream;

    async fn fetch(
        &self,
        request: Request<ContentRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        self.asking_node(&request)?;
        send_content(Arc::clone(&self.content) as Arc<_>, request.into_inner())
    }

    async fn tree(&self, request: Request<TreeRequest>) -> Result<Response<TreeReply>, Status> {
        self.asking_node(&request)?;
        send_tree(Arc::clone(&self.content) as Arc<_>, request.into_inner()).await
    }

    async fn locate(
        &self,
        request: Request<LocateRequest>,
    ) -> Result<Response<LocateReply>, Status> {
        let asking = self.asking_node(&request)?.to_string();
        let wanted = read_hashes(&request.into_inner().hashes);
        let wanted = wanted.map_err(|error| refusal(&error))?;
        let directory = Arc::clone(&self.directory);
        let holders = run_for_node(move || Ok(directory.locate(&asking, &wanted))).await?;
        let object_store = self.content.object_store().unwrap_or_default();
        Ok(Response::new(LocateReply { holders, object_store }))
    }
}

/// Hashes as they are sent.
fn read_hashes(sent: &[Bytes]) -> Result<Vec<ContentHash>> {
    let read = |bytes: &Bytes| {
        let bytes: [u8; 32] = bytes[..]
            .try_into()
            .map_err(|_| Error::invalid(format!("a hash of {} bytes, expected 32", bytes.len())))?;
        Ok(ContentHash::from_bytes(bytes))
    };
    sent.iter().map(read).collect()
}
