//! `tessera bench gpu`: chapter 4 of the BlockFlow thesis on the GPU that there is.

mod arrivals;
mod clients;
mod crowd;
mod energy;
mod experiments;
mod latency;
mod machine;
mod memory;
mod meter;
mod page;
mod pipeline;
mod scenarios;
mod setup;
mod siblings;
mod throughput;

use serde::Serialize;
use tessera_core::{Error, Result};

use crate::arguments::bench::BenchGpu;
use crate::{model_file, output};
pub(super) use meter::Meter;
use setup::Setup;

/// What the ways of running a model are called.
const WHOLE: &str = "whole model";
const RECORDED: &str = "whole model, recorded";
const THREADS: &str = "threads";
const PROCESSES: &str = "processes";
const ZMQ: &str = "processes, zmq-ipc";
const SERVED: &str = "one block, one process";

/// All that was measured; what was not asked for, or failed, is missing.
#[derive(Serialize)]
struct Report {
    machine: machine::Machine,
    model: String,
    blocks: usize,
    latency: Option<latency::Latency>,
    energy: Option<energy::Energy>,
    clients: Option<Vec<clients::Clients>>,
    arrivals: Option<Vec<arrivals::Arrivals>>,
    throughput: Option<throughput::Throughput>,
    memory: Option<Vec<memory::Memory>>,
    scenarios: Option<scenarios::Scenarios>,
}

pub(super) fn run(arguments: &BenchGpu) -> Result<()> {
    check(arguments)?;
    let working = output::spinner(format!("preparing {}", arguments.model));
    let setup = Setup::new(arguments)?;
    working.finish_and_clear();
    let (report, failed) = experiments::run(&setup, arguments);
    if let Some(file) = &arguments.html {
        model_file::write_whole(file, page::page(&report).as_bytes())?;
    }
    match arguments.json {
        true => output::print_json(&report)?,
        false => print(&report)?,
    }
    // Only now: what the others found is not lost.
    match failed {
        0 => Ok(()),
        count => Err(Error::engine(format!("{count} measurements failed, see above"))),
    }
}

fn check(arguments: &BenchGpu) -> Result<()> {
    if !(arguments.seconds.is_finite() && arguments.seconds > 0.0) {
        return Err(Error::usage(format!("--seconds {}, expected more than 0", arguments.seconds)));
    }
    let counts = arguments.batches.iter().chain(&arguments.crowds);
    if arguments.batches.is_empty()
        || arguments.runs == 0
        || counts.clone().any(|&count| count == 0)
    {
        return Err(Error::usage("--batches and --runs, expected 1 or more"));
    }
    Ok(())
}

/// A figure, or a dash where there is none.
fn shown<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), show)
}

fn print(report: &Report) -> Result<()> {
    output::print(&format!("{} in {} blocks", report.model, report.blocks))?;
    for (name, value) in machine::facts(&report.machine) {
        output::print(&format!("{name}: {value}"))?;
    }
    let table = |title: &str, table: output::Table| {
        output::print(&format!("\n{title}"))?;
        table.print()
    };
    if let Some(latency) = &report.latency {
        let [times, blocks] = latency::tables(latency);
        table("latency of one client", times)?;
        table("blocks", blocks)?;
    }
    if let Some(energy) = &report.energy {
        table("energy of one client", energy::table(energy))?;
        let idle = shown(energy.idle_watts, |watts| format!("{watts:.0} W"));
        output::print(&format!("idle: {idle}"))?;
    }
    if let Some(clients) = &report.clients {
        table("clients that wait for their answers", clients::table(clients))?;
    }
    if let Some(arrivals) = &report.arrivals {
        table("requests that come at random", arrivals::table(arrivals))?;
        for arm in arrivals {
            let (name, most) = (&arm.name, arm.saturation_per_second);
            output::print(&format!("{name}: at most {most:.1} answers per second"))?;
        }
    }
    if let Some(throughput) = &report.throughput {
        table("throughput", throughput::table(throughput))?;
    }
    if let Some(memory) = &report.memory {
        table("video memory of blocks", memory::table(memory))?;
    }
    if let Some(scenarios) = &report.scenarios {
        let title = format!("video memory of {} tasks", scenarios.tasks);
        table(&title, scenarios::table(scenarios))?;
    }
    Ok(())
}
