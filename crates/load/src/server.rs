//! A server: where it is, and pages that are read from it once.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use tessera_core::{Error, Result};

use crate::connector::{Connector, error_with_causes};

/// Where a server is, looked up once: a name server is not what is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedServer {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) host: HeaderValue,
    /// The path of its URL, without a slash at the end.
    pub(crate) prefix: String,
    /// `http://HOST:PORT`, for errors.
    origin: String,
}

/// The parts of a URL that a request needs.
#[derive(Debug, PartialEq, Eq)]
struct UrlParts {
    host: String,
    port: u16,
    authority: String,
    prefix: String,
}

impl ResolvedServer {
    /// Looks up the server of a URL.
    pub(crate) async fn resolve_url(url: &str) -> Result<Self> {
        let UrlParts { host, port, authority, prefix } = parse_url(url)?;
        let addresses = tokio::net::lookup_host((host.as_str(), port))
            .await
            .map_err(|error| Error::from_io(url, &error))?
            .collect();
        let host = HeaderValue::from_str(&authority)
            .map_err(|_| Error::usage(format!("\"{authority}\" is no name of a host")))?;
        Ok(Self { addresses, host, prefix, origin: format!("http://{authority}") })
    }

    /// Reads one page, on a connection of its own.
    pub(crate) async fn get_page(
        &self,
        path: &str,
        timeout: Duration,
    ) -> Result<(StatusCode, Bytes)> {
        let lost = |text: String| Error::lost(format!("{}{path}: {text}", self.origin));
        let ask = async {
            let mut sender = Connector::new(self.addresses.clone()).open_connection().await?;
            let mut request = Request::new(Full::<Bytes>::default());
            *request.uri_mut() = path.parse::<Uri>().map_err(|error| error.to_string())?;
            request.headers_mut().insert(HOST, self.host.clone());
            let response =
                sender.send_request(request).await.map_err(|error| error_with_causes(&error))?;
            let status = response.status();
            let body =
                response.into_body().collect().await.map_err(|error| error_with_causes(&error))?;
            Ok::<_, String>((status, body.to_bytes()))
        };
        let until = Instant::now() + timeout;
        match tokio::time::timeout_at(until.into(), ask).await {
            Ok(answer) => answer.map_err(lost),
            Err(_) => Err(Error::timed_out(format!(
                "{}{path}: no answer within {timeout:?}",
                self.origin
            ))),
        }
    }
}

fn parse_url(url: &str) -> Result<UrlParts> {
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
    Ok(UrlParts {
        host: host.to_owned(),
        port: authority.port_u16().unwrap_or(80),
        authority: authority.to_string(),
        prefix: uri.path().trim_end_matches('/').to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_host_a_port_and_a_path() {
        let parts = parse_url("http://localhost:8000").unwrap();
        assert_eq!((parts.host.as_str(), parts.port), ("localhost", 8000));
        assert_eq!(parts.prefix, "");
        assert_eq!(parse_url("http://a/serve/").unwrap().prefix, "/serve");
        assert_eq!(parse_url("http://a").unwrap().port, 80);
        let six = parse_url("http://[::1]:8000").unwrap();
        assert_eq!((six.host.as_str(), six.authority.as_str()), ("::1", "[::1]:8000"));
        for wrong in ["localhost:8000", "https://a:1", "http://a?b", "http://u@a", "", "http://"] {
            assert!(parse_url(wrong).is_err(), "{wrong}");
        }
    }
}
