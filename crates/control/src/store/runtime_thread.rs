//! A thread with a runtime, for whoever has to wait for what is asynchronous.

use std::future::Future;
use std::sync::mpsc;

use tessera_core::{Error, Result};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Runs futures on a thread of its own, which ends when this is dropped.
///
/// Another runtime, whose threads may all be busy, has no part in it; and it may be used from
/// anywhere, which a runtime that is blocked on may not.
pub(super) struct RuntimeThread {
    handle: Handle,
    /// The thread ends with it.
    _running: oneshot::Sender<()>,
}

impl RuntimeThread {
    pub(super) fn start(name: &str) -> Result<Self> {
        let failed = |error: &std::io::Error| Error::from_io(format!("start {name}"), error);
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel::<()>();
        let work = move || drop(runtime.block_on(ended));
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        started.map_err(|error| failed(&error))?;
        Ok(Self { handle, _running: running })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits for what comes of a future.
    pub(super) fn wait_for<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (done, result) = mpsc::sync_channel(1);
        self.handle.spawn(async move { done.send(work.await) });
        let result = result.recv();
        result.unwrap_or_else(|_| Err(Error::engine("the thread that waits for etcd has ended")))
    }
}
