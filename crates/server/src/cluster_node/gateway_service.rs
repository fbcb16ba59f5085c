//! The tasks of a cluster as the service that the protocol's front ends of a node ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tessera_core::{DType, Error, Result, TensorMut};
use tessera_dispatch::{
    Dispatcher, InferenceRequest, InferenceResponse, Refusal, TaskEntry, TaskStatistics,
};
use tessera_gateway::{InferenceService, LoadOverrides, ServiceFuture, TaskInfo};

/// Answers requests with what runs in the cluster.
pub(super) struct ClusterService {
    pub(super) dispatcher: Dispatcher,
    /// Whether a controller has said, at some time, what there is.
    pub(super) is_assigned: Arc<AtomicBool>,
}

impl ClusterService {
    fn task_info(&self, entry: &TaskEntry) -> TaskInfo {
        let route = &entry.route;
        TaskInfo {
            name: route.task.clone(),
            version: route.version.clone(),
            state: self.dispatcher.task_availability(entry).into(),
            inputs: route.inputs.clone(),
            outputs: route.outputs.clone(),
            max_batch_size: route.max_rows,
            batching: None,
            description: Arc::default(),
        }
    }
}

fn changed_elsewhere() -> Error {
    Error::unsupported("tasks of a cluster are changed at its controller: PUT /v1/tasks/NAME there")
}

impl InferenceService for ClusterService {
    fn list_tasks(&self) -> Vec<TaskInfo> {
        self.dispatcher.list_tasks().iter().map(|entry| self.task_info(entry)).collect()
    }

    fn find_task(&self, name: &str, version: &str) -> Result<TaskInfo> {
        Ok(self.task_info(&*self.dispatcher.find_task(name, version)?))
    }

    fn is_ready(&self) -> bool {
        // A task that is not takes no gateway away from the others: each is asked about by itself.
        self.is_assigned.load(Ordering::Acquire) && self.dispatcher.is_accepting()
    }

    fn task_statistics(&self, name: &str) -> Result<TaskStatistics> {
        self.dispatcher.task_statistics(name)
    }

    fn allocate_input(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut> {
        self.dispatcher.allocate_input(dtype, shape)
    }

    fn infer(
        &self,
        request: InferenceRequest,
    ) -> ServiceFuture<'_, Result<InferenceResponse, Refusal>> {
        Box::pin(self.dispatcher.infer(request))
    }

    fn load_task<'a>(
        &'a self,
        name: &'a str,
        overrides: LoadOverrides,
    ) -> ServiceFuture<'a, Result<()>> {
        Box::pin(async move {
            let is_plain = overrides.config.is_none() && overrides.files.is_empty();
            let is_there = self.dispatcher.find_task(name, "").is_ok();
            if is_plain && is_there { Ok(()) } else { Err(changed_elsewhere()) }
        })
    }

    fn unload_task<'a>(&'a self, name: &'a str) -> ServiceFuture<'a, Result<()>> {
        Box::pin(async move {
            // One that is not there is as it should be.
            match self.dispatcher.find_task(name, "") {
                Ok(_) => Err(changed_elsewhere()),
                Err(_) => Ok(()),
            }
        })
    }
}
