//! An OpenTelemetry collector, spoken to over plain HTTP/1.1.
//!
//! One connection per batch, which is one a second or one per 512 spans: too few for a client with
//! a pool of connections to pay.

use std::time::Duration;

use tessera_core::{Error, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a collector has for a batch.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where OTLP over HTTP is by default.
const DEFAULT_PORT: u16 = 4318;

/// Most bytes of an answer's head.
const LONGEST_HEAD: usize = 16 * 1024;

/// Where spans are sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TraceCollector {
    /// Host and port.
    authority: String,
    path: String,
    /// Lines of HTTP that go with every request.
    headers: String,
}

impl TraceCollector {
    /// Reads `http://HOST[:PORT][/PATH]`; `headers` are lines of HTTP.
    pub(super) fn new(endpoint: &str, headers: String) -> Result<Self> {
        let wrong = || {
            Error::usage(format!(
                "\"{endpoint}\" is no collector, expected http://HOST:{DEFAULT_PORT}"
            ))
        };
        let rest = endpoint.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let sound = !authority.is_empty()
            && !authority.starts_with(':')
            && rest.chars().all(|character| character.is_ascii_graphic())
            && !rest.contains(['@', '?', '#']);
        if !sound {
            return Err(wrong());
        }
        // What follows the last colon is the port, but for an address of IPv6 without one: `[::1]`.
        let authority = match authority.rsplit_once(':') {
            Some((_, port)) if !port.ends_with(']') => {
                port.parse::<u16>().map_err(|_| wrong())?;
                authority.to_owned()
            }
            _ => format!("{authority}:{DEFAULT_PORT}"),
        };
        let path = path.trim_matches('/');
        let between = if path.is_empty() { "" } else { "/" };
        Ok(Self { authority, path: format!("{between}{path}/v1/traces"), headers })
    }

    /// Sends a body of JSON and returns the status of the answer.
    pub(super) async fn post_spans(&self, body: &[u8]) -> Result<u16> {
        let exchanged = tokio::time::timeout(EXCHANGE_TIMEOUT, self.exchange_http(body)).await;
        match exchanged {
            Ok(Ok(head)) => parse_status(&head)
                .ok_or_else(|| Error::invalid(format!("{}: no answer in HTTP", self.authority))),
            Ok(Err(error)) => Err(Error::from_io(&self.authority, &error)),
            Err(_) => Err(Error::timed_out(format!("{}: no answer in time", self.authority))),
        }
    }

    /// Sends a request and returns at least the head of the answer.
    async fn exchange_http(&self, body: &[u8]) -> std::io::Result<Vec<u8>> {
        let Self { authority, path, headers } = self;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n{headers}connection: close\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(authority.as_str()).await?;
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        let mut answer = Vec::with_capacity(1024);
        while answer.len() < LONGEST_HEAD
            && !answer.windows(4).any(|window| window == b"\r\n\r\n".as_slice())
        {
            if stream.read_buf(&mut answer).await? == 0 {
                break;
            }
        }
        Ok(answer)
    }
}

/// The status in `HTTP/1.1 200 OK`.
fn parse_status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|&byte| byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_with_or_without_port_and_path() {
        for (endpoint, authority, path) in [
            ("http://collector:4318", "collector:4318", "/v1/traces"),
            ("http://collector", "collector:4318", "/v1/traces"),
            ("http://collector:80/", "collector:80", "/v1/traces"),
            ("http://10.0.0.1/otlp/", "10.0.0.1:4318", "/otlp/v1/traces"),
            ("http://[::1]", "[::1]:4318", "/v1/traces"),
            ("http://[::1]:9/a/b", "[::1]:9", "/a/b/v1/traces"),
        ] {
            let expected = TraceCollector {
                authority: authority.into(),
                path: path.into(),
                headers: String::new(),
            };
            assert_eq!(
                TraceCollector::new(endpoint, String::new()).unwrap(),
                expected,
                "{endpoint}"
            );
        }
        for endpoint in [
            "",
            "collector:4318",
            "https://collector:4318",
            "http://",
            "http:///path",
            "http://:4318",
            "http://collector:port",
            "http://collector:99999",
            "http://a b",
            "http://me@collector",
            "http://collector/\r\nx: y",
        ] {
            assert!(TraceCollector::new(endpoint, String::new()).is_err(), "{endpoint:?}");
        }
    }

    #[test]
    fn the_status_is_the_second_word() {
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\n", Some(200)),
            ("HTTP/1.0 503\r\n", Some(503)),
            ("HTTP/1.1", None),
            ("SSH-2.0-OpenSSH 9\r\n", None),
            ("", None),
        ] {
            assert_eq!(parse_status(answer.as_bytes()), expected, "{answer:?}");
        }
    }
}
