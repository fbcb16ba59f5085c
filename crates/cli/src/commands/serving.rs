//! `tessera put`, `rm`, `tasks`, `status` and `events`: a running server from the command line.

use serde_json::{Map, Value, json};
use tessera_command::{ControlClient, HttpMethod, RequestBody};
use tessera_core::{Error, ErrorKind, Result};
use tessera_report::{Table, format_bytes, output};
use tessera_repository::{ModelFile, ModelShapes, NamedFile, name_files};

use crate::arguments::{PutArguments, RmArguments, ServerArguments, WatchArguments};
use crate::model_archive::ModelArchive;

impl ServerArguments {
    pub(super) fn client(&self) -> ControlClient {
        self.asker.client_of(&self.server)
    }

    /// The models that are there, unless whoever asks may not know; an error where none are taken,
    /// before a large one is sent in vain.
    fn known_models(&self) -> Result<Option<Vec<String>>> {
        let error = match self.ask(HttpMethod::GET, "/v1/models", None) {
            Ok(listed) => {
                let models = listed["models"].as_array().into_iter().flatten();
                let names = models.filter_map(|model| Some(model["name"].as_str()?.to_owned()));
                return Ok(Some(names.collect()));
            }
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::NotFound => Err(Error::usage(format!(
                "{}: no control plane that takes models; expected the port of --control, 8003",
                self.server
            ))),
            // Whoever may change something need not be let see it.
            ErrorKind::Usage => Ok(None),
            _ => Err(error),
        }
    }

    pub(super) fn ask(
        &self,
        method: HttpMethod,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        self.client().ask_blocking(method, path, body)
    }
}

/// A name as a part of a path.
pub(super) fn path_part(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

pub(super) fn run_put(arguments: &PutArguments) -> Result<()> {
    let fields = read_fields(&arguments.fields)?;
    if arguments.task.is_some() && arguments.models.len() > 1 {
        return Err(Error::usage("--task names one task, and several models are given"));
    }
    // All are read before the first is sent.
    let mut read = Vec::new();
    for NamedFile { name, path } in name_files(&arguments.models)? {
        let file = NamedFile { name: name.clone(), path };
        let shapes = ModelShapes::default();
        let model = ModelFile::read_named(&file, &shapes, &[], &mut Default::default())?;
        model.check_cuttable()?;
        read.push((name, ModelArchive::of_model(&model)?));
    }
    let known = arguments.server.known_models()?;
    let mut answers = Vec::new();
    for (name, archive) in &read {
        let put = put_one(arguments, name, archive, &fields);
        let is_new = known.as_ref().is_some_and(|known| !known.contains(name));
        if put.is_err() && !arguments.dry_run && is_new {
            // What nobody serves is not left behind; where it never came there is nothing to forget.
            let path = format!("/v1/models/{}", path_part(name));
            arguments.server.ask(HttpMethod::DELETE, &path, None).ok();
        }
        answers.push(put?);
    }
    if arguments.server.json {
        return output::print_json(&json!({ "models": answers }));
    }
    Ok(())
}

/// Sends one model, and has a task serve it.
fn put_one(
    arguments: &PutArguments,
    name: &str,
    archive: &ModelArchive,
    fields: &Map<String, Value>,
) -> Result<Value> {
    let server = &arguments.server;
    let working = output::spinner(format!("sending {name}"));
    let query = if arguments.dry_run { "?dry_run=true" } else { "" };
    let path = format!("/v1/models/{}{query}", path_part(name));
    let body = RequestBody::Upload(archive);
    let stored = server.client().send_blocking(HttpMethod::PUT, &path, body)?;
    if arguments.dry_run || arguments.no_task {
        working.finish_and_clear();
        if !server.json {
            print_stored(name, &stored)?;
        }
        return Ok(json!({ "stored": stored }));
    }
    let task = arguments.task.as_deref().unwrap_or(name);
    working.set_message(format!("starting {task}"));
    let mut definition = fields.clone();
    definition.insert("model".to_owned(), name.into());
    let path = format!("/v1/tasks/{}", path_part(task));
    let changed = server.ask(HttpMethod::PUT, &path, Some(&Value::Object(definition)))?;
    working.finish_and_clear();
    if !server.json {
        print_stored(name, &stored)?;
        print_changed(&format!("task {task}"), &changed)?;
    }
    Ok(json!({ "stored": stored, "task": task, "changed": changed }))
}

/// Fields of a task: JSON where it is some, else text.
fn read_fields(given: &[String]) -> Result<Map<String, Value>> {
    let mut fields = Map::new();
    for field in given {
        let (name, value) = field.split_once('=').ok_or_else(|| {
            Error::usage(format!("--set {field}: expected FIELD=VALUE, such as deadline_ms=500"))
        })?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        fields.insert(name.to_owned(), value);
    }
    Ok(fields)
}

fn print_stored(name: &str, stored: &Value) -> Result<()> {
    let bytes = |field: &str| format_bytes(stored[field].as_u64().unwrap_or_default());
    let blocks = stored["blocks"].as_array().map_or(&[][..], Vec::as_slice);
    let verb = if stored["is_kept"] == true { "is" } else { "would be" };
    output::print_line(&format!(
        "model {name} {verb} {} of {}, {} of them new",
        count_of(blocks.len(), "block"),
        bytes("weight_bytes"),
        bytes("new_weight_bytes"),
    ))?;
    for block in blocks {
        let users = names_of(&block["shared_with"]);
        if !users.is_empty() {
            let hash: String =
                block["hash"].as_str().unwrap_or_default().chars().take(12).collect();
            let weights = format_bytes(block["weight_bytes"].as_u64().unwrap_or_default());
            output::print_line(&format!("  {hash}  {weights} shared with {}", users.join(", ")))?;
        }
    }
    let recut = names_of(&stored["recut"]);
    if !recut.is_empty() {
        output::print_line(&format!("  cut further for that: {}", recut.join(", ")))?;
    }
    Ok(())
}

fn print_changed(what: &str, changed: &Value) -> Result<()> {
    let count = |field: &str| changed[field].as_array().map_or(0, Vec::len);
    output::print_line(&format!(
        "{what}: {} started, {} kept, {} stopped",
        count_of(count("started"), "unit"),
        count("kept"),
        count("stopped"),
    ))?;
    for warning in names_of(&changed["warnings"]) {
        output::print_notice(&warning);
    }
    Ok(())
}

fn count_of(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

pub(super) fn names_of(list: &Value) -> Vec<String> {
    let names = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    names.map(str::to_owned).collect()
}

pub(super) fn run_rm(arguments: &RmArguments) -> Result<()> {
    let server = &arguments.server;
    let mut answers = Vec::new();
    for task in &arguments.tasks {
        let path = format!("/v1/tasks/{}", path_part(task));
        let detail = server.ask(HttpMethod::GET, &path, None)?;
        let model = detail["definition"]["model"].as_str().map(str::to_owned);
        let model = model.filter(|_| arguments.model);
        if arguments.dry_run {
            let units = units_of_task_alone(server, task)?;
            if !server.json {
                let stopped = if units.is_empty() { "none".to_owned() } else { units.join(", ") };
                output::print_line(&format!("task {task} would stop; units with it: {stopped}"))?;
            }
            answers.push(json!({ "task": task, "stopped": units }));
            continue;
        }
        let changed = server.ask(HttpMethod::DELETE, &path, None)?;
        if !server.json {
            print_changed(&format!("task {task} is gone"), &changed)?;
        }
        if let Some(model) = &model {
            let path = format!("/v1/models/{}", path_part(model));
            server.ask(HttpMethod::DELETE, &path, None)?;
            if !server.json {
                output::print_line(&format!("model {model} is forgotten"))?;
            }
        }
        answers.push(json!({ "task": task, "changed": changed, "model": model }));
    }
    if server.json {
        return output::print_json(&json!({ "tasks": answers }));
    }
    Ok(())
}

/// The units that nobody else uses.
fn units_of_task_alone(server: &ServerArguments, task: &str) -> Result<Vec<String>> {
    let listed = server.ask(HttpMethod::GET, "/v1/units", None)?;
    let units = listed["units"].as_array().into_iter().flatten();
    let alone = units.filter(|unit| names_of(&unit["tasks"]) == [task]);
    Ok(alone.filter_map(|unit| Some(unit["name"].as_str()?.to_owned())).collect())
}

pub(super) fn run_tasks(server: &ServerArguments) -> Result<()> {
    let answer = server.ask(HttpMethod::GET, "/v1/tasks", None)?;
    if server.json {
        return output::print_json(&answer);
    }
    let mut table = Table::new(&["task", ">version", "state", ">units", ">in flight", "exits"]);
    for task in answer["tasks"].as_array().into_iter().flatten() {
        let text = |field: &str| task[field].as_str().unwrap_or_default().to_owned();
        let exits = task["exits"].as_array().into_iter().flatten().map(|exit| {
            let name = exit["name"].as_str().unwrap_or_default();
            format!("{name} at {}, taken {}", exit["threshold"], exit["taken"])
        });
        let state = match task["reason"].as_str() {
            Some(reason) => format!("{}: {reason}", text("state")),
            None => text("state"),
        };
        table.add_row([
            text("name"),
            text("version"),
            state,
            task["path"].as_array().map_or(0, Vec::len).to_string(),
            task["in_flight"].to_string(),
            exits.collect::<Vec<_>>().join("; "),
        ]);
    }
    table.print_table()
}

pub(super) fn run_status(server: &ServerArguments) -> Result<()> {
    let tasks = server.ask(HttpMethod::GET, "/v1/tasks", None)?;
    let units = server.ask(HttpMethod::GET, "/v1/units", None)?;
    if server.json {
        return output::print_json(&json!({ "tasks": tasks["tasks"], "units": units["units"] }));
    }
    let tasks = tasks["tasks"].as_array().cloned().unwrap_or_default();
    let units = units["units"].as_array().cloned().unwrap_or_default();
    let ready = tasks.iter().filter(|task| task["state"] == "ready").count();
    let of = |unit: &Value| unit["weight_bytes"].as_u64().unwrap_or_default();
    let users = |unit: &Value| unit["tasks"].as_array().map_or(1, Vec::len).max(1) as u64;
    let (held, apart): (u64, u64) =
        (units.iter().map(of).sum(), units.iter().map(|unit| of(unit) * users(unit)).sum());
    output::print_line(&format!(
        "{} ({ready} ready), {}; weights {}, {} if no task shared any",
        count_of(tasks.len(), "task"),
        count_of(units.len(), "unit"),
        format_bytes(held),
        format_bytes(apart),
    ))?;
    let mut table = Table::new(&["unit", "tasks", "device", ">weights", "instances", ">requests"]);
    for unit in &units {
        let text = |field: &str| unit[field].as_str().unwrap_or_default().to_owned();
        let instances = unit["instances"].as_array().map_or(&[][..], Vec::as_slice);
        let states: Vec<&str> =
            instances.iter().filter_map(|instance| instance["state"].as_str()).collect();
        let requests = instances.iter().filter_map(|instance| instance["requests"].as_u64());
        table.add_row([
            text("name"),
            names_of(&unit["tasks"]).join(","),
            text("device"),
            format_bytes(of(unit)),
            states.join(", "),
            requests.sum::<u64>().to_string(),
        ]);
    }
    table.print_table()
}

pub(super) fn run_events(arguments: &WatchArguments) -> Result<()> {
    let mut left = arguments.count.unwrap_or(u64::MAX);
    if left == 0 {
        return Ok(());
    }
    arguments.server.client().follow_events("/v1/events", &mut |event| {
        let parsed: Value = serde_json::from_str(event).unwrap_or_default();
        let kind = parsed["kind"].as_str().unwrap_or_default();
        if !arguments.kind.is_empty() && !arguments.kind.iter().any(|wanted| wanted == kind) {
            return Ok(true);
        }
        output::print_line(&describe_event(&parsed, event, arguments.server.json))?;
        left -= 1;
        Ok(left > 0)
    })
}

/// An event in a line, for people; as it came for machines.
fn describe_event(event: &Value, text: &str, json: bool) -> String {
    if json {
        return text.to_owned();
    }
    let mut line = event["kind"].as_str().unwrap_or("event").to_owned();
    let simple = event.as_object().into_iter().flatten().filter(|(name, value)| {
        !matches!(name.as_str(), "kind" | "at") && !value.is_array() && !value.is_object()
    });
    for (name, value) in simple {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if !value.is_empty() {
            line.push_str(&format!("  {name} {value}"));
        }
    }
    line
}
