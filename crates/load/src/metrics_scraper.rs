//! Reads the metrics page while a run goes on.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::metrics_page::{MetricsPage, MetricsScrape};
use crate::outcome_collector::MeasurementWindow;

/// How often the page is read between the start and the end.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);

/// What the page said in the measured time.
#[derive(Clone, Debug)]
pub(crate) struct ScrapedMetrics {
    pub(crate) url: String,
    /// At the start, or why it could not be read then.
    pub(crate) first: Result<MetricsScrape, String>,
    /// About once a second. Where one is missing, the others are enough.
    pub(crate) between: Vec<MetricsScrape>,
    /// At the end, or why it could not be read then.
    pub(crate) last: Result<MetricsScrape, String>,
}

/// Reads the page on a task of its own, so that a slow page holds up no request.
pub(crate) struct MetricsScraper {
    url: String,
    over: Option<oneshot::Sender<()>>,
    scraping: JoinHandle<ScrapedMetrics>,
}

impl MetricsScraper {
    /// Begins to read when the measured time does.
    pub(crate) fn start_scraping(page: MetricsPage, window: MeasurementWindow) -> Self {
        let (over, is_over) = oneshot::channel();
        let url = page.url().to_owned();
        Self {
            url,
            over: Some(over),
            scraping: tokio::spawn(scrape_until_over(page, window, is_over)),
        }
    }

    /// The run is over: the last scrape is made now, unless it was already.
    pub(crate) fn stop_scraping(&mut self) {
        if let Some(over) = self.over.take() {
            // Nobody listens where the measured time ended before.
            over.send(()).ok();
        }
    }

    /// What was read; waits for the last scrape.
    pub(crate) async fn finish_scraping(mut self) -> ScrapedMetrics {
        self.stop_scraping();
        let Self { url, scraping, .. } = self;
        scraping.await.unwrap_or_else(|error| {
            let reason = error.to_string();
            ScrapedMetrics {
                url,
                first: Err(reason.clone()),
                between: Vec::new(),
                last: Err(reason),
            }
        })
    }
}

async fn scrape_until_over(
    page: MetricsPage,
    window: MeasurementWindow,
    mut over: oneshot::Receiver<()>,
) -> ScrapedMetrics {
    let url = page.url().to_owned();
    let read = || async { page.scrape_metrics().await.map_err(|error| error.to_string()) };
    let mut between = Vec::new();
    if is_over_before(window.start, &mut over).await {
        let early = || Err("stopped before the measurement".to_owned());
        return ScrapedMetrics { url, first: early(), between, last: early() };
    }
    let first = read().await;
    let mut next = window.start + SCRAPE_INTERVAL;
    while window.end.is_none_or(|end| next < end) {
        if is_over_before(next, &mut over).await {
            return ScrapedMetrics { url, first, between, last: read().await };
        }
        // One that is still under way at the end must not hold up the last one.
        let scrape = match window.end {
            Some(end) => tokio::time::timeout_at(end.into(), read()).await.ok(),
            None => Some(read().await),
        };
        between.extend(scrape.and_then(Result::ok));
        next = Instant::now().max(next + SCRAPE_INTERVAL);
    }
    if let Some(end) = window.end {
        // Over or not: now is the time for the last one.
        is_over_before(end, &mut over).await;
    }
    ScrapedMetrics { url, first, between, last: read().await }
}

/// Waits until then; whether the run was over before.
async fn is_over_before(then: Instant, over: &mut oneshot::Receiver<()>) -> bool {
    tokio::time::timeout_at(then.into(), over).await.is_ok()
}
