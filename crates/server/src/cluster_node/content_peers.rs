//! Other nodes that have content, as a controller has named them: remembered, so that they are
//! asked also when the controller is away.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use tessera_cluster::ContentHolder;
use tessera_core::{ContentHash, lock};
use tessera_probe::LinkProber;
use tessera_tensormq::TlsIdentity;
use tokio::runtime::Handle;

use super::grpc_source::PeerSource;

/// How many nodes are remembered.
const MOST_PEERS: usize = 64;

/// Other nodes, and what they have of what is missing here.
pub(super) struct ContentPeers {
    tls: TlsIdentity,
    prober: Arc<LinkProber>,
    runtime: Handle,
    state: Mutex<PeerState>,
}

#[derive(Default)]
struct PeerState {
    holders: HashMap<ContentHash, Vec<Arc<PeerSource>>>,
    known: BTreeMap<String, Arc<PeerSource>>,
}

impl ContentPeers {
    pub(super) fn new(tls: TlsIdentity, prober: Arc<LinkProber>, runtime: Handle) -> Self {
        Self { tls, prober, runtime, state: Mutex::default() }
    }

    /// Remembers who has what.
    pub(super) fn note_holders(&self, holders: Vec<ContentHolder>) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        for ContentHolder { node, address, has } in holders {
            let Ok(name) = node.parse() else { continue };
            let known = state.known.get(&node).filter(|peer| peer.address() == address);
            let peer = known.cloned().unwrap_or_else(|| {
                let (tls, prober) = (self.tls.clone(), Arc::clone(&self.prober));
                Arc::new(PeerSource::new(name, address, tls, prober, self.runtime.clone()))
            });
            state.known.insert(node, Arc::clone(&peer));
            for hash in has {
                let holders = state.holders.entry(hash).or_default();
                if !holders.iter().any(|holder| Arc::ptr_eq(holder, &peer)) {
                    holders.push(Arc::clone(&peer));
                }
            }
        }
        while state.known.len() > MOST_PEERS {
            state.known.pop_first();
        }
    }

    /// Takes those that have a block for such that have its weights, too, where nobody is known.
    pub(super) fn note_weights_of(&self, block: ContentHash, weights: &[ContentHash]) {
        let mut state = lock(&self.state);
        let Some(holders) = state.holders.get(&block).cloned() else { return };
        for weight in weights {
            state.holders.entry(*weight).or_insert_with(|| holders.clone());
        }
    }

    /// Those that have some content, as far as it is known.
    pub(super) fn holders_of(&self, hash: ContentHash) -> Vec<Arc<PeerSource>> {
        lock(&self.state).holders.get(&hash).cloned().unwrap_or_default()
    }

    /// Forgets who has what is not missing any more, and ends connections that nobody uses.
    pub(super) fn forget(&self, hashes: impl IntoIterator<Item = ContentHash>) {
        let mut state = lock(&self.state);
        for hash in hashes {
            state.holders.remove(&hash);
        }
        if state.holders.is_empty() {
            state.known.clear();
        }
    }
}
