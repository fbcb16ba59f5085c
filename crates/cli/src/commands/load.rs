//! `tessera load`

use std::io::IsTerminal;
use std::time::Duration;
use tessera_report::output;

use crate::arguments::LoadArguments;
use tessera_command::interrupt;
use tessera_core::{Error, Result};
use tessera_load::{
    Arrivals, LoadMode, LoadPhase, LoadProgress, LoadReport, LoadTarget, LoadTestOptions,
    MetricsPage, StopToken, SweepRates, SweepReport, Workload, WorkloadOptions, parse_range,
    parse_shape, render_load_page, render_load_table, render_sweep_page, render_sweep_table,
    run_load_test, run_sweep,
};
use tessera_repository::unfinished_files::write_whole;

pub(super) fn run_load(arguments: &LoadArguments) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::from_io("the runtime of the load", &error))?;
    let stop = StopToken::new();
    let interrupted = stop.clone();
    // What was measured until then is shown.
    interrupt::on_first_interrupt(move || interrupted.request_stop());
    let result = runtime.block_on(measure_target(arguments, &stop));
    runtime.shutdown_background();
    result
}

async fn measure_target(arguments: &LoadArguments, stop: &StopToken) -> Result<()> {
    let seconds = |value: f64, option: &str| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| Error::usage(format!("{option} {value}, expected seconds")))
    };
    let deadline = arguments.deadline.map(|ms| seconds(ms / 1e3, "--deadline")).transpose()?;
    let mut target = LoadTarget::new(&arguments.url, &arguments.model);
    target.version.clone_from(&arguments.version);
    let description = target.fetch_description().await?;
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
        Some(rate) => LoadMode::Open { rate, arrivals, duration, seed: arguments.seed },
        None if arguments.sweep.is_some() => {
            LoadMode::Open { rate: 1.0, arrivals, duration, seed: arguments.seed }
        }
        None => LoadMode::Closed {
            clients: arguments.clients.unwrap_or(1),
            duration: arguments.requests.is_none().then_some(duration),
            requests: arguments.requests,
        },
    };
    let mut options = LoadTestOptions::new(mode);
    options.warm_up = seconds(arguments.warm_up, "--warm-up")?;
    options.deadline = deadline;
    options.max_connections = arguments.connections;
    if let Some(url) = &arguments.metrics {
        options.metrics = Some(MetricsPage::open(url).await?);
    }
    let bar = output::spinner("warming up");
    let show = |progress: &LoadProgress| bar.set_message(progress_line(progress));
    if let Some(rates) = &arguments.sweep {
        let rates: SweepRates = rates.parse()?;
        let report = run_sweep(&target, &workload, &options, &rates, stop, show).await?;
        bar.finish_and_clear();
        return finish_sweep(arguments, &report);
    }
    let report = run_load_test(&target, &workload, &options, stop, show).await?;
    bar.finish_and_clear();
    finish_run(arguments, &report)
}

/// How far it is, in a line.
fn progress_line(progress: &LoadProgress) -> String {
    let phase = match progress.phase {
        LoadPhase::WarmUp => "warming up",
        LoadPhase::Measuring => "measuring",
        LoadPhase::Draining => "waiting for answers",
    };
    let offered =
        progress.offered_per_second.map_or_else(String::new, |rate| format!(" at {rate:.1}/s"));
    format!(
        "{phase}{offered}: {} done, {:.1}/s, p50 {:.2} ms, p99 {:.2} ms, {} errors",
        progress.done, progress.rate_per_second, progress.p50_ms, progress.p99_ms, progress.errors
    )
}

fn finish_run(arguments: &LoadArguments, report: &LoadReport) -> Result<()> {
    if let Some(file) = &arguments.html {
        write_whole(file, render_load_page(report).as_bytes())?;
    }
    if arguments.json {
        output::print_json(report)?;
    } else {
        output::print_line(render_load_table(report).trim_end())?;
    }
    print_report_path(arguments)
}

fn finish_sweep(arguments: &LoadArguments, report: &SweepReport) -> Result<()> {
    if let Some(file) = &arguments.html {
        write_whole(file, render_sweep_page(report).as_bytes())?;
    }
    if arguments.json {
        output::print_json(report)?;
    } else {
        output::print_line(render_sweep_table(report).trim_end())?;
    }
    print_report_path(arguments)
}

fn print_report_path(arguments: &LoadArguments) -> Result<()> {
    match &arguments.html {
        Some(file) if !arguments.json && std::io::stdout().is_terminal() => {
            output::print_line(&format!("report: {}", file.display()))
        }
        _ => Ok(()),
    }
}
