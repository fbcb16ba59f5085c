//! What those share who may ask a host how its link is.

use std::fmt;
use std::str::FromStr;

use tessera_core::{Error, Result};

const KEY_BYTES: usize = 32;

/// The key of a host: whoever has it may probe the host.
#[derive(Clone, PartialEq, Eq)]
pub struct ProbeKey([u8; KEY_BYTES]);

impl ProbeKey {
    /// A key that nobody knows.
    pub fn random() -> Result<Self> {
        use std::io::Read;
        let mut bytes = [0; KEY_BYTES];
        let source = std::fs::File::open("/dev/urandom");
        source
            .and_then(|mut source| source.read_exact(&mut bytes))
            .map_err(|error| Error::from_io("/dev/urandom", &error))?;
        Ok(Self(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Display for ProbeKey {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(to, "{byte:02x}"))
    }
}

impl fmt::Debug for ProbeKey {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("ProbeKey")
    }
}

impl FromStr for ProbeKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("a key of probes has 64 hexadecimal digits");
        if text.len() != 2 * KEY_BYTES || !text.is_ascii() {
            return Err(wrong());
        }
        let mut bytes = [0; KEY_BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = &text[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}
