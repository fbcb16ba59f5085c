//! How a process takes part, what an inbox is like, how to connect to one.

use std::time::Duration;

use crate::transport::id::Transport;
use crate::transport::tcp::tls_identity::TlsIdentity;
use crate::transport::zeromq::curve_keys::CurveKeys;

/// How a process takes part.
#[derive(Clone, Debug)]
pub struct EndpointOptions {
    /// How long to look again and again before going to sleep.
    ///
    /// See `docs/tensormq.md` for the measurement behind the default.
    pub spin_time: Duration,
    /// For connections between hosts that are encrypted: our key pair.
    pub keys: Option<CurveKeys>,
    /// For connections between hosts through TLS: who we are, and whom we believe.
    pub tls: Option<TlsIdentity>,
    /// A GPU that tensors are copied to: memory of other processes is prepared for that when it is
    /// first seen.
    pub gpu: Option<u32>,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        // Looking on while the only core is needed by whoever we wait for would be waiting for
        // ourselves.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            spin_time: if cores > 1 { DEFAULT_SPIN_TIME } else { Duration::ZERO },
            keys: None,
            tls: None,
            gpu: None,
        }
    }
}

/// About what it costs to go to sleep and be woken: looking on for longer can't win more than that.
const DEFAULT_SPIN_TIME: Duration = Duration::from_micros(10);

/// Most messages of one sender that an inbox can let wait.
pub const MAX_INBOX_DEPTH: u32 = 512;

/// What an inbox is like.
#[derive(Clone, Debug)]
pub struct InboxOptions {
    /// How many messages of each sender may wait.
    pub depth: u32,
    /// Where it listens, beside shared memory.
    pub listen: Vec<Listen>,
    /// How long a connection from another host may be gone before its session is ended, and what it
    /// brought is dropped. Senders end theirs after that and as long again, 3 s at least.
    pub session_lease: Duration,
    /// Bytes of the largest tensor that is accepted from the network.
    pub largest_tensor_bytes: usize,
}

impl Default for InboxOptions {
    fn default() -> Self {
        Self {
            depth: 16,
            listen: Vec::new(),
            session_lease: Duration::from_secs(5),
            largest_tensor_bytes: 1 << 30,
        }
    }
}

/// Where an inbox listens for a transport.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The transport. Those of a process and of shared memory find every inbox without.
    pub transport: Transport,
    /// Where, as the transport writes it; by default where others of this host find it.
    ///
    /// `tcp://ADDRESS:PORT` for TCP; `[…]` around an IPv6 address; port 0 for any that is free.
    pub socket_address: Option<String>,
    /// The name or address under which others reach it; needed where it listens at all addresses.
    pub advertise: Option<String>,
    /// Who may connect.
    pub security: Security,
}

impl Listen {
    /// The same at another port.
    #[must_use]
    pub(crate) fn at_port(self, port: u16) -> Self {
        let at_port = |address: &str| {
            let (host, _) = address.rsplit_once(':')?;
            Some(format!("{host}:{port}"))
        };
        let socket_address = self.socket_address.as_deref().and_then(at_port);
        Self { socket_address: socket_address.or(self.socket_address), ..self }
    }

    /// For this transport, within this host, unencrypted.
    pub fn within_host(transport: Transport) -> Self {
        Self { transport, socket_address: None, advertise: None, security: Security::Plain }
    }
}

/// Who may connect to an inbox from another host.
#[derive(Clone, Debug)]
pub enum Security {
    /// Anyone, unencrypted. For networks that are trusted.
    Plain,
    /// Through TLS, with the endpoint's certificate: those whose certificate has our authority.
    /// For TCP.
    Tls,
    /// For ZeroMQ: encrypted with the endpoint's keys (CURVE).
    Curve {
        /// The public keys of those who may connect; empty: all who have our public key.
        allowed: Vec<String>,
    },
}

/// How to connect to an inbox.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The way there; by default the fastest that leads there.
    pub transport: Option<Transport>,
    /// Connections to another host: more than one where one does not fill the link.
    pub lanes: u16,
    /// How long to try.
    pub timeout: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { transport: None, lanes: 1, timeout: Duration::from_secs(5) }
    }
}
