//! A connection over TCP that we made.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use tessera_core::{Error, ErrorKind, Result, lock};

use super::connection::{Connection, configure_socket, spawn_thread};
use super::tls_identity::{EndableConnection, TlsIdentity};
use super::wire_socket::WireSocket;
use crate::layout::MAX_HEADER;
use crate::notifier::Notifier;
use crate::reactor::{EventSource, ReactorHandle, ReactorToken};
use crate::transport::network::link::{DialledLink, LinkDialler, LinkEvent, LinkFrame};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes connections over TCP to one inbox.
pub(super) struct TcpDialler {
    /// As users write it.
    pub(super) socket_address: String,
    /// `HOST:PORT` of it.
    pub(super) host_and_port: String,
    /// Who we are and whom we expect there, where it is encrypted.
    pub(super) tls: Option<(TlsIdentity, String)>,
}

impl LinkDialler for TcpDialler {
    fn dial(&self) -> Result<Box<dyn DialledLink>> {
        let shared = Arc::new(LinkShared::new()?);
        let link = TcpLink { shared: Arc::clone(&shared), watched: None };
        let (target, tls) = (self.host_and_port.clone(), self.tls.clone());
        spawn_thread("tensormq-dial", move || shared.connect(&target, tls.as_ref()))?;
        Ok(Box::new(link))
    }

    fn target(&self) -> &str {
        &self.socket_address
    }

    fn refusal_error(&self) -> Error {
        let reason = match self.tls {
            Some(_) => "the receiver refuses our certificate, or has none that we believe",
            None => "the receiver wants encryption, or does not speak TensorMQ",
        };
        Error::new(ErrorKind::Io, reason)
    }
}

/// A connection that we made, or are making.
struct TcpLink {
    shared: Arc<LinkShared>,
    watched: Option<ReactorToken>,
}

/// What the threads of a connection and its owner share.
struct LinkShared {
    state: Mutex<LinkState>,
    notifier: Notifier,
}

enum LinkState {
    /// With what is to be sent then.
    Connecting(Vec<Vec<LinkFrame>>),
    Connected(Arc<Connection>, LinkNews),
    /// Over; with what was said before.
    Ended(LinkNews),
    /// Its owner wants nothing more of it.
    Closed,
}

/// What came, and what happened.
#[derive(Default)]
struct LinkNews {
    frames: VecDeque<Bytes>,
    events: Vec<LinkEvent>,
}

impl LinkShared {
    fn new() -> Result<Self> {
        let state = Mutex::new(LinkState::Connecting(Vec::new()));
        Ok(Self { state, notifier: Notifier::new()? })
    }

    /// Makes the connection, on a thread of its own.
    fn connect(self: &Arc<Self>, target: &str, tls: Option<&(TlsIdentity, String)>) {
        let connected = open_socket(target).map_err(|_| LinkEvent::Broken);
        let wire = connected.and_then(|socket| secure_socket(socket, tls));
        let started = wire.and_then(|wire| {
            let (hearing, ending) = (Arc::downgrade(self), Arc::downgrade(self));
            let on_message = move |frames| hear_message(&hearing, frames);
            let on_end = move |error: io::Error| {
                if let Some(shared) = ending.upgrade() {
                    shared.end_link(event_of(&error));
                }
            };
            Connection::start(wire, MAX_HEADER, on_message, on_end).map_err(|_| LinkEvent::Broken)
        });
        match started {
            Ok(connection) => self.begin_sending(connection),
            Err(event) => self.end_link(event),
        }
    }

    /// Sends what waited for the connection.
    fn begin_sending(&self, connection: Arc<Connection>) {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, LinkState::Closed) {
            LinkState::Connecting(waiting) => {
                for frames in waiting {
                    // Where it is broken again, its end is noticed.
                    connection.send_frames(frames).ok();
                }
                *state = LinkState::Connected(connection, LinkNews::default());
            }
            LinkState::Closed => connection.close(false),
            other => *state = other,
        }
    }

    fn end_link(&self, event: LinkEvent) {
        let mut state = lock(&self.state);
        let mut news = match std::mem::replace(&mut *state, LinkState::Closed) {
            LinkState::Connecting(_) => LinkNews::default(),
            LinkState::Connected(_, news) | LinkState::Ended(news) => news,
            LinkState::Closed => return,
        };
        news.events.push(event);
        *state = LinkState::Ended(news);
        drop(state);
        self.notifier.notify();
    }

    /// Takes something of what came or happened.
    fn take_news<T>(&self, take: impl FnOnce(&mut LinkNews) -> T) -> Option<T> {
        match &mut *lock(&self.state) {
            LinkState::Connected(_, news) | LinkState::Ended(news) => Some(take(news)),
            LinkState::Connecting(_) | LinkState::Closed => None,
        }
    }
}

fn hear_message(shared: &Weak<LinkShared>, frames: Vec<Bytes>) {
    let Some(shared) = shared.upgrade() else { return };
    // The other end may be quicker than the thread that made the connection.
    loop {
        match &mut *lock(&shared.state) {
            LinkState::Connecting(_) => {}
            LinkState::Connected(_, news) => {
                news.frames.extend(frames.into_iter().next());
                break;
            }
            LinkState::Ended(_) | LinkState::Closed => return,
        }
        std::thread::yield_now();
    }
    shared.notifier.notify();
}

/// What it means that a connection ended so.
fn event_of(error: &io::Error) -> LinkEvent {
    match error.kind() {
        // An alert of TLS: the other end has looked at our certificate.
        io::ErrorKind::Other | io::ErrorKind::InvalidData => LinkEvent::HandshakeFailed,
        _ => LinkEvent::Broken,
    }
}

fn open_socket(target: &str) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = target.to_socket_addrs()?.collect();
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(socket) => {
                configure_socket(&socket).map_err(io::Error::other)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn secure_socket(
    socket: TcpStream,
    tls: Option<&(TlsIdentity, String)>,
) -> Result<WireSocket, LinkEvent> {
    let Some((identity, name)) = tls else { return Ok(WireSocket::plain(socket)) };
    let connection = identity.connect_to(name, &socket).map_err(|error| match error.kind() {
        io::ErrorKind::Other | io::ErrorKind::InvalidData => LinkEvent::HandshakeFailed,
        _ => LinkEvent::HandshakeBroken,
    })?;
    Ok(WireSocket::encrypted(socket, identity.clone(), connection))
}

impl DialledLink for TcpLink {
    fn send_frames(&mut self, frames: Vec<LinkFrame>) -> Result<()> {
        match &mut *lock(&self.shared.state) {
            LinkState::Connecting(waiting) => {
                waiting.push(frames);
                Ok(())
            }
            LinkState::Connected(connection, _) => connection.send_frames(frames),
            LinkState::Ended(_) | LinkState::Closed => Err(Error::lost("the connection is gone")),
        }
    }

    fn take_frame(&mut self) -> Option<Bytes> {
        let take = || self.shared.take_news(|news| news.frames.pop_front()).flatten();
        take().or_else(|| {
            // What comes after this is announced again.
            self.shared.notifier.clear_notification();
            take()
        })
    }

    fn take_events(&mut self) -> Vec<LinkEvent> {
        self.shared.take_news(|news| std::mem::take(&mut news.events)).unwrap_or_default()
    }

    fn round_trip(&self) -> Option<Duration> {
        match &*lock(&self.shared.state) {
            LinkState::Connected(connection, _) => connection.traffic()?.round_trip,
            _ => None,
        }
    }

    fn watch_events(
        &mut self,
        reactor: &ReactorHandle,
        source: &Weak<dyn EventSource>,
    ) -> Result<()> {
        let token = reactor.register_source(&self.shared.notifier, Weak::clone(source))?;
        self.watched = Some(token);
        Ok(())
    }

    fn close_link(&mut self, reactor: &ReactorHandle, sends_rest: bool) {
        if let Some(token) = self.watched.take() {
            reactor.deregister_source(&self.shared.notifier, token);
        }
        let state = std::mem::replace(&mut *lock(&self.shared.state), LinkState::Closed);
        if let LinkState::Connected(connection, _) = state {
            connection.close(sends_rest);
        }
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *lock(&self.shared.state), LinkState::Closed);
        if let LinkState::Connected(connection, _) = state {
            connection.close(false);
        }
    }
}
