//! Requests over TLS and without it, one to a connection.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

/// A request that is to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Question<'a> {
    /// The method and the path.
    line: &'a str,
    headers: Vec<String>,
    body: &'a str,
}

impl<'a> Question<'a> {
    /// A request of a program that says that its body is JSON.
    pub(crate) fn new(line: &'a str) -> Self {
        let headers = ["Host: localhost", "Content-Type: application/json"];
        Self { line, headers: headers.map(str::to_owned).into(), body: "{}" }
    }

    /// With a token.
    pub(crate) fn with_token(mut self, token: Option<&str>) -> Self {
        self.headers.extend(token.map(|token| format!("Authorization: Bearer {token}")));
        self
    }

    /// With these headers and no others.
    pub(crate) fn with_headers(mut self, headers: &[&str]) -> Self {
        self.headers = headers.iter().map(|&header| header.to_owned()).collect();
        self
    }

    pub(crate) fn with_body(mut self, body: &'a str) -> Self {
        self.body = body;
        self
    }

    /// What goes over the wire.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let headers: String = self.headers.iter().map(|header| format!("{header}\r\n")).collect();
        let (line, length, body) = (self.line, self.body.len(), self.body);
        format!(
            "{line} HTTP/1.1\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .into_bytes()
    }
}

/// A connection with TLS; `None` where the server does not want it.
pub(crate) async fn connect(
    address: SocketAddr,
    connector: &TlsConnector,
) -> Option<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    connector.connect(name, stream).await.ok()
}

/// The status of an answer over TLS; `None` where the connection is refused.
pub(crate) async fn ask(
    address: SocketAddr,
    connector: &TlsConnector,
    question: &Question<'_>,
) -> Option<u16> {
    let stream = connect(address, connector).await?;
    exchange(stream, question).await.map(|(status, _)| status)
}

/// The status and the text of an answer without TLS.
pub(crate) async fn ask_plainly(address: SocketAddr, question: &Question<'_>) -> (u16, String) {
    exchange(TcpStream::connect(address).await.unwrap(), question).await.unwrap()
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    question: &Question<'_>,
) -> Option<(u16, String)> {
    stream.write_all(&question.bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer))
}
