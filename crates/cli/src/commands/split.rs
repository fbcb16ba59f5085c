//! `tessera split`

use serde::Serialize;
use tessera_core::{ContentHash, Result};
use tessera_graph::{BlockGraph, Exit, Partition, Source};
use tessera_repository::Repository;

use crate::arguments::SplitCommand;
use crate::interrupt;
use crate::model_file::ModelFile;
use crate::output::{self, Table};

#[derive(Serialize)]
struct Report<'a> {
    name: String,
    model: Option<ContentHash>,
    repository: Option<String>,
    blocks: Vec<BlockRow>,
    exits: &'a [Exit],
    weight_bytes: u64,
}

/// A block of a model, as tables and JSON show it.
#[derive(Serialize)]
pub(super) struct BlockRow {
    pub(super) block: ContentHash,
    inputs: Vec<String>,
    outputs: Vec<String>,
    nodes: usize,
    pub(super) weight_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<String>,
}

pub(super) fn run(arguments: &SplitCommand) -> Result<()> {
    let shapes = arguments.arguments.shapes()?;
    if let Some(name) = &arguments.name {
        tessera_repository::check_name(name)?;
    }
    let working = output::spinner(format!("cutting {}", arguments.model.display()));
    let model = ModelFile::read(&arguments.model, &shapes, &arguments.arguments.exits()?)?;
    let partition = model.split(&arguments.split)?;
    let name = arguments.name.clone().unwrap_or_else(|| model.name());
    tessera_repository::check_name(&name)?;
    let mut stored = None;
    if !arguments.dry_run {
        let repository = open_to_write(&arguments.repository.repo)?;
        stored = Some(repository.put(&name, &partition)?);
    }
    working.finish_and_clear();
    let report = Report {
        name,
        model: stored,
        repository: stored.map(|_| arguments.repository.repo.display().to_string()),
        blocks: rows(&partition.graph, |hash| partition.blocks.get(&hash).cloned()),
        exits: &partition.graph.exits,
        weight_bytes: partition.weight_bytes() as u64,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    print_rows(&report.blocks)?;
    print_repeats(&report.blocks, &partition)?;
    output::print("")?;
    match &report.repository {
        Some(repository) => output::print(&format!("{} stored in {repository}", report.name)),
        None => output::print("nothing stored (--dry-run)"),
    }
}

/// Prints blocks as a table.
pub(super) fn print_rows(rows: &[BlockRow]) -> Result<()> {
    let mut table = Table::new(&["block", "inputs", "outputs", ">nodes", ">weights", "exit"]);
    for row in rows {
        table.row([
            row.block.short(),
            row.inputs.join(", "),
            row.outputs.join(", "),
            row.nodes.to_string(),
            output::bytes(row.weight_bytes),
            row.exit.clone().unwrap_or_default(),
        ]);
    }
    table.print()
}

fn print_repeats(rows: &[BlockRow], partition: &Partition) -> Result<()> {
    let distinct = partition.blocks.len();
    if distinct < rows.len() {
        output::print(&format!("{} of the blocks are the same as another", rows.len() - distinct))?;
    }
    Ok(())
}

/// Opens a repository to write to, making it where there is none.
pub(super) fn open_to_write(root: &std::path::Path) -> Result<Repository> {
    interrupt::watch(&root.join("tmp"));
    Repository::open_or_create(root)
}

/// The blocks of a model as rows of a table.
pub(super) fn rows(
    graph: &BlockGraph,
    block: impl Fn(ContentHash) -> Option<tessera_graph::Block>,
) -> Vec<BlockRow> {
    let shown = |source: &Source| match *source {
        Source::Input(index) => graph.inputs[index].name.clone(),
        Source::Block { block, output } => graph.blocks[block].outputs[output].name.clone(),
    };
    graph
        .blocks
        .iter()
        .enumerate()
        .map(|(index, node)| {
            let content = block(node.block);
            BlockRow {
                block: node.block,
                inputs: node.inputs.iter().map(shown).collect(),
                outputs: node
                    .outputs
                    .iter()
                    .map(|port| format!("{} {}", port.name, port.tensor_type))
                    .collect(),
                nodes: content.as_ref().map_or(0, |block| block.node_count()),
                weight_bytes: content.as_ref().map_or(0, |block| block.weight_bytes() as u64),
                exit: graph
                    .exit_of(index)
                    .map(|exit| format!("{} at {}", exit.output, exit.threshold)),
            }
        })
        .collect()
}
