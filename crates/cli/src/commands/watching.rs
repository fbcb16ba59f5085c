//! `tessera top` and `tessera requests`: what a running server does, and which of its requests are
//! worth a look.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

use serde_json::Value;
use tessera_command::HttpMethod;
use tessera_core::{Error, Result};
use tessera_report::{Table, format_bytes, output};

use super::serving::{names_of, path_part};
use crate::arguments::{LiveArguments, RequestsArguments};

/// Lines of a terminal that does not say how many it has.
const USUAL_LINES: usize = 24;
/// Requests of each kind that are listed.
const MOST_LISTED: usize = 10;

pub(super) fn run_top(arguments: &LiveArguments) -> Result<()> {
    let mut left = arguments.count.unwrap_or(u64::MAX);
    if left == 0 {
        return Ok(());
    }
    let is_drawn = std::io::stdout().is_terminal();
    arguments.server.client().follow_events("/v1/live", &mut |report| {
        let parsed: Value = serde_json::from_str(report).unwrap_or_default();
        if !parsed["tasks"].is_array() {
            // It says that some were missed.
            return Ok(true);
        }
        if arguments.server.json {
            output::print_line(report)?;
        } else if is_drawn {
            draw(&describe_report(&parsed))?;
        } else {
            output::print_line(describe_report(&parsed).trim_end())?;
        }
        left -= 1;
        Ok(left > 0)
    })
}

/// Shows this in place of what was shown before, as far as there are lines.
fn draw(text: &str) -> Result<()> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    let lines = size.map_or(0, |size| usize::from(size.ws_row));
    let lines = if lines > 1 { lines - 1 } else { USUAL_LINES };
    let mut screen = "\x1b[H".to_owned();
    for line in text.lines().take(lines) {
        screen.push_str(line);
        screen.push_str("\x1b[K\n");
    }
    screen.push_str("\x1b[J");
    let mut out = std::io::stdout().lock();
    let written = out.write_all(screen.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Error::from_io("the terminal", &error))
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_default()
}

fn milliseconds(value: &Value, field: &str) -> String {
    value[field].as_f64().map_or_else(|| "–".to_owned(), |time| format!("{time:.1}"))
}

fn describe_report(report: &Value) -> String {
    let mut text = format!(
        "{:.0} answers a second, p50 {} ms, p99 {} ms; {:.0} refused, {:.0} failed, {:.0} degraded; \
         {} waiting\n",
        number(report, "answered_per_second"),
        milliseconds(report, "p50_ms"),
        milliseconds(report, "p99_ms"),
        number(report, "refused_per_second"),
        number(report, "failed_per_second"),
        number(report, "degraded_per_second"),
        number(report, "waiting"),
    );
    for memory in report["memory"].as_array().into_iter().flatten() {
        let bytes = |field: &str| format_bytes(memory[field].as_u64().unwrap_or_default());
        let device = memory["device"].as_str().unwrap_or_default();
        let bounded = memory["budget_bytes"].as_u64().map_or_else(String::new, |budget| {
            format!("; {} of {} in memory", bytes("used_bytes"), format_bytes(budget))
        });
        // Writing to a text can't fail.
        writeln!(
            text,
            "{device}: weights {}, sharing saves {}{bounded}",
            bytes("weight_bytes"),
            bytes("saved_bytes")
        )
        .ok();
    }
    text.push('\n');
    text.push_str(&task_table(report).to_text());
    text.push('\n');
    text.push_str(&unit_table(report).to_text());
    text
}

/// The rows of a list, those first of which there is most.
fn sorted_by<'a>(report: &'a Value, list: &str, field: &str) -> Vec<&'a Value> {
    let mut rows: Vec<&Value> = report[list].as_array().into_iter().flatten().collect();
    rows.sort_by(|one, other| number(other, field).total_cmp(&number(one, field)));
    rows
}

fn task_table(report: &Value) -> Table {
    let heads = [
        "task",
        "version",
        "state",
        ">in flight",
        ">answers/s",
        ">p50 ms",
        ">p99 ms",
        ">refused/s",
        ">failed/s",
        "left by exits",
    ];
    let mut table = Table::new(&heads);
    for task in sorted_by(report, "tasks", "answered_per_second") {
        let left: f64 = task["exits"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, rate)| rate.as_f64())
            .sum();
        let all = left + number(task, "stayed_per_second");
        let exits = if all > 0.0 { format!("{:.0}%", 100.0 * left / all) } else { String::new() };
        let is_ready = task["ready"].as_bool().unwrap_or_default();
        table.add_row([
            task["name"].as_str().unwrap_or_default().to_owned(),
            task["version"].as_str().unwrap_or_default().to_owned(),
            if is_ready { "ready" } else { "not ready" }.to_owned(),
            number(task, "in_flight").to_string(),
            format!("{:.0}", number(task, "answered_per_second")),
            milliseconds(task, "p50_ms"),
            milliseconds(task, "p99_ms"),
            format!("{:.0}", number(task, "refused_per_second")),
            format!("{:.0}", number(task, "failed_per_second")),
            exits,
        ]);
    }
    table
}

fn unit_table(report: &Value) -> Table {
    let heads = [
        "unit",
        "tasks",
        "device",
        ">up",
        ">in flight",
        ">runs/s",
        ">rows/run",
        ">busy",
        ">waiting p99",
        ">computing p50",
        "weights",
    ];
    let mut table = Table::new(&heads);
    for unit in sorted_by(report, "units", "busy") {
        let runs = number(unit, "runs_per_second");
        let rows = number(unit, "requests_per_second") / runs;
        let places = unit["weight_places"].as_object().into_iter().flatten();
        let places: Vec<&str> = places.map(|(place, _)| place.as_str()).collect();
        table.add_row([
            unit["name"].as_str().unwrap_or_default().to_owned(),
            names_of(&unit["tasks"]).join(","),
            unit["device"].as_str().unwrap_or_default().to_owned(),
            format!("{}/{}", number(unit, "up"), number(unit, "instances")),
            number(unit, "in_flight").to_string(),
            format!("{runs:.0}"),
            if runs > 0.0 { format!("{rows:.1}") } else { String::new() },
            format!("{:.0}%", 100.0 * number(unit, "busy")),
            milliseconds(unit, "waiting_p99_ms"),
            milliseconds(unit, "computing_p50_ms"),
            places.join(","),
        ]);
    }
    table
}

pub(super) fn run_requests(arguments: &RequestsArguments) -> Result<()> {
    let path = match &arguments.task {
        None => "/v1/requests".to_owned(),
        Some(task) => format!("/v1/tasks/{}/requests", path_part(task)),
    };
    let listed = arguments.server.ask(HttpMethod::GET, &path, None)?;
    if arguments.server.json {
        return output::print_json(&listed);
    }
    let lists =
        listed.as_object().into_iter().flatten().map(|(kind, requests)| {
            (kind.clone(), requests.as_array().cloned().unwrap_or_default())
        });
    let lists: Vec<(String, Vec<Value>)> = lists.collect();
    if lists.iter().all(|(_, requests)| requests.is_empty()) {
        return output::print_line("no request is worth a look so far");
    }
    let heads = [
        "kind",
        "task",
        "request",
        ">ms",
        ">waited",
        ">loading",
        ">computed",
        ">overhead",
        ">retries",
        "slowest unit",
        "why",
    ];
    let mut table = Table::new(&heads);
    for (kind, requests) in &lists {
        for request in requests.iter().take(MOST_LISTED) {
            let hops = request["hops"].as_array().into_iter().flatten();
            let time = |hop: &Value| {
                ["waited_us", "computed_us", "overhead_us"]
                    .map(|part| number(hop, part))
                    .iter()
                    .sum()
            };
            let slowest = hops.max_by(|one, other| {
                let (one, other): (f64, f64) = (time(one), time(other));
                one.total_cmp(&other)
            });
            table.add_row([
                kind.clone(),
                request["task"].as_str().unwrap_or_default().to_owned(),
                request["request"].as_str().unwrap_or_default().to_owned(),
                milliseconds(request, "ms"),
                milliseconds(request, "waited_ms"),
                format!("{:.1}", number(request, "loading_ms")),
                milliseconds(request, "computed_ms"),
                milliseconds(request, "overhead_ms"),
                number(request, "retries").to_string(),
                slowest.and_then(|hop| hop["unit"].as_str()).unwrap_or_default().to_owned(),
                request["reason"].as_str().unwrap_or_default().to_owned(),
            ]);
        }
    }
    table.print_table()
}
