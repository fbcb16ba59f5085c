//! What an operator sees: metrics, events, the processes that blocks run in, traces and the log.
//!
//! The dispatcher tells of every request that ended, while it holds its lock: that is counted at once
//! and everything else is done only where somebody listens. Metrics are written when they are asked for.

mod clock;
mod counters;
mod events;
mod exposition;
mod facts;
mod gpus;
mod histogram;
mod metrics;
mod process;
mod router;
mod sample;
mod traces;
mod usage;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tessera_core::Result;
use tessera_tensormq::Deadline;
use tokio::sync::broadcast;
use tokio::time::MissedTickBehavior;

use crate::dispatcher::{Ended, EndedAs, Observer};
use clock::Clock;
use counters::Counters;
use facts::{Times, block_of, outcome_of};
pub use sample::{
    GpuProcessSample, GpuSample, InstanceGpu, InstanceSample, Sample, TakeSample, TaskSample,
};
pub use traces::TraceOptions;
use traces::Traces;
use usage::{HERTZ, Usage};

/// Events that wait for a listener before it misses the oldest.
const EVENTS_KEPT: usize = 1024;

/// What a monitor does beyond counting.
#[derive(Clone, Debug, Default)]
pub struct MonitorOptions {
    /// Where spans are sent; `None` for nowhere.
    pub traces: Option<TraceOptions>,
}

/// Watches requests and processes.
pub struct Monitor {
    counters: Mutex<Counters>,
    usage: Mutex<Usage>,
    events: broadcast::Sender<Arc<str>>,
    traces: Option<Traces>,
    clock: Clock,
}

impl Monitor {
    /// Makes a monitor. Traces are sent by a task on the runtime that this is called on.
    pub fn new(options: MonitorOptions) -> Result<Arc<Self>> {
        let clock = Clock::new();
        let traces = options.traces.map(|traces| Traces::start(traces, clock)).transpose()?;
        let (events, _) = broadcast::channel(EVENTS_KEPT);
        Ok(Arc::new(Self {
            counters: Mutex::default(),
            usage: Mutex::default(),
            events,
            traces,
            clock,
        }))
    }

    /// What happens from now on: each a JSON object with at least `kind`, and `at` in milliseconds since
    /// 1970. Whoever is slow misses the oldest.
    pub fn events(&self) -> broadcast::Receiver<Arc<str>> {
        self.events.subscribe()
    }

    /// Tells those who listen; `at` is added where it is missing.
    pub fn tell(&self, event: Value) {
        if self.is_heard() {
            self.publish(events::told(event, self.milliseconds_now()));
        }
    }

    /// Watches tasks, blocks and their processes, for as long as it is polled.
    pub async fn watch(self: Arc<Self>, sample: TakeSample) {
        let mut interval = tokio::time::interval(Duration::from_millis(1000 / HERTZ));
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for tick in 0_u64.. {
            interval.tick().await;
            let is_second = tick.is_multiple_of(HERTZ);
            if is_second {
                let sample = sample();
                lock(&self.counters).see(&sample, Deadline::now().nanoseconds());
                lock(&self.usage).follow(&sample);
            }
            lock(&self.usage).read(Deadline::now().nanoseconds());
            if is_second && self.is_heard() {
                let used = lock(&self.usage).now();
                self.publish(events::usage(&used, self.milliseconds_now()));
            }
        }
    }

    /// The metrics as text.
    fn metrics(&self, sample: &Sample) -> String {
        let now = Deadline::now().nanoseconds();
        // Copied, so that no request waits while text is written.
        let counters = {
            let mut counters = lock(&self.counters);
            counters.see(sample, now);
            counters.told(now)
        };
        let used = lock(&self.usage).now();
        let lost_spans = self.traces.as_ref().map(Traces::lost);
        metrics::render(&metrics::Told { counters: &counters, sample, used: &used, lost_spans })
    }

    /// The last minute of every process.
    fn last_minute(&self) -> Value {
        lock(&self.usage).last_minute(self.clock)
    }

    fn is_heard(&self) -> bool {
        self.events.receiver_count() > 0
    }

    fn publish(&self, event: String) {
        // The last listener may have left just now.
        self.events.send(event.into()).ok();
    }

    fn milliseconds_now(&self) -> u64 {
        self.clock.unix_milliseconds(Deadline::now().nanoseconds())
    }
}

impl Observer for Monitor {
    fn ended(&self, ended: &Ended<'_>) {
        lock(&self.counters).note(ended);
        if let Some(traces) = &self.traces {
            traces.note(ended);
        }
        if self.is_heard() {
            match events::request(ended, self.clock.unix_milliseconds(ended.ended)) {
                Ok(event) => self.publish(event),
                Err(error) => tracing::error!(%error, "an event can't be written"),
            }
        }
        log(ended);
    }
}

fn log(ended: &Ended<'_>) {
    let Ended { task, id, request, .. } = *ended;
    // The last that it passed: one that failed leaves no record.
    let last_block = ended.records.last().map(|record| block_of(&record.instance));
    if let EndedAs::Failed(error) = ended.outcome {
        tracing::warn!(task, %request, id, last_block, %error, "a request failed");
    } else {
        tracing::debug!(
            task,
            %request,
            id,
            last_block,
            outcome = outcome_of(ended),
            microseconds = Times::of(ended).all / 1000,
            "a request ended"
        );
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
