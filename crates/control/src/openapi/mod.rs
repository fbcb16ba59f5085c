//! The OpenAPI document of the REST interface.
//!
//! It is written out here, and not derived: intent is read by hand, so that its schemas are, too.
//! Tests hold every answer against it, and every document that intent takes or refuses.

mod schemas;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::names;

/// The OpenAPI 3.1 document, as `GET /openapi.json` answers it.
pub fn openapi() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tessera control plane",
            "description": "Which tasks there should be, which there are, and the blocks behind them.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"}
        },
        "paths": paths(),
        "components": {
            "schemas": schemas::schemas(),
            "parameters": parameters(),
            "responses": responses()
        }
    })
}

/// What carrying a change out may end in, besides having done it.
const CHANGE: [u16; 6] = [400, 404, 413, 500, 501, 503];
/// The same for one that has no body.
const BODILESS_CHANGE: [u16; 5] = [400, 404, 500, 501, 503];

fn paths() -> Value {
    let block = |name: &'static str| operation(name).of("Block");
    json!({
        "/v1/system": {
            "get": operation("getSystem").says("The tasks that there should be.").gives("System"),
            "put": operation("putSystem")
                .says("Make these the tasks that there are. Those that stay are not disturbed; where it \
                       fails nothing has changed.")
                .takes("System").gives("Changed").or(&CHANGE),
            "post": operation("postSystem")
                .says("The same as PUT, for clients that were written for BlockFlow.")
                .takes("System").gives("Changed").or(&CHANGE)
        },
        "/v1/tasks": {
            "get": operation("listTasks").says("Every task, and how it is.").gives("Tasks")
        },
        "/v1/tasks/{task}": {
            "get": operation("getTask").of("Task")
                .says("How a task is, and how it is defined.").gives("TaskDetail").or(&[404]),
            "put": operation("putTask").of("Task")
                .says("Add a task or change it; the others stay as they are.")
                .takes("Task").gives("Changed").or(&CHANGE),
            "delete": operation("deleteTask").of("Task")
                .says("Stop serving a task.").gives("Changed").or(&BODILESS_CHANGE)
        },
        "/v1/tasks/{task}/exits": {
            "get": operation("listExits").of("Task")
                .says("The exits of a task.").gives("Exits").or(&[404])
        },
        "/v1/tasks/{task}/exits/{exit}": {
            "put": operation("putExit").of("Task").of("Exit")
                .says("Set the threshold of an exit, at once.")
                .takes("NewThreshold").gives("ExitStatus").or(&CHANGE)
        },
        "/v1/blocks": {
            "get": operation("listBlocks").says("Every block that runs or should.").gives("Blocks")
        },
        "/v1/blocks/{block}": {
            "get": block("getBlock").says("How a block is.").gives("BlockStatus").or(&[400, 404])
        },
        "/v1/blocks/{block}/ping": {
            "post": block("pingBlock").says("Ask every instance of a block for a sign of life.")
                .gives("Pinged").or(&BODILESS_CHANGE)
        },
        "/v1/blocks/{block}/stop": {
            "post": block("stopBlock").says("Stop a block until it is started again.")
                .gives("BlockStatus").or(&BODILESS_CHANGE)
        },
        "/v1/blocks/{block}/start": {
            "post": block("startBlock").says("Start a block that was stopped or has failed.")
                .gives("BlockStatus").or(&BODILESS_CHANGE)
        },
        "/v1/events": {
            "get": operation("events")
                .says("What happens from now on, as Server-Sent Events: each is a JSON object with a \
                       kind. {\"kind\": \"lagged\", \"missed\": N} stands for those that came too fast.")
                .gives_as("text/event-stream", json!({"type": "string"}))
        },
        "/openapi.json": {
            "get": operation("getOpenapi").says("This document.")
                .gives_as("application/json", json!({"type": "object"}))
        }
    })
}

/// An operation, in the making.
struct Operation {
    operation: Map<String, Value>,
    parameters: Vec<Value>,
    responses: Map<String, Value>,
}

fn operation(id: &str) -> Operation {
    let mut operation = Map::new();
    operation.insert("operationId".to_owned(), id.into());
    // Other methods of the same path are answered so.
    let responses = Map::from_iter([("405".to_owned(), component("responses", "405"))]);
    Operation { operation, parameters: Vec::new(), responses }
}

impl Operation {
    fn says(mut self, summary: &str) -> Self {
        self.operation.insert("summary".to_owned(), summary.into());
        self
    }

    fn of(mut self, parameter: &str) -> Self {
        self.parameters.push(component("parameters", parameter));
        self
    }

    fn takes(mut self, schema: &str) -> Self {
        let content = json!({"application/json": {"schema": component("schemas", schema)}});
        let body = json!({"required": true, "content": content});
        self.operation.insert("requestBody".to_owned(), body);
        self
    }

    fn gives(self, schema: &str) -> Self {
        self.gives_as("application/json", component("schemas", schema))
    }

    fn gives_as(mut self, media_type: &str, schema: Value) -> Self {
        let content = Map::from_iter([(media_type.to_owned(), json!({"schema": schema}))]);
        let response = json!({"description": "It was carried out.", "content": content});
        self.responses.insert("200".to_owned(), response);
        self
    }

    fn or(mut self, statuses: &[u16]) -> Self {
        for status in statuses {
            let status = status.to_string();
            let response = component("responses", &status);
            self.responses.insert(status, response);
        }
        self
    }
}

impl Serialize for Operation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut operation = self.operation.clone();
        if !self.parameters.is_empty() {
            operation.insert("parameters".to_owned(), self.parameters.clone().into());
        }
        operation.insert("responses".to_owned(), self.responses.clone().into());
        operation.serialize(serializer)
    }
}

/// A reference to a part of the document.
fn component(kind: &str, name: &str) -> Value {
    json!({"$ref": format!("#/components/{kind}/{name}")})
}

fn parameters() -> Value {
    let parameter = |name: &str, description: &str, schema: Value| {
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "description": description,
            "schema": schema
        })
    };
    json!({
        "Task": parameter("task", "Name of a task.", json!({"type": "string", "pattern": names::TASK})),
        "Exit": parameter("exit", "Name of an exit.", json!({"type": "string", "minLength": 1})),
        "Block": parameter(
            "block",
            "Name of a block, or the beginning of its name or of its hash.",
            json!({"type": "string", "pattern": names::UNIT})
        )
    })
}

/// What an answer is that is none, by status.
fn responses() -> Value {
    let response = |description: &str| {
        let content = json!({"application/json": {"schema": component("schemas", "Error")}});
        json!({"description": description, "content": content})
    };
    json!({
        "400": response("The request makes no sense: the error names every field that is wrong."),
        "404": response("What the request names is not there."),
        "405": response("The path does not take this method."),
        "413": response("The body is larger than 1 MiB."),
        "500": response("The server failed."),
        "501": response("The request makes sense, but this server can't do that."),
        "503": response("The server can't do that now.")
    })
}
