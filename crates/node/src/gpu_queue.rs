//! What a GPU was told to do and has not done yet.
//!
//! A run returns when the GPU knows what to do. Without a limit it would know for seconds ahead, in small runs; so it
//! has one that it does and one that it does next, of all blocks of this process together, and what comes
//! meanwhile goes into batches. A block in a process of its own has one: others keep the GPU busy meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};

use tessera_core::{Device, Event, Result};
use tessera_engine::end_of_work;
use tessera_plan::Isolation;

use crate::lock;

/// The runs of one GPU.
pub(crate) struct GpuQueue {
    /// Runs that are under way at most.
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Runs that the GPU is being told of.
    coming: usize,
    /// The ends of those that it knows, oldest first.
    ends: VecDeque<Arc<dyn Event>>,
}

impl GpuQueue {
    /// That of a device; `None` for the CPU, where a run is over when it returns.
    pub(crate) fn of(device: Device, isolation: Isolation) -> Option<Arc<Self>> {
        static ALL: Mutex<BTreeMap<u32, Arc<GpuQueue>>> = Mutex::new(BTreeMap::new());
        let Device::Cuda(number) = device else { return None };
        let most = match isolation {
            Isolation::Thread => 2,
            Isolation::Process => 1,
        };
        let new = || Arc::new(Self { most, state: Mutex::default(), changed: Condvar::new() });
        Some(Arc::clone(lock(&ALL).entry(number).or_insert_with(new)))
    }

    /// Waits until there is room for another run.
    pub(crate) fn wait_for_room(&self) -> Result<()> {
        self.wait(false)
    }

    fn wait(&self, takes_it: bool) -> Result<()> {
        let mut state = lock(&self.state);
        loop {
            while state.ends.front().is_some_and(|end| end.is_done()) {
                state.ends.pop_front();
            }
            if state.coming + state.ends.len() < self.most {
                state.coming += usize::from(takes_it);
                return Ok(());
            }
            match state.ends.front().cloned() {
                Some(oldest) => {
                    drop(state);
                    oldest.wait()?;
                    state = lock(&self.state);
                }
                None => {
                    state =
                        self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                }
            }
        }
    }

    /// Has the GPU be told of a run, once there is room.
    pub(crate) fn run<T>(&self, device: Device, tell: impl FnOnce() -> Result<T>) -> Result<T> {
        self.wait(true)?;
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(tell));
        let end = end_of_work(device);
        let mut state = lock(&self.state);
        state.coming -= 1;
        if let Ok(Some(end)) = end {
            state.ends.push_back(end);
        }
        drop(state);
        self.changed.notify_all();
        told.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
