//! Sections on video memory: of blocks, and of many tasks.

use tessera_report::picture::bars::BarChart;
use tessera_report::{PageSection, format_bytes};

use super::super::memory::{self, PipelineMemory};
use super::super::or_dash;
use super::super::scenarios::{self, MemoryScenarios};
use super::draw_if_any;

fn to_megabytes(bytes: Option<f64>) -> f64 {
    bytes.map_or(f64::NAN, |bytes| bytes / 1e6)
}

/// Figure 4.14.
pub(crate) fn block_memory_section(all: &[PipelineMemory]) -> PageSection {
    let mut words = Vec::new();
    for memory in all {
        words.push(match memory.rest_per_process_bytes {
            Some(rest) => format!(
                "{}: {} in all; beyond weights and buffers between units, {:.0} MB {}.",
                memory.name,
                or_dash(memory.used_bytes, format_bytes),
                rest / 1e6,
                match memory.processes {
                    1 => "for the one process".to_owned(),
                    count => format!("for each of {count} processes"),
                }
            ),
            None => format!("{}: no figures, NVML tells the memory of GPUs only.", memory.name),
        });
    }
    words.push(
        "The thesis (figure 4.14) has about 370 MB for each process beyond what its block needs, with both transports. \
         Units on threads of one process pay that once."
            .to_owned(),
    );
    let count = all.iter().map(|memory| memory.blocks.len()).max().unwrap_or(0);
    let mut series = Vec::new();
    for memory in all {
        let of = |value: fn(&memory::BlockMemory) -> Option<u64>| -> Vec<f64> {
            memory.blocks.iter().map(|block| to_megabytes(value(block).map(|b| b as f64))).collect()
        };
        series.push((format!("{}: weights", memory.name), of(|block| block.weight_bytes)));
        if memory.processes > 1 {
            series.push((format!("{}: buffers", memory.name), of(|block| block.pool_bytes)));
            let rest = to_megabytes(memory.rest_per_process_bytes);
            series.push((format!("{}: rest", memory.name), vec![rest; memory.blocks.len()]));
        }
    }
    let picture = BarChart {
        title: "Video memory of each block".to_owned(),
        y_label: "memory (MB)".to_owned(),
        groups: (0..count).map(|number| format!("block {number}")).collect(),
        series,
    };
    PageSection {
        title: "Video memory of blocks",
        words,
        pictures: draw_if_any(&picture).into_iter().collect(),
        tables: vec![memory::memory_table(all)],
    }
}

/// Tables 4.4 and 4.5.
pub(crate) fn scenarios_section(scenarios: &MemoryScenarios) -> PageSection {
    let savings = || scenarios.scenarios.iter().filter_map(|scenario| scenario.saving_percent);
    let seen = match savings().next() {
        Some(_) => format!(
            "{} tasks: a process with a whole model each takes {}; blocks that tasks share, on threads of one \
             process, save {:.0} to {:.0} % of it.",
            scenarios.tasks,
            or_dash(scenarios.traditional_bytes, format_bytes),
            savings().fold(f64::INFINITY, f64::min),
            savings().fold(f64::NEG_INFINITY, f64::max),
        ),
        None => "There are no figures: NVML tells the memory of GPUs only.".to_owned(),
    };
    let words = vec![
        seen,
        "Tasks of class A have a model of their own, those of class B the first half of the stages in common, those of \
         class C the first three quarters, in the parts of the thesis' table 4.4. The thesis (table 4.5) computes -21 \
         to 7 %, as each of its blocks has a process; here all this was measured."
            .to_owned(),
    ];
    let bytes = |value: Option<u64>| to_megabytes(value.map(|bytes| bytes as f64)) / 1e3;
    let all = &scenarios.scenarios;
    let groups: Vec<String> = all.iter().map(|scenario| scenario.number.to_string()).collect();
    let memory = BarChart {
        title: format!("Video memory of {} tasks, by scenario", scenarios.tasks),
        y_label: "memory (GB)".to_owned(),
        groups: groups.clone(),
        series: vec![
            ("shared blocks".to_owned(), all.iter().map(|one| bytes(one.modular_bytes)).collect()),
            (
                "a whole model each".to_owned(),
                all.iter().map(|_| bytes(scenarios.traditional_bytes)).collect(),
            ),
        ],
    };
    let saved = BarChart {
        title: "Saved by sharing blocks, by scenario".to_owned(),
        y_label: "saved (%)".to_owned(),
        groups,
        series: vec![
            (
                "measured".to_owned(),
                all.iter().map(|one| one.saving_percent.unwrap_or(f64::NAN)).collect(),
            ),
            ("thesis".to_owned(), all.iter().map(|one| one.thesis_saving_percent).collect()),
        ],
    };
    PageSection {
        title: "Video memory of many tasks",
        words,
        pictures: [draw_if_any(&memory), draw_if_any(&saved)].into_iter().flatten().collect(),
        tables: vec![scenarios::scenarios_table(scenarios)],
    }
}
