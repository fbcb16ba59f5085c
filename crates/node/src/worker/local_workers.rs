//! The workers of one process, by name: a thread that has launched the run of one unit may go on
//! with the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tessera_core::{Device, lock};
use tessera_tensormq::{Deadline, Message};

/// A worker, for others of its process.
pub(crate) trait LocalWorker: Send + Sync {
    /// What it runs on.
    fn device(&self) -> Device;

    /// Most rows of a batch that is put together of several requests; 0 where none is.
    fn most_batch_rows(&self) -> usize;

    /// Whether whoever comes now would be the next: then the caller may run it itself.
    fn is_free(&self) -> bool;

    /// Has its weights come, where they are not there: requests come soon.
    fn prefetch_weights(&self, deadline: Option<Deadline>);

    /// Runs requests on the caller's thread, as one batch where they fit together.
    fn run_on_this_thread(&self, messages: Vec<Message>);
}

/// The workers of this process, by name.
#[derive(Default)]
pub struct LocalWorkers(Mutex<HashMap<String, Weak<dyn LocalWorker>>>);

impl LocalWorkers {
    pub(crate) fn add_worker(&self, name: &str, worker: Weak<dyn LocalWorker>) {
        let mut all = lock(&self.0);
        all.retain(|_, known| known.strong_count() > 0);
        all.insert(name.to_owned(), worker);
    }

    /// The one of this name.
    pub(crate) fn find_worker(&self, name: &str) -> Option<Arc<dyn LocalWorker>> {
        lock(&self.0).get(name).and_then(Weak::upgrade)
    }

    /// One that runs on this device.
    pub(crate) fn find_on_device(
        &self,
        device: Device,
        name: &str,
    ) -> Option<Arc<dyn LocalWorker>> {
        let found = self.find_worker(name)?;
        (found.device() == device).then_some(found)
    }
}
