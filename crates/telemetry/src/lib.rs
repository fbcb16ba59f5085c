//! What an operator sees: metrics, events, the processes that units run in, traces and the log.
//!
//! The dispatcher tells of every request that ended, while it holds its lock: that is counted at
//! once and everything else is done only where somebody listens. Metrics are written when they are
//! asked for.

#![forbid(unsafe_code)]

mod clock;
mod counters;
mod ended_request;
mod events;
mod exposition;
mod gpu_metrics;
mod histogram;
mod live_counters;
mod live_report;
mod metrics;
mod notable_requests;
mod process;
mod request_summary;
mod residency_metrics;
mod router;
mod sample;
mod sliding_histogram;
mod traces;
mod usage;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tessera_core::{ErrorKind, Result, lock};
use tessera_tensormq::Deadline;
use tokio::sync::broadcast;
use tokio::time::MissedTickBehavior;

use clock::UnixClock;
use counters::RequestCounters;
pub use ended_request::{EndedRequest, RequestObserver, RequestOutcome};
use live_counters::LiveCounters;
pub use live_report::{LiveMemory, LiveRates, LiveReport, LiveTask, LiveTimes, LiveUnit};
use notable_requests::NotableRequests;
pub use request_summary::{RequestTimes, first_unit_runs};
use request_summary::{outcome_name, unit_of};
pub use sample::{
    GpuProcessSample, GpuSample, InstanceGpuSample, InstanceSample, InstanceWeightSample,
    SystemSample, TakeSample, TaskSample, UnitSample, WeightMemorySample,
};
pub use traces::TraceOptions;
use traces::TraceQueue;
use usage::{HERTZ, ProcessUsage};

/// Events that wait for a listener before it misses the oldest.
const EVENTS_KEPT: usize = 1024;

/// Events of instances that are kept.
const INSTANCE_EVENTS_KEPT: usize = 256;

/// Reports of a second that wait for a listener before it misses the oldest.
const REPORTS_KEPT: usize = 8;

/// What telemetry does beyond counting.
#[derive(Clone, Debug, Default)]
pub struct TelemetryOptions {
    /// Where spans are sent; `None` for nowhere.
    pub traces: Option<TraceOptions>,
}

/// Watches requests and processes.
pub struct Telemetry {
    counters: Mutex<RequestCounters>,
    usage: Mutex<ProcessUsage>,
    events: broadcast::Sender<Arc<str>>,
    /// Counts while somebody wants the reports.
    live: Mutex<LiveCounters>,
    reports: broadcast::Sender<Arc<str>>,
    notable: Mutex<NotableRequests>,
    /// Instances that came and went, the newest last.
    instances: Mutex<VecDeque<Value>>,
    traces: Option<TraceQueue>,
    clock: UnixClock,
}

impl Telemetry {
    /// Starts to watch. Traces are sent by a task on the runtime that this is called on.
    pub fn new(options: TelemetryOptions) -> Result<Arc<Self>> {
        let clock = UnixClock::new();
        let traces =
            options.traces.map(|traces| TraceQueue::start_exporter(traces, clock)).transpose()?;
        let (events, _) = broadcast::channel(EVENTS_KEPT);
        let (reports, _) = broadcast::channel(REPORTS_KEPT);
        Ok(Arc::new(Self {
            counters: Mutex::default(),
            usage: Mutex::default(),
            events,
            live: Mutex::default(),
            reports,
            notable: Mutex::default(),
            instances: Mutex::default(),
            traces,
            clock,
        }))
    }

    /// What happens from now on: each a JSON object with at least `kind`, and `at` in milliseconds
    /// since 1970. Whoever is slow misses the oldest.
    pub fn subscribe_events(&self) -> broadcast::Receiver<Arc<str>> {
        self.events.subscribe()
    }

    /// A [`LiveReport`] of each second from now on, as JSON. Whoever is slow misses the oldest.
    pub fn subscribe_reports(&self) -> broadcast::Receiver<Arc<str>> {
        self.reports.subscribe()
    }

    /// Requests that are worth a look, of all tasks or one: the slowest of the last minute or two,
    /// and the newest that failed, were refused, were answered by an exit that was not certain
    /// enough, or whose clients went away.
    pub fn list_notable_requests(&self, task: Option<&str>) -> Value {
        lock(&self.notable).list_requests(task, Deadline::now().nanoseconds())
    }

    /// Tells those who listen; `at` is added where it is missing.
    pub fn publish_event(&self, event: Value) {
        let event = events::complete_event(event, self.milliseconds_now());
        if event["kind"] == "up" || event["kind"] == "down" {
            let mut instances = lock(&self.instances);
            if instances.len() >= INSTANCE_EVENTS_KEPT {
                instances.pop_front();
            }
            instances.push_back(event.clone());
        }
        if self.has_listeners() {
            self.broadcast_event(event.to_string());
        }
    }

    /// The events of instances that came and went, the newest first.
    pub fn list_instance_events(&self) -> Vec<Value> {
        lock(&self.instances).iter().rev().cloned().collect()
    }

    /// Watches tasks, units and their processes, for as long as it is polled.
    pub async fn watch_samples(self: Arc<Self>, sample: TakeSample) {
        let mut interval = tokio::time::interval(Duration::from_millis(1000 / HERTZ));
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported = Deadline::now().nanoseconds();
        for tick in 0_u64.. {
            interval.tick().await;
            let is_second = tick.is_multiple_of(HERTZ);
            if is_second {
                let sample = sample();
                lock(&self.counters).apply_sample(&sample, Deadline::now().nanoseconds());
                lock(&self.usage).follow_processes(&sample);
                let now = Deadline::now().nanoseconds();
                if self.has_watchers() {
                    self.send_report(&sample, now.saturating_sub(reported) as f64 / 1e9);
                }
                reported = now;
            }
            lock(&self.usage).read_processes(Deadline::now().nanoseconds());
            if is_second && self.has_listeners() {
                let used = lock(&self.usage).current_usage();
                self.broadcast_event(events::usage_event(&used, self.milliseconds_now()));
            }
        }
    }

    /// The metrics as text.
    fn metrics_text(&self, sample: &SystemSample) -> String {
        let now = Deadline::now().nanoseconds();
        // Copied, so that no request waits while text is written.
        let counters = {
            let mut counters = lock(&self.counters);
            counters.apply_sample(sample, now);
            counters.exposed_counters(now)
        };
        let used = lock(&self.usage).current_usage();
        let lost_spans = self.traces.as_ref().map(TraceQueue::lost_spans);
        metrics::render_metrics(&metrics::MetricsSnapshot {
            counters: &counters,
            sample,
            used: &used,
            lost_spans,
        })
    }

    /// The last minute of every process.
    fn last_minute(&self) -> Value {
        lock(&self.usage).last_minute(self.clock)
    }

    /// Whether somebody wants reports.
    fn has_watchers(&self) -> bool {
        self.reports.receiver_count() > 0
    }

    fn send_report(&self, sample: &SystemSample, seconds: f64) {
        let report = lock(&self.live).take_report(sample, self.milliseconds_now(), seconds);
        match serde_json::to_string(&report) {
            // The last watcher may have left just now.
            Ok(report) => drop(self.reports.send(report.into())),
            Err(error) => tracing::error!(%error, "a report can't be written"),
        }
    }

    fn has_listeners(&self) -> bool {
        self.events.receiver_count() > 0
    }

    fn broadcast_event(&self, event: String) {
        // The last listener may have left just now.
        self.events.send(event.into()).ok();
    }

    fn milliseconds_now(&self) -> u64 {
        self.clock.unix_milliseconds(Deadline::now().nanoseconds())
    }
}

impl RequestObserver for Telemetry {
    fn request_ended(&self, ended: &EndedRequest<'_>) {
        lock(&self.counters).count_request(ended);
        let at = self.clock.unix_milliseconds(ended.ended);
        lock(&self.notable).note_request(ended, at);
        if self.has_watchers() {
            lock(&self.live).count_request(ended);
        }
        if let Some(traces) = &self.traces {
            traces.queue_spans(ended);
        }
        if self.has_listeners() {
            match events::request_event(ended, at) {
                Ok(event) => self.broadcast_event(event),
                Err(error) => tracing::error!(%error, "an event can't be written"),
            }
        }
        log_ended(ended);
    }
}

fn log_ended(ended: &EndedRequest<'_>) {
    let EndedRequest { task, id, request, .. } = *ended;
    // The last that it passed: one that failed leaves no timings.
    let last_unit = ended.hop_timings.last().map(|hop| unit_of(&hop.instance));
    if let RequestOutcome::Failed(error) = ended.outcome
        // Of those there can be as many as requests, and metrics count them.
        && error.kind() != ErrorKind::TimedOut
    {
        tracing::warn!(task, %request, id, last_unit, %error, "a request failed");
    } else {
        tracing::debug!(
            task,
            %request,
            id,
            last_unit,
            outcome = outcome_name(ended),
            microseconds = RequestTimes::from_ended(ended).all / 1000,
            "a request ended"
        );
    }
}
