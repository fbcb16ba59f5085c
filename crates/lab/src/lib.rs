//! Networks in a box: several hosts on one machine, and links between them whose delay, rate and
//! loss are set while they are used.
//!
//! A host is a network namespace with one device, a TUN. What it sends is read by this process (the
//! [relay](Lab)), which hands it to the other host when the link between them would have. Nothing
//! leaves the namespaces that were made here, and nothing comes in. Needs root; where there is none
//! [`Lab::new`] says so.
//!
//! What a cluster builds on can be had in a box as well: [`EtcdMembers`] are etcd on loopback,
//! [`SeaweedServer`] speaks S3.

#![forbid(unsafe_code)]

mod etcd_members;
mod host;
mod lab;
mod link;
mod relay;
mod seaweed_server;
mod slow_group;

pub use etcd_members::{EtcdMembers, EtcdServerFiles};
pub use host::{LabHost, remove_all_hosts};
pub use lab::Lab;
pub use link::{LinkShape, LinkTraffic};
pub use seaweed_server::SeaweedServer;
pub use slow_group::SlowGroup;
