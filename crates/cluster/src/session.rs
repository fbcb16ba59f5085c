//! A node's stream to a controller.

use futures_util::stream;
use tessera_core::{Error, Result};
use tessera_identity::CertificateRequest;
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::content_connection::ContentConnection;
use crate::controller_channel::{ControllerAddress, connect_with_certificate};
use crate::join::status_error;
use crate::joined_node::JoinedNode;
use crate::wire::node_control_client::NodeControlClient;
use crate::wire::{NodeOrder, NodeReport, RenewRequest};

/// Reports that may wait to be sent.
const REPORT_QUEUE: usize = 256;
/// Where a refusal says which controller it is of.
const EPOCH_HEADER: &str = "tessera-epoch";
/// Largest order: the units and routes of a node.
const LARGEST_ORDER: usize = 256 << 20;

/// A connection to a controller, as a node of its cluster.
#[derive(Clone)]
pub struct ControllerConnection {
    address: ControllerAddress,
    channel: Channel,
}

/// A node's stream to a controller.
pub struct NodeSession {
    /// Takes what the node reports.
    pub reports: mpsc::Sender<NodeReport>,
    orders: Streaming<NodeOrder>,
    address: ControllerAddress,
}

impl ControllerConnection {
    /// Connects to a controller.
    pub async fn open(address: &ControllerAddress, node: &JoinedNode) -> Result<Self> {
        let channel = connect_with_certificate(address, node).await?;
        Ok(Self { address: address.clone(), channel })
    }

    /// Opens the stream; `epoch` is the highest that was heard of. A refusal by a controller that
    /// began before is one of somebody who is no controller any more.
    pub async fn attach(&self, epoch: u64) -> Result<NodeSession> {
        let (reports, waiting) = mpsc::channel(REPORT_QUEUE);
        let stream = stream::unfold(waiting, |mut waiting: mpsc::Receiver<NodeReport>| async {
            Some((waiting.recv().await?, waiting))
        });
        let mut client =
            NodeControlClient::new(self.channel.clone()).max_decoding_message_size(LARGEST_ORDER);
        let refusal = |status: tonic::Status| match epoch_of_refusal(&status) {
            Some(older) if older < epoch => {
                Error::lost(format!("controller {}: it is none any more", self.address))
            }
            _ => status_error(&self.address, &status),
        };
        let orders = client.attach(stream).await.map_err(refusal)?.into_inner();
        Ok(NodeSession { reports, orders, address: self.address.clone() })
    }

    /// Asks for a certificate for as long again; the key stays.
    pub async fn renew_certificate(&self, node: &JoinedNode) -> Result<JoinedNode> {
        let request = CertificateRequest::from_key(&node.name, &node.key_pem)?;
        let request = RenewRequest { certificate_request: request.request_pem().to_owned() };
        let renewed = NodeControlClient::new(self.channel.clone()).renew(request).await;
        let renewed = renewed.map_err(|status| status_error(&self.address, &status))?;
        node.with_certificate(renewed.into_inner())
    }

    /// Asks it for content.
    pub fn content(&self) -> ContentConnection {
        ContentConnection::new(self.channel.clone())
    }
}

/// A refusal that says by the epoch which controller it is of: one that was asleep may not know who
/// has joined meanwhile.
pub fn refusal_of_epoch(mut status: tonic::Status, epoch: u64) -> tonic::Status {
    status.metadata_mut().insert(EPOCH_HEADER, epoch.into());
    status
}

fn epoch_of_refusal(status: &tonic::Status) -> Option<u64> {
    status.metadata().get(EPOCH_HEADER)?.to_str().ok()?.parse().ok()
}

impl NodeSession {
    /// The next order; an error where the stream has ended.
    pub async fn next_order(&mut self) -> Result<NodeOrder> {
        match self.orders.message().await {
            Ok(Some(order)) => Ok(order),
            Ok(None) => Err(Error::lost(format!("controller {}: it went away", self.address))),
            Err(status) => Err(status_error(&self.address, &status)),
        }
    }
}
