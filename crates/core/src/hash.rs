//! Content hashes, which are the names of blocks and weights.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Error;
use crate::hex::{parse_hex, write_hex};

/// The BLAKE3 hash of some content; also its name in a repository.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    /// The hash of `content`.
    pub fn of_content(content: &[u8]) -> Self {
        Self(*blake3::hash(content).as_bytes())
    }

    /// A hash from its 32 bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 12 hexadecimal digits, for tables and messages.
    pub fn short_hex(&self) -> String {
        let mut text = self.to_string();
        text.truncate(12);
        text
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short_hex())
    }
}

impl FromStr for ContentHash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::invalid(format!("\"{text}\" is no content hash (64 hex digits)"));
        parse_hex(text).map(Self).ok_or_else(wrong)
    }
}

impl Serialize for ContentHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_reads_back_from_its_text() {
        let hash = ContentHash::of_content(b"tessera");
        assert_eq!(hash.to_string().parse::<ContentHash>().unwrap(), hash);
    }

    #[test]
    fn what_is_no_hash_is_refused() {
        for text in ["", "ab", &"g".repeat(64), &"A".repeat(64), &"é".repeat(32)] {
            assert!(text.parse::<ContentHash>().is_err(), "{text}");
        }
    }
}
