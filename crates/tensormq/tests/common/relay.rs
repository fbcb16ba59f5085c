//! The network between a sender and an inbox: it can be cut, also in the middle of a message, and
//! silenced, and mended again.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use tessera_tensormq::{Address, Inbox, ListenAddress};

use super::{contains, elsewhere_at, socket_address, tcp_listener};

/// A network between a sender and an inbox.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    here: SocketAddr,
}

struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whoever connects is closed at once.
    cut: bool,
    /// Nothing is passed on to the inbox, and nobody connected to it.
    silent_there: bool,
    /// Nothing is passed on to the sender.
    silent_back: bool,
    /// Bytes to the inbox after which it is cut.
    fuse: Option<usize>,
    /// Bytes per second that it passes on to the inbox.
    rate: Option<usize>,
    /// What passed to the inbox, where that is wanted.
    record: Option<Vec<u8>>,
    connections: Vec<TcpStream>,
    /// How often all connections were closed.
    closed: u64,
    over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

impl Relay {
    pub(crate) fn before(inbox: &Inbox) -> Self {
        let target = socket_address(inbox).strip_prefix("tcp://").unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { target, state: Mutex::default(), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accepting.accept(&listener));
        Self { shared, here }
    }

    /// The way to an inbox through this network.
    pub(crate) fn address(&self, inbox: &Inbox) -> Address {
        let socket_address = format!("tcp://{}", self.here);
        elsewhere_at(inbox, ListenAddress { socket_address, ..tcp_listener(inbox) })
    }

    /// Closes all connections, and those that are made until it is mended.
    pub(crate) fn cut(&self) {
        self.shared.cut();
    }

    /// The same once so many more bytes went to the inbox.
    pub(crate) fn cut_after(&self, bytes: usize) {
        self.shared.change(|state| state.fuse = Some(bytes));
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.shared.lock().cut
    }

    /// Passes nothing on, and closes nothing.
    pub(crate) fn freeze(&self) {
        self.shared.change(|state| (state.silent_there, state.silent_back) = (true, true));
    }

    /// Passes nothing on to the sender.
    pub(crate) fn freeze_answers(&self) {
        self.shared.change(|state| state.silent_back = true);
    }

    /// Closes all connections, and lets those that are made wait until it is mended.
    pub(crate) fn sever(&self) {
        self.shared.change(|state| {
            (state.silent_there, state.silent_back) = (true, true);
            state.close();
        });
    }

    pub(crate) fn slow_down(&self, bytes_per_second: usize) {
        self.shared.change(|state| state.rate = Some(bytes_per_second));
    }

    pub(crate) fn mend(&self) {
        self.shared.change(|state| {
            (state.cut, state.silent_there, state.silent_back) = (false, false, false);
        });
    }

    pub(crate) fn record(&self) {
        self.shared.change(|state| state.record = Some(Vec::new()));
    }

    /// Whether these bytes passed since it records.
    pub(crate) fn heard(&self, bytes: &[u8]) -> bool {
        contains(self.shared.lock().record.as_deref().unwrap(), bytes)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.change(|state| {
            state.over = true;
            state.close();
        });
        // So that whoever accepts looks up.
        drop(TcpStream::connect(self.here));
    }
}

impl State {
    fn close(&mut self) {
        self.closed += 1;
        for connection in self.connections.drain(..) {
            // It may be closed from the other side.
            connection.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn cut(&self) {
        self.change(|state| {
            state.cut = true;
            state.close();
        });
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let Ok(client) = client else { continue };
            let mut state = self.lock();
            if state.over {
                return;
            }
            if state.cut {
                continue;
            }
            state.connections.push(client.try_clone().unwrap());
            let closed = state.closed;
            drop(state);
            let shared = Arc::clone(self);
            thread::spawn(move || shared.serve(client, closed));
        }
    }

    /// Passes on between a sender and the inbox; `closed`: how often all was closed before it came.
    fn serve(self: Arc<Self>, client: TcpStream, closed: u64) {
        self.wait_while_silent(Way::There);
        let Ok(target) = TcpStream::connect(self.target) else {
            client.shutdown(Shutdown::Both).ok();
            return;
        };
        for stream in [&client, &target] {
            stream.set_nodelay(true).ok();
        }
        let mut state = self.lock();
        if state.closed != closed || state.over {
            return;
        }
        state.connections.push(target.try_clone().unwrap());
        drop(state);
        let (from, to) = (target.try_clone().unwrap(), client.try_clone().unwrap());
        let shared = Arc::clone(&self);
        let back = thread::spawn(move || shared.pass_on(from, to, Way::Back));
        self.pass_on(client, target, Way::There);
        back.join().unwrap();
    }

    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream, way: Way) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            self.wait_while_silent(way);
            let read = from.read(&mut buffer).unwrap_or(0);
            // In silence not even an end is heard.
            self.wait_while_silent(way);
            let (some, blown, pause) = self.spend(way, &buffer[..read]);
            if read == 0 || to.write_all(&buffer[..some]).is_err() {
                break;
            }
            if blown {
                self.cut();
                break;
            }
            thread::sleep(pause);
        }
        from.shutdown(Shutdown::Both).ok();
        to.shutdown(Shutdown::Both).ok();
    }

    fn wait_while_silent(&self, way: Way) {
        let mut state = self.lock();
        while !state.over
            && match way {
                Way::There => state.silent_there,
                Way::Back => state.silent_back,
            }
        {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// How many of these bytes pass, whether it is cut after them, and how long they take.
    fn spend(&self, way: Way, bytes: &[u8]) -> (usize, bool, Duration) {
        if way == Way::Back {
            return (bytes.len(), false, Duration::ZERO);
        }
        let mut state = self.lock();
        if let Some(record) = &mut state.record {
            record.extend_from_slice(bytes);
        }
        if let Some(left) = state.fuse {
            if left <= bytes.len() {
                state.fuse = None;
                return (left, true, Duration::ZERO);
            }
            state.fuse = Some(left - bytes.len());
        }
        let seconds = state.rate.map_or(0.0, |rate| bytes.len() as f64 / rate as f64);
        (bytes.len(), false, Duration::from_secs_f64(seconds))
    }
}
