//! A server under test: `tessera serve` as its users start it, in a process of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use tessera_core::{Error, Result};

use super::announced_process::AnnouncedProcess;
use super::test_client::TestClient;

/// A server that answers.
pub(crate) struct TestServer {
    process: AnnouncedProcess,
    pub(crate) announced: AnnouncedServer,
}

/// What a server says when it is ready.
#[derive(Debug, Deserialize)]
pub(crate) struct AnnouncedServer {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) control: SocketAddr,
    pub(crate) process: u32,
    pub(crate) tasks: Vec<ServedTask>,
    pub(crate) units: Vec<ServedUnit>,
}

/// A task that it serves.
#[derive(Debug, Deserialize)]
pub(crate) struct ServedTask {
    pub(crate) name: String,
}

/// A unit that it runs.
#[derive(Debug, Deserialize)]
pub(crate) struct ServedUnit {
    pub(crate) weight_bytes: u64,
}

/// How a server is started.
pub(crate) struct ServerSetup<'a> {
    /// Where it keeps blocks.
    pub(crate) repository: &'a Path,
    /// Arguments beyond ports and logs.
    pub(crate) arguments: &'a [&'a str],
    /// What it logs: error, warn, …
    pub(crate) log: &'a str,
    /// Where it puts temporary files; where this process does if none.
    pub(crate) temporary_folder: Option<&'a Path>,
}

impl ServerSetup<'_> {
    fn server_command(&self) -> Result<Command> {
        let own =
            std::env::current_exe().map_err(|error| Error::from_io("this program", &error))?;
        let mut command = Command::new(own);
        command.args(["serve", "--json", "--log", self.log]);
        for port in ["--http", "--grpc", "--metrics", "--control"] {
            command.args([port, "0"]);
        }
        command.arg("--repo").arg(self.repository).args(self.arguments);
        if let Some(folder) = self.temporary_folder {
            command.env("TMPDIR", folder);
        }
        Ok(command)
    }
}

impl TestServer {
    /// Starts a server with a repository of its own, and waits until it is ready.
    pub(crate) fn start_server(repository: &Path, arguments: &[&str]) -> Result<Self> {
        let setup = ServerSetup { repository, arguments, log: "warn", temporary_folder: None };
        Self::start_with_setup(&setup)
    }

    /// Starts a server as `setup` says, and waits until it is ready.
    pub(crate) fn start_with_setup(setup: &ServerSetup<'_>) -> Result<Self> {
        let mut command = setup.server_command()?;
        let (process, announced) = AnnouncedProcess::start("tessera serve", &mut command)?;
        Ok(Self { process, announced })
    }

    /// Whether its process runs.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.process.child.try_wait(), Ok(None))
    }

    /// Asks it to stop as a user does, and waits for so long; how it ended, and after what time.
    pub(crate) fn stop_within(&mut self, limit: Duration) -> Option<(ExitStatus, Duration)> {
        let start = Instant::now();
        // The number of one that has ended may be another's by now.
        if self.is_running()
            && let Some(process) = self.process.process_id()
        {
            rustix::process::kill_process(process, rustix::process::Signal::TERM).ok();
        }
        loop {
            match self.process.child.try_wait() {
                Ok(Some(status)) => return Some((status, start.elapsed())),
                Ok(None) if start.elapsed() < limit => {}
                _ => return None,
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills it, so that it has no chance to clean up.
    pub(crate) fn kill_server(&mut self) {
        self.process.kill();
    }

    /// The memory of the server and of its units' processes that is resident.
    pub(crate) fn resident_bytes(&self) -> Result<u64> {
        crate::process_memory::resident_bytes(&self.announced.process.to_string())
    }

    /// Asks the control plane.
    pub(crate) fn call_control(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        let mut client = TestClient::connect(self.announced.control)?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let headers = ["Host: tessera", "Content-Type: application/json"];
        let answer = client.send_body(method, path, &headers, body.as_bytes())?;
        let value: Value = serde_json::from_slice(&answer.body)
            .map_err(|error| Error::invalid(format!("{method} {path}: {error}")))?;
        match answer.status {
            200..=299 => Ok(value),
            status => Err(Error::engine(format!("{method} {path}: {status} {value}"))),
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop_within(Duration::from_secs(10));
    }
}
