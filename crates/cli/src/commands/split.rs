//! `tessera split`

use crate::arguments::SplitCommand;
use serde::Serialize;
use tessera_core::{ContentHash, Result};
use tessera_graph::{BlockGraph, Exit, Partition, TensorSource};
use tessera_report::{Table, format_bytes, output};
use tessera_repository::unfinished_files::watch_folder;
use tessera_repository::{ModelFile, Repository};

#[derive(Serialize)]
struct SplitReport<'a> {
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

pub(super) fn run_split(arguments: &SplitCommand) -> Result<()> {
    let shapes = arguments.arguments.parse_shapes()?;
    if let Some(name) = &arguments.name {
        tessera_repository::check_model_name(name)?;
    }
    let working = output::spinner(format!("cutting {}", arguments.model.display()));
    let model =
        ModelFile::read_file(&arguments.model, &shapes, &arguments.arguments.parse_exits()?)?;
    let partition = model.split_into_blocks(arguments.split.chosen_split().as_ref())?;
    let name = arguments.name.clone().unwrap_or_else(|| model.name());
    tessera_repository::check_model_name(&name)?;
    let mut stored = None;
    if !arguments.dry_run {
        let repository = open_to_write(&arguments.repository.repo)?;
        stored = Some(repository.put_model(&name, &partition)?);
        repository.put_description(&name, &model.description()?)?;
    }
    working.finish_and_clear();
    let report = SplitReport {
        name,
        model: stored,
        repository: stored.map(|_| arguments.repository.repo.display().to_string()),
        blocks: block_rows(&partition.graph, |hash| partition.blocks.get(&hash).cloned()),
        exits: &partition.graph.exits,
        weight_bytes: partition.weight_bytes() as u64,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    print_block_rows(&report.blocks)?;
    print_repeats(&report.blocks, &partition)?;
    output::print_line("")?;
    match &report.repository {
        Some(repository) => output::print_line(&format!("{} stored in {repository}", report.name)),
        None => output::print_line("nothing stored (--dry-run)"),
    }
}

/// Prints blocks as a table.
pub(super) fn print_block_rows(rows: &[BlockRow]) -> Result<()> {
    let mut table = Table::new(&["block", "inputs", "outputs", ">nodes", ">weights", "exit"]);
    for row in rows {
        table.add_row([
            row.block.short_hex(),
            row.inputs.join(", "),
            row.outputs.join(", "),
            row.nodes.to_string(),
            format_bytes(row.weight_bytes),
            row.exit.clone().unwrap_or_default(),
        ]);
    }
    table.print_table()
}

fn print_repeats(rows: &[BlockRow], partition: &Partition) -> Result<()> {
    let distinct = partition.blocks.len();
    if distinct < rows.len() {
        output::print_line(&format!(
            "{} of the blocks are the same as another",
            rows.len() - distinct
        ))?;
    }
    Ok(())
}

/// Opens a repository to write to, making it where there is none.
pub(super) fn open_to_write(root: &std::path::Path) -> Result<Repository> {
    watch_folder(&root.join("tmp"));
    Repository::open_or_create(root)
}

/// The blocks of a model as rows of a table.
pub(super) fn block_rows(
    graph: &BlockGraph,
    block: impl Fn(ContentHash) -> Option<tessera_graph::Block>,
) -> Vec<BlockRow> {
    let shown = |source: &TensorSource| match *source {
        TensorSource::Input(index) => graph.inputs[index].name.clone(),
        TensorSource::Block { block, output } => graph.blocks[block].outputs[output].name.clone(),
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
