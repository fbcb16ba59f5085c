//! A small client of HTTP: one request per connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Longer than any deadline of these tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    fn parse(received: &[u8]) -> io::Result<Self> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "no answer of HTTP");
        let text = str::from_utf8(received).map_err(|_| wrong())?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(wrong)?;
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        Ok(Self {
            status: status.ok_or_else(wrong)?,
            headers: lines.filter_map(header).collect(),
            body: body.to_owned(),
        })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body of an answer that must be a good one.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// The message of an answer that must be an error of this status.
    #[track_caller]
    pub(crate) fn refusal(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        let message = self.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(!message.is_empty(), "{}", self.body);
        message
    }

    /// The elements of an output.
    #[track_caller]
    pub(crate) fn output(&self, name: &str) -> Vec<f64> {
        let answer = self.ok();
        let outputs = answer["outputs"].as_array().unwrap();
        let output = outputs.iter().find(|output| output["name"] == name);
        let output = output.unwrap_or_else(|| panic!("no output {name}: {answer}"));
        output["data"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    }

    /// A parameter of the answer.
    #[track_caller]
    pub(crate) fn parameter(&self, name: &str) -> Value {
        self.ok()["parameters"][name].clone()
    }
}

fn send(address: &str, method: &str, path: &str, body: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let headers = format!("Host: {address}\r\nContent-Type: application/json\r\n");
    write_request(&mut stream, method, path, &headers, body)?;
    Ok(stream)
}

fn write_request(
    stream: &mut TcpStream,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<()> {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())
}

/// Asks with headers of one's own, one to a line.
#[track_caller]
pub(crate) fn call_with_headers(
    address: &str,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &str,
) -> Response {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write_request(&mut stream, method, path, &headers, body).unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    Response::parse(&received).unwrap()
}

/// Asks, and waits for the answer.
pub(crate) fn try_call(
    address: &str,
    method: &str,
    path: &str,
    body: &str,
) -> io::Result<Response> {
    let mut received = Vec::new();
    send(address, method, path, body)?.read_to_end(&mut received)?;
    Response::parse(&received)
}

/// Asks a server that is there.
#[track_caller]
pub(crate) fn call(address: &str, method: &str, path: &str, body: &str) -> Response {
    let answered = try_call(address, method, path, body);
    answered.unwrap_or_else(|error| panic!("{method} {address}{path}: {error}"))
}

/// The events of a server, from now on.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    /// Listens; returns once the server has begun to tell.
    pub(crate) fn of(address: &str) -> Self {
        let mut lines = BufReader::new(send(address, "GET", "/v1/events", "").unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(line.contains(" 200 "), "{line}");
        while !line.trim().is_empty() {
            line.clear();
            lines.read_line(&mut line).unwrap();
        }
        Self(lines)
    }

    /// The next event of this kind.
    pub(crate) fn next(&mut self, kind: &str) -> Value {
        loop {
            let mut line = String::new();
            let read = self.0.read_line(&mut line).unwrap();
            assert!(read > 0, "the events ended");
            // What stands between the events are the lengths of chunks and signs of life.
            let Some(event) = line.strip_prefix("data: ") else {
                continue;
            };
            let event: Value = serde_json::from_str(event).unwrap();
            if event["kind"] == kind {
                return event;
            }
        }
    }
}
