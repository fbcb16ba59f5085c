//! `tessera serve` and `tessera instance`: the roles of the server, started from the command line.

use std::collections::BTreeMap;
use tessera_report::output;

use tessera_command::interrupt;
use tessera_control::UnitStatus;
use tessera_core::Result;
use tessera_server::{
    FailedModel, LogControl, ServerAddresses, ServerStatus, ShutdownSignal, shutdown_channel,
};
use tracing::level_filters::LevelFilter;

use crate::arguments::ServeArguments;
use crate::logs::start_logging;

pub(super) fn run_serve(arguments: &ServeArguments) -> Result<()> {
    let log = start_logging(arguments.log.log, arguments.log.log_json);
    let (trigger, shutdown) = shutdown_channel();
    interrupt::on_first_interrupt(move || trigger.request_shutdown());
    tessera_server::run_role(serve_until(arguments, log, shutdown))
}

async fn serve_until(
    arguments: &ServeArguments,
    log: LogControl,
    mut shutdown: ShutdownSignal,
) -> Result<()> {
    let server = arguments.server_config(log)?.build().await?;
    let Some(server) = server.start_tasks(&mut shutdown).await? else { return Ok(()) };
    announce_server(&server.server_status(), arguments.json)?;
    server.run_until(&mut shutdown).await;
    Ok(())
}

/// Runs an instance for the node that started this process.
pub(super) fn run_instance() -> Result<()> {
    start_logging(LevelFilter::WARN, false);
    let input = std::io::BufReader::new(std::io::stdin());
    let end_process = || signal_hook::low_level::exit(1);
    let result = tessera_server::run_instance(input, std::io::stdout(), end_process);
    if let Err(error) = &result {
        output::print_notice(&error.to_string());
    }
    // Without the usual goodbyes: libraries for GPUs take theirs badly.
    signal_hook::low_level::exit(i32::from(result.is_err()))
}

/// Says where the server is and what it serves.
fn announce_server(status: &ServerStatus, json: bool) -> Result<()> {
    if json {
        return output::print_json_line(status);
    }
    let ServerStatus { addresses, engine, cores, tasks, units, failed, .. } = status;
    output::print_line(&format!("tessera {}, {engine}, {cores} cores", env!("CARGO_PKG_VERSION")))?;
    for (what, url) in address_lines(addresses) {
        output::print_line(&format!("  {what:<8} {url}"))?;
    }
    let by_name: BTreeMap<&str, &UnitStatus> =
        units.iter().map(|unit| (unit.name.as_str(), unit)).collect();
    for task in tasks {
        let path: Vec<String> = task
            .path
            .iter()
            .map(|name| match by_name.get(name.as_str()) {
                Some(unit) if unit.tasks.len() > 1 => format!("{name} (shared)"),
                Some(unit) if unit.blocks.len() > 1 => {
                    format!("{name} ({} blocks as one)", unit.blocks.len())
                }
                _ => name.clone(),
            })
            .collect();
        output::print_line(&format!("  task {}: {}", task.name, path.join(" → ")))?;
    }
    for FailedModel { name, reason, .. } in failed {
        output::print_line(&format!("  not served: {name}: {reason}"))?;
    }
    if tasks.is_empty() {
        output::print_line("  no tasks yet: tessera serve MODEL.onnx, or PUT /v1/system")?;
    }
    output::print_line("ready; Ctrl-C stops")
}

/// What is where, for people.
fn address_lines(addresses: &ServerAddresses) -> [(&'static str, String); 4] {
    [
        ("http", format!("http://{}/v2", addresses.http)),
        ("grpc", addresses.grpc.to_string()),
        ("metrics", format!("http://{}/metrics", addresses.metrics)),
        ("control", format!("http://{}/v1/system", addresses.control)),
    ]
}
