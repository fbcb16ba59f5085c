//! A node's stream to a controller.

use futures_util::stream;
use tessera_core::{Error, Result};
use tessera_identity::CertificateRequest;
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::content_connection::ContentConnection;
use crate::controller_channel::{ControllerAddress, connect_with_certificate};
use crate::join::{JoinedNode, status_error};
use crate::wire::node_control_client::NodeControlClient;
use crate::wire::{NodeOrder, NodeReport, RenewRequest};

/// Reports that may wait to be sent.
const REPORT_QUEUE: usize = 256;
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

    /// Opens the stream.
    pub async fn attach(&self) -> Result<NodeSession> {
        let (reports, waiting) = mpsc::channel(REPORT_QUEUE);
        let stream = stream::unfold(waiting, |mut waiting: mpsc::Receiver<NodeReport>| async {
            Some((waiting.recv().await?, waiting))
        });
        let mut client =
            NodeControlClient::new(self.channel.clone()).max_decoding_message_size(LARGEST_ORDER);
        let attached = client.attach(stream).await;
        let orders = attached.map_err(|status| status_error(&self.address, &status))?.into_inner();
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
