//! The manager: takes intent, checks it, has it carried out, and keeps it.
//!
//! A change is carried out before it is kept, and one that fails changes nothing: neither what runs
//! nor what is kept. There is one change at a time, and it goes on where whoever asked for it goes away.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tessera_core::{Device, Error, Result};
use tessera_graph::BlockGraph;
use tessera_plan::{Isolation, TaskSettings};
use tokio::sync::Mutex;

use crate::change::Changed;
use crate::intent::{System, Task};
use crate::names::check_name;
use crate::place::joined;
use crate::resolve;
use crate::site::{Catalogue, Site, TaskStatus};
use crate::state::{State, no_task};
use crate::store::{Store, Stored};

/// How tasks are served that say nothing themselves; the server's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// What keeps their blocks apart.
    pub isolation: Isolation,
    /// How long a request may take where the client says nothing.
    pub deadline: Duration,
    /// What their blocks run on.
    pub device: Device,
}

impl Default for Defaults {
    fn default() -> Self {
        let TaskSettings { isolation, deadline, device, .. } = TaskSettings::default();
        Self { isolation, deadline, device }
    }
}

/// What a server serves again after it was started.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// What was done for it.
    pub changed: Changed,
    /// The tasks that can't be served any more, and why. They are kept: what they need may come back.
    pub left_out: BTreeMap<String, String>,
}

/// Takes intent and has it carried out.
#[derive(Clone)]
pub struct Manager {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    catalogue: Arc<dyn Catalogue>,
    site: Arc<dyn Site>,
    defaults: Defaults,
    /// Held by the change that is being carried out.
    changing: Mutex<()>,
    /// What is served now. Apart from `changing`, so that it can be read during a change.
    state: RwLock<Arc<State>>,
}

impl Manager {
    /// A manager that serves nothing yet; [`Manager::restore`] makes it serve what was kept.
    pub fn new(
        store: impl Into<Arc<dyn Store>>,
        catalogue: Arc<dyn Catalogue>,
        site: Arc<dyn Site>,
        defaults: Defaults,
    ) -> Self {
        let store = store.into();
        let changing = Mutex::new(());
        let state = RwLock::default();
        Self { inner: Arc::new(Inner { store, catalogue, site, defaults, changing, state }) }
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
    pub fn definition(&self, task: &str) -> Option<Task> {
        self.inner.state().stored.system.tasks.get(task).cloned()
    }

    /// How every task is, those included that should be served and can't be.
    pub fn tasks(&self) -> Vec<TaskStatus> {
        let mut tasks = self.inner.site.tasks();
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
    pub fn task(&self, name: &str) -> Result<TaskStatus> {
        let found = self.tasks().into_iter().find(|task| task.name == name);
        found.ok_or_else(|| no_task(name))
    }

    /// Serves what was kept. A task that can't be served any more does not keep the others from it.
    pub async fn restore(&self) -> Result<Restored> {
        let inner = Arc::clone(&self.inner);
        to_the_end(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let planning = Arc::clone(&inner);
            let Some((before, after)) = apart(move || planning.restored()).await? else {
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
        to_the_end(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let before = inner.state();
            let (planning, was) = (Arc::clone(&inner), Arc::clone(&before));
            let after = apart(move || planning.planned(system, &was.stored)).await?;
            inner.carry_out(&before, after).await
        })
        .await
    }

    /// Adds a task or changes one; the others stay as they are.
    ///
    /// Where the system lists its blocks, those that the task names are added to the list.
    pub async fn put_task(&self, name: &str, task: Task) -> Result<Changed> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        to_the_end(async move {
            check_name(&name)?;
            let _one_at_a_time = inner.changing.lock().await;
            let before = inner.state();
            let (planning, was) = (Arc::clone(&inner), Arc::clone(&before));
            let after = apart(move || planning.with_task(&was, &name, &task)).await?;
            inner.carry_out(&before, after).await
        })
        .await
    }

    /// Stops serving a task.
    pub async fn remove_task(&self, name: &str) -> Result<Changed> {
        let (inner, name) = (Arc::clone(&self.inner), name.to_owned());
        to_the_end(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let before = inner.state();
            let mut after = State::clone(&before);
            if after.stored.system.tasks.remove(&name).is_none() {
                return Err(no_task(&name));
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
        to_the_end(async move {
            let _one_at_a_time = inner.changing.lock().await;
            let mut after = State::clone(&inner.state());
            let before = after.set_threshold(&task, &exit, threshold)?;
            inner.site.set_threshold(&task, &exit, threshold)?;
            if let Err(error) = inner.save(&after).await {
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

impl Inner {
    fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_state(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }

    /// What one task needs.
    fn plan(&self, name: &str, task: &Task, system: &System) -> Result<(BlockGraph, TaskSettings)> {
        let found = resolve::graph(task, self.catalogue.as_ref());
        let (graph, elsewhere) = found.map_err(|error| error.within(format!("task \"{name}\"")))?;
        Ok((graph, resolve::settings(task, elsewhere, system, &self.defaults)))
    }

    /// What `system` needs; where tasks can't be served the error says so of each.
    fn planned(&self, system: System, before: &Stored) -> Result<State> {
        let mut after = State::default();
        let mut errors = Vec::new();
        for (name, task) in &system.tasks {
            match self.plan(name, task, &system) {
                Ok(planned) => after.put(before, name, task, planned)?,
                Err(error) => errors.push(error),
            }
        }
        if let Some(first) = errors.first() {
            let kind = first.kind();
            let problems = errors.iter().map(Error::to_string).collect();
            return Err(Error::new(kind, joined(problems)));
        }
        after.stored.system = system;
        Ok(after)
    }

    fn with_task(&self, before: &State, name: &str, task: &Task) -> Result<State> {
        let mut after = before.clone();
        let planned = self.plan(name, task, &before.stored.system)?;
        after.put(&before.stored, name, task, planned)?;
        if let Some(blocks) = &mut after.stored.system.blocks {
            for block in task.names() {
                if !blocks.iter().any(|known| known == block) {
                    blocks.push(block.to_owned());
                }
            }
        }
        Ok(after)
    }

    /// What was kept, and what can be served of it.
    fn restored(&self) -> Result<Option<(State, State)>> {
        let Some(stored) = self.store.load()? else { return Ok(None) };
        let mut after = State { stored: stored.clone(), ..State::default() };
        for (name, task) in &stored.system.tasks {
            match self.plan(name, task, &stored.system) {
                Ok(planned) => after.put(&stored, name, task, planned)?,
                Err(error) => {
                    after.left_out.insert(name.clone(), error.to_string());
                }
            }
        }
        Ok(Some((State { stored, ..State::default() }, after)))
    }

    /// Has a change carried out and keeps it; where either fails all is as before.
    async fn carry_out(&self, before: &State, after: State) -> Result<Changed> {
        let applied = self.site.apply(after.tasks(), after.stored.system.fusion).await?;
        if after.stored != before.stored
            && let Err(error) = self.save(&after).await
        {
            let back = self.site.apply(before.tasks(), before.stored.system.fusion).await;
            if let Err(second) = back {
                tracing::error!(%second, "a change that was not kept could not be taken back");
            }
            return Err(error);
        }
        let changed = Changed::new(applied, after.stored.system.unused(), after.versions());
        self.set_state(after);
        Ok(changed)
    }

    async fn save(&self, state: &State) -> Result<()> {
        let (store, stored) = (Arc::clone(&self.store), state.stored.clone());
        apart(move || store.save(&stored)).await
    }
}

/// Does `work` to its end, also where whoever waits for it goes away: half a change would be neither
/// what was nor what should be.
async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(work).await.map_err(|error| broken_off(&error))?
}

/// Does what reads and writes files apart from the threads that answer.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| broken_off(&error))?
}

fn broken_off(error: &tokio::task::JoinError) -> Error {
    Error::lost(format!("the change was broken off: {error}"))
}
