//! The one thread of a process' endpoint: it watches sockets, and works when one has something.
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
use tessera_core::{Error, Result, lock};

use crate::notifier::Notifier;

/// Something that the reactor watches a descriptor for.
pub(crate) trait EventSource: Send + Sync {
    /// The descriptor has something, or its other end is gone. Must not block.
    fn on_readable(&self);
}

/// Number of a source at its reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReactorToken(u64);

/// The thread; it ends with this.
pub(crate) struct Reactor {
    shared: Arc<ReactorShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What has a reactor watch something. It keeps no thread alive.
#[derive(Clone)]
pub(crate) struct ReactorHandle(Arc<ReactorShared>);

struct ReactorShared {
    epoll: OwnedFd,
    wake_notifier: Notifier,
    must_stop: AtomicBool,
    sources: Mutex<HashMap<u64, Weak<dyn EventSource>>>,
    next_token: AtomicU64,
}

/// The reactor's own notifier.
const WAKE_TOKEN: u64 = 0;

impl Reactor {
    pub(crate) fn start_thread() -> Result<Self> {
        let fail = |error: Errno| Error::from_io("a set of descriptors", &error.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(fail)?;
        let wake_notifier = Notifier::new()?;
        epoll::add(
            &epoll,
            &wake_notifier,
            epoll::EventData::new_u64(WAKE_TOKEN),
            epoll::EventFlags::IN,
        )
        .map_err(fail)?;
        let shared = Arc::new(ReactorShared {
            epoll,
            wake_notifier,
            must_stop: AtomicBool::new(false),
            sources: Mutex::default(),
            next_token: AtomicU64::new(WAKE_TOKEN + 1),
        });
        let work = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("tensormq".to_owned())
            .spawn(move || work.run_event_loop())
            .map_err(|error| Error::from_io("a thread", &error))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// For those who have something to be watched.
    pub(crate) fn new_handle(&self) -> ReactorHandle {
        ReactorHandle(Arc::clone(&self.shared))
    }
}

impl ReactorHandle {
    /// Watches `fd` for `source`, until the source is dropped or removed.
    pub(crate) fn register_source(
        &self,
        fd: impl AsFd,
        source: Weak<dyn EventSource>,
    ) -> Result<ReactorToken> {
        let token = self.0.next_token.fetch_add(1, Ordering::Relaxed);
        lock(&self.0.sources).insert(token, source);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        let data = epoll::EventData::new_u64(token);
        if let Err(error) = epoll::add(&self.0.epoll, fd, data, flags) {
            lock(&self.0.sources).remove(&token);
            return Err(Error::from_io("a descriptor to watch", &error.into()));
        }
        Ok(ReactorToken(token))
    }

    /// Watches `fd` no more.
    pub(crate) fn deregister_source(&self, fd: impl AsFd, token: ReactorToken) {
        lock(&self.0.sources).remove(&token.0);
        // Fails where the descriptor was never added or is closed: then it is not watched either.
        epoll::delete(&self.0.epoll, fd).ok();
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.shared.must_stop.store(true, Ordering::Release);
        self.shared.wake_notifier.notify();
        let thread = lock(&self.thread).take();
        // The last reference may go on the reactor's own thread, which can't wait for itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != current_thread_id()) {
            thread.join().ok();
        }
    }
}

fn current_thread_id() -> std::thread::ThreadId {
    std::thread::current().id()
}

impl ReactorShared {
    fn run_event_loop(&self) {
        let mut events = Vec::with_capacity(64);
        while !self.must_stop.load(Ordering::Acquire) {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                // The set is ours and open: nothing else can happen.
                Err(_) => return,
            }
            for event in &events {
                let token = event.data.u64();
                if token == WAKE_TOKEN {
                    self.wake_notifier.clear_notification();
                    continue;
                }
                let source = lock(&self.sources).get(&token).and_then(Weak::upgrade);
                match source {
                    Some(source) => source.on_readable(),
                    // Dropped: its descriptor is closed or about to be.
                    None => drop(lock(&self.sources).remove(&token)),
                }
            }
        }
    }
}
