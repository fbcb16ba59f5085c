//! The part that every role with tensors has: this process's end of the transport.

use std::sync::Arc;

use tessera_core::Result;
use tessera_tensormq::{Endpoint, EndpointOptions, Peers, Transport};

/// How tensors go to other processes.
#[derive(Clone, Debug, Default)]
pub struct TransportConfig {
    /// The way between processes, where it is not to be the fastest.
    pub transport: Option<Transport>,
}

/// An endpoint, and whom it reaches.
#[derive(Clone)]
pub struct TransportPart {
    pub(crate) endpoint: Endpoint,
    pub(crate) peers: Arc<Peers>,
}

impl TransportConfig {
    /// Starts the endpoint.
    pub fn build(self) -> Result<TransportPart> {
        let endpoint = Endpoint::start(EndpointOptions::default())?;
        let peers = Arc::new(Peers::with_transport(endpoint.clone(), self.transport));
        Ok(TransportPart { endpoint, peers })
    }
}
