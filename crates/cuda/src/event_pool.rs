//! Events of a GPU that are free to be used again: making one takes longer than all else that is
//! done with it.

use std::sync::Mutex;

use cudarc::driver::sys;
use tessera_core::lock;

/// What an event is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CudaEventKind {
    /// It has a time.
    Timed,
    /// Whoever waits for it stays awake.
    SpinWait,
    /// Whoever waits for it sleeps.
    BlockingWait,
}

/// Events that are free to be used again, as numbers.
#[derive(Default)]
pub(crate) struct CudaEventPool(Mutex<Vec<(CudaEventKind, usize)>>);

/// Events that are kept.
const MAX_FREE_EVENTS: usize = 64;

impl CudaEventPool {
    /// One of this kind, where there is one.
    pub(crate) fn take(&self, kind: CudaEventKind) -> Option<sys::CUevent> {
        let mut free = lock(&self.0);
        let index = free.iter().rposition(|(known, _)| *known == kind)?;
        Some(std::ptr::with_exposed_provenance_mut(free.swap_remove(index).1))
    }

    /// Keeps one that nobody else has; false where there are enough already.
    pub(crate) fn try_keep(&self, kind: CudaEventKind, event: sys::CUevent) -> bool {
        let mut free = lock(&self.0);
        let keeps = free.len() < MAX_FREE_EVENTS;
        if keeps {
            free.push((kind, event.expose_provenance()));
        }
        keeps
    }
}
