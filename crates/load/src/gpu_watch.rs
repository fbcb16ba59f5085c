//! Reads the metrics page while a run goes on.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::metrics_page::{MetricsPage, Reading};
use crate::recorder::Window;

/// How often the page is read between the start and the end.
const EVERY: Duration = Duration::from_secs(1);

/// What the page said in the measured time.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) url: String,
    /// At the start, or why it could not be read then.
    pub(crate) first: Result<Reading, String>,
    /// About once a second. Where one is missing, the others are enough.
    pub(crate) between: Vec<Reading>,
    /// At the end, or why it could not be read then.
    pub(crate) last: Result<Reading, String>,
}

/// Reads the page on a task of its own, so that a slow page holds up no request.
pub(crate) struct GpuWatch {
    url: String,
    over: Option<oneshot::Sender<()>>,
    watching: JoinHandle<Watched>,
}

impl GpuWatch {
    /// Begins to read when the measured time does.
    pub(crate) fn start(page: MetricsPage, window: Window) -> Self {
        let (over, is_over) = oneshot::channel();
        let url = page.url().to_owned();
        Self { url, over: Some(over), watching: tokio::spawn(watch(page, window, is_over)) }
    }

    /// The run is over: the last reading is taken now, unless it was already.
    pub(crate) fn end(&mut self) {
        if let Some(over) = self.over.take() {
            // Nobody listens where the measured time ended before.
            over.send(()).ok();
        }
    }

    /// What was read; waits for the last reading.
    pub(crate) async fn finish(mut self) -> Watched {
        self.end();
        let Self { url, watching, .. } = self;
        watching.await.unwrap_or_else(|error| {
            let why = error.to_string();
            Watched { url, first: Err(why.clone()), between: Vec::new(), last: Err(why) }
        })
    }
}

async fn watch(page: MetricsPage, window: Window, mut over: oneshot::Receiver<()>) -> Watched {
    let url = page.url().to_owned();
    let read = || async { page.read().await.map_err(|error| error.to_string()) };
    let mut between = Vec::new();
    if is_over_before(window.start, &mut over).await {
        let early = || Err("stopped before the measurement".to_owned());
        return Watched { url, first: early(), between, last: early() };
    }
    let first = read().await;
    let mut next = window.start + EVERY;
    while window.end.is_none_or(|end| next < end) {
        if is_over_before(next, &mut over).await {
            return Watched { url, first, between, last: read().await };
        }
        // One that is still under way at the end must not hold up the last one.
        let reading = match window.end {
            Some(end) => tokio::time::timeout_at(end.into(), read()).await.ok(),
            None => Some(read().await),
        };
        between.extend(reading.and_then(Result::ok));
        next = Instant::now().max(next + EVERY);
    }
    if let Some(end) = window.end {
        // Over or not: now is the time for the last one.
        is_over_before(end, &mut over).await;
    }
    Watched { url, first, between, last: read().await }
}

/// Waits until then; whether the run was over before.
async fn is_over_before(then: Instant, over: &mut oneshot::Receiver<()>) -> bool {
    tokio::time::timeout_at(then.into(), over).await.is_ok()
}
