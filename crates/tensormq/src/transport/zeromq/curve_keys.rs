//! Keys of CURVE, with which ZeroMQ encrypts connections.

use std::fmt;

use tessera_core::{Error, Result};

/// A key pair of CURVE, with which connections between hosts are encrypted.
#[derive(Clone)]
pub struct CurveKeys {
    pub(super) public: [u8; 32],
    pub(super) secret: [u8; 32],
}

impl CurveKeys {
    /// A new pair.
    pub fn generate() -> Result<Self> {
        check_curve()?;
        let pair = zmq::CurveKeyPair::new().map_err(key_pair_error)?;
        Ok(Self { public: pair.public_key, secret: pair.secret_key })
    }

    /// A pair from its text, 40 characters each (ZeroMQ's Z85).
    pub fn from_text(public: &str, secret: &str) -> Result<Self> {
        check_curve()?;
        Ok(Self { public: key_from_text(public)?, secret: key_from_text(secret)? })
    }

    /// The public key, to be given to whoever connects.
    pub fn public_key(&self) -> String {
        key_to_text(&self.public)
    }

    /// The secret key, to be kept.
    pub fn secret_key(&self) -> String {
        key_to_text(&self.secret)
    }
}

impl fmt::Debug for CurveKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CurveKeys({})", self.public_key())
    }
}

fn check_curve() -> Result<()> {
    match zmq::has("curve") {
        Some(true) => Ok(()),
        _ => Err(Error::unsupported("this build of ZeroMQ has no encryption (CURVE)")),
    }
}

fn key_to_text(key: &[u8; 32]) -> String {
    zmq::z85_encode(key).unwrap_or_default()
}

pub(super) fn key_from_text(text: &str) -> Result<[u8; 32]> {
    let wrong = || Error::usage("a key of CURVE has 40 characters of ZeroMQ's Z85");
    let bytes = (text.len() == 40 && text.is_ascii()).then(|| zmq::z85_decode(text));
    let bytes = bytes.and_then(Result::ok).and_then(|bytes| bytes.try_into().ok());
    let key = bytes.ok_or_else(wrong)?;
    // libzmq gives zeros for what it can't read.
    if key_to_text(&key) == text { Ok(key) } else { Err(wrong()) }
}

fn key_pair_error(error: zmq::Error) -> Error {
    Error::from_io("a key pair", &std::io::Error::from_raw_os_error(error.to_raw()))
}
