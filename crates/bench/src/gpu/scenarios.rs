//! Video memory of many tasks: blocks that are shared beside a whole model for each, in the
//! scenarios of table 4.4 of the BlockFlow thesis.

use std::path::{Path, PathBuf};
use tessera_report::{Table, format_bytes, output};

use serde::Serialize;
use tessera_core::{DType, Error, Result};
use tessera_zoo::Architecture;

use super::arguments::BenchGpu;
use super::siblings::{self, SiblingFiles};
use super::{GpuBenchSetup, or_dash};
use crate::test_client::{TestClient, TestInferRequest};
use crate::test_server::TestServer;

/// Servers with a whole model each that are started at the same time.
const AT_A_TIME: usize = 4;

/// Percent of the tasks in classes A, B and C, and what the thesis computes that blocks save, in
/// percent (its table 4.5).
const CLASS_MIXES: [([usize; 3], f64); 8] = [
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
pub(crate) struct MemoryScenarios {
    pub(crate) tasks: usize,
    /// A process with a whole model for each task: the same in all scenarios.
    pub(crate) traditional_bytes: Option<u64>,
    pub(crate) scenarios: Vec<MemoryScenario>,
}

/// One mix of classes.
#[derive(Serialize)]
pub(crate) struct MemoryScenario {
    pub(crate) number: usize,
    /// Tasks with a model of their own.
    pub(crate) class_a: usize,
    /// Tasks that have the first half of their stages in common.
    pub(crate) class_b: usize,
    /// Tasks that have the first three quarters of their stages in common.
    pub(crate) class_c: usize,
    /// Units that ran, on threads of one process, and their weights.
    pub(crate) units: usize,
    pub(crate) weight_bytes: u64,
    pub(crate) modular_bytes: Option<u64>,
    pub(crate) saving_percent: Option<f64>,
    /// What the thesis computes, with a process for each block.
    pub(crate) thesis_saving_percent: f64,
}

/// Whole tasks of each class, by largest remainder.
pub(crate) fn whole_tasks(percent: [usize; 3], tasks: usize) -> [usize; 3] {
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

/// Whether there can be scenarios of this model: tasks are made in the zoo, and asked over HTTP
/// with floats.
pub(crate) fn scenario_architecture(
    setup: &GpuBenchSetup,
    arguments: &BenchGpu,
) -> Result<Architecture> {
    let architecture: Architecture = arguments.model.parse().map_err(|error: Error| {
        error.with_context("scenarios need an architecture of the zoo, whose siblings they make")
    })?;
    match &setup.partition.graph.inputs[..] {
        [port] if port.tensor_type.dtype == DType::F32 && architecture.stage_count() >= 4 => {
            Ok(architecture)
        }
        _ => Err(Error::unsupported(format!(
            "scenarios of {architecture}, expected one input of f32 and four stages or more"
        ))),
    }
}

pub(crate) fn measure_scenarios(
    setup: &GpuBenchSetup,
    arguments: &BenchGpu,
    architecture: Architecture,
) -> Result<MemoryScenarios> {
    let tasks = arguments.tasks.max(1);
    let mixes = CLASS_MIXES.map(|(percent, thesis)| (whole_tasks(percent, tasks), thesis));
    let most = |class: usize| mixes.iter().map(|(counts, _)| counts[class]).max().unwrap_or(0);
    let folder = setup.folder.path().join("scenarios");
    // Every task of the traditional way has a model of class A.
    let counts = [tasks, most(1), most(2)];
    let bar = output::progress_bar(counts.iter().sum::<usize>() as u64, "scenarios: models");
    let siblings = siblings::make_siblings(architecture, &folder, counts, &bar)?;
    bar.finish_and_clear();
    let bar = output::progress_bar((tasks + mixes.len()) as u64, "scenarios");
    let traditional_bytes = measure_traditional(setup, arguments, &siblings, &folder, &bar)?;
    let mut scenarios = Vec::new();
    for (number, (counts, thesis_saving_percent)) in (1..).zip(mixes) {
        let files = siblings.files_of_classes(counts);
        let before = setup.meter.stable_used_bytes();
        // All in one repository: blocks that were there before are not prepared again.
        let server = start_server(arguments, &folder.join("modular"), &[], &files)?;
        ask_each(setup, &server)?;
        let after = setup.meter.stable_used_bytes();
        let modular_bytes = bytes_added(before, after);
        let weights = server.announced.units.iter().map(|unit| unit.weight_bytes);
        let saving = |(modular, traditional): (u64, u64)| {
            100.0 - modular as f64 * 100.0 / traditional.max(1) as f64
        };
        scenarios.push(MemoryScenario {
            number,
            class_a: counts[0],
            class_b: counts[1],
            class_c: counts[2],
            units: server.announced.units.len(),
            weight_bytes: weights.sum(),
            modular_bytes,
            saving_percent: modular_bytes.zip(traditional_bytes).map(saving),
            thesis_saving_percent,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    std::fs::remove_dir_all(&folder).map_err(|error| Error::from_io(folder.display(), &error))?;
    Ok(MemoryScenarios { tasks, traditional_bytes, scenarios })
}

/// A server for each task, with a whole model of its own.
fn measure_traditional(
    setup: &GpuBenchSetup,
    arguments: &BenchGpu,
    siblings: &SiblingFiles,
    folder: &Path,
    bar: &output::ProgressBar,
) -> Result<Option<u64>> {
    let before = setup.meter.stable_used_bytes();
    let files = siblings.files_of_classes([arguments.tasks.max(1), 0, 0]);
    let mut servers: Vec<TestServer> = Vec::new();
    for some in files.chunks(AT_A_TIME) {
        let first = servers.len();
        let started: Vec<Result<TestServer>> = std::thread::scope(|scope| {
            let start = |(number, file): (usize, PathBuf)| {
                let repository = traditional_repository(folder, number);
                scope.spawn(move || {
                    let server =
                        start_server(arguments, &repository, &["--blocks", "1"], &[&file])?;
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
    let used = bytes_added(before, setup.meter.stable_used_bytes());
    // At the same time, as each takes a moment.
    std::thread::scope(|scope| {
        for server in servers {
            scope.spawn(move || drop(server));
        }
    });
    for number in 0..files.len() {
        let repository = traditional_repository(folder, number);
        std::fs::remove_dir_all(&repository)
            .map_err(|error| Error::from_io(repository.display(), &error))?;
    }
    Ok(used)
}

/// That of a server with a whole model.
fn traditional_repository(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("traditional-{number}"))
}

fn start_server(
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
    TestServer::start_server(repository, &all)
}

/// Asks each task once: what a run needs is there after that.
fn ask_each(setup: &GpuBenchSetup, server: &TestServer) -> Result<()> {
    let given = setup.random_input(1)?;
    let bytes = given.bytes().ok_or_else(|| Error::unsupported("an input of strings"))?;
    let mut client = TestClient::connect(server.announced.http)?;
    for task in &server.announced.tasks {
        let request = TestInferRequest::new(&task.name, setup.input_name(), given.shape(), bytes);
        let (_, answer) = request.send_to(&mut client)?;
        answer.require_ok(&format!("task {}", task.name))?;
    }
    Ok(())
}

fn bytes_added(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    before.zip(after).map(|(before, after)| after.saturating_sub(before))
}

pub(crate) fn scenarios_table(scenarios: &MemoryScenarios) -> Table {
    let mut table = Table::new(&[
        "scenario",
        ">A",
        ">B",
        ">C",
        ">units",
        ">weights",
        ">modular",
        ">traditional",
        ">saved",
        ">saved, thesis",
    ]);
    let bytes = |bytes: Option<u64>| or_dash(bytes, format_bytes);
    for scenario in &scenarios.scenarios {
        let MemoryScenario { number, class_a, class_b, class_c, units, .. } = scenario;
        table.add_row(
            [number, class_a, class_b, class_c, units].map(ToString::to_string).into_iter().chain(
                [
                    format_bytes(scenario.weight_bytes),
                    bytes(scenario.modular_bytes),
                    bytes(scenarios.traditional_bytes),
                    or_dash(scenario.saving_percent, |percent| format!("{percent:.1} %")),
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
            for (percent, _) in CLASS_MIXES {
                let counts = whole_tasks(percent, tasks);
                assert_eq!(counts.iter().sum::<usize>(), tasks, "{percent:?} of {tasks}");
            }
        }
    }

    #[test]
    fn a_hundred_tasks_are_the_percentages_themselves() {
        for (percent, _) in CLASS_MIXES.iter().skip(1) {
            assert_eq!(whole_tasks(*percent, 100), *percent);
        }
    }
}
