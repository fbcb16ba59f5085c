//! A cluster on hosts of a lab: this program as its users start it, in network namespaces.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tessera_command::{ControlClient, HttpMethod, interrupt};
use tessera_core::{Error, ErrorKind, Result};
use tessera_lab::{EtcdMembers, Lab, LabHost, SlowGroup};
use tessera_repository::unfinished_files::temporary_folder;

use crate::announced_process::AnnouncedProcess;
use crate::background_clients::{BackgroundClients, CheckedRequest};
use crate::test_client::{TestClient, TestInferRequest};

/// How long something may take that takes as long as it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A controller, and hosts for nodes.
pub(super) struct LabCluster {
    pub(super) lab: Lab,
    folder: TempDir,
    pub(super) controller_host: LabHost,
    /// Several where their state is in etcd.
    controllers: Vec<Option<LabProcess>>,
    etcd_urls: Vec<String>,
}

/// A node of a cluster in a lab, at a host of its own.
pub(super) struct LabNode {
    pub(super) name: String,
    pub(super) host: LabHost,
    pub(super) process: LabProcess,
    /// How long it took from its start until it said that it is ready.
    pub(super) ready_in: Duration,
    arguments: Vec<String>,
}

/// A program at a host.
pub(super) struct LabProcess {
    process: AnnouncedProcess,
    announced: Value,
}

impl LabProcess {
    /// Starts a command that prints a line of JSON when it is ready.
    fn start(mut command: Command) -> Result<Self> {
        let (process, announced) = AnnouncedProcess::start("a program at a host", &mut command)?;
        Ok(Self { process, announced })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.child.id()
    }

    /// Has it do nothing for a while, or go on.
    pub(super) fn pause(&self, is_paused: bool) -> Result<()> {
        let signal = if is_paused { Signal::STOP } else { Signal::CONT };
        let process = self.process.process_id();
        let process = process.ok_or_else(|| Error::lost("a program at a host has ended"))?;
        rustix::process::kill_process(process, signal)
            .map_err(|error| Error::from_io("a program at a host", &error.into()))
    }

    /// Kills it, so that it has no chance to say goodbye.
    pub(super) fn kill(&mut self) {
        self.process.kill();
    }

    /// An address that it announced.
    pub(super) fn address(&self, name: &str) -> Result<SocketAddr> {
        let found = self.announced[name].as_str().and_then(|text| text.parse().ok());
        found.ok_or_else(|| Error::engine(format!("it did not say where its {name} is")))
    }
}

impl LabCluster {
    /// A cluster without nodes.
    pub(super) fn start() -> Result<Self> {
        interrupt::do_before_end(tessera_lab::remove_all_hosts);
        let mut lab = Lab::new()?;
        let (folder, controller_host) = (temporary_folder()?, lab.add_host("controller")?);
        let mut cluster =
            Self { lab, folder, controller_host, controllers: vec![None], etcd_urls: Vec::new() };
        cluster.start_controller()?;
        Ok(cluster)
    }

    /// A cluster with so many controllers, and their state in etcd, which is at the host of all of
    /// them.
    pub(super) fn start_with_etcd(count: usize) -> Result<(Self, EtcdMembers)> {
        interrupt::do_before_end(tessera_lab::remove_all_hosts);
        let mut lab = Lab::new()?;
        let (folder, controller_host) = (temporary_folder()?, lab.add_host("controller")?);
        let etcd = controller_host.run_inside(|| EtcdMembers::start(3))??;
        let controllers = (0..count).map(|_| None).collect();
        let etcd_urls = etcd.urls();
        let mut cluster = Self { lab, folder, controller_host, controllers, etcd_urls };
        for number in 0..count {
            cluster.start_numbered(number)?;
        }
        Ok((cluster, etcd))
    }

    /// Where the controller keeps what it has.
    pub(super) fn repository(&self) -> PathBuf {
        self.numbered_repository(0)
    }

    /// The same of one among several.
    pub(super) fn numbered_repository(&self, number: usize) -> PathBuf {
        match number {
            0 => self.folder.path().join("controller"),
            number => self.folder.path().join(format!("controller{number}")),
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the controller, or another with what the first has kept.
    pub(super) fn start_controller(&mut self) -> Result<()> {
        self.start_numbered(0)
    }

    /// Starts one among several, or another with what it has kept.
    pub(super) fn start_numbered(&mut self, number: usize) -> Result<()> {
        let (listen, name) = (self.numbered_address(number), format!("controller{number}"));
        let mut command = program_at(&self.controller_host)?;
        command.args(["controller", "--json", "--log", "error", "--listen", &listen]);
        command.args(["--name", &name, "--control", &control_port(number).to_string()]);
        if !self.etcd_urls.is_empty() {
            command.args(["--etcd", &self.etcd_urls.join(",")]);
        }
        command.arg("--repo").arg(self.numbered_repository(number));
        self.controllers[number] = Some(LabProcess::start(command)?);
        Ok(())
    }

    /// The controller's process.
    pub(super) fn controller_id(&self) -> u32 {
        self.controller_process(0).map_or(0, LabProcess::id)
    }

    /// One among several, where it runs.
    pub(super) fn controller_process(&self, number: usize) -> Option<&LabProcess> {
        self.controllers.get(number).and_then(Option::as_ref)
    }

    pub(super) fn kill_controller(&mut self) {
        self.kill_numbered(0);
    }

    /// Kills one among several.
    pub(super) fn kill_numbered(&mut self, number: usize) {
        if let Some(controller) = self.controllers.get_mut(number) {
            *controller = None;
        }
    }

    /// Where nodes join.
    pub(super) fn join_address(&self) -> String {
        self.numbered_address(0)
    }

    fn numbered_address(&self, number: usize) -> String {
        format!("{}:{}", self.controller_host.address(), control_port(number) + 1)
    }

    /// Runs this program at a host to its end, with these arguments.
    pub(super) fn run_at(&self, host: &LabHost, arguments: &[&str]) -> Result<Output> {
        let mut command = program_at(host)?;
        command.args(arguments).stdin(Stdio::null());
        command.output().map_err(|error| Error::from_io("a program at a host", &error))
    }

    /// Runs this program at a host for so long; returns what it wrote to its log.
    pub(super) fn run_for(
        &self,
        time: Duration,
        host: &LabHost,
        arguments: &[&str],
    ) -> Result<String> {
        let fail = |error: std::io::Error| Error::from_io("a program at a host", &error);
        let mut command = program_at(host)?;
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(fail)?;
        std::thread::sleep(time);
        child.kill().ok();
        let ended = child.wait_with_output().map_err(fail)?;
        Ok(String::from_utf8_lossy(&ended.stderr).into_owned())
    }

    /// Asks the controller.
    pub(super) fn ask(
        &self,
        method: HttpMethod,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        self.controller_host.run_inside(|| {
            let mut answer = Err(Error::lost("there is no controller"));
            for number in 0..self.controllers.len() {
                if self.controllers[number].is_none() {
                    continue;
                }
                let url = numbered_url(number);
                answer = ask_at(&url, method.clone(), path, body);
                // One that does not know may be one that does not lead.
                match &answer {
                    Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::TimedOut) => {
                    }
                    _ => return answer,
                }
            }
            answer
        })?
    }

    /// Whether one among several answers by itself: another leads where it does not.
    pub(super) fn answers_itself(&self, number: usize) -> bool {
        let address = SocketAddr::from(([127, 0, 0, 1], control_port(number)));
        let asked = self.controller_host.run_inside(|| {
            let mut client = TestClient::connect_for(address, Duration::from_millis(500))?;
            client.send_body("GET", "/v1/nodes", &["Host: localhost"], &[])
        });
        asked.and_then(|asked| asked).is_ok_and(|answer| answer.status == 200)
    }

    /// Where the control plane is, at the controller's host.
    pub(super) fn control_url(&self) -> &'static str {
        "http://127.0.0.1:8003"
    }

    /// Makes a token.
    pub(super) fn create_token(&self, life: u64) -> Result<String> {
        let body = json!({ "life_seconds": life });
        let made = self.ask(HttpMethod::POST, "/v1/tokens", Some(&body))?;
        Ok(made["token"].as_str().unwrap_or_default().to_owned())
    }

    /// The same for a node that gets a part of a core.
    pub(super) fn add_limited_node(
        &mut self,
        name: &str,
        more: &[&str],
        group: &SlowGroup,
    ) -> Result<LabNode> {
        let host = self.lab.add_host(name)?;
        let token = self.create_token(60)?;
        let arguments: Vec<String> = more.iter().map(ToString::to_string).collect();
        let token = ["--token".to_owned(), token];
        let with_token: Vec<String> = arguments.iter().cloned().chain(token).collect();
        let command = group.limit_command(&self.node_command(&host, name, &with_token)?);
        let start = Instant::now();
        let (process, ready_in) = (LabProcess::start(command)?, start.elapsed());
        self.wait_for_state(name, "attached")?;
        Ok(LabNode { name: name.to_owned(), host, process, ready_in, arguments })
    }

    /// Adds a host, and a node there that joins.
    pub(super) fn add_node(&mut self, name: &str, more: &[&str]) -> Result<LabNode> {
        let token = self.create_token(60)?;
        self.add_node_with_token(name, &token, more)
    }

    /// The same with a token that there is.
    pub(super) fn add_node_with_token(
        &mut self,
        name: &str,
        token: &str,
        more: &[&str],
    ) -> Result<LabNode> {
        let host = self.lab.add_host(name)?;
        let arguments: Vec<String> = more.iter().map(ToString::to_string).collect();
        let token = ["--token".to_owned(), token.to_owned()];
        let with_token: Vec<String> = arguments.iter().cloned().chain(token).collect();
        let (process, ready_in) = self.start_node(&host, name, &with_token)?;
        self.wait_for_state(name, "attached")?;
        Ok(LabNode { name: name.to_owned(), host, process, ready_in, arguments })
    }

    /// Starts a node again, at its host, with what it has kept.
    pub(super) fn restart_node(&self, node: &mut LabNode) -> Result<()> {
        let (process, ready_in) = self.start_node(&node.host, &node.name, &node.arguments)?;
        (node.process, node.ready_in) = (process, ready_in);
        Ok(())
    }

    fn start_node(
        &self,
        host: &LabHost,
        name: &str,
        arguments: &[String],
    ) -> Result<(LabProcess, Duration)> {
        let command = self.node_command(host, name, arguments)?;
        let start = Instant::now();
        Ok((LabProcess::start(command)?, start.elapsed()))
    }

    fn node_command(&self, host: &LabHost, name: &str, arguments: &[String]) -> Result<Command> {
        let address = host.address().to_string();
        let mut command = program_at(host)?;
        command.args(["node", "--json", "--log", "error", "--listen", &address]);
        for number in 0..self.controllers.len() {
            command.args(["--join", &self.numbered_address(number)]);
        }
        command.args(["--name", name]).args(arguments);
        command.arg("--repo").arg(self.folder.path().join(name));
        Ok(command)
    }

    /// How a node is.
    pub(super) fn node_state(&self, name: &str) -> Result<String> {
        let status = self.ask(HttpMethod::GET, &format!("/v1/nodes/{name}"), None)?;
        Ok(status["state"].as_str().unwrap_or_default().to_owned())
    }

    pub(super) fn wait_for_state(&self, name: &str, state: &str) -> Result<()> {
        wait_until(&format!("node {name} is {state}"), || Ok(self.node_state(name)? == state))
    }

    /// Has a task served.
    pub(super) fn put_task(&self, name: &str, task: &Value) -> Result<Value> {
        self.ask(HttpMethod::PUT, &format!("/v1/tasks/{name}"), Some(task))
    }

    /// The nodes that units run at, and their instances.
    pub(super) fn unit_places(&self) -> Result<Vec<(String, String)>> {
        let units = self.ask(HttpMethod::GET, "/v1/units", None)?;
        let units = units["units"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let place = |unit: &Value| (text(&unit["node"]), text(&unit["instances"][0]["name"]));
        Ok(units.iter().map(place).collect())
    }
}

impl LabNode {
    /// Requests whose answers are known, asked of this node's gateway.
    pub(super) fn check_requests(
        &self,
        requests: Vec<TestInferRequest>,
    ) -> Result<Vec<CheckedRequest>> {
        let address = self.process.address("http")?;
        self.host.run_inside(|| {
            requests.into_iter().map(|one| CheckedRequest::ask_first(one, address)).collect()
        })?
    }

    /// Clients at this node's host that ask its gateway.
    pub(super) fn start_clients(
        &self,
        count: usize,
        requests: &std::sync::Arc<Vec<CheckedRequest>>,
    ) -> Result<BackgroundClients> {
        let (address, host) = (self.process.address("http")?, self.host.clone());
        // One that is elsewhere has no answer, which is counted.
        let enter = move || drop(host.enter());
        Ok(BackgroundClients::start_at(count, address, requests, enter))
    }
}

/// The port of a control plane; that for nodes is the next.
fn control_port(number: usize) -> u16 {
    8003 + 100 * number as u16
}

fn numbered_url(number: usize) -> String {
    format!("http://127.0.0.1:{}", control_port(number))
}

/// Asks a control plane, from the host that this thread is at.
pub(super) fn ask_at(
    url: &str,
    method: HttpMethod,
    path: &str,
    body: Option<&Value>,
) -> Result<Value> {
    ControlClient::new(url, None, None).ask_blocking(method, path, body)
}

/// This program, at a host.
fn program_at(host: &LabHost) -> Result<Command> {
    let own = std::env::current_exe().map_err(|error| Error::from_io("this program", &error))?;
    Ok(host.command(&own.to_string_lossy()))
}

/// Waits until something is so.
pub(super) fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        if start.elapsed() > PATIENCE {
            return Err(Error::timed_out(format!("not in time: {what}")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
