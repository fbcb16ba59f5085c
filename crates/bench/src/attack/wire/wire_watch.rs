//! Somebody who asks for little over gRPC or TLS while a server is attacked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tessera_core::Result;
use tokio::task::JoinHandle;

use super::wire_request::WireRequest;
use super::wire_victim::WireVictim;
use crate::attack::WatchedAnswers;

/// Time between one answer and the next request.
const PAUSE: Duration = Duration::from_millis(30);

/// Asks on until it is stopped.
pub(super) struct WireWatch {
    over: Arc<AtomicBool>,
    task: JoinHandle<WatchedAnswers>,
}

impl WireWatch {
    /// Starts to ask.
    pub(super) fn start_watch(victim: &WireVictim) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (is_over, target) = (Arc::clone(&over), victim.target.clone());
        let task = victim.runtime.spawn(async move {
            let mut answers = WatchedAnswers::default();
            while !is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                let answer = target.ask(WireRequest::small(target.kind)).await;
                let failure = match answer {
                    Ok(status) if status.is_ok() => None,
                    Ok(status) => Some(status.to_string()),
                    Err(error) => Some(error.to_string()),
                };
                answers.note_answer(start.elapsed(), failure);
                tokio::time::sleep(PAUSE).await;
            }
            answers
        });
        Self { over, task }
    }

    /// Ends it, and says what came of it.
    pub(super) fn stop_watch(self, victim: &WireVictim) -> Result<WatchedAnswers> {
        self.over.store(true, Ordering::Relaxed);
        let ended = victim.runtime.block_on(self.task);
        ended.map_err(|_| tessera_core::Error::lost("a client ended early"))
    }
}
