//! Load for any server of the Open Inference Protocol over HTTP: what `tessera load` runs.
//!
//! A [`LoadTarget`] is asked what it serves, a [`Workload`] is made of that, and
//! [`run_load_test()`] or [`run_sweep()`] sends it and gives a report, which
//! [`render_load_table()`] and its like show to people. Latency is never flattered
//! by a server that stalls: in the open loop it counts from the time at which a request was due,
//! whether or not it could be sent then, and in the closed loop it is given as measured and as
//! corrected for the requests that a stall kept from being sent.

#![forbid(unsafe_code)]

mod arrivals;
mod body;
mod client;
mod closed_loop;
mod connector;
mod datatype;
mod description;
mod exchange;
mod gpu_metrics;
mod gpu_usage;
mod inputs;
mod latency;
mod metrics_page;
mod metrics_scraper;
mod open_loop;
mod options;
mod outcome_collector;
mod prepared_requests;
mod progress;
mod prometheus;
mod render;
mod report;
mod response;
mod run;
mod search;
mod series;
mod server;
mod session;
mod stop_token;
mod sweep;
mod target;
mod workload;
mod workload_options;

pub use arrivals::Arrivals;
pub use description::{ModelDescription, ModelPort};
pub use gpu_usage::GpuUsageSummary;
pub use latency::{LatencyBin, LatencyPercentile, LoadLatency};
pub use metrics_page::MetricsPage;
pub use options::{LoadMode, LoadTestOptions};
pub use outcome_collector::OutcomeCounts;
pub use progress::{LoadPhase, LoadProgress};
pub use render::{render_load_page, render_load_table, render_sweep_page, render_sweep_table};
pub use report::{ExtraFact, LoadReport, TargetSummary};
pub use run::run_load_test;
pub use search::{SweepRates, find_saturation};
pub use series::Second;
pub use stop_token::StopToken;
pub use sweep::{Saturation, SweepReport, SweepStep, run_sweep};
pub use target::LoadTarget;
pub use workload::Workload;
pub use workload_options::{WorkloadOptions, parse_range, parse_shape};
