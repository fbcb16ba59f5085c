//! What clients learn of tasks beside what they take and give. Requests look a task up, so that
//! it is read once for each version.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tessera_control::{DeviceChoice, TaskDefaults, TaskDefinition, TaskPath};
use tessera_core::lock;
use tessera_gateway::{OutputLabels, TaskDescription};
use tessera_repository::Repository;

/// Descriptions by task, each with the version that it is of.
#[derive(Default)]
pub(super) struct TaskDescriptions {
    known: Mutex<HashMap<String, (String, Arc<TaskDescription>)>>,
}

impl TaskDescriptions {
    /// The description of a task at this version; `read` finds it where it is not known yet.
    pub(super) fn find_or_read(
        &self,
        task: &str,
        version: &str,
        read: impl FnOnce() -> TaskDescription,
    ) -> Arc<TaskDescription> {
        if let Some((known, description)) = lock(&self.known).get(task)
            && known == version
        {
            return Arc::clone(description);
        }
        let description = Arc::new(read());
        let entry = (version.to_owned(), Arc::clone(&description));
        lock(&self.known).insert(task.to_owned(), entry);
        description
    }

    /// Has a task's description read again.
    pub(super) fn forget_task(&self, task: &str) {
        lock(&self.known).remove(task);
    }
}

/// What is known of a task: what lies beside its model in the repository, and how it is served.
pub(super) fn read_description(
    repository: &Path,
    defaults: &TaskDefaults,
    task: Option<&TaskDefinition>,
) -> TaskDescription {
    let Some(task) = task else { return TaskDescription::default() };
    let device = match &task.device {
        Some(DeviceChoice::All(device)) => *device,
        Some(DeviceChoice::Each(devices)) => devices.first().copied().unwrap_or(defaults.device),
        None => defaults.device,
    };
    let mut description = TaskDescription {
        instances: task.replicas.unwrap_or(1),
        device,
        ..TaskDescription::default()
    };
    let TaskPath::Model(model) = &task.path else { return description };
    let found = Repository::open(repository).and_then(|found| found.read_description(model));
    match found {
        Ok(found) => {
            description.formats = found.formats;
            let labels = found.labels.into_iter();
            description.labels = labels
                .map(|(output, labels)| {
                    (output, OutputLabels { file: labels.file, labels: labels.labels })
                })
                .collect();
        }
        Err(error) => tracing::warn!(model, %error, "labels and formats can't be read"),
    }
    description
}
