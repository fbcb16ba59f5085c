//! The one thread of a process' transport: it watches sockets, and works when one has something.
//!
//! It accepts other processes, notices when one is gone, and moves what the network brought into
//! inboxes. However many channels there are, there is one of it.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use rustix::event::epoll;
use rustix::io::Errno;
use tessera_core::{Error, Result};

use crate::bell::Bell;
use crate::sync::lock;

/// Something that the driver watches a descriptor for.
pub(crate) trait Source: Send + Sync {
    /// The descriptor has something, or its other end is gone. Must not block.
    fn ready(&self);
}

/// Number of a source at its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(u64);

pub(crate) struct Driver {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    epoll: OwnedFd,
    wake: Bell,
    stop: AtomicBool,
    sources: Mutex<HashMap<u64, Weak<dyn Source>>>,
    next: AtomicU64,
}

/// The driver's own bell.
const WAKE: u64 = 0;

impl Driver {
    pub(crate) fn start() -> Result<Self> {
        let fail = |error: Errno| Error::io("a set of descriptors", &error.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(fail)?;
        let wake = Bell::new()?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)
            .map_err(fail)?;
        let shared = Arc::new(Shared {
            epoll,
            wake,
            stop: AtomicBool::new(false),
            sources: Mutex::default(),
            next: AtomicU64::new(WAKE + 1),
        });
        let work = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("tensormq".to_owned())
            .spawn(move || work.run())
            .map_err(|error| Error::io("a thread", &error))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Watches `fd` for `source`, until the source is dropped or removed.
    pub(crate) fn add(&self, fd: impl AsFd, source: Weak<dyn Source>) -> Result<Token> {
        let token = self.shared.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.sources).insert(token, source);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        let data = epoll::EventData::new_u64(token);
        if let Err(error) = epoll::add(&self.shared.epoll, fd, data, flags) {
            lock(&self.shared.sources).remove(&token);
            return Err(Error::io("a descriptor to watch", &error.into()));
        }
        Ok(Token(token))
    }

    /// Watches `fd` no more.
    pub(crate) fn remove(&self, fd: impl AsFd, token: Token) {
        lock(&self.shared.sources).remove(&token.0);
        // Fails where the descriptor was never added or is closed: then it is not watched either.
        epoll::delete(&self.shared.epoll, fd).ok();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.ring();
        let thread = lock(&self.thread).take();
        // The last reference may go on the driver's own thread, which can't wait for itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != current()) {
            thread.join().ok();
        }
    }
}

fn current() -> std::thread::ThreadId {
    std::thread::current().id()
}

impl Shared {
    fn run(&self) {
        let mut events = Vec::with_capacity(64);
        while !self.stop.load(Ordering::Acquire) {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                // The set is ours and open: nothing else can happen.
                Err(_) => return,
            }
            for event in &events {
                let token = event.data.u64();
                if token == WAKE {
                    self.wake.silence();
                    continue;
                }
                let source = lock(&self.sources).get(&token).and_then(Weak::upgrade);
                match source {
                    Some(source) => source.ready(),
                    // Dropped: its descriptor is closed or about to be.
                    None => drop(lock(&self.sources).remove(&token)),
                }
            }
        }
    }
}
