//! Content that a node lacks: from peers that a controller has named, from the controller, and from
//! the cluster's object store.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use tessera_core::{ContentHash, Result};
use tessera_deploy::Unit;
use tessera_repository::{ContentFetcher, ContentKind, ContentName, ContentSource, Repository};
use tokio::runtime::Handle;

use super::cluster_store::ClusterStore;
use super::content_peers::ContentPeers;
use super::controller_link::ControllerLink;
use super::grpc_source::ControllerSource;

/// Fetches what a node lacks; its functions may take their time, and are called by threads that may
/// wait.
pub(super) struct ContentSupply {
    pub(super) repository: PathBuf,
    pub(super) fetcher: ContentFetcher,
    pub(super) link: Arc<ControllerLink>,
    pub(super) peers: ContentPeers,
    pub(super) store: ClusterStore,
    pub(super) runtime: Handle,
}

impl ContentSupply {
    /// Fetches what a unit needs and the repository does not have.
    pub(super) fn fetch_unit(&self, unit: &Unit) -> Result<()> {
        self.fetch_blocks(unit)?;
        let repository = Repository::open(&self.repository)?;
        let mut missing = BTreeSet::new();
        for block in distinct_blocks(unit) {
            let weights = repository.missing_weights(block)?;
            let hashes: Vec<ContentHash> = weights.iter().map(|weight| weight.hash).collect();
            self.peers.note_weights_of(block, &hashes);
            missing.extend(weights);
        }
        self.peers.forget(distinct_blocks(unit));
        self.fetch_missing(&repository, missing)
    }

    /// Fetches the blocks of a unit without their weights.
    pub(super) fn fetch_blocks(&self, unit: &Unit) -> Result<()> {
        let repository = Repository::open(&self.repository)?;
        let block = |hash| ContentName { kind: ContentKind::Block, hash };
        let blocks = distinct_blocks(unit).into_iter().map(block);
        let missing = blocks.filter(|block| !repository.has_content(*block)).collect();
        self.fetch_missing(&repository, missing)
    }

    fn fetch_missing(&self, repository: &Repository, missing: BTreeSet<ContentName>) -> Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        let missing: Vec<ContentName> = missing.into_iter().collect();
        let hashes: Vec<ContentHash> = missing.iter().map(|name| name.hash).collect();
        self.locate(&hashes);
        let sources = |name| self.sources_of(name);
        let fetched = self.fetcher.fetch_all(repository, &missing, &sources, &|_| ());
        let blocks = missing.iter().filter(|name| name.kind == ContentKind::Weight);
        self.peers.forget(blocks.map(|name| name.hash));
        fetched
    }

    /// Asks the controller who has this; while it is away those are asked that it named before.
    fn locate(&self, hashes: &[ContentHash]) {
        let Some(connection) = self.link.current() else { return };
        match self.runtime.block_on(connection.content().locate_content(hashes)) {
            Ok(located) => {
                self.peers.note_holders(located.holders);
                self.store.note_address(located.object_store);
            }
            Err(error) => tracing::debug!(%error, "nobody says who has content"),
        }
    }

    fn sources_of(&self, name: ContentName) -> Vec<Arc<dyn ContentSource>> {
        let peers = self.peers.holders_of(name.hash);
        let mut sources: Vec<Arc<dyn ContentSource>> =
            peers.into_iter().map(|peer| peer as Arc<dyn ContentSource>).collect();
        if let Some(connection) = self.link.current() {
            let (connection, runtime) = (connection.content(), self.runtime.clone());
            sources.push(Arc::new(ControllerSource { connection, runtime }));
        }
        if let Some(store) = self.store.current() {
            sources.push(store);
        }
        sources
    }
}

fn distinct_blocks(unit: &Unit) -> BTreeSet<ContentHash> {
    unit.block_hashes().collect()
}
