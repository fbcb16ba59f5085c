//! Load for any server of the Open Inference Protocol over HTTP: what `tessera load` runs.
//!
//! A [`Target`] is asked what it serves, a [`Workload`] is made of that, and [`run()`] or
//! [`sweep()`] sends it and gives a report. Latency is never flattered by a server that stalls:
//! in the open loop it counts from the time at which a request was due, whether or not it could
//! be sent then, and in the closed loop it is given as measured and as corrected for the requests
//! that a stall kept from being sent.

#![forbid(unsafe_code)]

mod arrivals;
mod body;
mod client;
mod closed_loop;
mod datatype;
mod description;
mod gpu_reading;
mod gpu_table;
mod gpu_use;
mod gpu_watch;
mod html;
mod inputs;
mod latency;
mod metrics_page;
mod open_loop;
mod options;
mod page;
mod plot;
mod prepared;
mod progress;
mod prometheus;
mod recorder;
mod report;
mod response;
mod run;
mod scale;
mod search;
mod series;
mod server;
mod session;
mod stop;
mod sweep;
mod table;
mod target;
mod workload;

pub use arrivals::Arrivals;
pub use description::{Description, Port};
pub use gpu_use::GpuUse;
pub use inputs::{parse_range, parse_shape};
pub use latency::{Bin, Latency, Percentile};
pub use metrics_page::MetricsPage;
pub use options::{Mode, Options};
pub use progress::{Phase, Progress};
pub use recorder::Outcomes;
pub use report::{Extra, Report, TargetSummary};
pub use run::run;
pub use search::{Rates, find_saturation};
pub use series::Second;
pub use stop::Stop;
pub use sweep::{Saturation, Step, SweepReport, sweep};
pub use target::Target;
pub use workload::{Workload, WorkloadOptions};
