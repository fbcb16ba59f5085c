//! Video memory of many tasks: blocks that are shared beside a whole model for each, in the scenarios of
//! table 4.4 of the BlockFlow thesis.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tessera_core::{DType, Error, Result};
use tessera_zoo::Architecture;

use super::super::server::{Client, InferRequest, TestServer};
use super::siblings::{self, Siblings};
use super::{Setup, shown};
use crate::arguments::bench::BenchGpu;
use crate::output;

/// Servers with a whole model each that are started at the same time.
const AT_A_TIME: usize = 4;

/// Percent of the tasks in classes A, B and C, and what the thesis computes that blocks save, in percent
/// (its table 4.5).
const MIXES: [([usize; 3], f64); 8] = [
    ([33, 33, 33], -19.23),
    ([10, 30, 60], -15.04),
    ([5, 20, 75], -6.63),
    ([5, 5, 90], 5.09),
    ([1, 4, 95], 7.23),
    ([60, 30, 10], -20.96),
    ([75, 20, 5], -14.91),
    ([90, 5, 5], -4.96),
];

/// All scenarios.
#[derive(Serialize)]
pub(super) struct Scenarios {
    pub(super) tasks: usize,
    /// A process with a whole model for each task: the same in all scenarios.
    pub(super) traditional_bytes: Option<u64>,
    pub(super) scenarios: Vec<Scenario>,
}

/// One mix of classes.
#[derive(Serialize)]
pub(super) struct Scenario {
    pub(super) number: usize,
    /// Tasks with a model of their own.
    pub(super) class_a: usize,
    /// Tasks that have the first half of their stages in common.
    pub(super) class_b: usize,
    /// Tasks that have the first three quarters of their stages in common.
    pub(super) class_c: usize,
    /// Blocks that ran, on threads of one process, and their weights.
    pub(super) blocks: usize,
    pub(super) weight_bytes: u64,
    pub(super) modular_bytes: Option<u64>,
    pub(super) saving_percent: Option<f64>,
    /// What the thesis computes, with a process for each block.
    pub(super) thesis_saving_percent: f64,
}

/// Whole tasks of each class, by largest remainder.
pub(super) fn whole_tasks(percent: [usize; 3], tasks: usize) -> [usize; 3] {
    // Thirds are 99 percent together.
    let sum = percent.iter().sum::<usize>().max(1);
    let mut counts = percent.map(|part| part * tasks / sum);
    let mut order = [0, 1, 2];
    order.sort_by_key(|&class| std::cmp::Reverse(percent[class] * tasks % sum));
    let missing = tasks - counts.iter().sum::<usize>();
    for &class in order.iter().take(missing) {
        counts[class] += 1;
    }
    counts
}

/// Whether there can be scenarios of this model: tasks are made in the zoo, and asked over HTTP with floats.
pub(super) fn are_possible(setup: &Setup, arguments: &BenchGpu) -> Result<Architecture> {
    let architecture: Architecture = arguments.model.parse().map_err(|error: Error| {
        error.within("scenarios need an architecture of the zoo, whose siblings they make")
    })?;
    match &setup.partition.graph.inputs[..] {
        [port] if port.tensor_type.dtype == DType::F32 && architecture.stages() >= 4 => {
            Ok(architecture)
        }
        _ => Err(Error::unsupported(format!(
            "scenarios of {architecture}, expected one input of f32 and four stages or more"
        ))),
    }
}

pub(super) fn measure(
    setup: &Setup,
    arguments: &BenchGpu,
    architecture: Architecture,
) -> Result<Scenarios> {
    let tasks = arguments.tasks.max(1);
    let mixes = MIXES.map(|(percent, thesis)| (whole_tasks(percent, tasks), thesis));
    let most = |class: usize| mixes.iter().map(|(counts, _)| counts[class]).max().unwrap_or(0);
    let folder = setup.folder.path().join("scenarios");
    // Every task of the traditional way has a model of class A.
    let counts = [tasks, most(1), most(2)];
    let bar = output::progress(counts.iter().sum::<usize>() as u64, "scenarios: models");
    let siblings = siblings::make(architecture, &folder, counts, &bar)?;
    bar.finish_and_clear();
    let bar = output::progress((tasks + mixes.len()) as u64, "scenarios");
    let traditional_bytes = traditional(setup, arguments, &siblings, &folder, &bar)?;
    let mut scenarios = Vec::new();
    for (number, (counts, thesis_saving_percent)) in (1..).zip(mixes) {
        let files = siblings.files(counts);
        let before = setup.meter.settled_bytes();
        // All in one repository: blocks that were there before are not prepared again.
        let server = start(arguments, &folder.join("modular"), &[], &files)?;
        ask_each(setup, &server)?;
        let after = setup.meter.settled_bytes();
        let modular_bytes = difference(before, after);
        let weights = server.told.blocks.iter().map(|block| block.weight_bytes);
        let saving = |(modular, traditional): (u64, u64)| {
            100.0 - modular as f64 * 100.0 / traditional.max(1) as f64
        };
        scenarios.push(Scenario {
            number,
            class_a: counts[0],
            class_b: counts[1],
            class_c: counts[2],
            blocks: server.told.blocks.len(),
            weight_bytes: weights.sum(),
            modular_bytes,
            saving_percent: modular_bytes.zip(traditional_bytes).map(saving),
            thesis_saving_percent,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    std::fs::remove_dir_all(&folder).map_err(|error| Error::io(folder.display(), &error))?;
    Ok(Scenarios { tasks, traditional_bytes, scenarios })
}

/// A server for each task, with a whole model of its own.
fn traditional(
    setup: &Setup,
    arguments: &BenchGpu,
    siblings: &Siblings,
    folder: &Path,
    bar: &indicatif::ProgressBar,
) -> Result<Option<u64>> {
    let before = setup.meter.settled_bytes();
    let files = siblings.files([arguments.tasks.max(1), 0, 0]);
    let mut servers: Vec<TestServer> = Vec::new();
    for some in files.chunks(AT_A_TIME) {
        let first = servers.len();
        let started: Vec<Result<TestServer>> = std::thread::scope(|scope| {
            let start = |(number, file): (usize, PathBuf)| {
                let repository = repository(folder, number);
                scope.spawn(move || {
                    let server = start(arguments, &repository, &["--blocks", "1"], &[&file])?;
                    bar.inc(1);
                    Ok(server)
                })
            };
            let starting: Vec<_> =
                (first..).zip(some.iter().map(|file| file.to_path_buf())).map(start).collect();
            let ended = |_| Err(Error::engine("starting a server failed"));
            starting.into_iter().map(|start| start.join().unwrap_or_else(ended)).collect()
        });
        for server in started {
            servers.push(server?);
        }
    }
    for server in &servers {
        ask_each(setup, server)?;
    }
    let used = difference(before, setup.meter.settled_bytes());
    // At the same time, as each takes a moment.
    std::thread::scope(|scope| {
        for server in servers {
            scope.spawn(move || drop(server));
        }
    });
    for number in 0..files.len() {
        let repository = repository(folder, number);
        std::fs::remove_dir_all(&repository)
            .map_err(|error| Error::io(repository.display(), &error))?;
    }
    Ok(used)
}

/// That of a server with a whole model.
fn repository(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("traditional-{number}"))
}

fn start(
    arguments: &BenchGpu,
    repository: &Path,
    more: &[&str],
    files: &[&Path],
) -> Result<TestServer> {
    let engine = arguments.engine.engine.to_string();
    let device = arguments.engine.device.to_string();
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let mut all = vec!["--engine", &engine, "--device", &device, "--no-batching", "--no-store"];
    all.extend(more);
    all.extend(files.iter().map(String::as_str));
    TestServer::start(repository, &all)
}

/// Asks each task once: what a run needs is there after that.
fn ask_each(setup: &Setup, server: &TestServer) -> Result<()> {
    let given = setup.input(1)?;
    let bytes = given.bytes().ok_or_else(|| Error::unsupported("an input of strings"))?;
    let mut client = Client::connect(server.told.http)?;
    for task in &server.told.tasks {
        let request = InferRequest::new(&task.name, setup.input_name(), given.shape(), bytes);
        let (_, answer) = request.send(&mut client)?;
        if answer.status != 200 {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            let (task, status) = (&task.name, answer.status);
            return Err(Error::engine(format!("task {task} answered {status}: {text}")));
        }
    }
    Ok(())
}

fn difference(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    before.zip(after).map(|(before, after)| after.saturating_sub(before))
}

pub(super) fn table(scenarios: &Scenarios) -> output::Table {
    let mut table = output::Table::new(&[
        "scenario",
        ">A",
        ">B",
        ">C",
        ">blocks",
        ">weights",
        ">modular",
        ">traditional",
        ">saved",
        ">saved, thesis",
    ]);
    let bytes = |bytes: Option<u64>| shown(bytes, output::bytes);
    for scenario in &scenarios.scenarios {
        let Scenario { number, class_a, class_b, class_c, blocks, .. } = scenario;
        table.row(
            [number, class_a, class_b, class_c, blocks].map(ToString::to_string).into_iter().chain(
                [
                    output::bytes(scenario.weight_bytes),
                    bytes(scenario.modular_bytes),
                    bytes(scenarios.traditional_bytes),
                    shown(scenario.saving_percent, |percent| format!("{percent:.1} %")),
                    format!("{:.1} %", scenario.thesis_saving_percent),
                ],
            ),
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_become_whole_tasks_and_none_is_lost() {
        assert_eq!(whole_tasks([33, 33, 33], 20), [7, 7, 6]);
        assert_eq!(whole_tasks([10, 30, 60], 20), [2, 6, 12]);
        assert_eq!(whole_tasks([5, 5, 90], 20), [1, 1, 18]);
        // 0.2, 0.8 and 19: the one that is left goes to the largest part.
        assert_eq!(whole_tasks([1, 4, 95], 20), [0, 1, 19]);
        for tasks in 0..40 {
            for (percent, _) in MIXES {
                let counts = whole_tasks(percent, tasks);
                assert_eq!(counts.iter().sum::<usize>(), tasks, "{percent:?} of {tasks}");
            }
        }
    }

    #[test]
    fn a_hundred_tasks_are_the_percentages_themselves() {
        for (percent, _) in MIXES.iter().skip(1) {
            assert_eq!(whole_tasks(*percent, 100), *percent);
        }
    }
}
