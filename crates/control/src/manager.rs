//! The manager: takes intent, checks it, has it carried out, and keeps it.
//!
//! A change is carried out before it is kept, and one that fails changes nothing: neither what runs
//! nor what is kept. There is one change at a time, and it goes on where whoever asked for it goes
//! away.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use tessera_core::{Error, Result, lock};
use tessera_deploy::{Isolation, PlannedTask, TaskSettings};
use tessera_graph::BlockGraph;
use tokio::sync::Mutex;

use crate::change::{Changed, batching_warnings};
use crate::history::{History, HistoryEntry, TaskDifferences};
use crate::intent::{System, TaskDefinition};
use crate::located_value::join_problems;
use crate::model_store::ModelStore;
use crate::names::check_task_name;
use crate::resolve;
use crate::run_apart::{run_blocking, run_to_completion};
use crate::site::{AppliedUnits, Catalogue, ContentHold, Site, TaskStatus};
use crate::state::{ServedState, StateChange, unknown_task};
use crate::store::{IntentChange, IntentStore, StoredTask};
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
    pub(crate) inner: Arc<ManagerInner>,
}

pub(crate) struct ManagerInner {
    store: Arc<dyn IntentStore>,
    catalogue: Arc<dyn Catalogue>,
    site: Arc<dyn Site>,
    defaults: TaskDefaults,
    /// Held by the change that is being carried out.
    pub(crate) changing: Mutex<()>,
    /// Where models are kept that are brought, if anywhere.
    pub(crate) models: OnceLock<Arc<dyn ModelStore>>,
    /// What was changed.
    history: std::sync::Mutex<History>,
    /// What is served now. Apart from `changing`, so that it can be read during a change.
    state: RwLock<ServedState>,
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
        let (models, state) = (OnceLock::new(), RwLock::default());
        let history = std::sync::Mutex::default();
        let inner =
            ManagerInner { store, catalogue, site, defaults, changing, models, history, state };
        Self { inner: Arc::new(inner) }
    }

    /// Who carries intent out.
    pub fn site(&self) -> &dyn Site {
        self.inner.site.as_ref()
    }

    /// How tasks are served that say nothing themselves.
    pub fn task_defaults(&self) -> &TaskDefaults {
        &self.inner.defaults
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

    /// Whether every task that there should be is served.
    pub fn serves_all(&self) -> bool {
        self.inner.state().left_out.is_empty()
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
            let Some(change) = run_blocking(move || planning.plan_restored()).await? else {
                return Ok(Restored::default());
            };
            let changed = match inner.carry_out(change.clone(), ChangeScope::Restored).await {
                Ok(changed) => changed,
                Err(error) => {
                    tracing::error!(%error, "what was kept can't all be served: one by one");
                    let changed = inner.restore_each(change).await;
                    if inner.state().planned.is_empty() {
                        return Err(error);
                    }
                    changed
                }
            };
            let left_out = inner.state().left_out.clone();
            for (name, reason) in &left_out {
                tracing::error!(task = name, reason, "a task that was kept can't be served");
            }
            Ok(Restored { changed, left_out })
        })
        .await
    }

    /// Makes these the tasks that there are.
    pub async fn put_system(&self, system: System) -> Result<Changed> {
        let inner = Arc::clone(&self.inner);
        run_to_completion(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let planning = Arc::clone(&inner);
            let change = run_blocking(move || planning.plan_system(&system)).await?;
            inner.carry_out(change, ChangeScope::System).await
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
            let (planning, of) = (Arc::clone(&inner), name.clone());
            let change = run_blocking(move || planning.plan_with_task(&of, &task)).await?;
            inner.carry_out(change, ChangeScope::Task(name)).await
        })
        .await
    }

    /// Stops serving a task.
    pub async fn remove_task(&self, name: &str) -> Result<Changed> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        run_to_completion(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let change = {
                let state = inner.state();
                if !state.stored.system.tasks.contains_key(&name) {
                    return Err(unknown_task(&name));
                }
                StateChange { removed: vec![name.clone()], ..state.begin_change() }
            };
            inner.carry_out(change, ChangeScope::Task(name)).await
        })
        .await
    }

    /// The changes that were carried out since the start, the newest first, as far as they are kept.
    pub fn list_changes(&self) -> Vec<HistoryEntry> {
        lock(&self.inner.history).list_entries()
    }

    /// Makes tasks be as they were before a change, where they are still as it left them.
    pub async fn undo_change(&self, number: u64) -> Result<Changed> {
        let inner = Arc::clone(&self.inner);
        run_to_completion(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let differences = lock(&inner.history).find_change(number)?.clone();
            let scope = match differences.keys().next() {
                Some(only) if differences.len() == 1 => ChangeScope::Task(only.clone()),
                _ => ChangeScope::System,
            };
            let planning = Arc::clone(&inner);
            let change = run_blocking(move || planning.plan_undo(number, &differences)).await?;
            let changed = inner.carry_out(change, scope).await?;
            lock(&inner.history).note_undone(number);
            Ok(changed)
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
            let (change, [before, after]) =
                inner.state().plan_threshold(&task, &exit, threshold)?;
            inner.site.set_threshold(&after, &exit)?;
            let (kept, differences) = {
                let state = inner.state();
                (state.intent_change(&change), state.differences(&change))
            };
            if let Err(error) = inner.save_change(kept).await {
                if let Err(second) = inner.site.set_threshold(&before, &exit) {
                    tracing::error!(task, exit, %second, "a threshold could not be set back");
                }
                return Err(error);
            }
            inner.apply_change(change);
            lock(&inner.history).note_change(differences, AppliedUnits::default());
            Ok(())
        })
        .await
    }
}

/// What a change is about.
enum ChangeScope {
    /// All tasks.
    System,
    /// All tasks, as they were served before.
    Restored,
    /// One of them.
    Task(String),
}

impl ManagerInner {
    pub(crate) fn state(&self) -> RwLockReadGuard<'_, ServedState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change_state(&self, change: impl FnOnce(&mut ServedState)) {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn apply_change(&self, change: StateChange) {
        self.change_state(|state| state.apply_change(change));
    }

    /// What one task needs.
    pub(crate) fn plan_task(
        &self,
        name: &str,
        task: &TaskDefinition,
        system_isolation: Option<Isolation>,
    ) -> Result<(BlockGraph, TaskSettings)> {
        let found = resolve::resolve_graph(task, self.catalogue.as_ref());
        let (graph, devices) =
            found.map_err(|error| error.with_context(format!("task \"{name}\"")))?;
        let settings = resolve::resolve_settings(task, devices, system_isolation, &self.defaults);
        Ok((graph, settings))
    }

    /// What `system` needs; where tasks can't be served the error says so of each.
    fn plan_system(&self, system: &System) -> Result<StateChange> {
        let state = self.state();
        // Where the store was not read, as models were named, nothing of it stays.
        let (settings, replaces_all) = (system.settings(), !state.is_stored);
        let mut change = StateChange { settings, replaces_all, ..state.begin_change() };
        let mut errors = Vec::new();
        for (name, task) in &system.tasks {
            match self.plan_task(name, task, system.isolation) {
                Ok(planned) => state.put_task(&mut change, name, task, planned)?,
                Err(error) => errors.push(error),
            }
        }
        if let Some(first) = errors.first() {
            let kind = first.kind();
            let problems = errors.iter().map(Error::to_string).collect();
            return Err(Error::new(kind, join_problems(problems)));
        }
        let known = state.stored.system.tasks.keys();
        change.removed = known.filter(|name| !system.tasks.contains_key(*name)).cloned().collect();
        Ok(change)
    }

    fn plan_with_task(&self, name: &str, task: &TaskDefinition) -> Result<StateChange> {
        let mut change = self.state().begin_change();
        let planned = self.plan_task(name, task, change.settings.isolation)?;
        self.state().put_task(&mut change, name, task, planned)?;
        self.plan_recut(&mut change)?;
        if let Some(blocks) = &mut change.settings.blocks {
            for block in task.block_names() {
                if !blocks.iter().any(|known| known == block) {
                    blocks.push(block.to_owned());
                }
            }
        }
        Ok(change)
    }

    /// What makes tasks be as they were before a change.
    fn plan_undo(&self, number: u64, differences: &TaskDifferences) -> Result<StateChange> {
        let state = self.state();
        let mut change = state.begin_change();
        for (name, task) in differences {
            if state.stored.system.tasks.get(name) != task.after.as_ref() {
                return Err(Error::usage(format!(
                    "task \"{name}\" is not what change {number} made of it any more"
                )));
            }
            match &task.before {
                Some(before) => {
                    let planned = self.plan_task(name, before, change.settings.isolation)?;
                    state.put_task(&mut change, name, before, planned)?;
                }
                None => change.removed.push(name.clone()),
            }
        }
        Ok(change)
    }

    /// Takes what was kept as what should be; returns what can be served of it.
    fn plan_restored(&self) -> Result<Option<StateChange>> {
        let Some(stored) = self.store.load_intent()? else {
            self.state.write().unwrap_or_else(PoisonError::into_inner).is_stored = true;
            return Ok(None);
        };
        let mut state = ServedState { stored, is_stored: true, ..ServedState::default() };
        let (mut change, mut left_out) = (state.begin_change(), BTreeMap::new());
        for (name, task) in &state.stored.system.tasks {
            match self.plan_task(name, task, change.settings.isolation) {
                Ok(planned) => state.put_task(&mut change, name, task, planned)?,
                Err(error) => {
                    left_out.insert(name.clone(), error.to_string());
                }
            }
        }
        state.left_out = left_out;
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        Ok(Some(change))
    }

    /// Serves one task after the other; those that can't be are left out.
    async fn restore_each(&self, change: StateChange) -> Changed {
        let mut applied = AppliedUnits::default();
        for (name, change) in change.split_by_task() {
            match self.carry_out(change, ChangeScope::Task(name.clone())).await {
                Ok(Changed { started, stopped, .. }) => {
                    applied.started.retain(|unit| !stopped.contains(unit));
                    applied.started.extend(started);
                }
                Err(error) => {
                    let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
                    state.left_out.insert(name, error.to_string());
                }
            }
        }
        self.describe_change(applied, &ChangeScope::System)
    }

    /// Has a change carried out and keeps it; where either fails all is as before.
    async fn carry_out(&self, change: StateChange, scope: ChangeScope) -> Result<Changed> {
        let (wanted, undo, kept, fusion_before, differences) = {
            let state = self.state();
            let kept = state.intent_change(&change);
            let fusion = state.stored.system.fusion;
            let differences = state.differences(&change);
            (state.task_change(&change), state.undo_change(&change), kept, fusion, differences)
        };
        let held = self.hold_content(&change).await?;
        let fusion = change.settings.fusion;
        let applied = match scope {
            ChangeScope::Restored => self.site.adopt_tasks(wanted, fusion).await?,
            ChangeScope::System | ChangeScope::Task(_) => {
                self.site.apply_tasks(wanted, fusion).await?
            }
        };
        if let Err(error) = self.save_change(kept).await {
            if let Err(second) = self.site.apply_tasks(undo, fusion_before).await {
                tracing::error!(%second, "a change that was not kept could not be taken back");
            }
            return Err(error);
        }
        for warning in batching_warnings(change.put.values().map(|(_, planned)| &**planned)) {
            tracing::warn!("{warning}");
        }
        self.apply_change(change);
        self.state.write().unwrap_or_else(PoisonError::into_inner).held.extend(held);
        if !matches!(scope, ChangeScope::Restored) {
            lock(&self.history).note_change(differences, applied.clone());
        }
        Ok(self.describe_change(applied, &scope))
    }

    /// Keeps from being removed what the tasks of a change use.
    async fn hold_content(&self, change: &StateChange) -> Result<BTreeMap<String, ContentHold>> {
        let (put, catalogue) = (change.put.clone(), Arc::clone(&self.catalogue));
        let hold = move |(name, (stored, planned)): (String, (StoredTask, Arc<PlannedTask>))| {
            let names: Vec<&str> = stored.definition.block_names().collect();
            let held = catalogue.hold_content(&name, &names, &planned.graph)?;
            Ok((name, held))
        };
        run_blocking(move || put.into_iter().map(hold).collect()).await
    }

    /// What a change did, as far as it is about these tasks.
    fn describe_change(&self, applied: AppliedUnits, scope: &ChangeScope) -> Changed {
        let state = self.state();
        let tasks: Vec<&str> = match scope {
            ChangeScope::System | ChangeScope::Restored => {
                state.stored.system.tasks.keys().map(String::as_str).collect()
            }
            ChangeScope::Task(name) => vec![name.as_str()],
        };
        let planned = tasks.iter().filter_map(|name| state.planned.get(*name));
        let warnings = batching_warnings(planned.map(|planned| &**planned));
        let unused = state.stored.system.unused_blocks();
        let (versions, units) = (state.task_versions(&tasks), self.site.used_units(&tasks));
        Changed::new(applied, units, unused, versions, warnings)
    }

    async fn save_change(&self, change: IntentChange) -> Result<()> {
        if change.is_empty() {
            return Ok(());
        }
        let store = Arc::clone(&self.store);
        run_blocking(move || store.save_change(&change)).await
    }
}
