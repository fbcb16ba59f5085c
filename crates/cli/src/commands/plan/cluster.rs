//! `tessera plan --cluster`: what the planner of a running cluster would do, and why.

use serde_json::Value;
use tessera_command::HttpMethod;
use tessera_core::Result;
use tessera_report::{Table, output};

use crate::arguments::plan::ClusterPlanArguments;

pub(super) fn show_cluster_plan(arguments: &ClusterPlanArguments) -> Result<()> {
    let plan = arguments.admin.ask(HttpMethod::GET, "/v1/plan", None)?;
    if arguments.json {
        return output::print_json(&plan);
    }
    if let Some(reason) = plan["reason"].as_str() {
        output::print_line(&format!("no plan: {reason}"))?;
    }
    print_rows(
        &plan["tasks"],
        &["task", "input", "nodes", "takes", "would be", "takes", ""],
        |task| {
            let moves = task["moves"].as_bool().unwrap_or_default();
            let is_same = task["nodes"] == task["planned_nodes"];
            let moving = moves.then_some("it moves").or(task["reason"].as_str());
            let said = moving.into_iter().chain(task["degrade_reason"].as_str());
            let reason = said.collect::<Vec<_>>().join("; ");
            vec![
                text(&task["task"]),
                text(&task["input_node"]),
                node_runs(&task["nodes"]),
                milliseconds(&task["expected_ms"]),
                if is_same { "the same".to_owned() } else { node_runs(&task["planned_nodes"]) },
                milliseconds(&task["planned_ms"]),
                reason,
            ]
        },
    )?;
    let exits: Vec<Value> = rows_of(&plan["tasks"]).iter().flat_map(exit_rows).collect();
    print_rows(
        &Value::Array(exits),
        &["task", "exit", "threshold", "leave", "would be", "leave", "accuracy", ""],
        |exit| {
            let is_same = exit["threshold"] == exit["planned_threshold"];
            vec![
                text(&exit["task"]),
                text(&exit["exit"]),
                number(&exit["threshold"]),
                percent(&exit["rate"]),
                if is_same { "the same".to_owned() } else { number(&exit["planned_threshold"]) },
                percent(&exit["planned_rate"]),
                text(&exit["accuracy"]),
                text(&exit["threshold_reason"]),
            ]
        },
    )?;
    print_rows(&plan["links"], &["from", "to", "round trip", "Mbit/s", "hop", "probes"], |link| {
        let rate = link["megabits_per_second"].as_f64();
        let is_cut = link["is_cut"].as_bool().unwrap_or_default();
        vec![
            text(&link["from"]),
            text(&link["to"]),
            if is_cut { "cut".to_owned() } else { milliseconds(&link["round_trip_ms"]) },
            rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
            milliseconds(&link["hop_ms"]),
            if link["is_filtered"].as_bool().unwrap_or_default() {
                "no UDP".to_owned()
            } else {
                format!("{} kB", link["probe_bytes"].as_u64().unwrap_or_default() / 1000)
            },
        ]
    })?;
    print_rows(&plan["moves"], &["moved", "from", "to", "took", "gained", ""], |found| {
        let gained = found["before_ms"].as_f64().zip(found["after_ms"].as_f64());
        vec![
            text(&found["task"]),
            node_runs(&found["from"]),
            node_runs(&found["to"]),
            milliseconds(&found["took_ms"]),
            gained.map_or_else(|| "-".to_owned(), |(old, new)| format!("{:.1} ms", old - new)),
            text(&found["error"]),
        ]
    })
}

/// The exits of a task; what is said of all of them is beside the first.
fn exit_rows(task: &Value) -> Vec<Value> {
    let mut rows = rows_of(&task["exits"]).to_vec();
    for row in &mut rows {
        row["task"] = task["task"].clone();
    }
    if let (Some(first), Some(least)) = (rows.first_mut(), task["least_accuracy"].as_f64()) {
        let expected = percent(&task["expected_accuracy"]);
        first["accuracy"] = format!("{expected} of {:.1}%", least * 100.0).into();
        first["threshold_reason"] = task["threshold_reason"].clone();
    }
    rows
}

fn rows_of(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A table of what is in a list; nothing where it is empty.
fn print_rows(
    list: &Value,
    heads: &[&'static str],
    row: impl Fn(&Value) -> Vec<String>,
) -> Result<()> {
    let items = rows_of(list);
    if items.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(heads);
    for item in items {
        table.add_row(row(item));
    }
    table.print_table()?;
    output::print_line("")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |number| format!("{number:.3}"))
}

fn percent(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |share| format!("{:.1}%", share * 100.0))
}

fn milliseconds(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms"))
}

/// Nodes in the order in which requests pass them, with how many blocks are at each.
fn node_runs(list: &Value) -> String {
    let nodes: Vec<&str> =
        list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let runs = nodes.chunk_by(|one, other| one == other);
    let runs = runs.map(|run| format!("{} ({})", run[0], run.len()));
    runs.collect::<Vec<_>>().join(", ")
}
