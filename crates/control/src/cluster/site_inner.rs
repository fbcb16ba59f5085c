//! What a cluster's site has: its nodes, its members, and what is decided of its tasks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::broadcast;

use super::assignments::SharedDocuments;
use super::content_reader::ContentReader;
use super::kept_placement::KeptPlacement;
use super::node_table::NodeTable;
use super::placing_tasks::PlacingTasks;
use super::replacing::Replacer;
use super::site_state::SiteState;
use crate::members::MemberRegistry;

/// How long the units of a change may take to be fetched and started.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(300);
/// How often nodes are pinged.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(1);

/// What a site has.
pub(super) struct SiteInner {
    pub(super) nodes: Arc<NodeTable>,
    pub(super) members: Arc<MemberRegistry>,
    pub(super) kept_placement: Arc<KeptPlacement>,
    pub(super) content: Arc<dyn ContentReader>,
    pub(super) replacer: Replacer,
    pub(super) state: Mutex<SiteState>,
    /// Held while something is decided and kept.
    pub(super) changing: tokio::sync::Mutex<()>,
    /// Tasks that are being placed anew.
    pub(super) placing: PlacingTasks,
    pub(super) events: broadcast::Sender<Arc<str>>,
    pub(super) shared_documents: Mutex<SharedDocuments>,
}
