//! HTTP for S3: connections with rustls and ring, as everywhere else in this program.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, crypto};
use tessera_core::{Error, Result};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

/// How long a connection may take to be made, with TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take to begin, and for how many bytes of a request it may take longer by
/// a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const BYTES_PER_SECOND: usize = 128 << 10;
/// What names a file with the authorities to believe, in place of the system's.
const AUTHORITY_VARIABLES: [&str; 2] = ["AWS_CA_BUNDLE", "SSL_CERT_FILE"];
/// Where systems have the authorities that they believe.
const AUTHORITY_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Makes connections for a store.
#[derive(Clone)]
pub(crate) struct S3Connector {
    client: Client<Dialler, HttpRequestBody>,
}

impl S3Connector {
    /// One that believes the system's authorities, or those of the file that the environment names.
    pub(crate) fn new(environment: &BTreeMap<String, String>) -> Result<Self> {
        let dialler = Dialler { tls: TlsConnector::from(Arc::new(tls_config(environment)?)) };
        Ok(Self { client: Client::builder(TokioExecutor::new()).build(dialler) })
    }
}

impl std::fmt::Debug for S3Connector {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("S3Connector").finish_non_exhaustive()
    }
}

fn tls_config(environment: &BTreeMap<String, String>) -> Result<ClientConfig> {
    let roots = trusted_authorities(environment)?;
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::engine(format!("TLS: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Those of the file that is named, or of the first there is.
fn trusted_authorities(environment: &BTreeMap<String, String>) -> Result<RootCertStore> {
    let given = AUTHORITY_VARIABLES.iter().find_map(|name| Some((name, environment.get(*name)?)));
    if let Some((name, file)) = given {
        let roots = read_authorities(file);
        let message = || format!("{name}={file}: expected a PEM file with certificates");
        return roots.ok_or_else(|| Error::usage(message()));
    }
    // Without any, https is refused, and http is as it is.
    Ok(AUTHORITY_FILES.into_iter().find_map(read_authorities).unwrap_or_else(RootCertStore::empty))
}

fn read_authorities(file: &str) -> Option<RootCertStore> {
    let found = CertificateDer::pem_file_iter(file).ok()?;
    let mut roots = RootCertStore::empty();
    // Of many one may be in a form that is not understood.
    roots.add_parsable_certificates(found.filter_map(std::result::Result::ok));
    (!roots.is_empty()).then_some(roots)
}

impl HttpConnector for S3Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for S3Connector {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let more = request.body().content_length() / BYTES_PER_SECOND;
        let limit = ANSWER_TIMEOUT + Duration::from_secs(more as u64);
        let answered = tokio::time::timeout(limit, self.client.request(request)).await;
        let answered = answered.map_err(|error| HttpError::new(HttpErrorKind::Timeout, error))?;
        let response = answered.map_err(|error| {
            let is_connect = error.is_connect();
            let kind = if is_connect { HttpErrorKind::Connect } else { HttpErrorKind::Request };
            HttpError::new(kind, Cause(root_cause(&error)))
        })?;
        let failed = |error| HttpError::new(HttpErrorKind::Interrupted, error);
        Ok(response.map(|body| HttpResponseBody::new(body.map_err(failed))))
    }
}

/// What was wrong at last.
#[derive(Debug)]
struct Cause(String);

impl std::fmt::Display for Cause {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.0)
    }
}

impl StdError for Cause {}

fn root_cause(error: &dyn StdError) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Connects, with TLS for https.
#[derive(Clone)]
struct Dialler {
    tls: TlsConnector,
}

type Dialling = Pin<Box<dyn Future<Output = io::Result<DialledStream>> + Send>>;

impl Service<Uri> for Dialler {
    type Response = DialledStream;
    type Error = io::Error;
    type Future = Dialling;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Dialling {
        let tls = self.tls.clone();
        Box::pin(async move {
            let dialling = tokio::time::timeout(CONNECT_TIMEOUT, dial(&uri, &tls));
            dialling.await.map_err(|_| io::ErrorKind::TimedOut.into()).flatten()
        })
    }
}

async fn dial(uri: &Uri, tls: &TlsConnector) -> io::Result<DialledStream> {
    let is_secured = uri.scheme_str() == Some("https");
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(if is_secured { 443 } else { 80 });
    let socket = TcpStream::connect((host, port)).await?;
    socket.set_nodelay(true)?;
    if !is_secured {
        return Ok(DialledStream::Plain(TokioIo::new(socket)));
    }
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let stream = tls.connect(name, socket).await?;
    Ok(DialledStream::Tls(Box::new(TokioIo::new(stream))))
}

enum DialledStream {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Connection for DialledStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for DialledStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl Write for DialledStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
