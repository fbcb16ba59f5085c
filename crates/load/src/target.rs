//! The server and the model that are put under load.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use tessera_core::{Error, Result};

use crate::client::{Connector, chain};
use crate::description::Description;
use crate::options::LONGEST;
use crate::response;

/// The server and the model that are put under load.
#[derive(Clone, Debug)]
pub struct Target {
    /// `http://HOST:PORT`, with whatever path goes before `/v2`.
    pub url: String,
    /// The model's name.
    pub model: String,
    /// The model's version; the server chooses where there is none.
    pub version: Option<String>,
    /// How long a request may take, from when it is due.
    pub timeout: Duration,
}

/// Where the server is, looked up once: a name server is not what is measured.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) host: HeaderValue,
    /// The model's address on the server.
    pub(crate) model_path: String,
    prefix: String,
}

/// The parts of a URL that a request needs.
#[derive(Debug, PartialEq, Eq)]
struct Location {
    host: String,
    port: u16,
    authority: String,
    prefix: String,
}

impl Target {
    /// A model of a server, with a timeout of 30 seconds.
    pub fn new(url: impl Into<String>, model: impl Into<String>) -> Self {
        let timeout = Duration::from_secs(30);
        Self { url: url.into(), model: model.into(), version: None, timeout }
    }

    /// Asks the server what it is and what the model takes.
    pub async fn describe(&self) -> Result<Description> {
        let endpoint = self.endpoint().await?;
        let server = self.get(&endpoint, &format!("{}/v2", endpoint.prefix)).await?;
        let model = self.get(&endpoint, &endpoint.model_path).await?;
        let config = self.get(&endpoint, &format!("{}/config", endpoint.model_path)).await?;
        let (status, text) = model;
        if status != StatusCode::OK {
            let told = response::error_message(&text).unwrap_or_default();
            return Err(Error::not_found(format!(
                "{}: model \"{}\": HTTP {} {told}",
                self.url,
                self.model,
                status.as_u16()
            )));
        }
        let present = |(status, text): &(StatusCode, Bytes)| {
            Some(text.clone()).filter(|_| *status == StatusCode::OK)
        };
        let (server, config) = (present(&server), present(&config));
        Description::read(server.as_deref(), &text, config.as_deref())
            .map_err(|error| error.within(format!("{}: model \"{}\"", self.url, self.model)))
    }

    /// Looks the server up.
    pub(crate) async fn endpoint(&self) -> Result<Endpoint> {
        if self.timeout.is_zero() || self.timeout > LONGEST {
            return Err(Error::usage("a timeout is above zero and at most 30 days"));
        }
        let Location { host, port, authority, prefix } = locate(&self.url)?;
        let addresses = tokio::net::lookup_host((host.as_str(), port))
            .await
            .map_err(|error| Error::io(&self.url, &error))?
            .collect();
        let host = HeaderValue::from_str(&authority)
            .map_err(|_| Error::usage(format!("\"{authority}\" is no name of a host")))?;
        let mut model_path = format!("{prefix}/v2/models/{}", encode(&self.model));
        if let Some(version) = &self.version {
            model_path.push_str("/versions/");
            model_path.push_str(&encode(version));
        }
        Ok(Endpoint { addresses, host, model_path, prefix })
    }

    async fn get(&self, endpoint: &Endpoint, path: &str) -> Result<(StatusCode, Bytes)> {
        let lost = |text: String| Error::lost(format!("{}{path}: {text}", self.url));
        let ask = async {
            let mut sender = Connector::new(endpoint.addresses.clone()).connect().await?;
            let mut request = Request::new(Full::<Bytes>::default());
            *request.uri_mut() = path.parse::<Uri>().map_err(|error| error.to_string())?;
            request.headers_mut().insert(HOST, endpoint.host.clone());
            let response = sender.send_request(request).await.map_err(|error| chain(&error))?;
            let status = response.status();
            let body = response.into_body().collect().await.map_err(|error| chain(&error))?;
            Ok::<_, String>((status, body.to_bytes()))
        };
        let until = Instant::now() + self.timeout;
        match tokio::time::timeout_at(until.into(), ask).await {
            Ok(answer) => answer.map_err(lost),
            Err(_) => Err(Error::timed_out(format!(
                "{}{path}: no answer within {:?}",
                self.url, self.timeout
            ))),
        }
    }
}

fn locate(url: &str) -> Result<Location> {
    let wrong = || Error::usage(format!("\"{url}\", expected http://HOST:PORT"));
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let authority = uri.authority().ok_or_else(wrong)?;
    if uri.scheme_str() != Some("http")
        || uri.query().is_some()
        || authority.as_str().contains('@')
        || authority.host().is_empty()
    {
        return Err(wrong());
    }
    // An IPv6 address is looked up without its brackets.
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    Ok(Location {
        host: host.to_owned(),
        port: authority.port_u16().unwrap_or(80),
        authority: authority.to_string(),
        prefix: uri.path().trim_end_matches('/').to_owned(),
    })
}

/// A name as one segment of a path.
fn encode(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_host_a_port_and_what_goes_before_v2() {
        let location = locate("http://localhost:8000").unwrap();
        assert_eq!((location.host.as_str(), location.port), ("localhost", 8000));
        assert_eq!(location.prefix, "");
        assert_eq!(locate("http://a/serve/").unwrap().prefix, "/serve");
        assert_eq!(locate("http://a").unwrap().port, 80);
        let six = locate("http://[::1]:8000").unwrap();
        assert_eq!((six.host.as_str(), six.authority.as_str()), ("::1", "[::1]:8000"));
        for wrong in ["localhost:8000", "https://a:1", "http://a?b", "http://u@a", "", "http://"] {
            assert!(locate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_one_segment_of_a_path() {
        assert_eq!(encode("resnet50_v1.5"), "resnet50_v1.5");
        assert_eq!(encode("a/b ü"), "a%2Fb%20%C3%BC");
    }
}
