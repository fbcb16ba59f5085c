//! How the links between hosts are, measured with few bytes: round trips by small packets, throughput
//! by trains of packets where nothing else says it, and by what is sent anyway where that does.
//!
//! Everything goes over one UDP socket of each host. A packet carries a code that only those can
//! make who know the key of the host that was asked, so that nobody else is answered or believed.

mod budget;
mod estimate;
mod key;
mod packet;
mod prober;
mod timestamps;
mod train;

pub use estimate::{LinkEstimate, TrafficSample};
pub use key::ProbeKey;
pub use prober::{LinkProber, ProbePeer};
