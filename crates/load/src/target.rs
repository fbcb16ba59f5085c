//! The server and the model that are put under load.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use tessera_core::{Error, Result};

use crate::description::Description;
use crate::options::LONGEST;
use crate::response;
use crate::server::Server;

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

/// Where the model is.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) server: Server,
    /// The model's address on the server.
    pub(crate) model_path: String,
}

impl Target {
    /// A model of a server, with a timeout of 30 seconds.
    pub fn new(url: impl Into<String>, model: impl Into<String>) -> Self {
        let timeout = Duration::from_secs(30);
        Self { url: url.into(), model: model.into(), version: None, timeout }
    }

    /// Asks the server what it is and what the model takes.
    pub async fn describe(&self) -> Result<Description> {
        let Endpoint { server, model_path } = &self.endpoint().await?;
        let get = |path: String| async move { server.get(&path, self.timeout).await };
        let about = get(format!("{}/v2", server.prefix)).await?;
        let model = get(model_path.clone()).await?;
        let config = get(format!("{model_path}/config")).await?;
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
        let (about, config) = (present(&about), present(&config));
        Description::read(about.as_deref(), &text, config.as_deref())
            .map_err(|error| error.within(format!("{}: model \"{}\"", self.url, self.model)))
    }

    /// Looks the server up.
    pub(crate) async fn endpoint(&self) -> Result<Endpoint> {
        if self.timeout.is_zero() || self.timeout > LONGEST {
            return Err(Error::usage("a timeout is above zero and at most 30 days"));
        }
        let server = Server::find(&self.url).await?;
        let mut model_path = format!("{}/v2/models/{}", server.prefix, encode(&self.model));
        if let Some(version) = &self.version {
            model_path.push_str("/versions/");
            model_path.push_str(&encode(version));
        }
        Ok(Endpoint { server, model_path })
    }
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
    fn names_are_one_segment_of_a_path() {
        assert_eq!(encode("resnet50_v1.5"), "resnet50_v1.5");
        assert_eq!(encode("a/b ü"), "a%2Fb%20%C3%BC");
    }
}
