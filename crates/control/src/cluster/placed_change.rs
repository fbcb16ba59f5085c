//! A change as it is to be carried out.

use std::collections::BTreeMap;
use std::time::Duration;

use tessera_core::Result;
use tessera_deploy::TaskChange;

use super::node_table::KnownNode;
use super::site_state::SiteState;

/// The nodes, by name.
pub(super) type Nodes = BTreeMap<String, KnownNode>;

/// A change as it is to be carried out, where all is as it is at a moment.
#[derive(Default)]
pub(super) struct PlacedChange {
    /// What is wished for from then on.
    pub(super) wished: TaskChange,
    /// The tasks that it puts, with their nodes, and those that are gone.
    pub(super) placed: TaskChange,
    /// Whether blocks are fused then.
    pub(super) fusion: bool,
}

/// What a change comes to, where tasks and nodes are so and some nodes are to get nothing.
pub(super) type PlaceFn<'a> =
    dyn Fn(&SiteState, &Nodes, &[String]) -> Result<PlacedChange> + Sync + 'a;

/// A change that somebody asks for.
pub(super) struct ChangeRequest<'a> {
    /// What it comes to. It is asked again when all is started: others may have changed something.
    pub(super) place: &'a PlaceFn<'a>,
    /// Whether anybody wants it still.
    pub(super) is_wanted: &'a (dyn Fn() -> bool + Sync),
    /// How long units may take to be fetched and started.
    pub(super) start_timeout: Duration,
}
