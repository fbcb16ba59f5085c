//! A server under test: `tessera serve` as its users start it, in a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use tessera_command::interrupt;
use tessera_core::{Error, Result};

/// A server that answers.
pub(crate) struct TestServer {
    child: Child,
    pub(crate) announced: AnnouncedServer,
}

/// What a server says when it is ready.
#[derive(Debug, Deserialize)]
pub(crate) struct AnnouncedServer {
    pub(crate) http: SocketAddr,
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

impl TestServer {
    /// Starts a server with a repository of its own, and waits until it is ready.
    pub(crate) fn start_server(repository: &Path, arguments: &[&str]) -> Result<Self> {
        let own =
            std::env::current_exe().map_err(|error| Error::from_io("this program", &error))?;
        let mut child = Command::new(own)
            .arg("serve")
            .args([
                "--json",
                "--log",
                "warn",
                "--http",
                "0",
                "--grpc",
                "0",
                "--metrics",
                "0",
                "--control",
                "0",
            ])
            .arg("--repo")
            .arg(repository)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Error::from_io("tessera serve", &error))?;
        if let Some(process) = process_id(&child) {
            interrupt::end_process_too(process);
        }
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(|error| Error::from_io("tessera serve", &error))?;
        }
        match serde_json::from_str(&line) {
            Ok(announced) => Ok(Self { child, announced }),
            Err(_) => {
                child.kill().ok();
                wait_for_child(&mut child);
                Err(Error::engine("tessera serve did not get ready; see what it wrote above"))
            }
        }
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
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: tessera\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let answer = client.send_http(&[head.as_bytes(), body.as_bytes()])?;
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
        if let Some(process) = process_id(&self.child) {
            rustix::process::kill_process(process, rustix::process::Signal::TERM).ok();
        }
        let patience = Instant::now() + Duration::from_secs(10);
        while Instant::now() < patience {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child.kill().ok();
        wait_for_child(&mut self.child);
    }
}

fn process_id(child: &Child) -> Option<rustix::process::Pid> {
    i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw)
}

/// Waits for a process that ends.
fn wait_for_child(child: &mut Child) {
    child.wait().ok();
    if let Some(process) = process_id(child) {
        interrupt::forget_process(process);
    }
}

/// One connection that asks one thing after the other.
pub(crate) struct TestClient {
    stream: BufReader<TcpStream>,
}

/// An answer over HTTP.
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl HttpAnswer {
    /// The answer, where it is what was asked for; `what` says what that was.
    pub(crate) fn require_ok(self, what: &str) -> Result<Self> {
        match self.status {
            200 => Ok(self),
            status => {
                let text = String::from_utf8_lossy(&self.body);
                Err(Error::engine(format!("{what}: the server answered {status}: {text}")))
            }
        }
    }
}

impl TestClient {
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        let fail = |error: std::io::Error| Error::from_io(address, &error);
        let stream = TcpStream::connect(address).map_err(fail)?;
        stream.set_nodelay(true).map_err(fail)?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(fail)?;
        Ok(Self { stream: BufReader::with_capacity(64 << 10, stream) })
    }

    /// Sends a request and reads its answer.
    pub(crate) fn send_http(&mut self, request: &[&[u8]]) -> Result<HttpAnswer> {
        let fail = |error: std::io::Error| Error::from_io("a connection to the server", &error);
        for part in request {
            self.stream.get_mut().write_all(part).map_err(fail)?;
        }
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(fail)?;
        let status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status =
            status.ok_or_else(|| Error::invalid(format!("\"{}\" is no HTTP", line.trim())))?;
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line).map_err(fail)?;
            let header = line.trim();
            if header.is_empty() {
                break;
            }
            if let Some((name, value)) = header.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).map_err(fail)?;
        Ok(HttpAnswer { status, body })
    }
}

/// A request for inference: what goes before the tensor, and the tensor.
pub(crate) struct TestInferRequest {
    head: Vec<u8>,
    tensor: Vec<u8>,
}

impl TestInferRequest {
    /// Asks `task` for its outputs in binary, with one input of floats.
    pub(crate) fn new(task: &str, input: &str, shape: &[usize], tensor: &[u8]) -> Self {
        let json = serde_json::json!({
            "inputs": [{
                "name": input, "shape": shape, "datatype": "FP32",
                "parameters": { "binary_data_size": tensor.len() },
            }],
            "parameters": { "binary_data_output": true },
        })
        .to_string();
        let mut head = format!(
            "POST /v2/models/{task}/infer HTTP/1.1\r\nHost: tessera\r\n\
             Inference-Header-Content-Length: {}\r\nContent-Length: {}\r\n\r\n",
            json.len(),
            json.len() + tensor.len()
        )
        .into_bytes();
        head.extend_from_slice(json.as_bytes());
        Self { head, tensor: tensor.to_vec() }
    }

    /// Sends it, and tells how long the answer took and whether it is one.
    pub(crate) fn send_to(&self, client: &mut TestClient) -> Result<(Duration, HttpAnswer)> {
        let start = Instant::now();
        let answer = client.send_http(&[&self.head, &self.tensor])?;
        Ok((start.elapsed(), answer))
    }
}
