//! The site as the service that the protocol's front ends ask.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tessera_control::{Manager, Task};
use tessera_core::{DType, Error, ErrorKind, Result, TensorMut};
use tessera_gateway::{
    Answer, Answering, Refusal, Request, Service, TaskEntry, TaskInfo, TaskState, TaskStatistics,
};
use tessera_repository::Repository;

use super::site::ServeSite;

/// Answers requests with what runs at a site.
pub(super) struct SiteService {
    pub(super) site: Arc<ServeSite>,
    pub(super) manager: Manager,
    pub(super) repository: PathBuf,
    /// Whether what was asked for at the start runs.
    pub(super) is_up: Arc<AtomicBool>,
}

impl SiteService {
    fn info(&self, entry: &TaskEntry) -> TaskInfo {
        let route = &entry.route;
        let state = match self.site.dispatcher.unavailable(entry) {
            Some(why) => TaskState::Unavailable(why),
            None => TaskState::Ready,
        };
        let first = route.steps.first().and_then(|step| self.site.node.facts(&step.unit));
        let batching = first.and_then(|facts| facts.findings.batching);
        TaskInfo {
            name: route.task.clone(),
            version: route.version.clone(),
            state,
            inputs: route.inputs.clone(),
            outputs: route.outputs.clone(),
            max_batch_size: route.max_rows,
            batching: batching.map(|batching| (batching.max_rows, batching.max_wait)),
        }
    }

    /// The models of the repository that no task serves.
    fn idle_models(&self) -> Vec<TaskInfo> {
        let names = Repository::open(&self.repository).and_then(|found| found.models());
        let names = names.unwrap_or_default().into_iter().map(|entry| entry.name);
        let idle = names.filter(|name| self.site.dispatcher.task(name, "").is_err());
        idle.map(|name| TaskInfo {
            name,
            version: "1".to_owned(),
            state: TaskState::Unavailable("it is not loaded".to_owned()),
            inputs: Vec::new(),
            outputs: Vec::new(),
            max_batch_size: 0,
            batching: None,
        })
        .collect()
    }
}

impl Service for SiteService {
    fn tasks(&self) -> Vec<TaskInfo> {
        let mut tasks: Vec<TaskInfo> =
            self.site.dispatcher.tasks().iter().map(|entry| self.info(entry)).collect();
        tasks.extend(self.idle_models());
        tasks.sort_by(|a, b| a.name.cmp(&b.name));
        tasks
    }

    fn task(&self, name: &str, version: &str) -> Result<TaskInfo> {
        Ok(self.info(&*self.site.dispatcher.task(name, version)?))
    }

    fn is_ready(&self) -> bool {
        let dispatcher = &self.site.dispatcher;
        self.is_up.load(Ordering::Acquire)
            && dispatcher.tasks().iter().all(|entry| dispatcher.unavailable(entry).is_none())
    }

    fn statistics(&self, name: &str) -> Result<TaskStatistics> {
        self.site.dispatcher.statistics(name)
    }

    fn memory(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut> {
        self.site.dispatcher.memory(dtype, shape)
    }

    fn infer(&self, request: Request) -> Answering<'_, Result<Answer, Refusal>> {
        Box::pin(self.site.dispatcher.infer(request))
    }

    fn load<'a>(&'a self, name: &'a str) -> Answering<'a, Result<()>> {
        Box::pin(async move {
            if self.site.dispatcher.task(name, "").is_ok() {
                return Ok(());
            }
            let loaded = self.manager.put_task(name, Task::of_model(name)).await;
            loaded.map(drop).map_err(|error| match error.kind() {
                // As the protocol has it: a model that can't be loaded is a bad request.
                ErrorKind::NotFound => {
                    Error::invalid(format!("there is no model \"{name}\" to load"))
                }
                _ => error,
            })
        })
    }

    fn unload<'a>(&'a self, name: &'a str) -> Answering<'a, Result<()>> {
        Box::pin(async move { self.manager.remove_task(name).await.map(drop) })
    }
}
