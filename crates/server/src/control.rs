//! The part that holds the intent, and has it carried out.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tessera_control::{
    IntentRows, IntentStore, Manager, MemoryStore, RedbRows, Site, TaskDefaults,
};
use tessera_core::Result;

use crate::catalogue::RepositoryCatalogue;
use crate::listeners::{Listener, PortContext, RunningListener};
use crate::repository_models::RepositoryModels;
use crate::state_folder::create_state_folder;

/// Where intent is kept.
#[derive(Clone, Debug)]
pub enum StoreConfig {
    /// Nowhere: it is forgotten at the end.
    Memory,
    /// In a file of the repository.
    Repository,
}

/// What a control plane is made of.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Where blocks are, which paths may name.
    pub repository: PathBuf,
    /// Where intent is kept.
    pub store: StoreConfig,
    /// What holds where a task doesn't say.
    pub defaults: TaskDefaults,
}

/// A control plane that serves nothing yet.
pub struct ControlPart {
    pub(crate) manager: Manager,
}

impl StoreConfig {
    fn open_store(&self, repository: &Path) -> Result<Arc<dyn IntentStore>> {
        match self {
            Self::Memory => Ok(Arc::new(MemoryStore::default())),
            Self::Repository => {
                let folder = create_state_folder(repository)?;
                let path = folder.join("intent.redb");
                let rows = Arc::new(RedbRows::open(&path)?);
                Ok(Arc::new(IntentRows::with_copy_beside(rows, &path)))
            }
        }
    }
}

impl ControlConfig {
    /// Opens what is needed before anything is started: a store has one user.
    pub(crate) fn open_store(&self) -> Result<Arc<dyn IntentStore>> {
        self.store.open_store(&self.repository)
    }

    /// Has what `store` holds carried out at this site.
    pub fn build(self, store: Arc<dyn IntentStore>, site: Arc<dyn Site>) -> Result<ControlPart> {
        let catalogue = Arc::new(RepositoryCatalogue::open(self.repository.clone())?);
        let manager = Manager::new(store, catalogue, site, self.defaults);
        manager.keep_models_in(Arc::new(RepositoryModels::new(self.repository)));
        Ok(ControlPart { manager })
    }
}

impl ControlPart {
    /// Answers the REST API until it is closed.
    pub(crate) fn serve_rest(&self, listener: Listener, context: &PortContext) -> RunningListener {
        listener.serve_router(tessera_control::control_router(&self.manager), context)
    }
}
