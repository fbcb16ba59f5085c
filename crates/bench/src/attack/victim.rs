//! A server that is attacked, with what attacks ask it for.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tessera_core::{Error, Result};
use tessera_deploy::Isolation;
use tessera_repository::unfinished_files::temporary_folder;
use tessera_zoo::{LINEAR_WIDTH, TinyModel};

use crate::server_footprint::ServerFootprint;
use crate::test_client::{HttpAnswer, TestClient, TestInferRequest};
use crate::test_server::{ServerSetup, TestServer};
use crate::tiny_model_file::write_tiny_model;

/// After so much silence a server has given back what it needed once.
const SILENCE_BEFORE_CALM: Duration = Duration::from_secs(6);

/// A server that is attacked.
pub(crate) struct Victim {
    // Ended before its folder goes.
    pub(crate) server: TestServer,
    place: VictimPlace,
}

/// Where a server that is attacked keeps its models, its blocks and its temporary files.
pub(crate) struct VictimPlace {
    folder: TempDir,
    files: Vec<String>,
    isolation: Isolation,
}

impl VictimPlace {
    /// A place with these models.
    pub(crate) fn prepare_place(isolation: Isolation, models: &[TinyModel]) -> Result<Self> {
        let folder = temporary_folder()?;
        let place = Self { folder, files: Vec::new(), isolation };
        let temporary = place.temporary_folder();
        std::fs::create_dir(&temporary)
            .map_err(|error| Error::from_io(temporary.display(), &error))?;
        let files = models.iter().map(|model| write_tiny_model(*model, place.folder.path()));
        Ok(Self { files: files.collect::<Result<_>>()?, ..place })
    }

    /// Where its temporary files go.
    pub(crate) fn temporary_folder(&self) -> PathBuf {
        self.folder.path().join("temporary")
    }

    /// Where its blocks are.
    pub(crate) fn repository(&self) -> PathBuf {
        self.folder.path().join("repository")
    }

    /// Starts a server here.
    pub(crate) fn start_server(&self, arguments: &[&str]) -> Result<TestServer> {
        let isolation = self.isolation.to_string();
        let mut all = vec!["--isolation", &isolation, "--no-store"];
        all.extend(self.files.iter().map(String::as_str));
        all.extend(arguments);
        TestServer::start_with_setup(&ServerSetup {
            repository: &self.repository(),
            arguments: &all,
            // What goes wrong is on purpose.
            log: "error",
            temporary_folder: Some(&self.temporary_folder()),
        })
    }
}

impl Victim {
    /// Starts a server of these models, with more arguments.
    pub(crate) fn start_victim(
        isolation: Isolation,
        models: &[TinyModel],
        arguments: &[&str],
    ) -> Result<Self> {
        let place = VictimPlace::prepare_place(isolation, models)?;
        Ok(Self { server: place.start_server(arguments)?, place })
    }

    /// Where it keeps its files.
    pub(crate) fn place(&self) -> &VictimPlace {
        &self.place
    }

    /// Where it is asked.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.announced.http
    }

    /// What it takes now.
    pub(crate) fn footprint(&self) -> Result<ServerFootprint> {
        ServerFootprint::measure(self.server.announced.process)
    }

    /// What it takes when it has answered a little, and nobody has asked for a while.
    pub(crate) fn calm_footprint(&self) -> Result<ServerFootprint> {
        for _ in 0..20 {
            self.ask_each_a_little()?;
        }
        std::thread::sleep(SILENCE_BEFORE_CALM);
        self.footprint()
    }

    /// Asks each task that takes any rows for one of them.
    pub(crate) fn ask_each_a_little(&self) -> Result<()> {
        ask_small(self.address())?.require_ok("a small request")?;
        let mut tasks = self.server.announced.tasks.iter();
        if tasks.any(|task| task.name == TinyModel::Absolute.task_name()) {
            let request = matrix_request(1, LINEAR_WIDTH);
            let (_, answer) = request.send_to(&mut TestClient::connect(self.address())?)?;
            answer.require_ok("a small matrix")?;
        }
        Ok(())
    }

    /// Whether it answers a small request within so long.
    pub(crate) fn answers_within(&self, limit: Duration) -> bool {
        let start = Instant::now();
        loop {
            if ask_small(self.address()).is_ok_and(|answer| answer.status == 200) {
                return true;
            }
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Asks for one row of the linear model, on a connection of its own.
pub(crate) fn ask_small(address: SocketAddr) -> Result<HttpAnswer> {
    let request = TestInferRequest::new("linear", "x", &[1, LINEAR_WIDTH], &[0; LINEAR_WIDTH * 4]);
    Ok(request.send_to(&mut TestClient::connect(address)?)?.1)
}

/// Asks `task` with JSON for elements that are all alike, on a connection of its own; how long it
/// took.
pub(crate) fn ask_with_json(
    address: SocketAddr,
    task: TinyModel,
    shape: &[usize],
    value: &Value,
    timeout: Option<Duration>,
) -> Result<(Duration, HttpAnswer)> {
    let datatype = if value.is_i64() { "INT64" } else { "FP32" };
    let data = vec![value.clone(); shape.iter().product()];
    let mut body = json!({
        "inputs": [{ "name": "x", "shape": shape, "datatype": datatype, "data": data }],
    });
    if let Some(timeout) = timeout {
        let microseconds = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        body["parameters"] = json!({ "timeout": microseconds });
    }
    post_json(address, task, &[], body.to_string().as_bytes())
}

/// Sends a body to a task, with more headers, on a connection of its own; how long it took.
pub(crate) fn post_json(
    address: SocketAddr,
    task: TinyModel,
    headers: &[&str],
    body: &[u8],
) -> Result<(Duration, HttpAnswer)> {
    let path = format!("/v2/models/{}/infer", task.task_name());
    let mut all = vec!["Host: tessera", "Content-Type: application/json"];
    all.extend(headers);
    let start = Instant::now();
    let answer = TestClient::connect(address)?.send_body("POST", &path, &all, body)?;
    Ok((start.elapsed(), answer))
}

/// A request for the elements of a matrix without their signs: zeros, with binary data.
pub(crate) fn matrix_request(rows: usize, columns: usize) -> TestInferRequest {
    let tensor = vec![0; rows * columns * 4];
    TestInferRequest::new(TinyModel::Absolute.task_name(), "x", &[rows, columns], &tensor)
}
