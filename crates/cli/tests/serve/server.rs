//! A server that runs, and what tests do with it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use tessera_graph::onnx::ModelProto;

use crate::common::{self, Ran, command, f32_bytes, finish, listing, npy, save, text};
use crate::http::{Response, call, try_call};

/// For what takes as long as it takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The engine of these tests: ONNX Runtime where this machine has it.
pub(crate) fn engine() -> &'static str {
    if tessera_engine::find_library().is_some() { "onnxruntime" } else { "rten" }
}

/// Waits until `reached`; tells whether it was in time.
pub(crate) fn within(limit: Duration, mut reached: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !reached() {
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Waits until `reached`, which must be some time.
#[track_caller]
pub(crate) fn wait_until(what: &str, reached: impl FnMut() -> bool) {
    assert!(within(PATIENCE, reached), "not in time: {what}");
}

/// Sends a signal to a process that a test started.
pub(crate) fn signal(name: &str, process: u64) {
    let order = format!("kill -{name} {process}");
    let status = Command::new("sh").args(["-c", &order]).status().unwrap();
    assert!(status.success(), "{order}");
}

/// Asserts that two outputs are the same, give or take rounding.
#[track_caller]
pub(crate) fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(1e-3_f64, |most, value| most.max(value.abs()));
    for (found, expected) in found.iter().zip(expected) {
        let difference = (found - expected).abs() / largest;
        assert!(difference <= 1e-4, "{found} instead of {expected}");
    }
}

/// An input of a request.
pub(crate) struct Input<'a> {
    name: &'a str,
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl<'a> Input<'a> {
    /// Rows of this width.
    pub(crate) fn rows(name: &'a str, width: usize, values: &[f32]) -> Self {
        Self { name, shape: vec![values.len() / width, width], values: values.to_vec() }
    }

    /// One row of the input `x`.
    pub(crate) fn row(values: &[f32]) -> Self {
        Self::rows("x", values.len(), values)
    }

    fn json(&self) -> Value {
        let Self { name, shape, values } = self;
        json!({ "name": name, "shape": shape, "datatype": "FP32", "data": values })
    }

    fn npy(&self) -> Vec<u8> {
        let [rows, width] = self.shape[..] else {
            panic!("{:?}", self.shape);
        };
        npy("<f4", &format!("({rows}, {width})"), &f32_bytes(&self.values))
    }
}

/// A folder with models, a repository, and a folder for temporary files.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempdir().unwrap();
        fs::create_dir(folder.path().join("temporary")).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.path().join("repository")
    }

    fn temporary(&self) -> PathBuf {
        self.path().join("temporary")
    }

    /// Writes a model; returns the name of its file.
    pub(crate) fn model(&self, name: &str, model: &ModelProto) -> String {
        let file = format!("{name}.onnx");
        save(&self.path().join(&file), model);
        file
    }

    /// Writes a model with the exit `early`.
    pub(crate) fn model_with_exit(&self, name: &str, model: &ModelProto, threshold: f32) -> String {
        let manifest = json!({ "exits": [{ "output": "early", "threshold": threshold }] });
        fs::write(self.path().join(format!("{name}.exits.json")), manifest.to_string()).unwrap();
        self.model(name, model)
    }

    /// Puts a model into the repository, cut as asked; returns the hashes of its blocks.
    pub(crate) fn split(&self, name: &str, model: &ModelProto, how: &[&str]) -> Vec<String> {
        let (file, repository) = (self.model(name, model), self.repository());
        let fixed = ["split", file.as_str(), "--repo", text(&repository)];
        let arguments = [&fixed[..], how].concat();
        let report = common::json(self.path(), &arguments);
        let blocks = report["blocks"].as_array().unwrap().iter();
        blocks.map(|block| block["block"].as_str().unwrap().to_owned()).collect()
    }

    /// What `tessera run` says that a model's outputs are.
    pub(crate) fn run(
        &self,
        file: &str,
        inputs: &[Input<'_>],
        how: &[&str],
    ) -> BTreeMap<String, Vec<f64>> {
        let folder = tempdir().unwrap();
        let given: Vec<String> = inputs
            .iter()
            .map(|input| {
                let path = folder.path().join(format!("{}.npy", input.name));
                fs::write(&path, input.npy()).unwrap();
                format!("--input={}={}", input.name, text(&path))
            })
            .collect();
        let mut arguments = vec!["run", file, "--engine", engine()];
        arguments.extend(given.iter().map(String::as_str));
        arguments.extend(how);
        let report = common::json(self.path(), &arguments);
        let elements = |output: &Value| {
            let values = output["values"].as_array().unwrap().iter();
            values.map(|value| value.as_f64().unwrap()).collect()
        };
        let outputs = report["outputs"].as_array().unwrap().iter();
        outputs
            .map(|output| (output["name"].as_str().unwrap().to_owned(), elements(output)))
            .collect()
    }

    fn serving(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("serve");
        command.args(arguments).args(["--repo", text(&self.repository()), "--json"]);
        if !arguments.contains(&"--engine") {
            command.args(["--engine", engine()]);
        }
        command
    }

    /// A command whose processes are known by their temporary folder.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = command(self.path());
        command.arg(name).env("TMPDIR", self.temporary()).env("TESSERA_LOG", "warn");
        command
    }

    /// Starts a server, and waits until it answers.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Server<'_> {
        let any = ["--http", "0", "--grpc", "0", "--metrics", "0", "--control", "0"];
        Server::start(self, &mut self.serving(&[arguments, &any[..]].concat()))
    }

    /// Runs a server that ends by itself.
    pub(crate) fn serve_in_vain(&self, arguments: &[&str]) -> Ran {
        let ports = ["--http", "--grpc", "--metrics", "--control"];
        let free = ports.iter().filter(|port| !arguments.contains(port));
        // Not the usual ones, which others of these tests, or anybody, may have.
        let free: Vec<&str> = free.flat_map(|port| [*port, "0"]).collect();
        finish(&mut self.serving(&[arguments, &free[..]].concat()))
    }

    /// What servers have written to stderr.
    pub(crate) fn errors(&self) -> String {
        fs::read_to_string(self.path().join("errors.txt")).unwrap_or_default()
    }

    /// The processes of servers and of their units: those with our temporary folder.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let setting = format!("TMPDIR={}", text(&self.temporary()));
        let has_setting = |id: &u32| {
            // One that has ended has none, even if nobody has asked how it ended.
            let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|one| one == setting.as_bytes())
        };
        let entries = fs::read_dir("/proc").unwrap();
        let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        ids.filter(has_setting).collect()
    }

    /// Waits until nothing of a server is left.
    #[track_caller]
    pub(crate) fn is_left_clean(&self) {
        let gone = within(PATIENCE, || self.processes().is_empty());
        assert!(gone, "processes are left: {:?}", self.processes());
        let left = listing(&self.temporary());
        assert!(left.is_empty(), "{left:?}");
        let errors = self.errors();
        assert!(!errors.contains("panicked"), "{errors}");
    }
}

/// Where to ask a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    pub(crate) http: String,
    pub(crate) metrics: String,
    pub(crate) control: String,
}

impl Client {
    /// Asks the control plane, which must answer.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        call(&self.control, "GET", path, "").ok()
    }

    /// The same of one that may not answer, or have others answer.
    pub(crate) fn try_get(&self, path: &str) -> Option<Value> {
        let answered = try_call(&self.control, "GET", path, "").ok()?;
        (answered.status == 200).then(|| answered.json())
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Response {
        call(&self.control, "PUT", path, &body.to_string())
    }

    pub(crate) fn post(&self, path: &str) -> Response {
        call(&self.control, "POST", path, "")
    }

    pub(crate) fn delete(&self, path: &str) -> Response {
        call(&self.control, "DELETE", path, "")
    }

    pub(crate) fn infer(&self, task: &str, inputs: &[Input<'_>]) -> Response {
        self.infer_with(task, inputs, &json!({}))
    }

    pub(crate) fn infer_with(
        &self,
        task: &str,
        inputs: &[Input<'_>],
        parameters: &Value,
    ) -> Response {
        let inputs: Vec<Value> = inputs.iter().map(Input::json).collect();
        let body = json!({ "parameters": parameters, "inputs": inputs });
        call(&self.http, "POST", &format!("/v2/models/{task}/infer"), &body.to_string())
    }

    pub(crate) fn metrics(&self) -> String {
        let response = call(&self.metrics, "GET", "/metrics", "");
        assert_eq!(response.status, 200, "{}", response.body);
        response.body
    }

    #[track_caller]
    pub(crate) fn task(&self, task: &str) -> Value {
        self.get(&format!("/v1/tasks/{task}"))
    }

    /// The units that a request of a task passes.
    #[track_caller]
    pub(crate) fn path(&self, task: &str) -> Vec<String> {
        let task = self.task(task);
        let path = task["path"].as_array().unwrap().iter();
        path.map(|unit| unit.as_str().unwrap().to_owned()).collect()
    }

    /// The names of all units.
    pub(crate) fn units(&self) -> Vec<String> {
        let units = self.get("/v1/units");
        let units = units["units"].as_array().unwrap().iter();
        units.map(|unit| unit["name"].as_str().unwrap().to_owned()).collect()
    }

    /// The only instance of a unit; null where it has none.
    #[track_caller]
    pub(crate) fn instance(&self, unit: &str) -> Value {
        self.get(&format!("/v1/units/{unit}"))["instances"][0].clone()
    }

    /// The process of a unit.
    #[track_caller]
    pub(crate) fn process(&self, unit: &str) -> u64 {
        let instance = self.instance(unit);
        instance["process"].as_u64().unwrap_or_else(|| panic!("no process: {instance}"))
    }

    /// Waits until so many requests of a task are there.
    #[track_caller]
    pub(crate) fn wait_for_requests(&self, task: &str, count: u64) {
        wait_until("requests are on their way", || self.task(task)["in_flight"] == count);
    }
}

/// A server that runs.
pub(crate) struct Server<'a> {
    place: &'a Place,
    child: Child,
    pub(crate) client: Client,
    /// What it said when it was ready.
    pub(crate) announced: Value,
}

impl<'a> Server<'a> {
    pub(crate) fn start(place: &'a Place, command: &mut Command) -> Self {
        let errors =
            File::options().create(true).append(true).open(place.path().join("errors.txt"));
        let child =
            command.stdout(Stdio::piped()).stderr(Stdio::from(errors.unwrap())).spawn().unwrap();
        let client = Client::default();
        let mut server = Self { place, child, client, announced: Value::Null };
        let mut output = BufReader::new(server.child.stdout.take().unwrap());
        let (sender, said) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            output.read_line(&mut line).ok();
            sender.send(line).ok();
        });
        let line = said.recv_timeout(2 * PATIENCE).unwrap_or_default();
        let announced = serde_json::from_str(&line);
        server.announced =
            announced.unwrap_or_else(|error| panic!("{error}: {line}{}", place.errors()));
        let address = |name: &str| server.announced[name].as_str().unwrap_or_default().to_owned();
        server.client = Client {
            http: address("http"),
            metrics: address("metrics"),
            control: address("control"),
        };
        server
    }

    pub(crate) fn id(&self) -> u64 {
        u64::from(self.child.id())
    }

    /// Whether its process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end, and for that of everything it started.
    #[track_caller]
    pub(crate) fn end(mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the server ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        self.place.is_left_clean();
        status.unwrap()
    }

    /// Asks it to stop, which it must do as it should.
    #[track_caller]
    pub(crate) fn stop(self) {
        signal("TERM", self.id());
        let place = self.place;
        let status = self.end();
        assert_eq!(status.code(), Some(0), "{}", place.errors());
    }
}

impl Deref for Server<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // A test that failed leaves no process behind; one that passed has waited for it.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Asks from several threads at once; the answers in the order of the numbers.
pub(crate) fn at_once<T: Send>(count: usize, ask: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let ask = &ask;
        let asking: Vec<_> = (0..count).map(|number| scope.spawn(move || ask(number))).collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).collect()
    })
}
