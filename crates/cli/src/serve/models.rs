//! The models that are given on the command line: cut, stored, and served under their names.

use std::collections::BTreeMap;

use tessera_control::{Manager, System, Task};
use tessera_core::{Error, Result};
use tessera_graph::{Partition, SharedModel};
use tessera_plan::BatchingChoice;
use tessera_repository::Repository;

use crate::arguments::Serve;
use crate::model_file::ModelFile;

/// Puts the models into the repository, and makes them the tasks that are served.
pub(super) async fn put(arguments: &Serve, manager: &Manager) -> Result<()> {
    let names = tokio::task::block_in_place(|| store(arguments))?;
    let tasks = names.into_iter().map(|name| {
        let mut task = Task::of_model(&name);
        if arguments.no_batching {
            task.batching = Some(BatchingChoice::Off);
        }
        (name, task)
    });
    let mut system = System::new(tasks.collect());
    system.fusion = !arguments.no_fusion;
    manager.put_system(system).await.map(drop)
}

fn store(arguments: &Serve) -> Result<Vec<String>> {
    let (shapes, exits) = (arguments.model.shapes()?, arguments.model.exits()?);
    let mut models = Vec::with_capacity(arguments.models.len());
    for path in &arguments.models {
        let model = ModelFile::read(path, &shapes, &exits)?;
        // What is wrong with a model's exits is told here, with its name.
        model.points()?;
        models.push(model);
    }
    let mut seen = BTreeMap::new();
    for model in &models {
        if let Some(other) = seen.insert(model.name(), &model.path) {
            return Err(Error::usage(format!(
                "{} and {} would both be task \"{}\", expected different file names",
                other.display(),
                model.path.display(),
                model.name()
            )));
        }
    }
    let repository = Repository::open(&arguments.repository.repo)?;
    for (model, partition) in models.iter().zip(cut(arguments, &models)?) {
        repository.put(&model.name(), &partition)?;
    }
    Ok(models.iter().map(ModelFile::name).collect())
}

/// Cuts as the user asks, or else so that what the models have in common is shared.
fn cut(arguments: &Serve, models: &[ModelFile]) -> Result<Vec<Partition>> {
    if arguments.split.is_given() {
        return models.iter().map(|model| model.split(&arguments.split)).collect();
    }
    let views: Vec<SharedModel<'_>> = models
        .iter()
        .map(|model| SharedModel { graph: &model.graph, types: &model.types, exits: &model.exits })
        .collect();
    Ok(tessera_graph::share(&views, &mut |_| {})?.partitions)
}
