//! Logs: lines on stderr, for people or as JSON.

use tracing::level_filters::LevelFilter;

/// Starts to write what happens from `level` on.
pub(crate) fn start_logging(level: LevelFilter, json: bool) {
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // A reader of logs that went away is no reason to end.
        .log_internal_errors(false)
        .with_target(false);
    // A second start, as in tests, changes nothing.
    if json {
        lines.json().flatten_event(true).try_init().ok();
    } else {
        lines.try_init().ok();
    }
}
