//! Requests with all their headers: what is left to do for each is to copy a few pointers.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, Uri};
use tessera_core::{Error, Result};

use crate::response::HEADER_LENGTH;
use crate::target::ResolvedTarget;
use crate::workload::Workload;

/// Requests with all their headers, ready to be sent.
#[derive(Debug)]
pub(crate) struct PreparedRequests {
    uri: Uri,
    requests: Vec<(HeaderMap, Bytes)>,
}

impl PreparedRequests {
    pub(crate) fn new(target: &ResolvedTarget, workload: &Workload) -> Result<Self> {
        let path = format!("{}/infer", target.model_path);
        let uri = path.parse::<Uri>().map_err(|error| Error::usage(format!("{path}: {error}")))?;
        let requests = workload.bodies.iter().map(|body| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, target.server.host.clone());
            let content = match body.header_length {
                Some(_) => "application/octet-stream",
                None => "application/json",
            };
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content));
            if let Some(length) = body.header_length {
                headers.insert(HEADER_LENGTH, HeaderValue::from(length));
            }
            (headers, body.bytes.clone())
        });
        Ok(Self { uri, requests: requests.collect() })
    }

    /// The request whose turn it is, and the bytes of its body.
    pub(crate) fn request_for_turn(&self, turn: usize) -> (Request<Full<Bytes>>, usize) {
        // A workload has one request at least; without any, this would send empty ones.
        let chosen = self.requests.get(turn % self.requests.len().max(1));
        let (headers, body) = chosen.cloned().unwrap_or_default();
        let length = body.len();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = headers;
        (request, length)
    }
}
