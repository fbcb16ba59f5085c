//! All that was measured as one HTML page with plots, which needs nothing from elsewhere.

mod loads;
mod times;
mod video_memory;

use super::{Report, machine};
use crate::output::Table;
use crate::picture::bars::Bars;
use crate::picture::escape;

/// Readable in light and dark, whichever the reader's system asks for. Pictures bring their own colours.
const STYLE: &str = "\
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --soft: #57606a; --line: #e1e4e8; }
@media (prefers-color-scheme: dark) { \
:root { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --line: #262c36; } }
body { background: var(--paper); color: var(--ink); margin: 2rem auto; padding: 0 1rem; \
max-width: 60rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 3rem; }
p { max-width: 46rem; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.2rem 0.7rem; border-bottom: 1px solid var(--line); \
white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } .right { text-align: right; }
svg { display: block; max-width: 100%; height: auto; margin: 1rem 0; }
summary { cursor: pointer; color: var(--soft); }
";

/// A part of the page.
struct Section {
    title: &'static str,
    /// What is seen, and what the thesis has.
    words: Vec<String>,
    /// SVG.
    pictures: Vec<String>,
    tables: Vec<Table>,
}

/// The page.
pub(super) fn page(report: &Report) -> String {
    let title = format!("{} in {} blocks", report.model, report.blocks);
    let facts = machine::facts(&report.machine);
    let facts = facts.iter().map(|(name, value)| {
        format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escape(name), escape(value))
    });
    let sections: String = sections(report).iter().map(Section::html).collect();
    let title = escape(&title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         <p>The experiments of chapter 4 of the BlockFlow thesis, with Tessera. The thesis' own figures are \
         from other hardware and software; they are here to compare shapes, not speeds.</p>\n\
         <table>\n{}</table>\n{sections}</body>\n</html>\n",
        facts.collect::<String>()
    )
}

fn sections(report: &Report) -> Vec<Section> {
    let mut all = Vec::new();
    if let Some(latency) = &report.latency {
        all.push(times::latency(latency));
        all.push(times::blocks(latency));
        all.push(times::copies(latency));
    }
    all.extend(report.energy.as_ref().map(times::energy));
    all.extend(report.clients.as_deref().map(loads::clients));
    all.extend(report.arrivals.as_deref().map(loads::arrivals));
    all.extend(report.throughput.as_ref().map(loads::throughput));
    all.extend(report.memory.as_deref().map(video_memory::blocks));
    all.extend(report.scenarios.as_ref().map(video_memory::scenarios));
    all
}

impl Section {
    fn html(&self) -> String {
        let mut html = format!("<section>\n<h2>{}</h2>\n", escape(self.title));
        for words in &self.words {
            html.push_str(&format!("<p>{}</p>\n", escape(words)));
        }
        for picture in &self.pictures {
            html.push_str(picture);
        }
        for of in &self.tables {
            html.push_str(&table(of));
        }
        html.push_str("</section>\n");
        html
    }
}

/// Bars, where there are figures for any.
fn drawn(bars: &Bars) -> Option<String> {
    let mut figures = bars.series.iter().flat_map(|(_, figures)| figures);
    figures.any(|figure| figure.is_finite()).then(|| bars.svg())
}

/// A table; a long one is folded.
fn table(table: &Table) -> String {
    const LONG: usize = 16;
    let (heads, rows) = table.parts();
    let class = |column: usize| match heads.get(column) {
        Some((_, true)) => " class=\"right\"",
        _ => "",
    };
    let head = |(column, (head, _)): (usize, &(&str, bool))| {
        format!("<th scope=\"col\"{}>{}</th>", class(column), escape(head))
    };
    let row = |row: &Vec<String>| {
        let cells = row.iter().enumerate();
        let cells =
            cells.map(|(column, cell)| format!("<td{}>{}</td>", class(column), escape(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let head: String = heads.iter().enumerate().map(head).collect();
    let body: String = rows.iter().map(row).collect();
    let table = format!("<div class=\"scroll\"><table>\n<tr>{head}</tr>\n{body}</table></div>\n");
    match rows.len() > LONG {
        true => format!("<details><summary>{} rows</summary>\n{table}</details>\n", rows.len()),
        false => table,
    }
}

#[cfg(test)]
mod tests;
