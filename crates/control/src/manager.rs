//! The manager: takes intent, checks it, has it carried out, and keeps it.
//!
//! A change is carried out before it is kept, and one that fails changes nothing: neither what runs
//! nor what is kept. There is one change at a time, and it goes on where whoever asked for it goes
//! away.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};

use tessera_core::{Error, Result};
use tessera_deploy::TaskSettings;
use tessera_graph::BlockGraph;
use tokio::sync::Mutex;

use crate::change::{Changed, batching_warnings};
use crate::intent::{System, TaskDefinition};
use crate::located_value::join_problems;
use crate::names::check_task_name;
use crate::resolve;
use crate::site::{Catalogue, Site, TaskStatus};
use crate::state::{ServedState, unknown_task};
use crate::store::{IntentStore, StoredIntent};
use crate::task_defaults::TaskDefaults;

/// What a server serves again after it was started.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// What was done for it.
    pub changed: Changed,
    /// The tasks that can't be served any more, and why. They are kept: what they need may come
    /// back.
    pub left_out: BTreeMap<String, String>,
}

/// Takes intent and has it carried out.
#[derive(Clone)]
pub struct Manager {
    inner: Arc<ManagerInner>,
}

struct ManagerInner {
    store: Arc<dyn IntentStore>,
    catalogue: Arc<dyn Catalogue>,
    site: Arc<dyn Site>,
    defaults: TaskDefaults,
    /// Held by the change that is being carried out.
    changing: Mutex<()>,
    /// What is served now. Apart from `changing`, so that it can be read during a change.
    state: RwLock<Arc<ServedState>>,
}

impl Manager {
    /// A manager that serves nothing yet; [`Manager::restore_tasks`] makes it serve what was kept.
    pub fn new(
        store: impl Into<Arc<dyn IntentStore>>,
        catalogue: Arc<dyn Catalogue>,
        site: Arc<dyn Site>,
        defaults: TaskDefaults,
    ) -> Self {
        let store = store.into();
        let changing = Mutex::new(());
        let state = RwLock::default();
        Self { inner: Arc::new(ManagerInner { store, catalogue, site, defaults, changing, state }) }
    }

    /// Who carries intent out.
    pub fn site(&self) -> &dyn Site {
        self.inner.site.as_ref()
    }

    /// Which tasks there should be.
    pub fn system(&self) -> System {
        self.inner.state().stored.system.clone()
    }

    /// How a task is defined.
    pub fn task_definition(&self, task: &str) -> Option<TaskDefinition> {
        self.inner.state().stored.system.tasks.get(task).cloned()
    }

    /// How every task is, those included that should be served and can't be.
    pub fn task_statuses(&self) -> Vec<TaskStatus> {
        let mut tasks = self.inner.site.task_statuses();
        let state = self.inner.state();
        for (name, reason) in &state.left_out {
            if tasks.iter().any(|task| task.name == *name) {
                continue;
            }
            let version = state.stored.versions.get(name);
            tasks.push(TaskStatus {
                name: name.clone(),
                version: version.map_or(1, |version| version.number).to_string(),
                state: "unavailable".to_owned(),
                reason: Some(reason.clone()),
                path: Vec::new(),
                exits: Vec::new(),
                in_flight: 0,
            });
        }
        tasks.sort_by(|a, b| a.name.cmp(&b.name));
        tasks
    }

    /// How a task is; `NotFound` where there is none of this name.
    pub fn task_status(&self, name: &str) -> Result<TaskStatus> {
        let found = self.task_statuses().into_iter().find(|task| task.name == name);
        found.ok_or_else(|| unknown_task(name))
    }

    /// Serves what was kept. A task that can't be served any more does not keep the others from it.
    pub async fn restore_tasks(&self) -> Result<Restored> {
        let inner = Arc::clone(&self.inner);
        run_to_completion(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let planning = Arc::clone(&inner);
            let Some((before, after)) = run_blocking(move || planning.plan_restored()).await?
            else {
                return Ok(Restored::default());
            };
            for (name, reason) in &after.left_out {
                tracing::error!(task = name, reason, "a task that was kept can't be served");
            }
            let left_out = after.left_out.clone();
            let changed = inner.carry_out(&before, after).await?;
            Ok(Restored { changed, left_out })
        })
        .await
    }

    /// Makes these the tasks that there are.
    pub async fn put_system(&self, system: System) -> Result<Changed> {
        let inner = Arc::clone(&self.inner);
        run_to_completion(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let before = inner.state();
            let (planning, was) = (Arc::clone(&inner), Arc::clone(&before));
            let after = run_blocking(move || planning.plan_system(system, &was.stored)).await?;
            inner.carry_out(&before, after).await
        })
        .await
    }

    /// Adds a task or changes one; the others stay as they are.
    ///
    /// Where the system lists its blocks, those that the task names are added to the list.
    pub async fn put_task(&self, name: &str, task: TaskDefinition) -> Result<Changed> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        run_to_completion(async move {
            check_task_name(&name)?;
            let _one_at_a_time = inner.changing.lock().await;
            let before = inner.state();
            let (planning, was) = (Arc::clone(&inner), Arc::clone(&before));
            let after = run_blocking(move || planning.plan_with_task(&was, &name, &task)).await?;
            inner.carry_out(&before, after).await
        })
        .await
    }

    /// Stops serving a task.
    pub async fn remove_task(&self, name: &str) -> Result<Changed> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        run_to_completion(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let before = inner.state();
            let mut after = ServedState::clone(&before);
            if after.stored.system.tasks.remove(&name).is_none() {
                return Err(unknown_task(&name));
            }
            after.stored.versions.remove(&name);
            after.planned.remove(&name);
            after.left_out.remove(&name);
            inner.carry_out(&before, after).await
        })
        .await
    }

    /// Sets the threshold of an exit, at once. The task stays at its version.
    pub async fn set_threshold(&self, task: &str, exit: &str, threshold: f32) -> Result<()> {
        if !(0.0..=1.0).contains(&threshold) {
            return Err(Error::usage(format!("threshold {threshold}, expected 0 to 1")));
        }
        let (inner, task, exit) = (Arc::clone(&self.inner), task.to_owned(), exit.to_owned());
        run_to_completion(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let mut after = ServedState::clone(&inner.state());
            let before = after.set_threshold(&task, &exit, threshold)?;
            inner.site.set_threshold(&task, &exit, threshold)?;
            if let Err(error) = inner.save_state(&after).await {
                if let Err(second) = inner.site.set_threshold(&task, &exit, before) {
                    tracing::error!(task, exit, %second, "a threshold could not be set back");
                }
                return Err(error);
            }
            inner.set_state(after);
            Ok(())
        })
        .await
    }
}

impl ManagerInner {
    fn state(&self) -> Arc<ServedState> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_state(&self, state: ServedState) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }

    /// What one task needs.
    fn plan_task(
        &self,
        name: &str,
        task: &TaskDefinition,
        system: &System,
    ) -> Result<(BlockGraph, TaskSettings)> {
        let found = resolve::resolve_graph(task, self.catalogue.as_ref());
        let (graph, device_overrides) =
            found.map_err(|error| error.with_context(format!("task \"{name}\"")))?;
        Ok((graph, resolve::resolve_settings(task, device_overrides, system, &self.defaults)))
    }

    /// What `system` needs; where tasks can't be served the error says so of each.
    fn plan_system(&self, system: System, before: &StoredIntent) -> Result<ServedState> {
        let mut after = ServedState::default();
        let mut errors = Vec::new();
        for (name, task) in &system.tasks {
            match self.plan_task(name, task, &system) {
                Ok(planned) => after.put_task(before, name, task, planned)?,
                Err(error) => errors.push(error),
            }
        }
        if let Some(first) = errors.first() {
            let kind = first.kind();
            let problems = errors.iter().map(Error::to_string).collect();
            return Err(Error::new(kind, join_problems(problems)));
        }
        after.stored.system = system;
        Ok(after)
    }

    fn plan_with_task(
        &self,
        before: &ServedState,
        name: &str,
        task: &TaskDefinition,
    ) -> Result<ServedState> {
        let mut after = before.clone();
        let planned = self.plan_task(name, task, &before.stored.system)?;
        after.put_task(&before.stored, name, task, planned)?;
        if let Some(blocks) = &mut after.stored.system.blocks {
            for block in task.block_names() {
                if !blocks.iter().any(|known| known == block) {
                    blocks.push(block.to_owned());
                }
            }
        }
        Ok(after)
    }

    /// What was kept, and what can be served of it.
    fn plan_restored(&self) -> Result<Option<(ServedState, ServedState)>> {
        let Some(stored) = self.store.load_intent()? else { return Ok(None) };
        let mut after = ServedState { stored: stored.clone(), ..ServedState::default() };
        for (name, task) in &stored.system.tasks {
            match self.plan_task(name, task, &stored.system) {
                Ok(planned) => after.put_task(&stored, name, task, planned)?,
                Err(error) => {
                    after.left_out.insert(name.clone(), error.to_string());
                }
            }
        }
        Ok(Some((ServedState { stored, ..ServedState::default() }, after)))
    }

    /// Has a change carried out and keeps it; where either fails all is as before.
    async fn carry_out(&self, before: &ServedState, after: ServedState) -> Result<Changed> {
        let applied =
            self.site.apply_tasks(after.planned_tasks(), after.stored.system.fusion).await?;
        if after.stored != before.stored
            && let Err(error) = self.save_state(&after).await
        {
            let back =
                self.site.apply_tasks(before.planned_tasks(), before.stored.system.fusion).await;
            if let Err(second) = back {
                tracing::error!(%second, "a change that was not kept could not be taken back");
            }
            return Err(error);
        }
        let known = batching_warnings(before.planned.values());
        let warnings = batching_warnings(after.planned.values());
        for warning in warnings.iter().filter(|warning| !known.contains(warning)) {
            tracing::warn!("{warning}");
        }
        let (unused, versions) = (after.stored.system.unused_blocks(), after.task_versions());
        let changed = Changed::new(applied, unused, versions, warnings);
        self.set_state(after);
        Ok(changed)
    }

    async fn save_state(&self, state: &ServedState) -> Result<()> {
        let (store, stored) = (Arc::clone(&self.store), state.stored.clone());
        run_blocking(move || store.save_intent(&stored)).await
    }
}

/// Does `work` to its end, also where whoever waits for it goes away: half a change would be
/// neither what was nor what should be.
async fn run_to_completion<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(work).await.map_err(|error| change_aborted(&error))?
}

/// Does what reads and writes files apart from the threads that answer.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| change_aborted(&error))?
}

fn change_aborted(error: &tokio::task::JoinError) -> Error {
    Error::lost(format!("the change was broken off: {error}"))
}
