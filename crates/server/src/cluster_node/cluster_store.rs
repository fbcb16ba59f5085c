//! The cluster's object store as a node uses it: where the user or a controller says that it is.

use std::sync::{Arc, Mutex};

use tessera_core::{Result, lock};
use tessera_object_store::{ObjectStore, StoreAddress};

/// An object store, where there is one.
pub(super) struct ClusterStore {
    /// Whether the user says where it is.
    is_given: bool,
    state: Mutex<StoreState>,
}

#[derive(Default)]
struct StoreState {
    /// As it was told.
    address: Option<String>,
    store: Option<Arc<ObjectStore>>,
}

impl ClusterStore {
    /// The store at this address, or whichever a controller names.
    pub(super) fn open(given: Option<&StoreAddress>) -> Result<Self> {
        let store = given.map(ObjectStore::open).transpose()?.map(Arc::new);
        let state = Mutex::new(StoreState { address: None, store });
        Ok(Self { is_given: given.is_some(), state })
    }

    /// A controller says where it is. One that can't be used is said once.
    pub(super) fn note_address(&self, told: Option<String>) {
        if self.is_given {
            return;
        }
        let mut state = lock(&self.state);
        if state.address == told {
            return;
        }
        let opened = told.as_deref().map(|told| {
            let address: StoreAddress = told.parse()?;
            ObjectStore::open(&address).map(Arc::new)
        });
        state.store = match opened.transpose() {
            Ok(store) => store,
            Err(error) => {
                tracing::warn!(%error, "the cluster's object store is not used");
                None
            }
        };
        state.address = told;
    }

    pub(super) fn current(&self) -> Option<Arc<ObjectStore>> {
        lock(&self.state).store.clone()
    }
}
