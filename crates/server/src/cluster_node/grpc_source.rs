//! Controllers and nodes as sources of content, asked over gRPC by threads that may wait.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tessera_cluster::{ContentConnection, FetchedContent, SocketHook};
use tessera_core::{ContentTree, ErrorKind, Result, lock};
use tessera_identity::NodeName;
use tessera_probe::LinkProber;
use tessera_repository::{ContentName, ContentPieces, ContentSource, OpenedContent, SourceSpeed};
use tessera_tensormq::{TlsIdentity, WatchedSocket};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// What the round trip over a link that is cut is taken for.
const CUT_ROUND_TRIP: Duration = Duration::from_secs(60);

/// The controller that this node is attached to.
pub(super) struct ControllerSource {
    pub(super) connection: ContentConnection,
    pub(super) runtime: Handle,
}

/// Another node.
pub(super) struct PeerSource {
    name: String,
    node: NodeName,
    address: String,
    tls: TlsIdentity,
    prober: Arc<LinkProber>,
    runtime: Handle,
    connection: Mutex<Option<ContentConnection>>,
    /// Ends the connection when the node is removed.
    watched: Arc<Mutex<Option<WatchedSocket>>>,
}

/// Content that comes over gRPC.
struct GrpcPieces {
    fetched: FetchedContent,
    runtime: Handle,
}

impl ContentPieces for GrpcPieces {
    fn next_piece(&mut self) -> Result<Option<Bytes>> {
        self.runtime.block_on(self.fetched.next_piece())
    }
}

fn read_tree(
    runtime: &Handle,
    connection: &ContentConnection,
    name: ContentName,
) -> Result<ContentTree> {
    runtime.block_on(connection.content_tree(name.kind.display_name(), name.hash))
}

fn open_content(
    runtime: &Handle,
    connection: &ContentConnection,
    name: ContentName,
    offset: u64,
) -> Result<OpenedContent> {
    let fetching = connection.fetch_content(name.kind.display_name(), name.hash, offset);
    let fetched = runtime.block_on(fetching)?;
    let total = fetched.total;
    Ok(OpenedContent { total, pieces: Box::new(GrpcPieces { fetched, runtime: runtime.clone() }) })
}

impl ContentSource for ControllerSource {
    fn source_name(&self) -> &str {
        "the controller"
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn expected_speed(&self) -> Option<SourceSpeed> {
        None
    }

    fn read_tree(&self, name: ContentName) -> Result<ContentTree> {
        read_tree(&self.runtime, &self.connection, name)
    }

    fn open_content(&self, name: ContentName, offset: u64) -> Result<OpenedContent> {
        open_content(&self.runtime, &self.connection, name, offset)
    }
}

impl PeerSource {
    /// A node at this address, which is connected to when it is first asked.
    pub(super) fn new(
        node: NodeName,
        address: String,
        tls: TlsIdentity,
        prober: Arc<LinkProber>,
        runtime: Handle,
    ) -> Self {
        Self {
            name: format!("node \"{node}\""),
            node,
            address,
            tls,
            prober,
            runtime,
            connection: Mutex::default(),
            watched: Arc::default(),
        }
    }

    /// Where it is.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    fn connected(&self) -> Result<ContentConnection> {
        // Whoever comes meanwhile waits, and has the same.
        let mut connection = lock(&self.connection);
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let certificate_name = self.node.certificate_name();
        let (tls, watched) = (self.tls.clone(), Arc::clone(&self.watched));
        let names = vec![certificate_name.clone()];
        let on_socket: SocketHook = Arc::new(move |socket: &TcpStream| {
            let socket = socket.as_fd().try_clone_to_owned()?;
            *lock(&watched) = Some(tls.watch_socket(names.clone(), socket));
            Ok(())
        });
        let opening = ContentConnection::to_node(
            &self.name,
            &self.address,
            &certificate_name,
            self.tls.client_config(),
            on_socket,
        );
        let opened = self.runtime.block_on(opening)?;
        *connection = Some(opened.clone());
        Ok(opened)
    }

    /// Asks it for something; where it is out of reach it is connected to anew the next time.
    fn ask<T>(&self, asking: impl FnOnce(&ContentConnection) -> Result<T>) -> Result<T> {
        let asked = self.connected().and_then(|connection| asking(&connection));
        if asked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost) {
            // With a certificate that is good then.
            *lock(&self.connection) = None;
        }
        asked
    }
}

impl ContentSource for PeerSource {
    fn source_name(&self) -> &str {
        &self.name
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn expected_speed(&self) -> Option<SourceSpeed> {
        let links = self.prober.estimates();
        let link = links.into_iter().find(|link| link.to == self.node.as_str())?;
        if link.is_cut {
            return Some(SourceSpeed { round_trip: CUT_ROUND_TRIP, bytes_per_second: None });
        }
        let bytes_per_second = link.bits_per_second.map(|bits| bits / 8.0);
        Some(SourceSpeed { round_trip: link.round_trip?, bytes_per_second })
    }

    fn read_tree(&self, name: ContentName) -> Result<ContentTree> {
        self.ask(|connection| read_tree(&self.runtime, connection, name))
    }

    fn open_content(&self, name: ContentName, offset: u64) -> Result<OpenedContent> {
        self.ask(|connection| open_content(&self.runtime, connection, name, offset))
    }
}
