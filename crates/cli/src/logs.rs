//! Logs: lines on stderr, for people or as JSON.

use tessera_server::LogControl;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry, reload};

/// Starts to write what happens from `level` on; returns what changes the level.
pub(crate) fn start_logging(level: LevelFilter, json: bool) -> LogControl {
    let (filter, handle) = reload::Layer::new(level);
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // A reader of logs that went away is no reason to end.
        .log_internal_errors(false)
        .with_target(false);
    // A second start, as in tests, changes nothing.
    if json {
        registry().with(filter).with(lines.json().flatten_event(true)).try_init().ok();
    } else {
        registry().with(filter).with(lines).try_init().ok();
    }
    LogControl::new(level, move |level| {
        // Gone with the process alone.
        handle.reload(level).ok();
    })
}
