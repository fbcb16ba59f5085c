//! The metrics page of a server, which is read during a run.

use std::time::{Duration, Instant};

use hyper::StatusCode;
use tessera_core::{Error, Result};

use crate::gpu_reading::{self, GpuReadings};
use crate::server::Server;

/// How long a page may take. A server under load is slower than one that is idle.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Where a page is where the URL says nothing of it.
const USUAL_PATH: &str = "/metrics";

/// A server's page for Prometheus, to be read during a run: see [`Options::metrics`](crate::Options::metrics).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsPage {
    url: String,
    server: Server,
    path: String,
}

/// What the page said at some time.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) at: Instant,
    pub(crate) gpus: GpuReadings,
}

impl MetricsPage {
    /// Reads the page once: one that can't be read is an error, one without GPUs is none.
    pub async fn open(url: &str) -> Result<Self> {
        let server = Server::find(url).await?;
        let path = match server.prefix.as_str() {
            "" => USUAL_PATH.to_owned(),
            path => path.to_owned(),
        };
        let page = Self { url: url.to_owned(), server, path };
        page.read().await.map_err(|error| error.within("the metrics"))?;
        Ok(page)
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn read(&self) -> Result<Reading> {
        let asked = Instant::now();
        let (status, body) = self.server.get(&self.path, TIMEOUT).await?;
        // The server looked at its GPUs between the question and the answer.
        let at = asked + asked.elapsed() / 2;
        match status {
            StatusCode::OK => {
                let gpus = gpu_reading::read(&String::from_utf8_lossy(&body));
                Ok(Reading { at, gpus })
            }
            status => Err(Error::not_found(format!("{}: HTTP {}", self.url, status.as_u16()))),
        }
    }
}
