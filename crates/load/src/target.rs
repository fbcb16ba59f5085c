//! The server and the model that are put under load.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use tessera_core::{Error, Result};

use crate::description::ModelDescription;
use crate::options::MAX_DURATION;
use crate::response;
use crate::server::ResolvedServer;

/// The server and the model that are put under load.
#[derive(Clone, Debug)]
pub struct LoadTarget {
    /// `http://HOST:PORT`, with whatever path goes before `/v2`.
    pub url: String,
    /// The model's name.
    pub model: String,
    /// The model's version; the server chooses where there is none.
    pub version: Option<String>,
    /// How long a request may take, from when it is due.
    pub timeout: Duration,
}

/// Where the model is.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedTarget {
    pub(crate) server: ResolvedServer,
    /// The model's address on the server.
    pub(crate) model_path: String,
}

impl LoadTarget {
    /// A model of a server, with a timeout of 30 seconds.
    pub fn new(url: impl Into<String>, model: impl Into<String>) -> Self {
        let timeout = Duration::from_secs(30);
        Self { url: url.into(), model: model.into(), version: None, timeout }
    }

    /// Asks the server what it is and what the model takes.
    pub async fn fetch_description(&self) -> Result<ModelDescription> {
        let ResolvedTarget { server, model_path } = &self.resolve_model().await?;
        let get = |path: String| async move { server.get_page(&path, self.timeout).await };
        let about = get(format!("{}/v2", server.prefix)).await?;
        let model = get(model_path.clone()).await?;
        let config = get(format!("{model_path}/config")).await?;
        let (status, text) = model;
        if status != StatusCode::OK {
            let message = response::error_message(&text).unwrap_or_default();
            return Err(Error::not_found(format!(
                "{}: model \"{}\": HTTP {} {message}",
                self.url,
                self.model,
                status.as_u16()
            )));
        }
        let present = |(status, text): &(StatusCode, Bytes)| {
            Some(text.clone()).filter(|_| *status == StatusCode::OK)
        };
        let (about, config) = (present(&about), present(&config));
        ModelDescription::from_documents(about.as_deref(), &text, config.as_deref())
            .map_err(|error| error.with_context(format!("{}: model \"{}\"", self.url, self.model)))
    }

    /// Looks the server up.
    pub(crate) async fn resolve_model(&self) -> Result<ResolvedTarget> {
        if self.timeout.is_zero() || self.timeout > MAX_DURATION {
            return Err(Error::usage("a timeout is above zero and at most 30 days"));
        }
        let server = ResolvedServer::resolve_url(&self.url).await?;
        let mut model_path = format!("{}/v2/models/{}", server.prefix, encode_segment(&self.model));
        if let Some(version) = &self.version {
            model_path.push_str("/versions/");
            model_path.push_str(&encode_segment(version));
        }
        Ok(ResolvedTarget { server, model_path })
    }
}

/// A name as one segment of a path.
fn encode_segment(name: &str) -> String {
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
    fn names_are_one_segment_of_a_path() {
        assert_eq!(encode_segment("resnet50_v1.5"), "resnet50_v1.5");
        assert_eq!(encode_segment("a/b ü"), "a%2Fb%20%C3%BC");
    }
}
