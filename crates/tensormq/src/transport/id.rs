//! What a transport is called: a name that the registry knows.

use std::fmt;

use serde::{Serialize, Serializer};

/// A way from a sender to a receiver, by its name. Which there are is in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Transport(&'static str);

impl Transport {
    /// For the transports' own folders, which give themselves a name.
    pub(super) const fn with_name(name: &'static str) -> Self {
        Self(name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Transport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
