//! Work that takes long, such as reading a hundred megabytes of JSON, apart from the threads that
//! serve connections.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

/// Work on fewer bytes is done where it is.
const LEAST_BYTES: usize = 256 << 10;

/// Long work at a time: a core is left for everybody else.
#[derive(Debug)]
pub(crate) struct LongWork(Semaphore);

impl Default for LongWork {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self(Semaphore::new(cores.saturating_sub(1).max(1)))
    }
}

impl LongWork {
    /// Does work on so many bytes, without holding others up.
    pub(crate) async fn run<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        if bytes < LEAST_BYTES {
            return work();
        }
        // Where it is closed, which it never is, the work is done all the same.
        let _permit = self.0.acquire().await;
        match Handle::current().runtime_flavor() {
            RuntimeFlavor::CurrentThread => work(),
            _ => tokio::task::block_in_place(work),
        }
    }
}
