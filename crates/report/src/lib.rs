//! Tables, pictures and pages: what measurements and plans look like to people.
//!
//! Whoever has something to show fills in a [`Table`] or a chart of [`picture`] and prints it,
//! writes it to a file, or puts it on an [`HtmlPage`]. This crate knows nothing of what the
//! figures mean, so that every command and every page has the same tables, the same plots and the
//! same form for a time or a size.

#![forbid(unsafe_code)]

mod escape;
mod format;
pub mod output;
mod page;
pub mod picture;
mod style;
mod table;

pub use format::{
    format_bytes, format_bytes_f64, format_change, format_count, format_duration, format_figure,
    format_joules, format_megabytes, format_microseconds, format_milliseconds, format_percent,
    format_rate, format_seconds, format_short_percent, time_ratio,
};
pub use page::{HtmlPage, PageSection};
pub use table::{Table, align_facts};
