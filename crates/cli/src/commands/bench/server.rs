//! A server under test: `tessera serve` as its users start it, in a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use tessera_core::{Error, Result};

use crate::interrupt;

/// A server that answers.
pub(super) struct TestServer {
    child: Child,
    pub(super) told: Told,
}

/// What a server says when it is ready.
#[derive(Debug, Deserialize)]
pub(super) struct Told {
    pub(super) http: SocketAddr,
    pub(super) control: SocketAddr,
    pub(super) process: u32,
    pub(super) tasks: Vec<Task>,
    pub(super) blocks: Vec<Block>,
}

/// A task that it serves.
#[derive(Debug, Deserialize)]
pub(super) struct Task {
    pub(super) name: String,
}

/// A block that it runs.
#[derive(Debug, Deserialize)]
pub(super) struct Block {
    pub(super) weight_bytes: u64,
}

impl TestServer {
    /// Starts a server with a repository of its own, and waits until it is ready.
    pub(super) fn start(repository: &Path, arguments: &[&str]) -> Result<Self> {
        let own = std::env::current_exe().map_err(|error| Error::io("this program", &error))?;
        let mut child = Command::new(own)
            .arg("serve")
            .args(["--json", "--http", "0", "--grpc", "0", "--metrics", "0", "--control", "0"])
            .arg("--repo")
            .arg(repository)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Error::io("tessera serve", &error))?;
        if let Some(process) = number(&child) {
            interrupt::end_too(process);
        }
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(|error| Error::io("tessera serve", &error))?;
        }
        match serde_json::from_str(&line) {
            Ok(told) => Ok(Self { child, told }),
            Err(_) => {
                child.kill().ok();
                end(&mut child);
                Err(Error::engine("tessera serve did not get ready; see what it wrote above"))
            }
        }
    }

    /// The memory of the server and of its blocks' processes that is resident.
    pub(super) fn resident(&self) -> Result<u64> {
        super::memory::resident(&self.told.process.to_string())
    }

    /// Asks the control plane.
    pub(super) fn control(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let mut client = Client::connect(self.told.control)?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: tessera\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let answer = client.ask(&[head.as_bytes(), body.as_bytes()])?;
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
        if let Some(process) = number(&self.child) {
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
        end(&mut self.child);
    }
}

fn number(child: &Child) -> Option<rustix::process::Pid> {
    i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw)
}

/// Waits for a process that ends.
fn end(child: &mut Child) {
    child.wait().ok();
    if let Some(process) = number(child) {
        interrupt::has_ended(process);
    }
}

/// One connection that asks one thing after the other.
pub(super) struct Client {
    stream: BufReader<TcpStream>,
}

/// An answer over HTTP.
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Client {
    pub(super) fn connect(address: SocketAddr) -> Result<Self> {
        let fail = |error: std::io::Error| Error::io(address, &error);
        let stream = TcpStream::connect(address).map_err(fail)?;
        stream.set_nodelay(true).map_err(fail)?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(fail)?;
        Ok(Self { stream: BufReader::with_capacity(64 << 10, stream) })
    }

    /// Sends a request and reads its answer.
    pub(super) fn ask(&mut self, request: &[&[u8]]) -> Result<HttpAnswer> {
        let fail = |error: std::io::Error| Error::io("a connection to the server", &error);
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
pub(super) struct InferRequest {
    head: Vec<u8>,
    tensor: Vec<u8>,
}

impl InferRequest {
    /// Asks `task` for its outputs in binary, with one input of floats.
    pub(super) fn new(task: &str, input: &str, shape: &[usize], tensor: &[u8]) -> Self {
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
    pub(super) fn send(&self, client: &mut Client) -> Result<(Duration, HttpAnswer)> {
        let start = Instant::now();
        let answer = client.ask(&[&self.head, &self.tensor])?;
        Ok((start.elapsed(), answer))
    }
}
