//! A run: clients are set to work, watched, and summed up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_core::Result;

use crate::arrivals::Schedule;
use crate::client::Connector;
use crate::closed_loop::ClosedLoop;
use crate::gpu_watch::GpuWatch;
use crate::latency::quantile_ms;
use crate::open_loop::OpenLoop;
use crate::options::{Mode, Options};
use crate::prepared::Prepared;
use crate::progress::{Phase, Progress, RecentRate};
use crate::recorder::{Recorder, Window};
use crate::report::{Report, Summary};
use crate::session::Session;
use crate::stop::Stop;
use crate::target::Target;
use crate::workload::Workload;

/// How often a run looks whether it is over.
const TICK: Duration = Duration::from_millis(20);

/// How often it tells how it is getting on.
const TELL: Duration = Duration::from_millis(200);

/// The clients of either loop.
enum Load {
    Closed(ClosedLoop),
    Open(OpenLoop),
}

impl Load {
    fn is_over(&mut self) -> Result<bool> {
        match self {
            Self::Closed(clients) => clients.is_over(),
            Self::Open(workers) => Ok(workers.is_over()),
        }
    }

    async fn abandon(&mut self) {
        match self {
            Self::Closed(clients) => clients.abandon().await,
            Self::Open(workers) => workers.abandon().await,
        }
    }
}

/// Sends the workload to the target, and reports.
///
/// It ends when the time or the requests are used up and every request has ended, or at once when
/// `stop` is thrown; then it reports what was measured until then. A server that fails is no
/// error here: it is what the report says.
pub async fn run(
    target: &Target,
    workload: &Workload,
    options: &Options,
    stop: &Stop,
    mut progress: impl FnMut(&Progress),
) -> Result<Report> {
    options.check()?;
    let endpoint = target.endpoint().await?;
    let prepared = Prepared::new(&endpoint, workload)?;
    let began = Instant::now();
    let start = began + options.warm_up;
    let window = Window { start, end: options.duration().map(|duration| start + duration) };
    let session = Arc::new(Session {
        prepared,
        timeout: target.timeout,
        window,
        connector: Connector::new(endpoint.server.addresses),
        recorder: Mutex::new(Recorder::new(window, options.deadline)?),
        issued: AtomicU64::new(0),
        connections: AtomicU64::new(0),
        closing: AtomicBool::new(false),
    });
    let mut load = match options.mode {
        Mode::Closed { clients, requests, .. } => {
            Load::Closed(ClosedLoop::start(&session, clients, requests))
        }
        Mode::Open { rate, arrivals, seed, .. } => {
            let schedule = Schedule::new(arrivals, rate, seed);
            Load::Open(OpenLoop::start(&session, schedule, began, options.max_connections)?)
        }
    };
    let mut watch = options.metrics.clone().map(|page| GpuWatch::start(page, window));
    let mut recent = RecentRate::default();
    let mut told = began;
    let mut stopped = None;
    while !load.is_over()? {
        let now = Instant::now();
        if stop.is_stopped() {
            stopped = Some(now);
            break;
        }
        if now.duration_since(told) >= TELL {
            told = now;
            progress(&state(&session, options, began, now, &mut recent));
        }
        tokio::time::sleep(TICK).await;
    }
    session.closing.store(true, Ordering::SeqCst);
    watch.iter_mut().for_each(GpuWatch::end);
    load.abandon().await;
    // What is told last is the whole.
    progress(&state(&session, options, began, Instant::now(), &mut recent));
    let watched = match watch {
        Some(watch) => Some(watch.finish().await),
        None => None,
    };
    let issued = session.issued.load(Ordering::SeqCst);
    let connections = session.connections.load(Ordering::SeqCst);
    let recorder = {
        let fresh = Recorder::new(window, options.deadline)?;
        std::mem::replace(&mut *session.recorder(), fresh)
    };
    Ok(Report::new(Summary {
        target,
        workload,
        options,
        recorder,
        issued,
        connections,
        stopped,
        watched,
    }))
}

fn state(
    session: &Session,
    options: &Options,
    began: Instant,
    now: Instant,
    recent: &mut RecentRate,
) -> Progress {
    let recorder = session.recorder();
    let phase = match session.window {
        Window { start, .. } if now < start => Phase::WarmUp,
        Window { end: Some(end), .. } if now >= end => Phase::Draining,
        _ => Phase::Measuring,
    };
    let (requests, offered_per_second) = match options.mode {
        Mode::Closed { requests, .. } => (requests, None),
        Mode::Open { rate, .. } => (None, Some(rate)),
    };
    Progress {
        phase,
        elapsed: now.saturating_duration_since(began),
        total: options.duration().map(|duration| options.warm_up + duration),
        done: recorder.outcomes.total(),
        requests,
        offered_per_second,
        rate_per_second: recent.update(now, recorder.all_answers),
        p50_ms: quantile_ms(&recorder.latencies, 0.5),
        p99_ms: quantile_ms(&recorder.latencies, 0.99),
        errors: recorder.all_errors,
    }
}
