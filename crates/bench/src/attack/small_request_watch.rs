//! Somebody who asks for little while a server is attacked, and notes how long it takes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::victim::ask_small;
use crate::finding::Finding;

/// Time between one answer and the next request.
const PAUSE: Duration = Duration::from_millis(30);

/// Asks on until it is stopped.
pub(crate) struct SmallRequestWatch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<WatchedAnswers>,
}

/// What small requests came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchedAnswers {
    /// How many were asked.
    pub(crate) asked: usize,
    /// Those that were not answered, by status or error.
    pub(crate) failed: BTreeMap<String, usize>,
    /// The longest that one took.
    pub(crate) slowest: Duration,
    /// How long each took.
    times: Vec<Duration>,
}

impl SmallRequestWatch {
    /// Starts to ask.
    pub(crate) fn start_watch(address: SocketAddr) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut answers = WatchedAnswers::default();
            while !is_over.load(Ordering::Relaxed) {
                answers.ask_once(address);
                std::thread::sleep(PAUSE);
            }
            answers
        });
        Self { over, thread }
    }

    /// Ends it, and says what came of it.
    pub(crate) fn stop_watch(self) -> WatchedAnswers {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

impl WatchedAnswers {
    fn ask_once(&mut self, address: SocketAddr) {
        let start = Instant::now();
        let failure = match ask_small(address) {
            Ok(answer) if answer.status == 200 => None,
            Ok(answer) => Some(answer.status.to_string()),
            Err(error) => Some(error.to_string()),
        };
        self.note_answer(start.elapsed(), failure);
    }

    /// Counts a request that took so long, and why it was not answered where it was not.
    pub(crate) fn note_answer(&mut self, took: Duration, failure: Option<String>) {
        self.asked += 1;
        self.slowest = self.slowest.max(took);
        self.times.push(took);
        if let Some(failure) = failure {
            *self.failed.entry(failure).or_default() += 1;
        }
    }

    /// The time that half of them took at most.
    pub(crate) fn median_time(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }

    /// That small requests were all answered, and each within so many seconds.
    pub(crate) fn findings(&self, limit: f64) -> Vec<Finding> {
        let failed = self.failed.values().sum();
        let reasons: Vec<String> =
            self.failed.iter().map(|(reason, count)| format!("{count} × {reason}")).collect();
        let slowest = self.slowest.as_secs_f64();
        let asked = format!("of {} that were asked meanwhile", self.asked);
        vec![
            Finding::at_most("slowest small request", slowest, limit, "s").with_detail(asked),
            Finding::exactly("small requests that failed", failed, 0)
                .with_detail(reasons.join(", ")),
        ]
    }
}
