//! What commands write: lines and JSON on standard output, and signs of life on the terminal.

use std::io::Write;
use std::time::Duration;

pub use indicatif::ProgressBar;
use indicatif::ProgressStyle;
use tessera_core::{Error, Result, escape_unshown};

/// Prints a value as JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::invalid(format!("JSON: {error}")))?;
    write_line(&text)
}

/// Prints a value as one line of JSON.
pub fn print_json_line(value: &impl serde::Serialize) -> Result<()> {
    let text =
        serde_json::to_string(value).map_err(|error| Error::invalid(format!("JSON: {error}")))?;
    write_line(&text)
}

/// Prints a line; a reader that went away is no error. Names come from files and clients: what a
/// terminal would obey instead of showing it is escaped.
pub fn print_line(text: &str) -> Result<()> {
    write_line(&escape_unshown(text))
}

fn write_line(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::from_io("standard output", &error))
        }
        _ => Ok(()),
    }
}

/// Tells the user something on standard error; nobody may be there to read it.
pub fn print_notice(text: &str) {
    writeln!(std::io::stderr(), "tessera: {}", escape_unshown(text)).ok();
}

/// A bar for work of known length, on the terminal only.
pub fn progress_bar(length: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar
}

/// A sign of life for work of unknown length, on the terminal only.
pub fn spinner(what: impl Into<String>) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(what.into());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
