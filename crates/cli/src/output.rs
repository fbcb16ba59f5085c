//! What users see: tables, sizes, progress.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tessera_core::{Error, Result};

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::invalid(format!("JSON: {error}")))?;
    print(&text)
}

/// Prints a value as one line of JSON.
pub(crate) fn print_json_line(value: &impl serde::Serialize) -> Result<()> {
    let text =
        serde_json::to_string(value).map_err(|error| Error::invalid(format!("JSON: {error}")))?;
    print(&text)
}

/// Prints a line; a reader that went away is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("standard output", &error))
        }
        _ => Ok(()),
    }
}

/// A table with aligned columns; those of numbers to the right.
pub(crate) struct Table {
    heads: Vec<(&'static str, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns; a head that starts with `>` is aligned to the right.
    pub(crate) fn new(heads: &[&'static str]) -> Self {
        let head = |head: &&'static str| match head.strip_prefix('>') {
            Some(head) => (head, true),
            None => (*head, false),
        };
        Self { heads: heads.iter().map(head).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn print(&self) -> Result<()> {
        let heads: Vec<String> = self.heads.iter().map(|(head, _)| (*head).to_owned()).collect();
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&heads]).filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..heads.len()).map(width).collect();
        for row in [&heads].into_iter().chain(&self.rows) {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .zip(&self.heads)
                .map(|((cell, &width), (_, right))| match right {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                })
                .collect();
            print(cells.join("  ").trim_end())?;
        }
        Ok(())
    }

    /// The heads, each with whether its column is aligned to the right, and the rows.
    pub(crate) fn parts(&self) -> (&[(&'static str, bool)], &[Vec<String>]) {
        (&self.heads, &self.rows)
    }

    /// The table as comma-separated values.
    pub(crate) fn print_csv(&self) -> Result<()> {
        let quote = |cell: &str| match cell.contains([',', '"', '\n']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell.to_owned(),
        };
        let heads: Vec<String> = self.heads.iter().map(|(head, _)| quote(head)).collect();
        print(&heads.join(","))?;
        for row in &self.rows {
            print(&row.iter().map(|cell| quote(cell)).collect::<Vec<_>>().join(","))?;
        }
        Ok(())
    }
}

/// A size as people write it: `12.8 MB`.
pub(crate) fn bytes(count: u64) -> String {
    scaled(count, &[(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")], "B")
}

/// A count as people write it: `25.6 M`.
pub(crate) fn count(count: u64) -> String {
    scaled(count, &[(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")], "")
}

fn scaled(value: u64, units: &[(u64, &str)], one: &str) -> String {
    match units.iter().find(|(size, _)| value >= *size) {
        Some((size, unit)) => format!("{:.2} {unit}", value as f64 / *size as f64),
        None => format!("{value} {one}").trim_end().to_owned(),
    }
}

/// A time as people write it.
pub(crate) fn time(duration: Duration) -> String {
    milliseconds(duration.as_secs_f64() * 1e3)
}

/// Milliseconds as people write them.
pub(crate) fn milliseconds(value: f64) -> String {
    match value {
        value if value >= 10_000.0 => format!("{:.1} s", value / 1e3),
        value if value >= 100.0 => format!("{value:.0} ms"),
        value if value >= 1.0 => format!("{value:.2} ms"),
        value => format!("{:.1} µs", value * 1e3),
    }
}

/// A bar for work of known length, on the terminal only.
pub(crate) fn progress(length: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar
}

/// A sign of life for work of unknown length, on the terminal only.
pub(crate) fn spinner(what: impl Into<String>) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(what.into());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
