//! `tessera load`

use std::io::IsTerminal;
use std::time::Duration;

use tessera_core::{Error, Result};
use tessera_load::{
    Arrivals, MetricsPage, Mode, Options, Phase, Progress, Rates, Report, Stop, SweepReport,
    Target, Workload, WorkloadOptions, parse_range, parse_shape, run as measure, sweep,
};

use crate::arguments::Load;
use crate::{interrupt, model_file, output};

pub(super) fn run(arguments: &Load) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::io("the runtime of the load", &error))?;
    let stop = Stop::new();
    let interrupted = stop.clone();
    // What was measured until then is shown.
    interrupt::instead(move || interrupted.stop());
    let result = runtime.block_on(load(arguments, &stop));
    runtime.shutdown_background();
    result
}

async fn load(arguments: &Load, stop: &Stop) -> Result<()> {
    let seconds = |value: f64, option: &str| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| Error::usage(format!("{option} {value}, expected seconds")))
    };
    let deadline = arguments.deadline.map(|ms| seconds(ms / 1e3, "--deadline")).transpose()?;
    let mut target = Target::new(&arguments.url, &arguments.model);
    target.version.clone_from(&arguments.version);
    let description = target.describe().await?;
    let workload = Workload::new(
        &description,
        &WorkloadOptions {
            shapes: arguments.shapes.iter().map(|text| parse_shape(text)).collect::<Result<_>>()?,
            ranges: arguments.ranges.iter().map(|text| parse_range(text)).collect::<Result<_>>()?,
            batch: arguments.batch,
            seed: arguments.seed,
            json: arguments.json_tensors,
            send_deadline: deadline.filter(|_| arguments.send_deadline),
            ..WorkloadOptions::default()
        },
    )?;
    let duration = seconds(arguments.duration, "--duration")?;
    let arrivals: Arrivals = arguments.arrivals.parse()?;
    let mode = match arguments.rate {
        Some(rate) => Mode::Open { rate, arrivals, duration, seed: arguments.seed },
        None if arguments.sweep.is_some() => {
            Mode::Open { rate: 1.0, arrivals, duration, seed: arguments.seed }
        }
        None => Mode::Closed {
            clients: arguments.clients.unwrap_or(1),
            duration: arguments.requests.is_none().then_some(duration),
            requests: arguments.requests,
        },
    };
    let mut options = Options::new(mode);
    options.warm_up = seconds(arguments.warm_up, "--warm-up")?;
    options.deadline = deadline;
    options.max_connections = arguments.connections;
    if let Some(url) = &arguments.metrics {
        options.metrics = Some(MetricsPage::open(url).await?);
    }
    let bar = output::spinner("warming up");
    let show = |progress: &Progress| bar.set_message(line(progress));
    if let Some(rates) = &arguments.sweep {
        let rates: Rates = rates.parse()?;
        let report = sweep(&target, &workload, &options, &rates, stop, show).await?;
        bar.finish_and_clear();
        return finish_sweep(arguments, &report);
    }
    let report = measure(&target, &workload, &options, stop, show).await?;
    bar.finish_and_clear();
    finish(arguments, &report)
}

/// How far it is, in a line.
fn line(progress: &Progress) -> String {
    let phase = match progress.phase {
        Phase::WarmUp => "warming up",
        Phase::Measuring => "measuring",
        Phase::Draining => "waiting for answers",
    };
    let offered =
        progress.offered_per_second.map_or_else(String::new, |rate| format!(" at {rate:.1}/s"));
    format!(
        "{phase}{offered}: {} done, {:.1}/s, p50 {:.2} ms, p99 {:.2} ms, {} errors",
        progress.done, progress.rate_per_second, progress.p50_ms, progress.p99_ms, progress.errors
    )
}

fn finish(arguments: &Load, report: &Report) -> Result<()> {
    if let Some(file) = &arguments.html {
        model_file::write_whole(file, report.html().as_bytes())?;
    }
    match arguments.json {
        true => output::print_json(report)?,
        false => output::print(report.table().trim_end())?,
    }
    told(arguments)
}

fn finish_sweep(arguments: &Load, report: &SweepReport) -> Result<()> {
    if let Some(file) = &arguments.html {
        model_file::write_whole(file, report.html().as_bytes())?;
    }
    match arguments.json {
        true => output::print_json(report)?,
        false => output::print(report.table().trim_end())?,
    }
    told(arguments)
}

fn told(arguments: &Load) -> Result<()> {
    match &arguments.html {
        Some(file) if !arguments.json && std::io::stdout().is_terminal() => {
            output::print(&format!("report: {}", file.display()))
        }
        _ => Ok(()),
    }
}
