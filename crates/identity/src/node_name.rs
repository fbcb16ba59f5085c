//! What a member of a cluster is called.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};

/// Longest name: a label of DNS.
const LONGEST_NAME: usize = 63;
/// Below these are the names in certificates, so that a node can't be taken for a controller.
const NODE_DOMAIN: &str = "node.tessera";
/// What every controller is called in its certificate, beside its own name.
pub const CONTROLLER_CERTIFICATE_NAME: &str = "controller.tessera";

/// What a node of a cluster is called: small letters, digits and dashes, as in a label of DNS.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    /// The name in its certificate.
    pub fn certificate_name(&self) -> String {
        format!("{}.{NODE_DOMAIN}", self.0)
    }

    /// The name in a controller's certificate.
    pub fn controller_certificate_name(&self) -> String {
        format!("{}.{CONTROLLER_CERTIFICATE_NAME}", self.0)
    }

    /// The node whose certificate has this name; `None` where it is no node's.
    pub fn from_certificate_name(name: &str) -> Option<Self> {
        name.strip_suffix(NODE_DOMAIN)?.strip_suffix('.')?.parse().ok()
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_plain = |letter: u8| matches!(letter, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let is_label = (1..=LONGEST_NAME).contains(&text.len())
            && text.bytes().all(is_plain)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if is_label {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::usage(format!(
            "{text:?} is no name of a node: expected 1 to {LONGEST_NAME} small letters, digits and \
             dashes, no dash first or last"
        )))
    }
}

impl TryFrom<String> for NodeName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels_and_a_controller_is_no_node() {
        let name: NodeName = "edge-7".parse().unwrap();
        assert_eq!(name.certificate_name(), "edge-7.node.tessera");
        let found = |text: &str| NodeName::from_certificate_name(text);
        assert_eq!(found("edge-7.node.tessera"), Some(name.clone()));
        for other in [&name.controller_certificate_name(), "node.tessera", "a.b.node.tessera", ""] {
            assert_eq!(found(other), None, "{other}");
        }
        let long = "a".repeat(64);
        for text in ["", "-a", "a-", "A", "a.b", "a b", "ü", "a\n", &long] {
            assert!(text.parse::<NodeName>().is_err(), "{text:?}");
        }
    }
}
