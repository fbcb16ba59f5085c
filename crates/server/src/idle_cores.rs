//! Cores of this machine that nobody uses.

use std::time::Instant;

/// Measures idle cores from one call to the next.
#[derive(Default)]
pub(crate) struct IdleCores {
    last: Option<(Instant, f64)>,
}

impl IdleCores {
    /// How many cores were idle since it was asked last; 0 the first time, and where nobody knows.
    pub(crate) fn idle_cores(&mut self) -> f64 {
        let Some(idle) = idle_seconds() else { return 0.0 };
        let now = Instant::now();
        let before = self.last.replace((now, idle));
        before.map_or(0.0, |(at, seconds)| {
            let elapsed = now.duration_since(at).as_secs_f64();
            if elapsed > 0.0 { ((idle - seconds) / elapsed).max(0.0) } else { 0.0 }
        })
    }
}

/// Seconds that all cores have been idle together since the machine was started.
fn idle_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}
