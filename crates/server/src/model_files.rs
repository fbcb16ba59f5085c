//! The models that a server is started with: cut, stored, and served under their names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tessera_control::{Manager, System, TaskDefinition};
use tessera_core::{Error, Result};
use tessera_deploy::BatchingChoice;
use tessera_graph::{ExitSpec, Partition, SharedModel, Split};
use tessera_repository::{ModelFile, Repository};

/// Models to serve from the start on; what was served last, where there is none.
#[derive(Clone, Debug, Default)]
pub struct ModelFilesConfig {
    /// ONNX files.
    pub paths: Vec<PathBuf>,
    /// Shapes of their inputs, by name.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Their exits, where their manifests don't say.
    pub exits: Vec<ExitSpec>,
    /// Where to cut; else so that what they have in common is shared.
    pub split: Option<Split>,
    /// Whether neighbouring blocks that no other task shares run as one.
    pub fusion: bool,
    /// Whether requests may be put together.
    pub batching: bool,
}

impl ModelFilesConfig {
    /// Notes the files that can't be read, before anything is made.
    pub(crate) fn note_unreadable(&self, wrong: &mut Vec<String>) {
        for path in &self.paths {
            if let Err(error) = std::fs::File::open(path) {
                wrong.push(Error::from_io(path.display(), &error).to_string());
            }
        }
    }

    /// Makes them the tasks that are served, or has those served that were last.
    pub(crate) async fn start_tasks(&self, repository: &Path, manager: &Manager) -> Result<()> {
        if self.paths.is_empty() {
            return manager.restore_tasks().await.map(drop);
        }
        let names = tokio::task::block_in_place(|| self.store_models(repository))?;
        let tasks = names.into_iter().map(|name| {
            let mut task = TaskDefinition::of_model(&name);
            if !self.batching {
                task.batching = Some(BatchingChoice::Off);
            }
            (name, task)
        });
        let mut system = System::new(tasks.collect());
        system.fusion = self.fusion;
        manager.put_system(system).await.map(drop)
    }

    /// Puts the models into the repository; their names there.
    fn store_models(&self, repository: &Path) -> Result<Vec<String>> {
        let mut models = Vec::with_capacity(self.paths.len());
        for path in &self.paths {
            let model = ModelFile::read_file(path, &self.shapes, &self.exits)?;
            // What is wrong with a model's exits is told here, with its name.
            model.cut_points()?;
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
        let repository = Repository::open(repository)?;
        for (model, partition) in models.iter().zip(self.cut_models(&models)?) {
            repository.put_model(&model.name(), &partition)?;
        }
        Ok(models.iter().map(ModelFile::name).collect())
    }

    /// Cuts as the user asks, or else so that what the models have in common is shared.
    fn cut_models(&self, models: &[ModelFile]) -> Result<Vec<Partition>> {
        if self.split.is_some() {
            let split = self.split.as_ref();
            return models.iter().map(|model| model.split_into_blocks(split)).collect();
        }
        let views: Vec<SharedModel<'_>> = models
            .iter()
            .map(|model| SharedModel {
                graph: &model.graph,
                types: &model.types,
                exits: &model.exits,
            })
            .collect();
        Ok(tessera_graph::share_blocks(&views, &mut |_| {})?.partitions)
    }
}
