//! What the nodes of a cluster and its controllers say to each other.
//!
//! Each node opens one stream to a controller ([`wire`], gRPC over TLS with certificates at both
//! ends), so that it may be behind a firewall: it reports how it is, and hears what it is to do.
//! Somebody who is no node yet has a token, which says whom to believe and lets in once
//! ([`join_cluster`]).

#![forbid(unsafe_code)]

mod assignment;
mod authority_verifier;
mod content_connection;
mod controller_channel;
mod join;
mod joined_node;
mod session;
mod unit_report;
#[allow(missing_docs, clippy::all, unused_qualifications, reason = "generated")]
#[path = "generated.rs"]
pub mod wire;

pub use assignment::{
    CandidateUnit, LinkTarget, NodeAssignment, PeerAddresses, UnitInstances, read_document,
    write_document,
};
pub use content_connection::{ContentConnection, ContentHolder, FetchedContent, LocatedContent};
pub use controller_channel::{ControllerAddress, SocketHook};
pub use join::join_cluster;
pub use joined_node::JoinedNode;
pub use session::{ControllerConnection, NodeSession, refusal_of_epoch};
pub use tessera_probe::LinkEstimate;
pub use unit_report::{
    InstanceDetail, TaskTraffic, TaskWay, UnitProfile, UnitReport, UnitState, WeightReport,
};

/// The names in the certificate of whoever sent a request, put there by whoever accepted its
/// connection; none where it showed no certificate.
#[derive(Clone, Debug, Default)]
pub struct PeerNames(pub Vec<String>);
