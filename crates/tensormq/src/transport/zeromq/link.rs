//! A connection of ZeroMQ that we made.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use tessera_core::{Error, ErrorKind, Result};

use super::context::ZeroMqContext;
use super::curve_keys::{CurveKeys, key_from_text};
use super::frame::{frame_into_bytes, send_tensor};
use super::monitor::{ConnectionEvent, MonitoredSocket};
use super::socket::{configure_socket, receive_frames, zmq_error};
use crate::reactor::{EventSource, ReactorHandle};
use crate::transport::network::link::{DialledLink, LinkDialler, LinkEvent, LinkFrame};

/// Makes connections of ZeroMQ to one inbox.
pub(super) struct ZeroMqDialler {
    pub(super) socket_address: String,
    /// The receiver's public key, where it is encrypted.
    pub(super) server_key: Option<String>,
    pub(super) keys: Option<CurveKeys>,
    pub(super) zeromq: Arc<ZeroMqContext>,
}

impl LinkDialler for ZeroMqDialler {
    fn dial(&self) -> Result<Box<dyn DialledLink>> {
        let Self { socket_address, server_key, keys, zeromq } = self;
        let fail = |error| zmq_error("a socket of ZeroMQ", error);
        let mut socket = zeromq.context.socket(zmq::DEALER).map_err(fail)?;
        configure_socket(&mut socket, socket_address).map_err(fail)?;
        // We make new ones ourselves, because what was on the old ones may not be sent again
        // blindly.
        socket.set_reconnect_ivl(-1).map_err(fail)?;
        socket.set_connect_timeout(2000).map_err(fail)?;
        if let Some(server_key) = server_key {
            let keys = match keys {
                Some(keys) => keys.clone(),
                None => CurveKeys::generate()?,
            };
            socket.set_curve_serverkey(&key_from_text(server_key)?).map_err(fail)?;
            socket.set_curve_publickey(&keys.public).map_err(fail)?;
            socket.set_curve_secretkey(&keys.secret).map_err(fail)?;
        }
        let monitored = MonitoredSocket::new(&zeromq.context, socket)?;
        monitored
            .socket
            .connect(socket_address)
            .map_err(|error| zmq_error(socket_address, error))?;
        Ok(Box::new(ZeroMqLink { monitored }))
    }

    fn target(&self) -> &str {
        &self.socket_address
    }

    fn refusal_error(&self) -> Error {
        let reason = match self.server_key {
            Some(_) => "the receiver refuses our key, or has another",
            None => "the receiver wants encryption, or does not speak ZeroMQ",
        };
        Error::new(ErrorKind::Io, reason)
    }
}

/// A connection of ZeroMQ.
struct ZeroMqLink {
    monitored: MonitoredSocket,
}

impl DialledLink for ZeroMqLink {
    fn send_frames(&mut self, frames: Vec<LinkFrame>) -> Result<()> {
        let socket = &mut self.monitored.socket;
        let count = frames.len();
        for (index, frame) in frames.into_iter().enumerate() {
            let more = if index + 1 < count { zmq::SNDMORE } else { 0 };
            match frame {
                LinkFrame::Bytes(bytes) => socket.send(bytes, zmq::DONTWAIT | more),
                LinkFrame::Tensor(tensor) => send_tensor(socket, tensor, zmq::DONTWAIT | more),
            }
            .map_err(|error| zmq_error("a socket of ZeroMQ", error))?;
        }
        Ok(())
    }

    fn take_frame(&mut self) -> Option<Bytes> {
        loop {
            match receive_frames(&self.monitored.socket) {
                Ok(frames) => {
                    if let Some(first) = frames.into_iter().next() {
                        return Some(frame_into_bytes(first));
                    }
                }
                Err(zmq::Error::EINTR) => {}
                Err(_) => return None,
            }
        }
    }

    fn take_events(&mut self) -> Vec<LinkEvent> {
        let event = |event| match event {
            ConnectionEvent::Disconnected(_) | ConnectionEvent::NotConnected => LinkEvent::Broken,
            ConnectionEvent::HandshakeBroken => LinkEvent::HandshakeBroken,
            ConnectionEvent::HandshakeFailed => LinkEvent::HandshakeFailed,
        };
        self.monitored.take_events().into_iter().map(event).collect()
    }

    fn watch_events(
        &mut self,
        reactor: &ReactorHandle,
        source: &Weak<dyn EventSource>,
    ) -> Result<()> {
        self.monitored.watch_events(reactor, source)
    }

    fn close_link(&mut self, reactor: &ReactorHandle, sends_rest: bool) {
        self.monitored.stop_watching(reactor);
        if !sends_rest {
            self.monitored.socket.set_linger(0).ok();
        }
    }
}
