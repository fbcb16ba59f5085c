//! Nodes that are attached to a controller, and the tasks that are carried out at them.
//!
//! ```text
//! services       what nodes ask over gRPC: to join, for certificates, for content, for orders
//! node_table     the nodes: what they report, and what they were sent
//! cluster_site   the tasks of a cluster: what is wished for, and what is done about it
//! site_inner     what it has; site_state: what it knows of tasks
//! carrying_out   a change (placed_change): units started, tables changed, units stopped
//! site_status    tasks and units as people see them
//! assignments    what each node is to do, from units, routes and reports
//! admin          tokens and nodes as people see and change them
//! placing_anew   tasks that run nowhere, or at nodes that are away
//! place_change   the tasks of a change where they are to run
//! placing        which node a task's blocks run at, where nothing is known to plan with
//! task_blocks    a task as planning sees it: its blocks, and what goes between them
//! observed       nodes and links at a moment, as a problem of placement
//! exit_choices   what can be chosen for exits; exit_rates: how many would leave at each threshold
//! learned_hops   what hops take beside the link
//! degrading      where the exits of tasks are that may degrade
//! replacing      which tasks move, and why; judging: what pays; move_gate: when they may
//! site_placing   has nodes find out what planning needs, and tasks move
//! plan_status    all that as people see it
//! ```

mod admin;
mod assignments;
mod carrying_out;
mod cluster_site;
mod content_directory;
mod content_reader;
mod content_service;
mod degrading;
mod exit_choices;
mod exit_rates;
mod judging;
mod kept_placement;
mod learned_hops;
mod move_gate;
mod node_table;
mod observed;
mod place_change;
mod placed_change;
mod placement_choice;
mod placing;
mod placing_anew;
mod placing_tasks;
mod plan_status;
mod replacing;
mod services;
mod site_inner;
mod site_placing;
mod site_state;
mod site_status;
mod task_blocks;
#[cfg(test)]
mod tests;

pub use admin::{ClusterAdmin, TokenStatus};
pub use cluster_site::{ClusterSite, ClusterSiteParts};
pub use content_reader::ContentReader;
pub use content_service::{ContentSlice, ServedContent, content_router};
pub use node_table::{NodeStatus, NodeTable};
pub use placement_choice::PlacementChoice;
pub use plan_status::{
    ClusterPlanStatus, ExitPlanStatus, LinkStatus, MoveStatus, TaskPlanStatus,
    ThresholdChangeStatus,
};
pub use services::cluster_services;
