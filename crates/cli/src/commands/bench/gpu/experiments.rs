//! The experiments in an order that suits all of them. One that fails does not end the others.

use tessera_core::Result;

use super::setup::{Kind, Setup};
use super::{Report, arrivals, clients, energy, latency, machine, memory, scenarios, throughput};
use crate::arguments::bench::{BenchGpu, GpuExperiment};
use crate::{interrupt, output};

/// How many measurements failed; what was wrong was told already.
#[derive(Default)]
struct Failures(usize);

impl Failures {
    fn keep<T>(&mut self, what: &str, result: Result<T>) -> Option<T> {
        match result {
            Ok(found) => Some(found),
            Err(error) => {
                interrupt::wait_if_interrupted();
                eprintln!("tessera: {what}: {error}");
                self.0 += 1;
                None
            }
        }
    }
}

/// Runs what is asked for, and tells how many measurements failed. What needs an empty GPU comes first: this
/// process has not opened it by then, and what it opened stays.
pub(super) fn run(setup: &Setup, arguments: &BenchGpu) -> (Report, usize) {
    use GpuExperiment::{Arrivals, Clients, Energy, Latency, Memory, Scenarios, Throughput};
    let is_named = |what| arguments.only.contains(&what);
    let wants = |what| arguments.only.is_empty() || is_named(what);
    let mut failures = Failures::default();

    let mut memory = Vec::new();
    if wants(Memory) {
        memory.extend(failures.keep("memory", memory_of(setup, arguments, Kind::Processes)));
    }
    let scenarios = match scenarios::are_possible(setup, arguments) {
        _ if !wants(Scenarios) => None,
        Ok(architecture) => {
            failures.keep("scenarios", scenarios::measure(setup, arguments, architecture))
        }
        Err(error) if is_named(Scenarios) => failures.keep("scenarios", Err(error)),
        Err(error) => {
            eprintln!("tessera: left out: {error}");
            None
        }
    };
    if wants(Memory) {
        memory.extend(failures.keep("memory", memory_of(setup, arguments, Kind::Threads)));
    }

    let (mut latency, mut energy) = (None, None);
    if wants(Latency) || wants(Energy) {
        let working = output::spinner("starting blocks");
        let kinds = [Kind::Threads, Kind::Served, Kind::Processes, Kind::Zmq];
        let start = |kind| failures.keep("blocks", setup.arm(arguments, kind, None));
        let arms: Vec<_> = kinds.into_iter().filter_map(start).collect();
        working.finish_and_clear();
        if wants(Latency) {
            latency = failures.keep("latency", latency::measure(setup, &arms, arguments.runs));
        }
        if wants(Energy) {
            energy = failures.keep("energy", energy::measure(setup, &arms, arguments.seconds));
        }
    }

    let (mut clients, mut arrivals, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for kind in [Kind::Zmq, Kind::Processes, Kind::Threads] {
        let is_kept = wants(Throughput) && kind != Kind::Zmq;
        if !(wants(Clients) || wants(Arrivals) || is_kept) {
            continue;
        }
        // One at a time, so that its memory can be told from that of the others.
        let working = output::spinner("starting blocks");
        let before = setup.meter.settled_bytes();
        let arm = setup.arm(arguments, kind, Some(arguments.most_rows));
        let arm = failures.keep("blocks", arm);
        working.finish_and_clear();
        let Some(arm) = arm else { continue };
        if wants(Clients) {
            // Half as long: there are many of them.
            let seconds = arguments.seconds / 2.0;
            let found = clients::measure(setup, &arm, arguments.most_clients, seconds);
            clients.extend(failures.keep("clients", found));
        }
        if wants(Arrivals) {
            let crowd = arguments.crowds.first().copied().unwrap_or(1);
            let found = arrivals::measure(setup, &arm, before, crowd, arguments.seconds);
            arrivals.extend(failures.keep("arrivals", found));
        }
        if is_kept {
            kept.push(arm);
        }
    }
    // In the order in which the others tell them.
    clients.reverse();
    arrivals.reverse();
    kept.reverse();
    let throughput = match wants(Throughput) {
        true => failures.keep("throughput", throughput::measure(setup, &kept, arguments)),
        false => None,
    };
    drop(kept);
    let report = Report {
        machine: machine::look(setup),
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
fn memory_of(setup: &Setup, arguments: &BenchGpu, kind: Kind) -> Result<memory::Memory> {
    let working = output::spinner("memory");
    let before = setup.meter.settled_bytes();
    let arm = setup.arm(arguments, kind, None)?;
    let found = memory::measure(setup, &arm, before);
    working.finish_and_clear();
    found
}
