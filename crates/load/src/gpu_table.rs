//! GPUs as rows of tables.

use crate::gpu_use::GpuUse;
use crate::report::Report;
use crate::sweep::Step;
use crate::table;

/// The heads of a table of GPUs.
pub(crate) const GPU_HEADS: [&str; 7] =
    ["gpu", "energy", "power", "energy/answer", "energy/row", "busy", "memory"];

/// The heads of a table of GPUs at several rates.
pub(crate) const STEP_GPU_HEADS: [&str; 8] =
    ["offered/s", "gpu", "energy", "power", "energy/answer", "energy/row", "busy", "memory"];

/// The GPUs of a run.
pub(crate) fn of_run(report: &Report) -> Vec<Vec<String>> {
    report.gpus.iter().map(row).collect()
}

/// The GPUs of the steps of a sweep.
pub(crate) fn of_steps(steps: &[&Step]) -> Vec<Vec<String>> {
    let of_step = |step: &&Step| {
        let offered = step.report.offered_per_second.unwrap_or(step.rate_per_second);
        let rows = of_run(&step.report).into_iter();
        rows.map(|row| [table::rate(offered)].into_iter().chain(row).collect()).collect::<Vec<_>>()
    };
    steps.iter().flat_map(of_step).collect()
}

/// What there is to say of GPUs beside their table, each thing once.
pub(crate) fn notes<'a>(reports: impl Iterator<Item = &'a Report>) -> Vec<(String, String)> {
    let mut notes: Vec<(String, String)> = Vec::new();
    for report in reports {
        let of_all = report.gpu_note.iter().map(|note| ("gpus".to_owned(), note.clone()));
        let of_each = report.gpus.iter().filter_map(|gpu| {
            Some((name(gpu).to_owned(), format!("energy unknown: {}", gpu.note.as_ref()?)))
        });
        for note in of_all.chain(of_each) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    notes
}

fn row(gpu: &GpuUse) -> Vec<String> {
    let known = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    vec![
        name(gpu).to_owned(),
        known(gpu.joules.map(joules)),
        known(gpu.mean_watts.map(|watts| format!("{watts:.1} W"))),
        known(gpu.joules_per_answer.map(joules)),
        match gpu.rows_per_answer {
            Some(_) => known(gpu.joules_per_row.map(joules)),
            None => "-".to_owned(),
        },
        known(gpu.mean_utilisation.map(|share| format!("{:.0} %", share * 100.0))),
        known(gpu.highest_memory_bytes.map(table::bytes)),
    ]
}

/// Short where it can be.
fn name(gpu: &GpuUse) -> &str {
    gpu.device.as_deref().unwrap_or(&gpu.uuid)
}

/// Energy as people write it.
fn joules(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2} MJ", value / 1e6),
        value if value >= 1e4 => format!("{:.2} kJ", value / 1e3),
        value if value >= 1.0 => format!("{value:.2} J"),
        value if value >= 1e-3 => format!("{:.2} mJ", value * 1e3),
        value => format!("{:.2} µJ", value * 1e6),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::table::tests::{sample, sample_sweep};

    use super::*;

    /// A GPU of which all is known.
    pub(crate) fn gpu(uuid: &str) -> GpuUse {
        GpuUse {
            uuid: uuid.to_owned(),
            device: None,
            joules: Some(1200.0),
            mean_watts: Some(400.0),
            joules_per_answer: Some(4.0 / 3.0),
            rows_per_answer: Some(4),
            joules_per_row: Some(1.0 / 3.0),
            mean_utilisation: Some(0.87),
            highest_memory_bytes: Some(2_500_000_000),
            note: None,
        }
    }

    #[test]
    fn the_tables_have_a_row_for_every_gpu() {
        let mut report = sample("m");
        report.gpus = vec![gpu("GPU-1"), gpu("GPU-2")];
        report.gpus[1].device = Some("cuda:1".to_owned());
        report.gpus[1].joules = None;
        report.gpus[1].rows_per_answer = None;
        report.gpus[1].note = Some("its counter of energy went backwards".to_owned());
        for text in [report.table(), report.html()] {
            for part in ["GPU-1", "1200.00 J", "400.0 W", "1.33 J", "333.33 mJ", "87 %", "2.50 GB"]
            {
                assert!(text.contains(part), "no \"{part}\" in:\n{text}");
            }
            for part in ["cuda:1", "energy unknown: its counter of energy went backwards"] {
                assert!(text.contains(part), "no \"{part}\" in:\n{text}");
            }
        }
        let mut sweep = sample_sweep("m");
        sweep.steps[1].report.gpus = vec![gpu("GPU-1")];
        for text in [sweep.table(), sweep.html()] {
            assert!(text.contains("energy/row") && text.contains("333.33 mJ"), "{text}");
        }
    }

    #[test]
    fn without_a_page_of_metrics_nothing_is_said_of_gpus() {
        let report = sample("m");
        assert!(!report.table().contains("gpu") && !report.html().contains("energy"));
        let sweep = sample_sweep("m");
        assert!(!sweep.table().contains("gpu") && !sweep.html().contains("energy"));
        let json = serde_json::to_value(report).unwrap();
        assert!(json.get("gpus").is_none() && json.get("gpu_note").is_none());
    }

    #[test]
    fn a_page_without_gpus_is_a_line_of_the_report() {
        let note = "unknown: http://a/metrics has no metrics of GPUs";
        let mut sweep = sample_sweep("m");
        for step in &mut sweep.steps {
            step.report.gpu_note = Some(note.to_owned());
        }
        for text in [sweep.steps[0].report.table(), sweep.table(), sweep.html()] {
            assert_eq!(text.matches(note).count(), 1, "{text}");
        }
    }

    #[test]
    fn names_in_json_have_their_units() {
        let mut report = sample("m");
        report.gpus = vec![gpu("GPU-1")];
        let json = serde_json::to_value(report).unwrap();
        assert_eq!(json["gpus"][0]["joules"], 1200.0);
        assert_eq!(json["gpus"][0]["highest_memory_bytes"], 2_500_000_000_u64);
    }

    #[test]
    fn energies_are_short() {
        let shown = [2.5e6, 12_345.0, 9.0, 0.0123, 4.5e-6].map(joules);
        assert_eq!(shown, ["2.50 MJ", "12.35 kJ", "9.00 J", "12.30 mJ", "4.50 µJ"]);
    }
}
