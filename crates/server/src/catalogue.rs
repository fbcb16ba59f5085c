//! The repository as the catalogue of what paths may name.

use std::path::PathBuf;
use std::sync::Arc;

use tessera_control::{Catalogue, ContentHold};
use tessera_core::{ContentHash, Error, ErrorKind, Result};
use tessera_graph::{BlockGraph, TensorSource};
use tessera_repository::{ContentHolder, ContentUse, Repository};

/// How much of a hash tells a block.
const MIN_HASH_PREFIX: usize = 6;

/// Finds models and blocks in a repository.
pub(crate) struct RepositoryCatalogue {
    repository: PathBuf,
    holder: Arc<ContentHolder>,
}

impl RepositoryCatalogue {
    /// The catalogue of a repository, which is there.
    pub(crate) fn open(repository: PathBuf) -> Result<Self> {
        let holder = Repository::open(&repository)?.begin_holding()?;
        Ok(Self { repository, holder })
    }
}

impl Catalogue for RepositoryCatalogue {
    fn find_graph(&self, name: &str) -> Result<BlockGraph> {
        // Opened anew, so that what was put there meanwhile is found.
        let repository = Repository::open(&self.repository)?;
        if let Some((model, number)) = name.split_once('/') {
            let graph = repository.read_model(model)?;
            let count = graph.blocks.len();
            let number = number.parse::<usize>().ok().filter(|&number| number < count);
            let number = number.ok_or_else(|| {
                Error::not_found(format!(
                    "no block \"{name}\": model \"{model}\" has blocks 0 to {}",
                    count.saturating_sub(1)
                ))
            })?;
            return Ok(single_block_graph(&graph, number));
        }
        match repository.read_model(name) {
            Err(error)
                if error.kind() == ErrorKind::NotFound || error.kind() == ErrorKind::Usage =>
            {
                block_by_hash(&repository, name)?.ok_or(error)
            }
            found => found,
        }
    }

    fn hold_content(&self, task: &str, names: &[&str], graph: &BlockGraph) -> Result<ContentHold> {
        let model = |name: &&str| name.split_once('/').map_or(*name, |(model, _)| model).to_owned();
        let content = ContentUse {
            task: task.to_owned(),
            models: names.iter().map(model).collect(),
            blocks: graph.distinct_blocks(),
        };
        Ok(Box::new(self.holder.hold_content(&content)?))
    }
}

/// The block whose hash begins so, as some model uses it.
fn block_by_hash(repository: &Repository, prefix: &str) -> Result<Option<BlockGraph>> {
    let is_hash = prefix.len() >= MIN_HASH_PREFIX && prefix.chars().all(|c| c.is_ascii_hexdigit());
    if !is_hash {
        return Ok(None);
    }
    let mut found: Option<(ContentHash, BlockGraph)> = None;
    for entry in repository.list_models()? {
        let graph = repository.read_model(&entry.name)?;
        for (number, node) in graph.blocks.iter().enumerate() {
            if !node.block.to_string().starts_with(prefix) {
                continue;
            }
            match &found {
                Some((known, _)) if *known != node.block => {
                    return Err(Error::usage(format!(
                        "\"{prefix}\" begins the hash of more than one block, expected more of it"
                    )));
                }
                Some(_) => {}
                None => found = Some((node.block, single_block_graph(&graph, number))),
            }
        }
    }
    Ok(found.map(|(_, graph)| graph))
}

/// One block of a model as a graph of its own.
fn single_block_graph(graph: &BlockGraph, number: usize) -> BlockGraph {
    let node = &graph.blocks[number];
    let mut inputs: Vec<TensorSource> = Vec::new();
    for source in &node.inputs {
        if !inputs.contains(source) {
            inputs.push(*source);
        }
    }
    let port = |source: &TensorSource| match *source {
        TensorSource::Input(index) => graph.inputs[index].clone(),
        TensorSource::Block { block, output } => graph.blocks[block].outputs[output].clone(),
    };
    let place =
        |source: &TensorSource| inputs.iter().position(|known| known == source).unwrap_or(0);
    let mut alone = node.clone();
    alone.inputs = node.inputs.iter().map(|source| TensorSource::Input(place(source))).collect();
    BlockGraph {
        inputs: inputs.iter().map(port).collect(),
        outputs: node
            .outputs
            .iter()
            .enumerate()
            .map(|(output, port)| (port.clone(), TensorSource::Block { block: 0, output }))
            .collect(),
        blocks: vec![alone],
        exits: Vec::new(),
        row_obstacle: graph.row_obstacle.clone(),
        relies_on_dim_names: graph.relies_on_dim_names,
    }
}
