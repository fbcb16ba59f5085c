//! The manager's part in models that are brought: they are kept, and those that are served are cut
//! further with the next task that is put.

use std::collections::BTreeSet;
use std::sync::Arc;

use tessera_core::{Error, Result};

use crate::intent::TaskPath;
use crate::manager::{Manager, ManagerInner};
use crate::model_store::{BroughtModel, ModelStatus, ModelStore, StoredModel};
use crate::model_upload::{ModelUpload, UploadKind};
use crate::names::check_model_name;
use crate::run_apart::{run_blocking, run_to_completion};
use crate::state::StateChange;

impl Manager {
    /// Has models that are brought be kept there.
    pub fn keep_models_in(&self, store: Arc<dyn ModelStore>) {
        // The first counts.
        self.inner.models.set(store).ok();
    }

    /// Every model that is kept.
    pub async fn list_models(&self) -> Result<Vec<ModelStatus>> {
        let store = self.inner.model_store()?;
        run_blocking(move || store.list_models()).await
    }

    /// One of them.
    pub async fn find_model(&self, name: &str) -> Result<ModelStatus> {
        let (store, name) = (self.inner.model_store()?, name.to_owned());
        run_blocking(move || store.find_model(&name)).await
    }

    /// Forgets a model that no task serves.
    pub async fn remove_model(&self, name: &str) -> Result<()> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        run_to_completion(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let store = inner.model_store()?;
            run_blocking(move || store.remove_model(&name)).await
        })
        .await
    }

    /// Makes room for a model that is about to come.
    pub(crate) async fn begin_upload(&self, name: &str, kind: UploadKind) -> Result<ModelUpload> {
        check_model_name(name)?;
        let (store, name) = (self.inner.model_store()?, name.to_owned());
        run_blocking(move || ModelUpload::begin(name, store.make_folder()?, kind)).await
    }

    /// Keeps a model that has come, or only finds out what would come of it.
    pub(crate) async fn put_model(
        &self,
        upload: ModelUpload,
        is_kept: bool,
    ) -> Result<StoredModel> {
        let inner = Arc::clone(&self.inner);
        run_to_completion(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let (store, served) = (inner.model_store()?, inner.served_models());
            let stored = run_blocking(move || {
                let name = upload.name.clone();
                let folder = upload.unpack()?;
                let path = folder.path().to_path_buf();
                store.put_model(&BroughtModel { name, folder: path, served, is_kept })
            });
            let stored = stored.await?;
            if is_kept {
                inner.note_recut(&stored);
            }
            Ok(stored)
        })
        .await
    }
}

impl ManagerInner {
    fn model_store(&self) -> Result<Arc<dyn ModelStore>> {
        let found = self.models.get().cloned();
        found.ok_or_else(|| Error::unsupported("models are not kept here"))
    }

    /// The models that tasks serve as a whole, without those of whose blocks somebody says something
    /// by their numbers, which would be others if they were cut further.
    fn served_models(&self) -> Vec<String> {
        let state = self.state();
        let (mut served, mut numbered) = (BTreeSet::new(), BTreeSet::new());
        for task in state.stored.system.tasks.values() {
            let names = task.block_names().filter_map(|name| Some(name.split_once('/')?.0));
            numbered.extend(names);
            match &task.path {
                TaskPath::Model(model) if task.tells_blocks_apart() => numbered.insert(model),
                TaskPath::Model(model) => served.insert(model),
                TaskPath::Path(_) => false,
            };
        }
        served.into_iter().filter(|model| !numbered.contains(model.as_str())).cloned().collect()
    }

    /// Notes what is to be served in another form from the next change on.
    fn note_recut(&self, stored: &StoredModel) {
        self.change_state(|state| state.recut.extend(stored.recut.iter().cloned()));
    }

    /// Adds to a change the tasks whose models were cut further meanwhile.
    pub(crate) fn plan_recut(&self, change: &mut StateChange) -> Result<()> {
        let state = self.state();
        for (name, task) in &state.stored.system.tasks {
            let is_recut =
                matches!(&task.path, TaskPath::Model(model) if state.recut.contains(model));
            // One that can't be served goes on not to be.
            if is_recut && state.planned.contains_key(name) && !change.put.contains_key(name) {
                let planned = self.plan_task(name, task, change.settings.isolation)?;
                state.put_recut(change, name, task, planned)?;
            }
        }
        Ok(())
    }
}
