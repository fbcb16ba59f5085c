//! A stop from outside: an interrupt ends the measurement, not the report.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends a run early from anywhere, a signal handler included; clones are the same switch.
#[derive(Clone, Debug, Default)]
pub struct StopToken(Arc<AtomicBool>);

impl StopToken {
    /// A switch that is not thrown.
    pub fn new() -> Self {
        Self::default()
    }

    /// The switch behind a flag that someone else sets, as signal handlers do.
    pub fn from_flag(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// Ends the run: what was measured until now is reported.
    pub fn request_stop(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether the run is to end.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
