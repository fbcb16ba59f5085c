//! The models that a server is started with: cut, stored, and served under their names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::repository_models::keep_segments;
use serde::Serialize;
use tessera_control::{Manager, System, TaskDefinition};
use tessera_core::{Error, Result};
use tessera_deploy::BatchingChoice;
use tessera_graph::{ExitSpec, Partition, SharedModel, Split};
use tessera_repository::{ModelDescription, ModelFile, ModelShapes, NamedFile, Repository};

/// Models to serve from the start on; what was served last, where there is none.
#[derive(Clone, Debug, Default)]
pub struct ModelFilesConfig {
    /// ONNX files, with the names of their tasks.
    pub files: Vec<NamedFile>,
    /// Shapes of their inputs.
    pub shapes: ModelShapes,
    /// Their exits, where their manifests don't say.
    pub exits: Vec<ExitSpec>,
    /// Where to cut; else so that what they have in common is shared.
    pub split: Option<Split>,
    /// Whether neighbouring blocks that no other task shares run as one.
    pub fusion: bool,
    /// Whether requests may be put together.
    pub batching: bool,
}

/// A model that was to be served from the start on, and is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedModel {
    /// The name that its task would have.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// Why it is not served.
    pub reason: String,
}

impl ModelFilesConfig {
    /// Notes the files that can't be read, before anything is made.
    pub(crate) fn note_unreadable(&self, wrong: &mut Vec<String>) {
        for NamedFile { path, .. } in &self.files {
            if let Err(error) = std::fs::File::open(path) {
                wrong.push(Error::from_io(path.display(), &error).to_string());
            }
        }
    }

    /// Makes them the tasks that are served, or has those served that were last. A model that can't
    /// be served does not keep the others from it; fails where none can.
    pub(crate) async fn start_tasks(
        &self,
        repository: &Path,
        manager: &Manager,
    ) -> Result<Vec<FailedModel>> {
        if self.files.is_empty() {
            manager.restore_tasks().await?;
            return Ok(Vec::new());
        }
        let (names, mut failed) = tokio::task::block_in_place(|| self.store_models(repository))?;
        let mut system = System::new(names.iter().map(|name| self.define_task(name)).collect());
        system.fusion = self.fusion;
        tracing::info!(tasks = names.len(), "loading");
        if let Err(error) = manager.put_system(system.clone()).await {
            if names.len() == 1 && failed.is_empty() {
                return Err(error);
            }
            tracing::warn!(%error, "not all models can be served: one by one");
            failed.extend(self.start_each(&names, system, manager).await?);
        }
        if failed.len() == self.files.len() {
            let reasons: Vec<String> =
                failed.iter().map(|model| format!("{}: {}", model.name, model.reason)).collect();
            return Err(Error::usage(format!("no model can be served: {}", reasons.join("; "))));
        }
        for FailedModel { name, reason, .. } in &failed {
            tracing::error!(model = name, reason, "a model is not served");
        }
        Ok(failed)
    }

    fn define_task(&self, name: &str) -> (String, TaskDefinition) {
        let mut task = TaskDefinition::of_model(name);
        if !self.batching {
            task.batching = Some(BatchingChoice::Off);
        }
        (name.to_owned(), task)
    }

    /// Adds one task after the other; returns those that can't be served.
    async fn start_each(
        &self,
        names: &[String],
        mut system: System,
        manager: &Manager,
    ) -> Result<Vec<FailedModel>> {
        system.tasks.clear();
        manager.put_system(system).await?;
        let mut failed = Vec::new();
        for name in names {
            let (name, task) = self.define_task(name);
            if let Err(error) = manager.put_task(&name, task).await {
                failed.extend(self.failure(&name, &error));
            }
        }
        Ok(failed)
    }

    fn failure(&self, name: &str, error: &Error) -> Option<FailedModel> {
        let file = self.files.iter().find(|file| file.name == name)?;
        let (name, path) = (file.name.clone(), file.path.clone());
        Some(FailedModel { name, path, reason: error.to_string() })
    }

    /// Puts the models into the repository; their names there, and those that can't be.
    fn store_models(&self, repository: &Path) -> Result<(Vec<String>, Vec<FailedModel>)> {
        let (mut models, mut failed) = (Vec::with_capacity(self.files.len()), Vec::new());
        let mut used = BTreeSet::new();
        for file in &self.files {
            tracing::info!(model = file.name, file = %file.path.display(), "reading");
            let read = ModelFile::read_named(file, &self.shapes, &self.exits, &mut used);
            // Whether it can be cut at all is found out here, for this model alone.
            match read.and_then(|model| model.check_cuttable().map(|()| model)) {
                Ok(model) => models.push(model),
                Err(error) => failed.extend(self.failure(&file.name, &error)),
            }
        }
        self.shapes.check_all_used(&used)?;
        let repository = Repository::open(repository)?;
        let mut names = Vec::with_capacity(models.len());
        let start = Instant::now();
        for (model, partition) in models.iter().zip(self.cut_models(&models)?) {
            repository.put_model(&model.name(), &partition)?;
            keep_segments(&repository, &model.name(), &view_model(model), &partition)?;
            let description = model.description().unwrap_or_else(|error| {
                // What it computes is not in doubt.
                tracing::warn!(model = model.name(), %error, "labels and formats are left out");
                ModelDescription::default()
            });
            repository.put_description(&model.name(), &description)?;
            let blocks = partition.graph.blocks.len();
            let ms = start.elapsed().as_millis() as u64;
            tracing::info!(model = model.name(), blocks, ms, "cut and stored");
            names.push(model.name());
        }
        Ok((names, failed))
    }

    /// Cuts as the user asks, or else so that what the models have in common is shared.
    fn cut_models(&self, models: &[ModelFile]) -> Result<Vec<Partition>> {
        if self.split.is_some() {
            let split = self.split.as_ref();
            return models.iter().map(|model| model.split_into_blocks(split)).collect();
        }
        let views: Vec<SharedModel<'_>> = models.iter().map(view_model).collect();
        let shared = tessera_graph::share_blocks(&views, &mut |_| {})?;
        models.iter().try_for_each(ModelFile::check_intact)?;
        Ok(shared.partitions)
    }
}

fn view_model(model: &ModelFile) -> SharedModel<'_> {
    SharedModel { graph: &model.graph, types: &model.types, exits: &model.exits }
}
