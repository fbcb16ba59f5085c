//! All that was measured as one HTML page with plots, which needs nothing from elsewhere.

mod loads;
mod times;
mod video_memory;

use tessera_report::picture::InlineSvg;
use tessera_report::picture::bars::BarChart;
use tessera_report::{HtmlPage, PageSection};

use super::{GpuBenchReport, machine};

/// The page.
pub(crate) fn render_gpu_page(report: &GpuBenchReport) -> String {
    let mut page = HtmlPage::new(&format!("{} in {} blocks", report.model, report.blocks));
    page.add_paragraph(
        "The experiments of chapter 4 of the BlockFlow thesis, with Tessera. The thesis' own \
         figures are from other hardware and software; they are here to compare shapes, not speeds.",
    );
    page.add_facts(&machine::machine_facts(&report.machine));
    for section in report_sections(report) {
        page.add_section(&section);
    }
    page.to_html()
}

fn report_sections(report: &GpuBenchReport) -> Vec<PageSection> {
    let mut all = Vec::new();
    if let Some(latency) = &report.latency {
        all.push(times::latency_section(latency));
        all.push(times::blocks_section(latency));
        all.push(times::copies_section(latency));
    }
    all.extend(report.energy.as_ref().map(times::energy_section));
    all.extend(report.clients.as_deref().map(loads::clients_section));
    all.extend(report.arrivals.as_deref().map(loads::arrivals_section));
    all.extend(report.throughput.as_ref().map(loads::throughput_section));
    all.extend(report.memory.as_deref().map(video_memory::block_memory_section));
    all.extend(report.scenarios.as_ref().map(video_memory::scenarios_section));
    all
}

/// Bars, where there are figures for any.
fn draw_if_any(bars: &BarChart) -> Option<InlineSvg> {
    bars.has_figures().then(|| bars.to_inline_svg())
}

#[cfg(test)]
mod tests;
