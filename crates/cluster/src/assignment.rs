//! What a node is to do, as a controller decides it and a node keeps it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tessera_core::{Error, Result};
use tessera_deploy::{TaskRoute, Unit, UnitId};

use crate::wire::Assignment;

/// Where somebody is reached, by name. What an address looks like is the transport's affair.
pub type PeerAddresses = BTreeMap<String, Value>;

/// The instances of a unit, as a gateway sends to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitInstances {
    /// The unit.
    pub unit: UnitId,
    /// How many requests of one gateway may be on their way to or through one instance.
    pub window: usize,
    /// How long a run of one row takes on one core; zero where that is not known.
    pub run_time: Duration,
    /// The instances that take requests.
    pub instances: Vec<String>,
    /// Why there is none and will be none, where that is so.
    pub unavailable: Option<String>,
    /// The node that they run at, where that is known, and the cores that it computes on.
    #[serde(default)]
    pub node: Option<String>,
    /// See `node`.
    #[serde(default)]
    pub cores: usize,
}

/// What a node is to do. Parts that are `None` are as before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeAssignment {
    /// Grows with each.
    pub number: u64,
    /// What is to run there, and nothing else.
    pub units: Option<Vec<Unit>>,
    /// Whom its units and its gateway send to.
    pub peers: Option<PeerAddresses>,
    /// Where its units send replies to.
    #[serde(default)]
    pub replies: Option<PeerAddresses>,
    /// What its gateway serves.
    pub routes: Option<Vec<TaskRoute>>,
    /// What its gateway sends to.
    pub instances: Option<Vec<UnitInstances>>,
    /// Whom it probes the links to.
    #[serde(default)]
    pub probed: Option<Vec<LinkTarget>>,
    /// What could run there, so that it finds out how long that takes.
    #[serde(default)]
    pub candidates: Option<Vec<CandidateUnit>>,
}

/// A unit that could run at a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateUnit {
    /// The unit: one block, at no node.
    pub unit: Unit,
    /// Whether the node is to have its weights at hand, before it runs there.
    pub prefetch: bool,
}

/// A node whose link is probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTarget {
    /// What it is called.
    pub node: String,
    /// Where it answers: host and port.
    pub address: String,
    /// What it must be asked with.
    pub key: String,
}

impl NodeAssignment {
    /// From what was sent.
    pub fn from_wire(wire: &Assignment) -> Result<Self> {
        Ok(Self {
            number: wire.number,
            units: read_part("units", wire.units.as_deref())?,
            peers: read_part("peers", wire.peers.as_deref())?,
            routes: read_part("routes", wire.routes.as_deref())?,
            instances: read_part("instances", wire.instances.as_deref())?,
            probed: read_part("probed", wire.probed.as_deref())?,
            candidates: read_part("candidates", wire.candidates.as_deref())?,
            replies: read_part("replies", wire.replies.as_deref())?,
        })
    }

    /// Makes it be what it is after another.
    pub fn merge(&mut self, newer: Self) {
        let Self { number, units, peers, replies, routes, instances, probed, candidates } = newer;
        self.number = number;
        self.units = units.or(self.units.take());
        self.peers = peers.or(self.peers.take());
        self.replies = replies.or(self.replies.take());
        self.routes = routes.or(self.routes.take());
        self.instances = instances.or(self.instances.take());
        self.probed = probed.or(self.probed.take());
        self.candidates = candidates.or(self.candidates.take());
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self { number: self.number, ..Self::default() }
    }
}

fn read_part<T: DeserializeOwned>(what: &str, part: Option<&[u8]>) -> Result<Option<T>> {
    part.map(|bytes| read_document(what, bytes)).transpose()
}

/// A document as it is sent.
pub fn write_document(value: &impl Serialize) -> Result<bytes::Bytes> {
    let written = serde_json::to_vec(value);
    written.map(Into::into).map_err(|error| Error::invalid(format!("a document: {error}")))
}

/// A document that was sent.
pub fn read_document<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::invalid(format!("{what}, as this version of Tessera does not know it: {error}"))
    })
}
