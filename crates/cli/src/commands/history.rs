//! `tessera history` and `tessera undo`: what was changed at a running server.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tessera_command::HttpMethod;
use tessera_core::Result;
use tessera_report::{Table, output};

use super::serving::names_of;
use crate::arguments::{ServerArguments, UndoArguments};

/// How long ago something was, in words.
fn describe_age(at: &Value) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let at = u128::from(at.as_u64().unwrap_or_default());
    let seconds = now.saturating_sub(at) / 1000;
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        _ => format!("{} h ago", seconds / 3600),
    }
}

/// What became of a task: its fields that are others than they were.
fn describe_difference(name: &str, task: &Value) -> String {
    let (before, after) = (&task["before"], &task["after"]);
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else {
        let what = if before.is_null() { "added" } else { "removed" };
        return format!("{name} {what}");
    };
    let mut fields: Vec<&String> = before.keys().chain(after.keys()).collect();
    fields.sort_unstable();
    fields.dedup();
    let changed = fields.into_iter().filter(|field| before.get(*field) != after.get(*field));
    let shown = |value: Option<&Value>| value.map_or_else(|| "–".to_owned(), Value::to_string);
    let changed = changed
        .map(|field| format!("{field} {} → {}", shown(before.get(field)), shown(after.get(field))));
    format!("{name}: {}", changed.collect::<Vec<_>>().join(", "))
}

pub(super) fn run_history(server: &ServerArguments) -> Result<()> {
    let listed = server.ask(HttpMethod::GET, "/v1/history", None)?;
    if server.json {
        return output::print_json(&listed);
    }
    let mut table = Table::new(&[">change", ">when", "who", "what", ">started", ">stopped"]);
    for change in listed["changes"].as_array().into_iter().flatten() {
        let tasks = change["tasks"].as_object().into_iter().flatten();
        let mut what: Vec<String> =
            tasks.map(|(name, task)| describe_difference(name, task)).collect();
        if let Some(undone) = change["undoes"].as_u64() {
            what.push(format!("(undoes {undone})"));
        }
        table.add_row([
            change["number"].to_string(),
            describe_age(&change["at"]),
            change["who"].as_str().unwrap_or_default().to_owned(),
            what.join("; "),
            names_of(&change["started"]).len().to_string(),
            names_of(&change["stopped"]).len().to_string(),
        ]);
    }
    table.print_table()?;
    let instances = listed["instances"].as_array().map_or(&[][..], Vec::as_slice);
    if instances.is_empty() {
        return Ok(());
    }
    output::print_line("")?;
    let mut table = Table::new(&["instance", "", ">when", "why"]);
    for event in instances {
        table.add_row([
            event["instance"].as_str().unwrap_or_default().to_owned(),
            event["kind"].as_str().unwrap_or_default().to_owned(),
            describe_age(&event["at"]),
            event["reason"].as_str().unwrap_or_default().to_owned(),
        ]);
    }
    table.print_table()
}

pub(super) fn run_undo(arguments: &UndoArguments) -> Result<()> {
    let path = format!("/v1/history/{}/undo", arguments.number);
    let changed = arguments.server.ask(HttpMethod::POST, &path, None)?;
    if arguments.server.json {
        return output::print_json(&changed);
    }
    output::print_line(&format!(
        "change {} is undone: {} started, {} stopped",
        arguments.number,
        names_of(&changed["started"]).len(),
        names_of(&changed["stopped"]).len()
    ))
}
