//! The experiments in an order that suits all of them. One that fails does not end the others.

use tessera_command::interrupt;
use tessera_core::Result;
use tessera_report::output;

use super::arguments::{BenchGpu, GpuExperiment};
use super::setup::{ArmKind, GpuBenchSetup};
use super::{
    GpuBenchReport, arrivals, clients, energy, latency, machine, memory, scenarios, throughput,
};

/// How many measurements failed; what was wrong was told already.
#[derive(Default)]
struct ExperimentFailures(usize);

impl ExperimentFailures {
    fn keep_or_report<T>(&mut self, what: &str, result: Result<T>) -> Option<T> {
        match result {
            Ok(found) => Some(found),
            Err(error) => {
                interrupt::wait_if_interrupted();
                output::print_notice(&format!("{what}: {error}"));
                self.0 += 1;
                None
            }
        }
    }
}

/// Runs what is asked for, and tells how many measurements failed. What needs an empty GPU comes
/// first: this process has not opened it by then, and what it opened stays.
pub(crate) fn run_experiments(
    setup: &GpuBenchSetup,
    arguments: &BenchGpu,
) -> (GpuBenchReport, usize) {
    use GpuExperiment::{Arrivals, Clients, Energy, Latency, Memory, Scenarios, Throughput};
    let is_named = |what| arguments.only.contains(&what);
    let wants = |what| arguments.only.is_empty() || is_named(what);
    let mut failures = ExperimentFailures::default();

    let mut memory = Vec::new();
    if wants(Memory) {
        memory.extend(
            failures.keep_or_report("memory", memory_of(setup, arguments, ArmKind::Processes)),
        );
    }
    let scenarios = match scenarios::scenario_architecture(setup, arguments) {
        _ if !wants(Scenarios) => None,
        Ok(architecture) => failures.keep_or_report(
            "scenarios",
            scenarios::measure_scenarios(setup, arguments, architecture),
        ),
        Err(error) if is_named(Scenarios) => failures.keep_or_report("scenarios", Err(error)),
        Err(error) => {
            output::print_notice(&format!("left out: {error}"));
            None
        }
    };
    if wants(Memory) {
        memory.extend(
            failures.keep_or_report("memory", memory_of(setup, arguments, ArmKind::Threads)),
        );
    }

    let (mut latency, mut energy) = (None, None);
    if wants(Latency) || wants(Energy) {
        let working = output::spinner("starting units");
        let kinds = [ArmKind::Threads, ArmKind::Served, ArmKind::Processes, ArmKind::Zmq];
        let start = |kind| failures.keep_or_report("units", setup.start_arm(arguments, kind, None));
        let arms: Vec<_> =
            kinds.into_iter().filter(|kind| kind.is_built_in()).filter_map(start).collect();
        working.finish_and_clear();
        if wants(Latency) {
            latency = failures
                .keep_or_report("latency", latency::measure_latency(setup, &arms, arguments.runs));
        }
        if wants(Energy) {
            energy = failures
                .keep_or_report("energy", energy::measure_energy(setup, &arms, arguments.seconds));
        }
    }

    let (mut clients, mut arrivals, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for kind in [ArmKind::Zmq, ArmKind::Processes, ArmKind::Threads] {
        let is_kept = wants(Throughput) && kind != ArmKind::Zmq;
        if !(wants(Clients) || wants(Arrivals) || is_kept) || !kind.is_built_in() {
            continue;
        }
        // One at a time, so that its memory can be told from that of the others.
        let working = output::spinner("starting units");
        let before = setup.meter.stable_used_bytes();
        let arm = setup.start_arm(arguments, kind, Some(arguments.most_rows));
        let arm = failures.keep_or_report("units", arm);
        working.finish_and_clear();
        let Some(arm) = arm else { continue };
        if wants(Clients) {
            // Half as long: there are many of them.
            let seconds = arguments.seconds / 2.0;
            let found = clients::measure_clients(setup, &arm, arguments.most_clients, seconds);
            clients.extend(failures.keep_or_report("clients", found));
        }
        if wants(Arrivals) {
            let client_count = arguments.throughput_clients.first().copied().unwrap_or(1);
            let found =
                arrivals::measure_arrivals(setup, &arm, before, client_count, arguments.seconds);
            arrivals.extend(failures.keep_or_report("arrivals", found));
        }
        if is_kept {
            kept.push(arm);
        }
    }
    // In the order in which the others report them.
    clients.reverse();
    arrivals.reverse();
    kept.reverse();
    let throughput = if wants(Throughput) {
        failures
            .keep_or_report("throughput", throughput::measure_throughput(setup, &kept, arguments))
    } else {
        None
    };
    drop(kept);
    let report = GpuBenchReport {
        machine: machine::inspect_machine(setup),
        model: arguments.model.clone(),
        blocks: setup.partition.graph.blocks.len(),
        latency,
        energy,
        clients: wants(Clients).then_some(clients),
        arrivals: wants(Arrivals).then_some(arrivals),
        throughput,
        memory: wants(Memory).then_some(memory),
        scenarios,
    };
    (report, failures.0)
}

/// Video memory of a pipeline that is there for this alone.
fn memory_of(
    setup: &GpuBenchSetup,
    arguments: &BenchGpu,
    kind: ArmKind,
) -> Result<memory::PipelineMemory> {
    let working = output::spinner("memory");
    let before = setup.meter.stable_used_bytes();
    let arm = setup.start_arm(arguments, kind, None)?;
    let found = memory::measure_memory(setup, &arm, before);
    working.finish_and_clear();
    found
}
