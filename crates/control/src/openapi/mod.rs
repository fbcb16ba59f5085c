//! The OpenAPI document of the REST interface.
//!
//! It is written out here, and not derived: intent is read by hand, so that its schemas are, too.
//! Tests hold every answer against it, and every document that intent takes or refuses.

mod live_schemas;
mod schema_parts;
mod schemas;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::api::cluster_routes::cluster_route_table;
use crate::names;

/// The OpenAPI 3.1 document of a host by itself, as its `GET /openapi.json` answers it: without what
/// only a controller has.
pub(crate) fn host_openapi_document() -> Value {
    let mut document = openapi_document();
    if let Some(paths) = document["paths"].as_object_mut() {
        for (path, _) in cluster_route_table() {
            paths.remove(path);
        }
    }
    document
}

/// The OpenAPI 3.1 document, as a controller's `GET /openapi.json` answers it.
pub fn openapi_document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tessera control plane",
            "description": "Which tasks there should be, which there are, and the units behind them; at a \
                controller also the nodes of its cluster, and the tokens that let them in.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"}
        },
        "paths": path_items(),
        "components": {
            "schemas": schemas::all_schemas(),
            "parameters": path_parameters(),
            "responses": error_responses()
        }
    })
}

/// What carrying a change out may end in, besides having done it.
const CHANGE_ERRORS: [u16; 7] = [400, 404, 413, 415, 500, 501, 503];
/// The same for one that has no body.
const BODILESS_CHANGE_ERRORS: [u16; 5] = [400, 404, 500, 501, 503];
/// The same for one that says that it is JSON though there is nothing to say.
const BODILESS_POST_ERRORS: [u16; 6] = [400, 404, 415, 500, 501, 503];

fn path_items() -> Value {
    let unit = |name: &'static str| new_operation(name).with_parameter("Unit");
    let node = |name: &'static str| new_operation(name).with_parameter("Node");
    json!({
        "/v1/system": {
            "get": new_operation("getSystem").with_summary("The tasks that there should be.").with_response("System"),
            "put": new_operation("putSystem")
                .with_summary("Make these the tasks that there are. Those that stay are not disturbed; where it \
                       fails nothing has changed.")
                .with_request_body("System").with_response("Changed").with_error_statuses(&CHANGE_ERRORS),
            "post": new_operation("postSystem")
                .with_summary("The same as PUT, for clients that were written for BlockFlow.")
                .with_request_body("System").with_response("Changed").with_error_statuses(&CHANGE_ERRORS)
        },
        "/v1/models": {
            "get": new_operation("listModels")
                .with_summary("Every model that is kept, whether or not a task serves it.").with_response("ModelList")
                .with_error_statuses(&[500, 501])
        },
        "/v1/models/{model}": {
            "get": new_operation("getModel").with_parameter("Model")
                .with_summary("A model, and who has its blocks, too.").with_response("ModelStatus")
                .with_error_statuses(&[404, 500, 501]),
            "put": new_operation("putModel").with_parameter("Model").with_parameter("DryRun")
                .with_summary("Keep a model, in place of the one of this name. It is cut so that what it has in \
                       common with models that are served falls into blocks of both.")
                .with_upload().with_response("StoredModel").with_error_statuses(&[400, 415, 500, 501, 503]),
            "delete": new_operation("deleteModel").with_parameter("Model")
                .with_summary("Forget a model that no task serves.").with_response("ModelStatus")
                .with_error_statuses(&[400, 404, 500, 501])
        },
        "/v1/tasks": {
            "get": new_operation("listTasks").with_summary("Every task, and how it is.").with_response("TaskList")
        },
        "/v1/tasks/{task}": {
            "get": new_operation("getTask").with_parameter("Task")
                .with_summary("How a task is, and how it is defined.").with_response("TaskDetail").with_error_statuses(&[404]),
            "put": new_operation("putTask").with_parameter("Task")
                .with_summary("Add a task or change it; the others stay as they are.")
                .with_request_body("Task").with_response("Changed").with_error_statuses(&CHANGE_ERRORS),
            "delete": new_operation("deleteTask").with_parameter("Task")
                .with_summary("Stop serving a task.").with_response("Changed").with_error_statuses(&BODILESS_CHANGE_ERRORS)
        },
        "/v1/tasks/{task}/exits": {
            "get": new_operation("listExits").with_parameter("Task")
                .with_summary("The exits of a task.").with_response("ExitList").with_error_statuses(&[404])
        },
        "/v1/tasks/{task}/exits/{exit}": {
            "put": new_operation("putExit").with_parameter("Task").with_parameter("Exit")
                .with_summary("Set the threshold of an exit, at once.")
                .with_request_body("NewThreshold").with_response("ExitStatus").with_error_statuses(&CHANGE_ERRORS)
        },
        "/v1/units": {
            "get": new_operation("listUnits").with_summary("Every unit that runs or should.").with_response("UnitList")
        },
        "/v1/units/{unit}": {
            "get": unit("getUnit").with_summary("How a unit is.").with_response("UnitStatus").with_error_statuses(&[400, 404])
        },
        "/v1/units/{unit}/ping": {
            "post": unit("pingUnit").with_summary("Ask every instance of a unit for a sign of life.")
                .with_response("PingAnswers").with_json_type().with_error_statuses(&BODILESS_POST_ERRORS)
        },
        "/v1/units/{unit}/stop": {
            "post": unit("stopUnit").with_summary("Stop a unit until it is started again.")
                .with_response("UnitStatus").with_json_type().with_error_statuses(&BODILESS_POST_ERRORS)
        },
        "/v1/units/{unit}/start": {
            "post": unit("startUnit").with_summary("Start a unit that was stopped or has failed.")
                .with_response("UnitStatus").with_json_type().with_error_statuses(&BODILESS_POST_ERRORS)
        },
        "/v1/plan": {
            "get": new_operation("getPlan")
                .with_summary("What the planner would do with the tasks of the cluster, and why.")
                .with_response("ClusterPlan")
        },
        "/v1/nodes": {
            "get": new_operation("listNodes").with_summary("The nodes of the cluster.").with_response("NodeList")
        },
        "/v1/nodes/{node}": {
            "get": node("getNode").with_summary("How a node is.").with_response("NodeStatus").with_error_statuses(&[404]),
            "delete": node("removeNode")
                .with_summary("Have a node not belong to the cluster any more; what ran there runs elsewhere before.")
                .with_response("NodeStatus").with_error_statuses(&BODILESS_CHANGE_ERRORS)
        },
        "/v1/nodes/{node}/drain": {
            "post": node("drainNode").with_summary("Have what runs at a node run elsewhere, and give it nothing to do.")
                .with_response("NodeStatus").with_json_type().with_error_statuses(&BODILESS_POST_ERRORS)
        },
        "/v1/nodes/{node}/undrain": {
            "post": node("undrainNode").with_summary("Give a node something to do again.")
                .with_response("NodeStatus").with_json_type().with_error_statuses(&BODILESS_POST_ERRORS)
        },
        "/v1/tokens": {
            "get": new_operation("listTokens").with_summary("The tokens that let nodes in, without their secrets.").with_response("TokenList"),
            "post": new_operation("createToken")
                .with_summary("Make a token that lets one node in.")
                .with_request_body("NewToken").with_response("Token").with_error_statuses(&[400, 413, 415, 500])
        },
        "/v1/tokens/{token}": {
            "delete": new_operation("revokeToken").with_parameter("Token")
                .with_summary("Have a token let nobody in any more.")
                .with_response("Token").with_error_statuses(&[400, 404, 500])
        },
        "/v1/events": {
            "get": new_operation("events")
                .with_summary("What happens from now on, as Server-Sent Events: each is a JSON object with a \
                       kind. {\"kind\": \"lagged\", \"missed\": N} stands for those that came too fast.")
                .with_response_as("text/event-stream", json!({"type": "string"}))
        },
        "/v1/live": {
            "get": new_operation("live")
                .with_summary("What was done in each second from now on, and how everything is at its end, as \
                       Server-Sent Events: the data of each is a LiveReport, see the schemas. Percentiles are of the last 5 to 10 seconds in \
                       which somebody listened.")
                .with_response_as("text/event-stream", json!({"type": "string"}))
                .with_error_statuses(&[404])
        },
        "/v1/requests": {
            "get": new_operation("listRequests")
                .with_summary("Requests that are worth a look: the slowest of the last minute or two, and the newest \
                       that did not end with a full answer, some of each second.")
                .with_response("RequestLists").with_error_statuses(&[404])
        },
        "/v1/tasks/{task}/requests": {
            "get": new_operation("listTaskRequests").with_parameter("Task")
                .with_summary("The same of one task.").with_response("RequestLists").with_error_statuses(&[404])
        },
        "/v1/history": {
            "get": new_operation("listHistory")
                .with_summary("What was changed since the start, by whom, and which instances came and went; the newest \
                       first.")
                .with_response("HistoryLists")
        },
        "/v1/history/{number}/undo": {
            "post": new_operation("undoChange").with_parameter("ChangeNumber")
                .with_summary("Make tasks be as they were before a change, where they are still as it left them.")
                .with_json_type().with_response("Changed").with_error_statuses(&[400, 404, 415, 500, 503])
        },
        "/openapi.json": {
            "get": new_operation("getOpenapi").with_summary("This document.")
                .with_response_as("application/json", json!({"type": "object"}))
        }
    })
}

/// An operation, in the making.
struct Operation {
    operation: Map<String, Value>,
    parameters: Vec<Value>,
    responses: Map<String, Value>,
}

fn new_operation(id: &str) -> Operation {
    let mut operation = Map::new();
    operation.insert("operationId".to_owned(), id.into());
    // Other methods of the same path are answered so.
    let responses = Map::from_iter([("405".to_owned(), component_reference("responses", "405"))]);
    Operation { operation, parameters: Vec::new(), responses }
}

impl Operation {
    fn with_summary(mut self, summary: &str) -> Self {
        self.operation.insert("summary".to_owned(), summary.into());
        self
    }

    fn with_parameter(mut self, parameter: &str) -> Self {
        self.parameters.push(component_reference("parameters", parameter));
        self
    }

    fn with_request_body(mut self, schema: &str) -> Self {
        let content =
            json!({"application/json": {"schema": component_reference("schemas", schema)}});
        let body = json!({"required": true, "content": content});
        self.operation.insert("requestBody".to_owned(), body);
        self
    }

    /// For a model.
    fn with_upload(mut self) -> Self {
        let file = json!({"schema": {"type": "string", "format": "binary"}});
        let description = "An ONNX file by itself; or an archive with one, and what belongs to it: the files that \
            its weights are in, MODEL.exits.json, MODEL.config.pbtxt, MODEL.labels.txt.";
        let body = json!({
            "required": true,
            "description": description,
            "content": {"application/octet-stream": file, "application/x-tar": file}
        });
        self.operation.insert("requestBody".to_owned(), body);
        self
    }

    /// For what has nothing to say, and says as JSON that it does.
    fn with_json_type(mut self) -> Self {
        let content = json!({"application/json": {"schema": {"type": "object"}}});
        let description = "Nothing is read of it; the content type must be application/json.";
        let body = json!({"required": false, "description": description, "content": content});
        self.operation.insert("requestBody".to_owned(), body);
        self
    }

    fn with_response(self, schema: &str) -> Self {
        self.with_response_as("application/json", component_reference("schemas", schema))
    }

    fn with_response_as(mut self, media_type: &str, schema: Value) -> Self {
        let content = Map::from_iter([(media_type.to_owned(), json!({"schema": schema}))]);
        let response = json!({"description": "It was carried out.", "content": content});
        self.responses.insert("200".to_owned(), response);
        self
    }

    fn with_error_statuses(mut self, statuses: &[u16]) -> Self {
        for status in statuses {
            let status = status.to_string();
            let response = component_reference("responses", &status);
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
fn component_reference(kind: &str, name: &str) -> Value {
    json!({"$ref": format!("#/components/{kind}/{name}")})
}

fn path_parameters() -> Value {
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
        "Task": parameter("task", "Name of a task.", json!({"type": "string", "pattern": names::TASK_PATTERN})),
        "Model": parameter("model", "Name of a model.", json!({"type": "string", "pattern": names::TASK_PATTERN})),
        "DryRun": {
            "name": "dry_run",
            "in": "query",
            "description": "Whether nothing is kept, and only that is asked for what would come of it.",
            "schema": {"type": "boolean"}
        },
        "ChangeNumber": parameter("number", "Number of a change.", json!({"type": "integer", "minimum": 1})),
        "Exit": parameter("exit", "Name of an exit.", json!({"type": "string", "minLength": 1})),
        "Unit": parameter(
            "unit",
            "Name of a unit, or the beginning of its name or of a block's hash.",
            json!({"type": "string", "pattern": names::UNIT_PATTERN})
        ),
        "Node": parameter("node", "Name of a node.", json!({"type": "string", "pattern": names::NODE_PATTERN})),
        "Token": parameter("token", "What a token is listed under.", json!({"type": "string", "pattern": names::TOKEN_PATTERN}))
    })
}

/// What an answer is that is none, by status.
fn error_responses() -> Value {
    let response = |description: &str| {
        let content =
            json!({"application/json": {"schema": component_reference("schemas", "Error")}});
        json!({"description": description, "content": content})
    };
    json!({
        "400": response("The request makes no sense: the error names every field that is wrong."),
        "404": response("What the request names is not there."),
        "405": response("The path does not take this method."),
        "413": response("The body is larger than 1 MiB."),
        "415": response("The body does not say that it is application/json."),
        "500": response("The server failed."),
        "501": response("The request makes sense, but this server can't do that."),
        "503": response("The server can't do that now.")
    })
}
