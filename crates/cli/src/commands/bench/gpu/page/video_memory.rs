//! Sections on video memory: of blocks, and of many tasks.

use super::super::memory::{self, Memory};
use super::super::scenarios::{self, Scenarios};
use super::super::shown;
use super::{Section, drawn};
use crate::output;
use crate::picture::bars::Bars;

fn megabytes(bytes: Option<f64>) -> f64 {
    bytes.map_or(f64::NAN, |bytes| bytes / 1e6)
}

/// Figure 4.14.
pub(super) fn blocks(all: &[Memory]) -> Section {
    let mut words = Vec::new();
    for memory in all {
        words.push(match memory.rest_per_process_bytes {
            Some(rest) => format!(
                "{}: {} in all; beyond weights and buffers between blocks, {:.0} MB {}.",
                memory.name,
                shown(memory.used_bytes, output::bytes),
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
         Blocks on threads of one process pay that once."
            .to_owned(),
    );
    let count = all.iter().map(|memory| memory.blocks.len()).max().unwrap_or(0);
    let mut series = Vec::new();
    for memory in all {
        let of = |value: fn(&memory::BlockMemory) -> Option<u64>| -> Vec<f64> {
            memory.blocks.iter().map(|block| megabytes(value(block).map(|b| b as f64))).collect()
        };
        series.push((format!("{}: weights", memory.name), of(|block| block.weight_bytes)));
        if memory.processes > 1 {
            series.push((format!("{}: buffers", memory.name), of(|block| block.pool_bytes)));
            let rest = megabytes(memory.rest_per_process_bytes);
            series.push((format!("{}: rest", memory.name), vec![rest; memory.blocks.len()]));
        }
    }
    let picture = Bars {
        title: "Video memory of each block".to_owned(),
        y_label: "memory (MB)".to_owned(),
        groups: (0..count).map(|number| format!("block {number}")).collect(),
        series,
    };
    Section {
        title: "Video memory of blocks",
        words,
        pictures: drawn(&picture).into_iter().collect(),
        tables: vec![memory::table(all)],
    }
}

/// Tables 4.4 and 4.5.
pub(super) fn scenarios(scenarios: &Scenarios) -> Section {
    let savings = || scenarios.scenarios.iter().filter_map(|scenario| scenario.saving_percent);
    let seen = match savings().next() {
        Some(_) => format!(
            "{} tasks: a process with a whole model each takes {}; blocks that tasks share, on threads of one \
             process, save {:.0} to {:.0} % of it.",
            scenarios.tasks,
            shown(scenarios.traditional_bytes, output::bytes),
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
    let bytes = |value: Option<u64>| megabytes(value.map(|bytes| bytes as f64)) / 1e3;
    let all = &scenarios.scenarios;
    let groups: Vec<String> = all.iter().map(|scenario| scenario.number.to_string()).collect();
    let memory = Bars {
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
    let saved = Bars {
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
    Section {
        title: "Video memory of many tasks",
        words,
        pictures: [drawn(&memory), drawn(&saved)].into_iter().flatten().collect(),
        tables: vec![scenarios::table(scenarios)],
    }
}
