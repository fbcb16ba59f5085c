//! Many models that differ in their weights, in a repository.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use tessera_core::{Result, Tensor};
use tessera_graph::{NoExternalData, SharedModel, infer, onnx};
use tessera_report::output;
use tessera_repository::Repository;
use tessera_repository::unfinished_files::temporary_folder;
use tessera_zoo::{Architecture, BatchSize, Recipe, SharedStages, random_inputs};

/// A graph and the types in it.
type ReadModel = (tessera_graph::Graph, tessera_graph::InferredTypes);

/// What is to be stored.
pub(super) struct WantedInstances {
    /// Instances take turns in them.
    pub(super) architectures: Vec<Architecture>,
    pub(super) count: usize,
    pub(super) sequence: Option<usize>,
    /// How many of their first stages all of one architecture have in common.
    pub(super) shared_stages: Option<usize>,
}

/// Models that differ in their weights, in a repository.
pub(super) struct StoredInstances {
    _folder: TempDir,
    pub(super) repository: PathBuf,
    /// The tasks, and what each is asked with.
    pub(super) names: Vec<String>,
    pub(super) inputs: Vec<Vec<(String, Tensor)>>,
    /// Bytes of the weights of each, whoever else has them.
    pub(super) weight_bytes: Vec<u64>,
}

impl WantedInstances {
    fn recipe(&self, instance: usize) -> Recipe {
        let architecture = self.architectures[instance % self.architectures.len()];
        let seed = 1 + instance as u64;
        let sequence = self.sequence.filter(|_| architecture.longest_sequence().is_some());
        let shared_stages = self.shared_stages.map(|stages| SharedStages { seed: 0, stages });
        let batch = BatchSize::Fixed(1);
        Recipe { seed, batch, sequence, shared_stages, ..Recipe::new(architecture) }
    }

    fn build(&self, instance: usize) -> Result<ReadModel> {
        let model = self.recipe(instance).build_model()?.model;
        let graph = onnx::read::from_proto(model, &mut NoExternalData)?;
        let types = infer::infer_types(&graph, &BTreeMap::new())?;
        Ok((graph, types))
    }
}

impl StoredInstances {
    pub(super) fn store(wanted: &WantedInstances) -> Result<Self> {
        let folder = temporary_folder()?;
        let root = folder.path().join("repository");
        let repository = Repository::open_or_create(&root)?;
        let names: Vec<String> = (0..wanted.count).map(|number| format!("task{number}")).collect();
        let bar = output::progress_bar(wanted.count as u64, "making instances");
        let stored = match wanted.shared_stages {
            Some(_) => store_together(wanted, &names, &repository, &|| bar.inc(1))?,
            None => store_apart(wanted, &names, &repository, &|| bar.inc(1))?,
        };
        bar.finish_and_clear();
        let (inputs, weight_bytes) = stored.into_iter().unzip();
        Ok(Self { _folder: folder, repository: root, names, inputs, weight_bytes })
    }
}

/// What one is asked with, and the bytes of its weights.
type StoredInstance = (Vec<(String, Tensor)>, u64);

fn store_partition(
    repository: &Repository,
    name: &str,
    partition: &tessera_graph::Partition,
) -> Result<StoredInstance> {
    repository.put_model(name, partition)?;
    let ports = &partition.graph.inputs;
    let given = random_inputs(ports, &HashMap::new(), 1)?;
    let inputs = ports.iter().map(|port| port.name.clone()).zip(given).collect();
    let bytes = partition.weights.values().map(|bytes| bytes.len() as u64).sum();
    Ok((inputs, bytes))
}

/// Each as one block, on all cores.
fn store_apart(
    wanted: &WantedInstances,
    names: &[String],
    repository: &Repository,
    progress: &(dyn Fn() + Sync),
) -> Result<Vec<StoredInstance>> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, StoredInstance)>> {
        let mut stored = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(name) = names.get(number) else { return Ok(stored) };
            let (graph, types) = wanted.build(number)?;
            let view = SharedModel { graph: &graph, types: &types, exits: &[] };
            let shared = tessera_graph::share_blocks(&[view], &mut |_| ())?;
            for partition in &shared.partitions {
                stored.push((number, store_partition(repository, name, partition)?));
            }
            progress();
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(names.len());
    let mut all = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let done = running.into_iter().map(|thread| match thread.join() {
            Ok(stored) => stored,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        done.collect::<Result<Vec<_>>>()
    })?
    .concat();
    all.sort_by_key(|(number, _)| *number);
    Ok(all.into_iter().map(|(_, stored)| stored).collect())
}

/// Cut so that what they have in common is there once.
fn store_together(
    wanted: &WantedInstances,
    names: &[String],
    repository: &Repository,
    progress: &dyn Fn(),
) -> Result<Vec<StoredInstance>> {
    let build = |number| {
        progress();
        wanted.build(number)
    };
    let models = (0..names.len()).map(build).collect::<Result<Vec<_>>>()?;
    let views: Vec<SharedModel<'_>> =
        models.iter().map(|(graph, types)| SharedModel { graph, types, exits: &[] }).collect();
    let shared = tessera_graph::share_blocks(&views, &mut |_| ())?;
    let stored = names.iter().zip(&shared.partitions);
    stored.map(|(name, partition)| store_partition(repository, name, partition)).collect()
}
