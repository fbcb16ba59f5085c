//! `tessera bench gpu`: chapter 4 of the BlockFlow thesis on the GPU that there is.

mod arguments;
mod arrivals;
mod client_loops;
mod clients;
mod energy;
mod experiments;
mod gpu_meter;
mod html_page;
mod latency;
mod machine;
mod memory;
mod pipeline;
mod scenarios;
mod setup;
mod siblings;
mod throughput;

use serde::Serialize;
use tessera_core::{Error, Result};
use tessera_report::{Table, output};

pub(crate) use arguments::BenchGpu;
pub(crate) use gpu_meter::GpuMeter;
pub(crate) use pipeline::HopTimingsCollector;
use setup::GpuBenchSetup;
use tessera_repository::unfinished_files::write_whole;

/// What the ways of running a model are called.
const WHOLE_MODEL: &str = "whole model";
const WHOLE_CUDA_GRAPH: &str = "whole model, CUDA graph";
const THREADS: &str = "threads";
const PROCESSES: &str = "processes";
const ZMQ: &str = "processes, zmq-ipc";
const SERVED: &str = "one block, one process";

/// All that was measured; what was not asked for, or failed, is missing.
#[derive(Serialize)]
struct GpuBenchReport {
    machine: machine::BenchMachine,
    model: String,
    blocks: usize,
    latency: Option<latency::GpuLatencyReport>,
    energy: Option<energy::EnergyReport>,
    clients: Option<Vec<clients::ClientSweep>>,
    arrivals: Option<Vec<arrivals::ArrivalSweep>>,
    throughput: Option<throughput::GpuThroughput>,
    memory: Option<Vec<memory::PipelineMemory>>,
    scenarios: Option<scenarios::MemoryScenarios>,
}

pub(crate) fn bench_gpu(arguments: &BenchGpu) -> Result<()> {
    check_arguments(arguments)?;
    let working = output::spinner(format!("preparing {}", arguments.model));
    let setup = GpuBenchSetup::new(arguments)?;
    working.finish_and_clear();
    let (report, failed) = experiments::run_experiments(&setup, arguments);
    if let Some(file) = &arguments.html {
        write_whole(file, html_page::render_gpu_page(&report).as_bytes())?;
    }
    if arguments.json {
        output::print_json(&report)?;
    } else {
        print_gpu_report(&report)?;
    }
    // Only now: what the others found is not lost.
    match failed {
        0 => Ok(()),
        count => Err(Error::engine(format!("{count} measurements failed, see above"))),
    }
}

fn check_arguments(arguments: &BenchGpu) -> Result<()> {
    if !(arguments.seconds.is_finite() && arguments.seconds > 0.0) {
        return Err(Error::usage(format!("--seconds {}, expected more than 0", arguments.seconds)));
    }
    let counts = arguments.batches.iter().chain(&arguments.throughput_clients);
    if arguments.batches.is_empty()
        || arguments.runs == 0
        || counts.clone().any(|&count| count == 0)
    {
        return Err(Error::usage("--batches and --runs, expected 1 or more"));
    }
    Ok(())
}

/// A figure, or a dash where there is none.
fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), show)
}

fn print_gpu_report(report: &GpuBenchReport) -> Result<()> {
    output::print_line(&format!("{} in {} blocks", report.model, report.blocks))?;
    for (name, value) in machine::machine_facts(&report.machine) {
        output::print_line(&format!("{name}: {value}"))?;
    }
    let table = |title: &str, table: Table| {
        output::print_line(&format!("\n{title}"))?;
        table.print_table()
    };
    if let Some(latency) = &report.latency {
        let [times, blocks] = latency::latency_tables(latency);
        table("latency of one client", times)?;
        table("blocks", blocks)?;
    }
    if let Some(energy) = &report.energy {
        table("energy of one client", energy::energy_table(energy))?;
        let idle = or_dash(energy.idle_watts, |watts| format!("{watts:.0} W"));
        output::print_line(&format!("idle: {idle}"))?;
    }
    if let Some(clients) = &report.clients {
        table("clients that wait for their answers", clients::clients_table(clients))?;
    }
    if let Some(arrivals) = &report.arrivals {
        table("requests that come at random", arrivals::arrivals_table(arrivals))?;
        for arm in arrivals {
            let (name, most) = (&arm.name, arm.saturation_per_second);
            output::print_line(&format!("{name}: at most {most:.1} answers per second"))?;
        }
    }
    if let Some(throughput) = &report.throughput {
        table("throughput", throughput::throughput_table(throughput))?;
    }
    if let Some(memory) = &report.memory {
        table("video memory of blocks", memory::memory_table(memory))?;
    }
    if let Some(scenarios) = &report.scenarios {
        let title = format!("video memory of {} tasks", scenarios.tasks);
        table(&title, scenarios::scenarios_table(scenarios))?;
    }
    Ok(())
}
