//! A socket of ZeroMQ that an inbox listens at.

#![allow(unsafe_code, reason = "libzmq gives descriptors by number")]

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use tessera_core::{Error, Result};

use super::bind_address::{is_ours, local_address};
use super::context::ZeroMqContext;
use super::curve_keys::{CurveKeys, key_from_text};
use super::frame::frame_into_bytes;
use super::monitor::{ConnectionEvent, MonitoredSocket};
use super::socket::{check_socket_address, configure_socket, receive_frames, zmq_error};
use crate::address::ListenAddress;
use crate::inbox_registry::InboxShared;
use crate::layout::MAX_HEADER;
use crate::options::{InboxOptions, Listen, Security};
use crate::reactor::{EventSource, ReactorHandle};
use crate::transport::driver::{OpenedListener, TransportContext};
use crate::transport::id::Transport;
use crate::transport::network::bind_address::{advertised_address, bind_with_retry};
use crate::transport::network::control_frame::ControlFrame;
use crate::transport::network::link::{ConnectionId, ConnectionSilence, LinkListener};
use crate::transport::network::listener::{ListenerParts, NetworkListener, RetiringListeners};
use crate::transport::network::tcp_info::connection_silence;
use crate::wait::Deadline;

/// Where those listen to whom nobody says where: any port of this host.
const LOOPBACK_ADDRESS: &str = "tcp://127.0.0.1:0";

/// Binds a socket for an inbox.
pub(super) fn bind_listener(
    listen: &Listen,
    inbox: &Arc<InboxShared>,
    options: &InboxOptions,
    zeromq: Arc<ZeroMqContext>,
    endpoint: &TransportContext,
    retiring: &Arc<RetiringListeners>,
) -> Result<OpenedListener> {
    let (transport, reactor) = (listen.transport, &endpoint.reactor);
    let fail = |error| zmq_error("a socket of ZeroMQ", error);
    let remote = transport == Transport::ZMQ_TCP;
    let socket_address = if remote {
        let given = listen.socket_address.as_deref().unwrap_or(LOOPBACK_ADDRESS);
        check_socket_address(given, "tcp://")?;
        given.to_owned()
    } else {
        local_address(inbox, endpoint.endpoint_id)
    };
    let mut socket = zeromq.context.socket(zmq::ROUTER).map_err(fail)?;
    configure_socket(&mut socket, &socket_address).map_err(fail)?;
    socket.set_router_mandatory(true).map_err(fail)?;
    // What we say is short; who does not listen to so much of it is not there.
    socket.set_sndhwm(4096).map_err(fail)?;
    // With room for what encryption adds.
    let frame = options.largest_tensor_bytes.max(MAX_HEADER).saturating_add(256);
    socket.set_maxmsgsize(i64::try_from(frame).unwrap_or(i64::MAX)).map_err(fail)?;
    if matches!(listen.security, Security::Tls) {
        return Err(Error::usage("ZeroMQ has no TLS, expected keys of CURVE, or transport tcp"));
    }
    let mut zap_domain = None;
    if let Security::Curve { allowed } = &listen.security
        && remote
    {
        let keys = endpoint.keys.as_ref().ok_or_else(|| {
            Error::usage("an inbox that is encrypted needs an endpoint with keys")
        })?;
        let allowed = allowed.iter().map(|key| key_from_text(key)).collect::<Result<_>>()?;
        let name = format!("{}/{}", inbox.name, Deadline::now().nanoseconds());
        zeromq.restrict_domain(reactor, &name, allowed)?;
        socket.set_curve_server(true).map_err(fail)?;
        socket.set_curve_secretkey(&keys.secret).map_err(fail)?;
        socket.set_zap_domain(&name).map_err(fail)?;
        zap_domain = Some(name);
    }
    let monitored = MonitoredSocket::new(&zeromq.context, socket)?;
    let bind = || monitored.socket.bind(&socket_address);
    bind_with_retry(bind, |error| *error == zmq::Error::EADDRINUSE)
        .map_err(|error| zmq_error(&socket_address, error))?;
    let bound = monitored.socket.get_last_endpoint().map_err(fail)?.unwrap_or_default();
    let socket_address = if remote {
        advertised_address(&bound, listen.advertise.as_deref())?
    } else {
        socket_address
    };
    let public_key = zap_domain.as_ref().and(endpoint.keys.as_ref());
    let public_key = public_key.map(CurveKeys::public_key);
    let links = ZeroMqConnections::new(monitored, remote, zap_domain.map(|name| (name, zeromq)));
    let parts =
        ListenerParts { inbox, options, transport, is_within_host: !remote, reactor, retiring };
    let listener = NetworkListener::start(Box::new(links), &parts)?;
    Ok(OpenedListener {
        listener,
        address: ListenAddress { socket_address, public_key, server_name: None },
    })
}

/// The connections of a socket.
struct ZeroMqConnections {
    monitored: MonitoredSocket,
    is_remote: bool,
    /// Who may connect, and who is asked for that.
    zap_domain: Option<(String, Arc<ZeroMqContext>)>,
    /// Numbers of connections, by the identities that ZeroMQ gave them; and back.
    numbers: HashMap<Vec<u8>, ConnectionId>,
    identities: HashMap<ConnectionId, Vec<u8>>,
    /// The connection of a descriptor; and back.
    by_descriptor: HashMap<i32, ConnectionId>,
    descriptors: HashMap<ConnectionId, i32>,
    /// Descriptors of connections that broke, not acted on yet.
    broken: Vec<i32>,
    /// Connections that broke, and whose descriptor is another's by now.
    ended: Vec<ConnectionId>,
    next_number: u64,
}

impl ZeroMqConnections {
    fn new(
        monitored: MonitoredSocket,
        is_remote: bool,
        zap_domain: Option<(String, Arc<ZeroMqContext>)>,
    ) -> Self {
        Self {
            monitored,
            is_remote,
            zap_domain,
            numbers: HashMap::new(),
            identities: HashMap::new(),
            by_descriptor: HashMap::new(),
            descriptors: HashMap::new(),
            broken: Vec::new(),
            ended: Vec::new(),
            next_number: 0,
        }
    }

    /// The number of a connection; `None` for one of which nothing is known, and which says nothing
    /// that matters.
    fn number_of(&mut self, identity: &[u8], first: &mut zmq::Message) -> Option<ConnectionId> {
        let known = self.numbers.get(identity).copied();
        if !ControlFrame::is_control(first) {
            return known;
        }
        let number = known.unwrap_or_else(|| {
            let number = ConnectionId(self.next_number);
            self.next_number += 1;
            self.numbers.insert(identity.to_vec(), number);
            self.identities.insert(number, identity.to_vec());
            number
        });
        if let Some(descriptor) = first.gets("__fd").and_then(|text| text.parse().ok()) {
            self.set_descriptor(number, descriptor);
        }
        Some(number)
    }

    /// Notes the descriptor of a connection, which may have been that of one which broke before.
    fn set_descriptor(&mut self, number: ConnectionId, descriptor: i32) {
        if self.descriptors.get(&number) == Some(&descriptor) {
            return;
        }
        self.notice_events();
        let before = self.by_descriptor.insert(descriptor, number);
        self.descriptors.insert(number, descriptor);
        if let Some(before) = before.filter(|before| *before != number) {
            if let Some(ended) = self.broken.iter().position(|broken| *broken == descriptor) {
                self.broken.remove(ended);
            }
            self.forget_connection(before);
            self.ended.push(before);
        }
    }

    fn forget_connection(&mut self, number: ConnectionId) {
        self.descriptors.remove(&number);
        if let Some(identity) = self.identities.remove(&number) {
            self.numbers.remove(&identity);
        }
    }
}

impl LinkListener for ZeroMqConnections {
    fn notice_events(&mut self) -> bool {
        let events = self.monitored.take_events();
        let happened = !events.is_empty();
        self.broken.extend(events.into_iter().filter_map(|event| match event {
            ConnectionEvent::Disconnected(descriptor) => Some(descriptor),
            _ => None,
        }));
        happened
    }

    fn take_message(&mut self) -> Option<(ConnectionId, Vec<Bytes>)> {
        loop {
            let frames = match receive_frames(&self.monitored.socket) {
                Ok(frames) => frames,
                Err(zmq::Error::EINTR) => continue,
                Err(_) => return None,
            };
            let mut frames = frames.into_iter();
            let (Some(identity), Some(mut first)) = (frames.next(), frames.next()) else {
                continue;
            };
            let Some(number) = self.number_of(&identity, &mut first) else { continue };
            let frames = std::iter::once(first).chain(frames).map(frame_into_bytes);
            return Some((number, frames.collect()));
        }
    }

    fn take_ended(&mut self) -> Vec<ConnectionId> {
        let mut ended = std::mem::take(&mut self.ended);
        for descriptor in std::mem::take(&mut self.broken) {
            if let Some(number) = self.by_descriptor.remove(&descriptor) {
                self.forget_connection(number);
                ended.push(number);
            }
        }
        ended
    }

    fn send_frame(&mut self, to: ConnectionId, frame: Vec<u8>) {
        let Some(identity) = self.identities.get(&to) else { return };
        // Where it is gone already, the monitor says so next.
        self.monitored.socket.send_multipart([identity.clone(), frame], zmq::DONTWAIT).ok();
    }

    fn check_peer(&self, connection: ConnectionId) -> Result<()> {
        match self.descriptors.get(&connection) {
            None => Err(Error::unsupported("a ZeroMQ that is too old")),
            Some(descriptor) if !self.is_remote && !is_ours(*descriptor) => {
                Err(Error::usage("it belongs to another user"))
            }
            Some(_) => Ok(()),
        }
    }

    fn silence_of(&self, connection: ConnectionId) -> Option<ConnectionSilence> {
        let descriptor = *self.descriptors.get(&connection)?;
        // SAFETY: only asked for its state. Should libzmq have closed it meanwhile, the call fails
        // or is about another connection of ours.
        connection_silence(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    fn watch_events(
        &mut self,
        reactor: &ReactorHandle,
        source: &Weak<dyn EventSource>,
    ) -> Result<()> {
        self.monitored.watch_events(reactor, source)
    }

    fn stop_watching(&mut self, reactor: &ReactorHandle) {
        self.monitored.stop_watching(reactor);
    }
}

impl Drop for ZeroMqConnections {
    fn drop(&mut self) {
        if let Some((name, zeromq)) = &self.zap_domain {
            zeromq.unrestrict_domain(name);
        }
    }
}
