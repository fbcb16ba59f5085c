//! A run: clients are set to work, watched, and summed up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_core::Result;

use crate::arrivals::ArrivalSchedule;
use crate::closed_loop::ClosedLoop;
use crate::connector::Connector;
use crate::latency::quantile_ms;
use crate::metrics_scraper::MetricsScraper;
use crate::open_loop::OpenLoop;
use crate::options::{LoadMode, LoadTestOptions};
use crate::outcome_collector::{MeasurementWindow, OutcomeCollector};
use crate::prepared_requests::PreparedRequests;
use crate::progress::{LoadPhase, LoadProgress, RecentRate};
use crate::report::{LoadReport, LoadReportParts};
use crate::session::LoadSession;
use crate::stop_token::StopToken;
use crate::target::LoadTarget;
use crate::workload::Workload;

/// How often a run looks whether it is over.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How often it reports progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The clients of either loop.
enum RunningLoop {
    Closed(ClosedLoop),
    Open(OpenLoop),
}

impl RunningLoop {
    fn is_over(&mut self) -> Result<bool> {
        match self {
            Self::Closed(clients) => clients.is_over(),
            Self::Open(workers) => Ok(workers.is_over()),
        }
    }

    async fn cancel_requests(&mut self) {
        match self {
            Self::Closed(clients) => clients.cancel_clients().await,
            Self::Open(workers) => workers.cancel_workers().await,
        }
    }
}

/// Sends the workload to the target, and reports.
///
/// It ends when the time or the requests are used up and every request has ended, or at once when
/// `stop` is thrown; then it reports what was measured until then. A server that fails is no
/// error here: it is what the report says.
pub async fn run_load_test(
    target: &LoadTarget,
    workload: &Workload,
    options: &LoadTestOptions,
    stop: &StopToken,
    mut progress: impl FnMut(&LoadProgress),
) -> Result<LoadReport> {
    options.check_limits()?;
    let resolved = target.resolve_model().await?;
    let prepared = PreparedRequests::new(&resolved, workload)?;
    let began = Instant::now();
    let start = began + options.warm_up;
    let window =
        MeasurementWindow { start, end: options.duration().map(|duration| start + duration) };
    let session = Arc::new(LoadSession {
        prepared,
        timeout: target.timeout,
        window,
        connector: Connector::new(resolved.server.addresses),
        collector: Mutex::new(OutcomeCollector::new(window, options.deadline)?),
        issued: AtomicU64::new(0),
        connections: AtomicU64::new(0),
        closing: AtomicBool::new(false),
    });
    let mut load = match options.mode {
        LoadMode::Closed { clients, requests, .. } => {
            RunningLoop::Closed(ClosedLoop::start_clients(&session, clients, requests))
        }
        LoadMode::Open { rate, arrivals, seed, .. } => {
            let schedule = ArrivalSchedule::new(arrivals, rate, seed);
            RunningLoop::Open(OpenLoop::start_workers(
                &session,
                schedule,
                began,
                options.max_connections,
            )?)
        }
    };
    let mut scraper =
        options.metrics.clone().map(|page| MetricsScraper::start_scraping(page, window));
    let mut recent = RecentRate::default();
    let mut reported = began;
    let mut stopped = None;
    while !load.is_over()? {
        let now = Instant::now();
        if stop.is_stopped() {
            stopped = Some(now);
            break;
        }
        if now.duration_since(reported) >= PROGRESS_INTERVAL {
            reported = now;
            progress(&current_progress(&session, options, began, now, &mut recent));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    session.closing.store(true, Ordering::SeqCst);
    scraper.iter_mut().for_each(MetricsScraper::stop_scraping);
    load.cancel_requests().await;
    // What is reported last is the whole.
    progress(&current_progress(&session, options, began, Instant::now(), &mut recent));
    let scraped = match scraper {
        Some(scraper) => Some(scraper.finish_scraping().await),
        None => None,
    };
    let issued = session.issued.load(Ordering::SeqCst);
    let connections = session.connections.load(Ordering::SeqCst);
    let collector = {
        let fresh = OutcomeCollector::new(window, options.deadline)?;
        std::mem::replace(&mut *session.lock_collector(), fresh)
    };
    Ok(LoadReport::new(LoadReportParts {
        target,
        workload,
        options,
        collector,
        issued,
        connections,
        stopped,
        scraped,
    }))
}

fn current_progress(
    session: &LoadSession,
    options: &LoadTestOptions,
    began: Instant,
    now: Instant,
    recent: &mut RecentRate,
) -> LoadProgress {
    let collector = session.lock_collector();
    let phase = match session.window {
        MeasurementWindow { start, .. } if now < start => LoadPhase::WarmUp,
        MeasurementWindow { end: Some(end), .. } if now >= end => LoadPhase::Draining,
        _ => LoadPhase::Measuring,
    };
    let (requests, offered_per_second) = match options.mode {
        LoadMode::Closed { requests, .. } => (requests, None),
        LoadMode::Open { rate, .. } => (None, Some(rate)),
    };
    LoadProgress {
        phase,
        elapsed: now.saturating_duration_since(began),
        total: options.duration().map(|duration| options.warm_up + duration),
        done: collector.outcomes.total(),
        requests,
        offered_per_second,
        rate_per_second: recent.add_count(now, collector.all_answers),
        p50_ms: quantile_ms(&collector.latencies, 0.5),
        p99_ms: quantile_ms(&collector.latencies, 0.99),
        errors: collector.all_errors,
    }
}
