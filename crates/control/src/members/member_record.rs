//! A node as the cluster keeps it.

use serde::{Deserialize, Serialize};

/// A node as the cluster keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// What it is called.
    pub name: String,
    /// When it joined, in seconds since 1970.
    pub joined: u64,
    /// Until when a certificate of it is good.
    pub certificate_expires: u64,
    /// Whether nothing is to be placed there any more.
    pub drained: bool,
    /// Whether it does not belong to the cluster any more. It is kept for as long as a certificate
    /// of it is good.
    pub removed: bool,
}
