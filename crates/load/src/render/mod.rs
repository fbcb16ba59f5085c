//! Reports for people: as tables for a terminal, and as pages with plots.
//!
//! Reports themselves are data and know nothing of this.

mod facts;
mod gpu_tables;
mod plots;
#[cfg(test)]
mod samples;
mod tables;
#[cfg(test)]
mod tests;

use tessera_report::{HtmlPage, Table, align_facts, format_rate};

use crate::report::LoadReport;
use crate::sweep::{SweepReport, SweepStep};

/// The report of a run as tables for people.
pub fn render_load_table(report: &LoadReport) -> String {
    let tables = [tables::latency_table(report), gpu_tables::gpu_table(report)];
    join_tables(align_facts(&facts::run_facts(report)), tables)
}

/// The report of a sweep as tables for people.
pub fn render_sweep_table(report: &SweepReport) -> String {
    let steps = sorted_steps(report);
    let tables = [Some(tables::steps_table(&steps)), gpu_tables::step_gpu_table(&steps)];
    join_tables(align_facts(&facts::sweep_facts(report)), tables)
}

/// The report of a run as one HTML file with plots, which needs nothing from elsewhere.
pub fn render_load_page(report: &LoadReport) -> String {
    let mut page = HtmlPage::new(&format!("Load on {}", report.target.model));
    page.add_facts(&facts::run_facts(report));
    for table in [tables::latency_table(report), gpu_tables::gpu_table(report)].iter().flatten() {
        page.add_table(table);
    }
    for plot in plots::run_plots(report) {
        page.add_picture(&plot);
    }
    page.to_html()
}

/// The report of a sweep as one HTML file with plots, which needs nothing from elsewhere.
pub fn render_sweep_page(report: &SweepReport) -> String {
    let steps = sorted_steps(report);
    let mut page = HtmlPage::new(&format!("Sweep of {}", report.target.model));
    page.add_facts(&facts::sweep_facts(report));
    for plot in plots::sweep_plots(report, &steps) {
        page.add_picture(&plot);
    }
    page.add_table(&tables::steps_table(&steps));
    if let Some(table) = gpu_tables::step_gpu_table(&steps) {
        page.add_table(&table);
    }
    // The highest rate that was sustained, in detail: it is the one that one would run at.
    if let Some(best) = steps.iter().rev().find(|step| step.sustained) {
        page.add_heading(&format!("At {}/s", format_rate(best.rate_per_second)));
        for plot in plots::run_plots(&best.report) {
            page.add_picture(&plot);
        }
    }
    page.to_html()
}

/// The steps by their rates, in whatever order they were tried.
fn sorted_steps(report: &SweepReport) -> Vec<&SweepStep> {
    let mut steps: Vec<&SweepStep> = report.steps.iter().collect();
    steps.sort_by(|a, b| a.rate_per_second.total_cmp(&b.rate_per_second));
    steps
}

/// Facts and those tables that there are, with an empty line between them.
fn join_tables(facts: String, tables: [Option<Table>; 2]) -> String {
    let parts = [facts].into_iter().chain(tables.iter().flatten().map(Table::to_text));
    parts.collect::<Vec<_>>().join("\n")
}
