//! What GPUs drew and did, as tables.

use tessera_report::{Table, format_bytes, format_joules, format_rate};

use crate::gpu_usage::GpuUsageSummary;
use crate::report::LoadReport;
use crate::sweep::SweepStep;

/// The GPUs of a run; none where nothing is known of any.
pub(super) fn gpu_table(report: &LoadReport) -> Option<Table> {
    let mut table = Table::new(&[
        ">gpu",
        ">energy",
        ">power",
        ">energy/answer",
        ">energy/row",
        ">busy",
        ">memory",
    ]);
    for gpu in &report.gpus {
        table.add_row(gpu_cells(gpu));
    }
    (!report.gpus.is_empty()).then_some(table)
}

/// The GPUs of the steps of a sweep; none where nothing is known of any.
pub(super) fn step_gpu_table(steps: &[&SweepStep]) -> Option<Table> {
    let mut table = Table::new(&[
        ">offered/s",
        ">gpu",
        ">energy",
        ">power",
        ">energy/answer",
        ">energy/row",
        ">busy",
        ">memory",
    ]);
    for step in steps {
        let offered = format_rate(step.report.offered_per_second.unwrap_or(step.rate_per_second));
        for gpu in &step.report.gpus {
            table.add_row([offered.clone()].into_iter().chain(gpu_cells(gpu)));
        }
    }
    steps.iter().any(|step| !step.report.gpus.is_empty()).then_some(table)
}

/// What there is to say of GPUs beside their table, each thing once.
pub(super) fn gpu_notes<'a>(
    reports: impl Iterator<Item = &'a LoadReport>,
) -> Vec<(String, String)> {
    let mut notes: Vec<(String, String)> = Vec::new();
    for report in reports {
        let of_all = report.gpu_note.iter().map(|note| ("gpus".to_owned(), note.clone()));
        let of_each = report.gpus.iter().filter_map(|gpu| {
            Some((gpu_name(gpu).to_owned(), format!("energy unknown: {}", gpu.note.as_ref()?)))
        });
        for note in of_all.chain(of_each) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    notes
}

fn gpu_cells(gpu: &GpuUsageSummary) -> Vec<String> {
    let known = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    vec![
        gpu_name(gpu).to_owned(),
        known(gpu.joules.map(format_joules)),
        known(gpu.mean_watts.map(|watts| format!("{watts:.1} W"))),
        known(gpu.joules_per_answer.map(format_joules)),
        match gpu.rows_per_answer {
            Some(_) => known(gpu.joules_per_row.map(format_joules)),
            None => "-".to_owned(),
        },
        known(gpu.mean_utilisation.map(|share| format!("{:.0} %", share * 100.0))),
        known(gpu.highest_memory_bytes.map(format_bytes)),
    ]
}

/// Short where it can be.
fn gpu_name(gpu: &GpuUsageSummary) -> &str {
    gpu.device.as_deref().unwrap_or(&gpu.uuid)
}
