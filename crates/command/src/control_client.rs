//! A client of a control plane's REST API.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
pub use hyper::Method as HttpMethod;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, LOCATION};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tessera_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::request_body::{RequestBody, SentBody};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Controllers that may say, one after the other, that another leads.
const MOST_REDIRECTIONS: usize = 4;

/// What a control plane answers.
enum Answer {
    Document(Value),
    /// Another control plane is to be asked.
    Elsewhere(String),
}

/// Where a control plane is, and who asks it.
#[derive(Clone, Debug)]
pub struct ControlClient {
    url: String,
    authority: Option<PathBuf>,
    bearer: Option<String>,
}

impl ControlClient {
    /// For the control plane at `url`, as the holder of this token; `authority` is the file of that
    /// of its certificate, for https.
    pub fn new(url: &str, authority: Option<PathBuf>, bearer: Option<String>) -> Self {
        Self { url: url.trim_end_matches('/').to_owned(), authority, bearer }
    }

    /// Asks for something, and returns the JSON document of the answer; an error where it is
    /// refused.
    ///
    /// A controller that does not lead says who does, and that one is asked then.
    pub async fn ask(&self, method: HttpMethod, path: &str, body: Option<&Value>) -> Result<Value> {
        self.send(method, path, body.map_or(RequestBody::Empty, RequestBody::Json)).await
    }

    /// The same with whatever a request can bring.
    pub async fn send(
        &self,
        method: HttpMethod,
        path: &str,
        body: RequestBody<'_>,
    ) -> Result<Value> {
        let mut asked = self.clone();
        for _ in 0..MOST_REDIRECTIONS {
            match asked.ask_once(method.clone(), path, body).await? {
                Answer::Document(document) => return Ok(document),
                Answer::Elsewhere(url) => asked.url = url,
            }
        }
        Err(Error::lost(format!("{}: nobody who is asked leads", self.url)))
    }

    async fn ask_once(
        &self,
        method: HttpMethod,
        path: &str,
        body: RequestBody<'_>,
    ) -> Result<Answer> {
        let answer = self.open_answer(method, path, body).await?;
        self.read_answer(answer, path).await
    }

    /// Asks for something, and returns the answer as it begins.
    async fn open_answer(
        &self,
        method: HttpMethod,
        path: &str,
        body: RequestBody<'_>,
    ) -> Result<Response<Incoming>> {
        let wrong = |why: &str| Error::usage(format!("{}: {why}", self.url));
        let uri: Uri = format!("{}{path}", self.url)
            .parse()
            .map_err(|_| wrong("no URL, expected http://HOST:PORT"))?;
        let host = uri.host().ok_or_else(|| wrong("no host, expected http://HOST:PORT"))?;
        let port = uri.port_u16();
        let request = self.make_request(method, &uri, body)?;
        let exchange = async {
            match uri.scheme_str() {
                Some("http") => {
                    let stream = self.connect(host, port.unwrap_or(80)).await?;
                    self.exchange(stream, request).await
                }
                Some("https") => {
                    let stream = self.connect(host, port.unwrap_or(443)).await?;
                    let name = host.trim_matches(['[', ']']).to_owned();
                    let name = ServerName::try_from(name)
                        .map_err(|_| wrong("its host is no name in a certificate"))?;
                    let connector = TlsConnector::from(Arc::new(self.tls_config()?));
                    let secured = connector.connect(name, stream).await;
                    self.exchange(secured.map_err(|error| self.lost(&error))?, request).await
                }
                _ => Err(wrong("expected http:// or https://")),
            }
        };
        exchange.await
    }

    /// The same for whoever has no runtime.
    pub fn ask_blocking(
        &self,
        method: HttpMethod,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        self.send_blocking(method, path, body.map_or(RequestBody::Empty, RequestBody::Json))
    }

    /// The same with whatever a request can bring.
    pub fn send_blocking(
        &self,
        method: HttpMethod,
        path: &str,
        body: RequestBody<'_>,
    ) -> Result<Value> {
        new_runtime()?.block_on(self.send(method, path, body))
    }

    /// Hands every event of a stream to `each`, as it comes, until the server ends it or `each` has
    /// had enough.
    pub fn follow_events(
        &self,
        path: &str,
        each: &mut dyn FnMut(&str) -> Result<bool>,
    ) -> Result<()> {
        new_runtime()?.block_on(async {
            let answer = self.open_answer(HttpMethod::GET, path, RequestBody::Empty).await?;
            if !answer.status().is_success() {
                return self.read_answer(answer, path).await.map(drop);
            }
            let (mut body, mut text) = (answer.into_body(), Vec::new());
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| self.lost(&error))?;
                text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
                    let line: Vec<u8> = text.drain(..=end).collect();
                    let line = String::from_utf8_lossy(&line);
                    if let Some(event) = line.trim_end().strip_prefix("data:")
                        && !each(event.trim_start())?
                    {
                        return Ok(());
                    }
                }
            }
            Ok(())
        })
    }

    fn make_request(
        &self,
        method: HttpMethod,
        uri: &Uri,
        body: RequestBody<'_>,
    ) -> Result<Request<SentBody>> {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        // A change says that it is JSON, also where it has nothing to say.
        let is_post = method == HttpMethod::POST;
        let content_type = body.content_type().or_else(|| is_post.then_some("application/json"));
        let mut request = Request::builder().method(method).uri(path);
        if let Some(authority) = uri.authority() {
            request = request.header(HOST, authority.as_str());
        }
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if let Some(token) = &self.bearer {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        request
            .body(body.open()?)
            .map_err(|error| Error::usage(format!("a request to {}: {error}", self.url)))
    }

    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream> {
        let connecting = TcpStream::connect((host.trim_matches(['[', ']']), port));
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
        match connected {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(self.lost(&error)),
            Err(_) => Err(Error::timed_out(format!("{}: it does not answer", self.url))),
        }
    }

    fn tls_config(&self) -> Result<ClientConfig> {
        let file = self.authority.as_deref().ok_or_else(|| {
            Error::usage(format!("{}: whose certificate is believed? expected --ca FILE", self.url))
        })?;
        let roots = read_authority(file)?;
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::engine(format!("TLS: {error}")))?;
        Ok(config.with_root_certificates(roots).with_no_client_auth())
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<SentBody>,
    ) -> Result<Response<Incoming>> {
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(|error| self.lost(&error))?;
        // What goes wrong on the connection is heard by whoever waits for the answer.
        tokio::spawn(async move { drop(connection.await) });
        sender.send_request(request).await.map_err(|error| self.lost(&error))
    }

    async fn read_answer(&self, answer: Response<Incoming>, path: &str) -> Result<Answer> {
        let status = answer.status();
        let place = answer.headers().get(LOCATION).and_then(|place| place.to_str().ok());
        let elsewhere = place.and_then(|place| place.strip_suffix(path)).map(ToOwned::to_owned);
        if let (StatusCode::TEMPORARY_REDIRECT, Some(url)) = (status, elsewhere) {
            return Ok(Answer::Elsewhere(url));
        }
        let body = answer.into_body().collect().await.map_err(|error| self.lost(&error))?;
        let text = body.to_bytes();
        let document: Option<Value> = serde_json::from_slice(&text).ok();
        if status.is_success() {
            return document.map(Answer::Document).ok_or_else(|| {
                Error::invalid(format!("{}: the answer is no JSON document", self.url))
            });
        }
        let said = document.as_ref().and_then(|document| document.get("error")?.as_str());
        let message = match said {
            Some(said) => said.to_owned(),
            None => format!("{}: it answered with status {status}", self.url),
        };
        let kind = match status.as_u16() {
            404 => ErrorKind::NotFound,
            400..=499 => ErrorKind::Usage,
            _ => ErrorKind::Lost,
        };
        Err(Error::new(kind, message))
    }

    fn lost(&self, error: &dyn std::fmt::Display) -> Error {
        Error::lost(format!("{}: {error}", self.url))
    }
}

fn new_runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Error::from_io("a runtime", &error))
}

fn read_authority(file: &Path) -> Result<RootCertStore> {
    let wrong =
        |error: &dyn std::fmt::Display| Error::usage(format!("--ca {}: {error}", file.display()));
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        roots.add(certificate).map_err(|error| wrong(&error))?;
    }
    if roots.is_empty() {
        return Err(wrong(&"there is no certificate in it, expected PEM"));
    }
    Ok(roots)
}
