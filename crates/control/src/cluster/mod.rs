//! Nodes that are attached to a controller, and the tasks that are carried out at them.
//!
//! ```text
//! services       what nodes ask over gRPC: to join, for certificates, for content, for orders
//! node_table     the nodes: what they report, and what they were sent
//! cluster_site   has tasks carried out: units started, tables changed, units stopped
//! assignments    what each node is to do, from units, routes and reports
//! admin          tokens and nodes as people see and change them
//! placing        which node a task's blocks run at
//! ```

mod admin;
mod assignments;
mod cluster_site;
mod kept_placement;
mod node_table;
mod placing;
mod services;

pub use admin::{ClusterAdmin, TokenStatus};
pub use cluster_site::ClusterSite;
pub use node_table::{NodeStatus, NodeTable};
pub use services::{ContentReader, ContentSlice, cluster_services};
