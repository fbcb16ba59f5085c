//! The site as the service that the protocol's front ends ask.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tessera_control::{Manager, TaskDefinition};
use tessera_core::{DType, Error, ErrorKind, Result, TensorMut};
use tessera_dispatch::{
    InferenceRequest, InferenceResponse, Refusal, TaskAvailability, TaskEntry, TaskStatistics,
};
use tessera_gateway::{InferenceService, LoadOverrides, ServiceFuture, TaskInfo, TaskState};
use tessera_repository::Repository;

use super::loaded_model::store_loaded_model;
use super::local_site::LocalSite;
use super::task_descriptions::{TaskDescriptions, read_description};

/// Answers requests with what runs at a site.
pub(super) struct SiteService {
    pub(super) site: Arc<LocalSite>,
    pub(super) manager: Manager,
    pub(super) repository: PathBuf,
    /// Whether what was asked for at the start runs.
    pub(super) is_up: Arc<AtomicBool>,
    /// What clients learn of tasks beside what they take and give.
    pub(super) descriptions: TaskDescriptions,
}

impl SiteService {
    fn task_info(&self, entry: &TaskEntry) -> TaskInfo {
        let route = &entry.route;
        let first =
            route.steps.first().and_then(|step| self.site.node_supervisor().unit_facts(&step.unit));
        let batching = first.and_then(|facts| facts.calibration.batching);
        TaskInfo {
            name: route.task.clone(),
            version: route.version.clone(),
            state: self.site.dispatcher().task_availability(entry).into(),
            inputs: route.inputs.clone(),
            outputs: route.outputs.clone(),
            max_batch_size: route.max_rows,
            batching: batching.map(|batching| (batching.max_rows, batching.max_wait)),
            description: self.descriptions.find_or_read(&route.task, &route.version, || {
                let task = self.manager.task_definition(&route.task);
                read_description(&self.repository, self.manager.task_defaults(), task.as_ref())
            }),
        }
    }

    /// The models of the repository that no task serves.
    fn idle_models(&self) -> Vec<TaskInfo> {
        let names = Repository::open(&self.repository).and_then(|found| found.list_models());
        let names = names.unwrap_or_default().into_iter().map(|entry| entry.name);
        let idle = names.filter(|name| self.site.dispatcher().find_task(name, "").is_err());
        idle.map(|name| TaskInfo {
            name,
            version: "1".to_owned(),
            state: TaskState::Unavailable("it is not loaded".to_owned()),
            inputs: Vec::new(),
            outputs: Vec::new(),
            max_batch_size: 0,
            batching: None,
            description: Arc::default(),
        })
        .collect()
    }
}

impl InferenceService for SiteService {
    fn list_tasks(&self) -> Vec<TaskInfo> {
        let mut tasks: Vec<TaskInfo> =
            self.site.dispatcher().list_tasks().iter().map(|entry| self.task_info(entry)).collect();
        tasks.extend(self.idle_models());
        tasks.sort_by(|a, b| a.name.cmp(&b.name));
        tasks
    }

    fn find_task(&self, name: &str, version: &str) -> Result<TaskInfo> {
        Ok(self.task_info(&*self.site.dispatcher().find_task(name, version)?))
    }

    fn is_ready(&self) -> bool {
        let dispatcher = self.site.dispatcher();
        self.is_up.load(Ordering::Acquire)
            && self.manager.serves_all()
            && dispatcher
                .list_tasks()
                .iter()
                .all(|entry| dispatcher.task_availability(entry) == TaskAvailability::Ready)
    }

    fn task_statistics(&self, name: &str) -> Result<TaskStatistics> {
        self.site.dispatcher().task_statistics(name)
    }

    fn allocate_input(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut> {
        self.site.dispatcher().allocate_input(dtype, shape)
    }

    fn infer(
        &self,
        request: InferenceRequest,
    ) -> ServiceFuture<'_, Result<InferenceResponse, Refusal>> {
        Box::pin(self.site.dispatcher().infer(request))
    }

    fn load_task<'a>(
        &'a self,
        name: &'a str,
        overrides: LoadOverrides,
    ) -> ServiceFuture<'a, Result<()>> {
        Box::pin(async move {
            let is_plain = overrides.config.is_none() && overrides.files.is_empty();
            if is_plain && self.site.dispatcher().find_task(name, "").is_ok() {
                return Ok(());
            }
            let task = if is_plain {
                TaskDefinition::of_model(name)
            } else {
                let (repository, model) = (self.repository.clone(), name.to_owned());
                let store = move || store_loaded_model(&repository, &model, &overrides);
                let stored = tokio::task::spawn_blocking(store).await;
                stored.map_err(|error| Error::engine(format!("model \"{name}\": {error}")))??
            };
            let loaded = self.manager.put_task(name, task).await;
            // Labels may be others for the same version.
            self.descriptions.forget_task(name);
            loaded.map(drop).map_err(|error| match error.kind() {
                // As the protocol has it: a model that can't be loaded is a bad request.
                ErrorKind::NotFound => {
                    Error::invalid(format!("there is no model \"{name}\" to load"))
                }
                _ => error,
            })
        })
    }

    fn unload_task<'a>(&'a self, name: &'a str) -> ServiceFuture<'a, Result<()>> {
        Box::pin(async move {
            match self.manager.remove_task(name).await {
                // As it should be, whoever saw to it.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                removed => removed.map(drop),
            }
        })
    }
}
