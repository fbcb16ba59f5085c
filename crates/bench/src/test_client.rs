//! A client of a server under test: plain HTTP over one connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use tessera_core::{Error, Result};

/// One connection that asks one thing after the other.
pub(crate) struct TestClient {
    stream: BufReader<TcpStream>,
}

/// An answer over HTTP.
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    /// Whether the server closes the connection after it.
    pub(crate) is_last: bool,
}

impl HttpAnswer {
    /// The JSON of an answer and the bytes after it, which are its tensors.
    pub(crate) fn json_and_tensors(&self) -> (Option<Value>, &[u8]) {
        // The text ends where its outermost brace does.
        let mut text = serde_json::Deserializer::from_slice(&self.body).into_iter::<Value>();
        let json = text.next().and_then(Result::ok);
        let end = if json.is_some() { text.byte_offset() } else { 0 };
        (json, self.body.get(end..).unwrap_or_default())
    }

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

/// How long a client waits for the server to take or send anything.
const CLIENT_PATIENCE: Duration = Duration::from_secs(60);

impl TestClient {
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        Self::connect_for(address, CLIENT_PATIENCE)
    }

    /// The same for one that waits for so long at most.
    pub(crate) fn connect_for(address: SocketAddr, patience: Duration) -> Result<Self> {
        let fail = |error: std::io::Error| Error::from_io(address, &error);
        let stream = TcpStream::connect(address).map_err(fail)?;
        stream.set_nodelay(true).map_err(fail)?;
        stream.set_read_timeout(Some(patience)).map_err(fail)?;
        stream.set_write_timeout(Some(patience)).map_err(fail)?;
        Ok(Self { stream: BufReader::with_capacity(64 << 10, stream) })
    }

    /// Sends a request with these headers and a body, and reads its answer.
    pub(crate) fn send_body(
        &mut self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &[u8],
    ) -> Result<HttpAnswer> {
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\r\n");
        self.send_http(&[head.as_bytes(), body])
    }

    /// Sends a request and reads its answer. A server may refuse one before it has read all of it:
    /// then the answer is there, and the rest can't be sent.
    pub(crate) fn send_http(&mut self, request: &[&[u8]]) -> Result<HttpAnswer> {
        let stream = self.stream.get_mut();
        let sent: std::io::Result<()> = request.iter().try_for_each(|part| stream.write_all(part));
        let answer = self.read_answer();
        match (sent, answer) {
            (Err(error), Err(_)) => Err(Error::from_io("a connection to the server", &error)),
            (_, answer) => answer,
        }
    }

    /// Sends a part of a request.
    pub(crate) fn send_part(&mut self, part: &[u8]) -> Result<()> {
        let sent = self.stream.get_mut().write_all(part);
        sent.map_err(|error| Error::from_io("a connection to the server", &error))
    }

    /// Whether the server has said more than was asked for.
    pub(crate) fn has_unread(&self) -> bool {
        !self.stream.buffer().is_empty()
    }

    /// Reads an answer.
    pub(crate) fn read_answer(&mut self) -> Result<HttpAnswer> {
        let fail = |error: std::io::Error| Error::from_io("a connection to the server", &error);
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(fail)?;
        let status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status =
            status.ok_or_else(|| Error::invalid(format!("\"{}\" is no HTTP", line.trim())))?;
        let (mut length, mut is_last) = (0, false);
        loop {
            line.clear();
            self.stream.read_line(&mut line).map_err(fail)?;
            let header = line.trim();
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(':').unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap_or(0),
                "connection" => is_last = value.trim().eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).map_err(fail)?;
        Ok(HttpAnswer { status, body, is_last })
    }
}

/// A request for inference: what goes before the tensor, and the tensor.
#[derive(Clone)]
pub(crate) struct TestInferRequest {
    pub(crate) head: Vec<u8>,
    pub(crate) tensor: Vec<u8>,
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
        });
        Self::with_json(task, &json, tensor.to_vec())
    }

    /// Asks `task` with this JSON and the tensor that it speaks of.
    pub(crate) fn with_json(task: &str, json: &Value, tensor: Vec<u8>) -> Self {
        let json = json.to_string();
        let mut head = format!(
            "POST /v2/models/{task}/infer HTTP/1.1\r\nHost: tessera\r\n\
             Inference-Header-Content-Length: {}\r\nContent-Length: {}\r\n\r\n",
            json.len(),
            json.len() + tensor.len()
        )
        .into_bytes();
        head.extend_from_slice(json.as_bytes());
        Self { head, tensor }
    }

    /// Sends it, and tells how long the answer took and whether it is one.
    pub(crate) fn send_to(&self, client: &mut TestClient) -> Result<(Duration, HttpAnswer)> {
        let start = Instant::now();
        let answer = client.send_http(&[&self.head, &self.tensor])?;
        Ok((start.elapsed(), answer))
    }
}
