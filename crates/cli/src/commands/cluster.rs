//! `tessera controller`, `tessera node`, `tessera nodes` and `tessera token`.

use std::future::Future;

use serde_json::{Value, json};
use tessera_command::{ControlClient, HttpMethod, interrupt};
use tessera_core::Result;
use tessera_report::{Table, output};
use tessera_server::{
    ClusterNodeStatus, ControllerStatus, FailedModel, LogControl, ShutdownSignal, shutdown_channel,
};

use crate::arguments::{
    AdminArguments, AskerArguments, ControllerArguments, ListArguments, LogArguments, NodeAction,
    NodeCommand, RunNodeArguments, TokenCommand,
};
use crate::logs::start_logging;

pub(super) fn run_controller(arguments: &ControllerArguments) -> Result<()> {
    run_server(&arguments.log, |_, shutdown| control_until(arguments, shutdown))
}

pub(super) fn run_node(command: &NodeCommand) -> Result<()> {
    let arguments = &command.run;
    match &command.action {
        Some(action) => run_action(action),
        None => run_server(&arguments.log, |log, shutdown| compute_until(arguments, log, shutdown)),
    }
}

/// Runs a role until Ctrl-C or SIGTERM.
fn run_server<F: Future<Output = Result<()>>>(
    log: &LogArguments,
    role: impl FnOnce(LogControl, ShutdownSignal) -> F,
) -> Result<()> {
    let log = start_logging(log.log, log.log_json);
    let (trigger, shutdown) = shutdown_channel();
    interrupt::on_first_interrupt(move || trigger.request_shutdown());
    tessera_server::run_role(role(log, shutdown))
}

async fn control_until(
    arguments: &ControllerArguments,
    mut shutdown: ShutdownSignal,
) -> Result<()> {
    let controller = arguments.controller_config()?.build().await?;
    let Some(status) = controller.start_tasks(&mut shutdown).await? else { return Ok(()) };
    announce_controller(&status, arguments.json)?;
    controller.run_until(&mut shutdown).await;
    Ok(())
}

async fn compute_until(
    arguments: &RunNodeArguments,
    log: LogControl,
    mut shutdown: ShutdownSignal,
) -> Result<()> {
    let node = arguments.node_config(log)?.build().await?;
    announce_node(node.node_status(), arguments.json)?;
    node.run_until(&mut shutdown).await
}

fn announce_controller(status: &ControllerStatus, json: bool) -> Result<()> {
    if json {
        return output::print_json_line(status);
    }
    let ControllerStatus { addresses, cluster, authority, failed, .. } = status;
    let version = env!("CARGO_PKG_VERSION");
    output::print_line(&format!("tessera {version}, controller of cluster \"{cluster}\""))?;
    output::print_line(&format!("  nodes    {}", addresses.nodes))?;
    output::print_line(&format!("  control  http://{}/v1/nodes", addresses.control))?;
    if let Some(authority) = authority {
        output::print_line(&format!("  authority {authority}"))?;
    }
    for FailedModel { name, reason, .. } in failed {
        output::print_line(&format!("  not served: {name}: {reason}"))?;
    }
    output::print_line(match authority {
        Some(_) => "ready; `tessera token create` lets a node join; Ctrl-C stops",
        None => "ready; one of the controllers with this state in etcd leads; Ctrl-C stops",
    })
}

fn announce_node(status: &ClusterNodeStatus, json: bool) -> Result<()> {
    if json {
        return output::print_json_line(status);
    }
    let ClusterNodeStatus { name, cluster, http, grpc, metrics, engine, cores, .. } = status;
    let version = env!("CARGO_PKG_VERSION");
    output::print_line(&format!(
        "tessera {version}, node \"{name}\" of cluster \"{cluster}\", {engine}, {cores} cores"
    ))?;
    if let (Some(http), Some(grpc)) = (http, grpc) {
        output::print_line(&format!("  http     http://{http}/v2"))?;
        output::print_line(&format!("  grpc     {grpc}"))?;
    }
    output::print_line(&format!("  metrics  http://{metrics}/metrics"))?;
    output::print_line("ready; Ctrl-C stops")
}

impl AskerArguments {
    /// For the control plane at this address.
    pub(super) fn client_of(&self, url: &str) -> ControlClient {
        ControlClient::new(url, self.ca.clone(), self.bearer.clone())
    }
}

impl AdminArguments {
    /// Asks the controller for something.
    pub(super) fn ask(
        &self,
        method: HttpMethod,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        self.asker.client_of(&self.controller).ask_blocking(method, path, body)
    }
}

fn run_action(action: &NodeAction) -> Result<()> {
    let (named, method, suffix, done) = match action {
        NodeAction::Drain(named) => (named, HttpMethod::POST, "/drain", "is drained"),
        NodeAction::Undrain(named) => {
            (named, HttpMethod::POST, "/undrain", "gets something to do again")
        }
        NodeAction::Remove(named) => {
            (named, HttpMethod::DELETE, "", "does not belong to the cluster any more")
        }
    };
    let path = format!("/v1/nodes/{}{suffix}", named.name);
    let answer = named.admin.ask(method, &path, None)?;
    if named.json {
        return output::print_json(&answer);
    }
    output::print_line(&format!("node {} {done}", named.name))
}

pub(super) fn run_nodes(arguments: &ListArguments) -> Result<()> {
    let answer = arguments.admin.ask(HttpMethod::GET, "/v1/nodes", None)?;
    if arguments.json {
        return output::print_json(&answer);
    }
    let nodes = answer["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    if nodes.is_empty() {
        return output::print_line("no nodes yet: `tessera token create` lets one join");
    }
    let mut table =
        Table::new(&["node", "state", "cores", "memory", "round trip", "units", "http"]);
    for node in nodes {
        let text = |field: &str| node[field].as_str().unwrap_or("").to_owned();
        let memory = node["available_memory_bytes"].as_u64().unwrap_or(0) / 1_000_000;
        let round_trip = node["round_trip_ms"].as_f64();
        table.add_row([
            text("name"),
            text("state"),
            node["cores"].to_string(),
            format!("{memory} MB"),
            round_trip.map_or_else(String::new, |ms| format!("{ms:.1} ms")),
            node["units"].as_array().map_or(0, Vec::len).to_string(),
            text("http"),
        ]);
    }
    table.print_table()
}

pub(super) fn run_token(command: &TokenCommand) -> Result<()> {
    match command {
        TokenCommand::Create(arguments) => {
            let body = json!({ "life_seconds": arguments.life });
            let answer = arguments.admin.ask(HttpMethod::POST, "/v1/tokens", Some(&body))?;
            if arguments.json {
                return output::print_json(&answer);
            }
            output::print_line(answer["token"].as_str().unwrap_or_default())
        }
        TokenCommand::List(arguments) => list_tokens(arguments),
        TokenCommand::Revoke(arguments) => {
            let path = format!("/v1/tokens/{}", arguments.id);
            let answer = arguments.admin.ask(HttpMethod::DELETE, &path, None)?;
            if arguments.json {
                return output::print_json(&answer);
            }
            output::print_line(&format!("token {} lets nobody in any more", arguments.id))
        }
    }
}

fn list_tokens(arguments: &ListArguments) -> Result<()> {
    let answer = arguments.admin.ask(HttpMethod::GET, "/v1/tokens", None)?;
    if arguments.json {
        return output::print_json(&answer);
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap_or_default().as_secs();
    let mut table = Table::new(&["token", "state", "expires in", "let in"]);
    for token in answer["tokens"].as_array().into_iter().flatten() {
        let text = |field: &str| token[field].as_str().unwrap_or("").to_owned();
        let left = token["expires"].as_u64().unwrap_or(0).saturating_sub(now);
        table.add_row([text("id"), text("state"), format!("{left} s"), text("used_by")]);
    }
    table.print_table()
}
