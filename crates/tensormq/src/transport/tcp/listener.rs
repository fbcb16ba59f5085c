//! A TCP socket that an inbox listens at, and the connections that others made to it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tessera_core::{Error, Result, lock};

use super::connection::{Connection, configure_socket, spawn_thread};
use super::tls_identity::TlsIdentity;
use super::wire_socket::WireSocket;
use crate::notifier::Notifier;
use crate::reactor::{EventSource, ReactorHandle, ReactorToken};
use crate::transport::network::bind_address::bind_with_retry;
use crate::transport::network::link::{ConnectionId, ConnectionSilence, LinkFrame, LinkListener};
use crate::transport::network::tcp_info::connection_silence;

/// Most connections at a time, and most that are shaking hands.
const MOST_CONNECTIONS: usize = 2048;
const MOST_GREETED: usize = 128;

/// All connections to a socket.
pub(super) struct TcpConnections {
    shared: Arc<ListenerShared>,
    /// Wakes the thread that accepts, to end it.
    stopping: Arc<Notifier>,
    watched: Option<ReactorToken>,
}

/// What the threads of connections and their owner share.
struct ListenerShared {
    news: Mutex<ListenerNews>,
    connections: Mutex<HashMap<ConnectionId, Arc<Connection>>>,
    notifier: Notifier,
    next_number: AtomicU64,
    /// How many are shaking hands.
    greeted: AtomicUsize,
    /// Whether the owner is gone.
    is_closed: AtomicBool,
    largest_frame: usize,
    tls: Option<TlsIdentity>,
}

#[derive(Default)]
struct ListenerNews {
    messages: VecDeque<(ConnectionId, Vec<Bytes>)>,
    /// Ended, and not noticed by the owner yet; and those that it has noticed.
    ended: Vec<ConnectionId>,
    noticed: Vec<ConnectionId>,
}

impl TcpConnections {
    /// Accepts connections at a socket from now on.
    pub(super) fn accept_at(
        socket: TcpListener,
        largest_frame: usize,
        tls: Option<TlsIdentity>,
    ) -> Result<Self> {
        let shared = Arc::new(ListenerShared {
            news: Mutex::default(),
            connections: Mutex::default(),
            notifier: Notifier::new()?,
            next_number: AtomicU64::new(0),
            greeted: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            largest_frame,
            tls,
        });
        let stopping = Arc::new(Notifier::new()?);
        let (accepting, until) = (Arc::downgrade(&shared), Arc::clone(&stopping));
        spawn_thread("tensormq-accept", move || accept_connections(&socket, &accepting, &until))?;
        Ok(Self { shared, stopping, watched: None })
    }
}

fn accept_connections(socket: &TcpListener, shared: &Weak<ListenerShared>, stopping: &Notifier) {
    loop {
        let mut waiting = [
            PollFd::new(socket, PollFlags::IN),
            PollFd::from_borrowed_fd(stopping.as_fd(), PollFlags::IN),
        ];
        match poll(&mut waiting, None) {
            Ok(_) if !waiting[1].revents().is_empty() => return,
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return,
        }
        let Some(shared) = shared.upgrade() else { return };
        match socket.accept() {
            Ok((connection, _)) => shared.take_in(connection),
            // Out of descriptors, say: it may be better in a moment.
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    }
}

impl ListenerShared {
    /// Shakes hands with whoever connected, on a thread of its own.
    fn take_in(self: Arc<Self>, socket: TcpStream) {
        let is_crowded = lock(&self.connections).len() >= MOST_CONNECTIONS
            || self.greeted.load(Ordering::Relaxed) >= MOST_GREETED;
        if is_crowded {
            return;
        }
        self.greeted.fetch_add(1, Ordering::Relaxed);
        let greeting = Arc::clone(&self);
        let greet = move || {
            let secured = greeting.secure_socket(socket);
            greeting.greeted.fetch_sub(1, Ordering::Relaxed);
            if let Some(wire) = secured {
                greeting.add_connection(wire);
            }
        };
        // One for which there is no thread is closed.
        if spawn_thread("tensormq-greet", greet).is_err() {
            self.greeted.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn secure_socket(&self, socket: TcpStream) -> Option<WireSocket> {
        configure_socket(&socket).ok()?;
        let Some(identity) = &self.tls else { return Some(WireSocket::plain(socket)) };
        let connection = identity.accept_from(&socket).ok()?;
        Some(WireSocket::encrypted(socket, identity.clone(), connection))
    }

    fn add_connection(self: &Arc<Self>, wire: WireSocket) {
        let number = ConnectionId(self.next_number.fetch_add(1, Ordering::Relaxed));
        let (hearing, ending) = (Arc::downgrade(self), Arc::downgrade(self));
        let on_message = move |frames| {
            if let Some(shared) = hearing.upgrade() {
                lock(&shared.news).messages.push_back((number, frames));
                shared.notifier.notify();
            }
        };
        let on_end = move |_| {
            if let Some(shared) = ending.upgrade() {
                lock(&shared.connections).remove(&number);
                lock(&shared.news).ended.push(number);
                shared.notifier.notify();
            }
        };
        // Held, so that its end comes after it.
        let mut connections = lock(&self.connections);
        if self.is_closed.load(Ordering::Acquire) {
            return;
        }
        if let Ok(made) = Connection::start(wire, self.largest_frame, on_message, on_end) {
            connections.insert(number, made);
        }
    }
}

impl LinkListener for TcpConnections {
    fn notice_events(&mut self) -> bool {
        self.shared.notifier.clear_notification();
        let mut news = lock(&self.shared.news);
        let ended = std::mem::take(&mut news.ended);
        let happened = !ended.is_empty();
        news.noticed.extend(ended);
        happened
    }

    fn take_message(&mut self) -> Option<(ConnectionId, Vec<Bytes>)> {
        lock(&self.shared.news).messages.pop_front()
    }

    fn take_ended(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut lock(&self.shared.news).noticed)
    }

    fn send_frame(&mut self, to: ConnectionId, frame: Vec<u8>) {
        let connection = lock(&self.shared.connections).get(&to).cloned();
        if let Some(connection) = connection {
            // Where it is gone already, its end is noticed.
            connection.send_frames(vec![LinkFrame::Bytes(frame)]).ok();
        }
    }

    fn check_peer(&self, _: ConnectionId) -> Result<()> {
        // Whoever has shaken hands may send.
        Ok(())
    }

    fn silence_of(&self, connection: ConnectionId) -> Option<ConnectionSilence> {
        let connection = lock(&self.shared.connections).get(&connection).cloned()?;
        connection_silence(connection.socket().as_fd())
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

    fn stop_watching(&mut self, reactor: &ReactorHandle) {
        if let Some(token) = self.watched.take() {
            reactor.deregister_source(&self.shared.notifier, token);
        }
    }
}

impl Drop for TcpConnections {
    fn drop(&mut self) {
        self.stopping.notify();
        self.shared.is_closed.store(true, Ordering::Release);
        for connection in std::mem::take(&mut *lock(&self.shared.connections)).into_values() {
            connection.close(true);
        }
    }
}

/// Binds a socket; `*` is all addresses, of both families where the host has them.
pub(super) fn bind_socket(host_and_port: &str) -> Result<TcpListener> {
    let bind = || match host_and_port.strip_prefix("*:") {
        Some(port) => TcpListener::bind(format!("[::]:{port}"))
            .or_else(|_| TcpListener::bind(format!("0.0.0.0:{port}"))),
        None => TcpListener::bind(host_and_port),
    };
    let bound = bind_with_retry(bind, |error| error.kind() == io::ErrorKind::AddrInUse);
    bound.map_err(|error| Error::from_io(format!("tcp://{host_and_port}"), &error))
}
