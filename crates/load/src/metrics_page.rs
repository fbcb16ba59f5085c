//! The metrics page of a server, which is read during a run.

use std::time::{Duration, Instant};

use hyper::StatusCode;
use tessera_core::{Error, Result};

use crate::gpu_metrics::{self, GpuMetricsByUuid};
use crate::server::ResolvedServer;

/// How long a page may take. A server under load is slower than one that is idle.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a page is where the URL says nothing of it.
const DEFAULT_METRICS_PATH: &str = "/metrics";

/// A server's page for Prometheus, to be read during a run: see
/// [`LoadTestOptions::metrics`](crate::LoadTestOptions::metrics).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsPage {
    url: String,
    server: ResolvedServer,
    path: String,
}

/// What the page said at some time.
#[derive(Clone, Debug)]
pub(crate) struct MetricsScrape {
    pub(crate) at: Instant,
    pub(crate) gpus: GpuMetricsByUuid,
}

impl MetricsPage {
    /// Reads the page once: one that can't be read is an error, one without GPUs is none.
    pub async fn open(url: &str) -> Result<Self> {
        let server = ResolvedServer::resolve_url(url).await?;
        let path = match server.prefix.as_str() {
            "" => DEFAULT_METRICS_PATH.to_owned(),
            path => path.to_owned(),
        };
        let page = Self { url: url.to_owned(), server, path };
        page.scrape_metrics().await.map_err(|error| error.with_context("the metrics"))?;
        Ok(page)
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn scrape_metrics(&self) -> Result<MetricsScrape> {
        let asked = Instant::now();
        let (status, body) = self.server.get_page(&self.path, SCRAPE_TIMEOUT).await?;
        // The server looked at its GPUs between the question and the answer.
        let at = asked + asked.elapsed() / 2;
        match status {
            StatusCode::OK => {
                let gpus = gpu_metrics::read_gpu_metrics(&String::from_utf8_lossy(&body));
                Ok(MetricsScrape { at, gpus })
            }
            status => Err(Error::not_found(format!("{}: HTTP {}", self.url, status.as_u16()))),
        }
    }
}
