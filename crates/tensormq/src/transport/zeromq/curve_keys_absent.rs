//! Keys of CURVE in a build without ZeroMQ: there are none.

use tessera_core::{Error, Result};

/// A key pair of CURVE, of which a build without ZeroMQ has none.
#[derive(Clone, Debug)]
pub enum CurveKeys {}

impl CurveKeys {
    /// A new pair: an error in this build.
    pub fn generate() -> Result<Self> {
        Err(not_built_in())
    }

    /// A pair from its text: an error in this build.
    pub fn from_text(_: &str, _: &str) -> Result<Self> {
        Err(not_built_in())
    }

    /// The public key, to be given to whoever connects.
    pub fn public_key(&self) -> String {
        match *self {}
    }

    /// The secret key, to be kept.
    pub fn secret_key(&self) -> String {
        match *self {}
    }
}

fn not_built_in() -> Error {
    Error::unsupported(
        "keys of CURVE are not in this build: they need the cargo feature \"zeromq\"",
    )
}
