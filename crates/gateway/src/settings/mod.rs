//! What clients may set of a server that runs: what is logged, and what is traced.

mod log_settings;
mod trace_settings;

pub use log_settings::LogControl;
use log_settings::LogSettings;
pub(crate) use log_settings::LogValue;
use trace_settings::TraceSettings;

/// The settings of a server, the same for all its front ends.
#[derive(Debug, Default)]
pub struct ServerSettings {
    pub(crate) log: LogSettings,
    pub(crate) trace: TraceSettings,
}

impl ServerSettings {
    /// Settings as the server was started with.
    pub fn new(log: LogControl) -> Self {
        Self { log: LogSettings::new(log), trace: TraceSettings::default() }
    }
}
