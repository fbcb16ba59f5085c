//! `tessera share`

use std::collections::{BTreeSet, HashMap};
use tessera_report::{Table, format_bytes, output};

use crate::arguments::ShareArguments;
use serde::Serialize;
use tessera_command::parse_shapes;
use tessera_core::{ContentHash, Result};
use tessera_graph::{SharedModel, SharedPartitions, UnsharedWeights, find_unshared};
use tessera_repository::{ModelFile, ModelShapes, name_files};

/// Rows that are shown of what is not shared.
const SHOWN_UNSHARED: usize = 20;

#[derive(Serialize)]
pub(super) struct ShareReport {
    models: Vec<ModelPath>,
    blocks: Vec<SharedBlock>,
    /// Bytes of weights if every model kept its own.
    pub(super) bytes_apart: u64,
    /// Bytes of weights with what is common kept once.
    pub(super) bytes_shared: u64,
    /// What the repository saves: every weight is stored once.
    bytes_saved: u64,
    percent_saved: f64,
    /// What memory and computing save: weights of blocks that are common as a whole.
    bytes_in_common_blocks: u64,
    /// Weights in common that are in no common block, the most bytes first; with --explain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unshared: Vec<UnsharedRow>,
}

#[derive(Serialize)]
struct UnsharedRow {
    models: [String; 2],
    blocks: [ContentHash; 2],
    bytes: u64,
    reason: String,
}

#[derive(Serialize)]
struct ModelPath {
    name: String,
    path: Vec<ContentHash>,
}

#[derive(Serialize)]
struct SharedBlock {
    block: ContentHash,
    weight_bytes: u64,
    models: Vec<String>,
}

pub(super) fn run_share(arguments: &ShareArguments) -> Result<()> {
    let bar = output::progress_bar(arguments.models.len() as u64 * 2, "sharing");
    let mut models = Vec::with_capacity(arguments.models.len());
    let shapes = ModelShapes::new(parse_shapes(&arguments.shapes)?);
    let mut used = BTreeSet::new();
    for file in &name_files(&arguments.models)? {
        let model = ModelFile::read_named(file, &shapes, &[], &mut used)?;
        // What is wrong with a model's exits is told here, with its name.
        model.cut_points()?;
        models.push(model);
        bar.inc(1);
    }
    shapes.check_all_used(&used)?;
    let names: Vec<String> = models.iter().map(ModelFile::name).collect();
    let shared = share_models(&models, &mut |_| bar.inc(1))?;
    if !arguments.dry_run {
        let repository = super::split::open_to_write(&arguments.repository.repo)?;
        for (model, partition) in models.iter().zip(&shared.partitions) {
            repository.put_model(&model.name(), partition)?;
            repository.put_description(&model.name(), &model.description()?)?;
        }
    }
    bar.finish_and_clear();
    let mut report = sharing_report(&names, &shared);
    if arguments.explain {
        report.unshared = explain_sharing(&names, &shared);
    }
    if arguments.json {
        return output::print_json(&report);
    }
    print_sharing(&report)?;
    if arguments.dry_run {
        output::print_line("nothing stored (--dry-run)")
    } else {
        output::print_line(&format!("stored in {}", arguments.repository.repo.display()))
    }
}

/// Cuts models so that they share blocks.
fn share_models(models: &[ModelFile], progress: &mut dyn FnMut(usize)) -> Result<SharedPartitions> {
    let views: Vec<SharedModel<'_>> = models
        .iter()
        .map(|model| SharedModel { graph: &model.graph, types: &model.types, exits: &model.exits })
        .collect();
    let shared = tessera_graph::share_blocks(&views, progress)?;
    models.iter().try_for_each(ModelFile::check_intact)?;
    Ok(shared)
}

/// What sharing saves, and the path of each model.
pub(super) fn sharing_report(names: &[String], shared: &SharedPartitions) -> ShareReport {
    let mut order: Vec<ContentHash> = Vec::new();
    let mut bytes: HashMap<ContentHash, u64> = HashMap::new();
    for partition in &shared.partitions {
        for hash in partition.graph.distinct_blocks() {
            bytes.entry(hash).or_insert_with(|| {
                order.push(hash);
                let block = partition.blocks.get(&hash);
                block.map_or(0, |block| block.weight_bytes() as u64)
            });
        }
    }
    let users = shared.models_by_block();
    let (apart, once) = (shared.bytes_apart() as u64, shared.bytes_shared() as u64);
    let saved = apart - once;
    ShareReport {
        models: names
            .iter()
            .zip(&shared.partitions)
            .map(|(name, partition)| ModelPath {
                name: name.clone(),
                path: partition.graph.blocks.iter().map(|node| node.block).collect(),
            })
            .collect(),
        blocks: order
            .iter()
            .map(|hash| SharedBlock {
                block: *hash,
                weight_bytes: bytes[hash],
                models: users[hash].iter().map(|&model| names[model].clone()).collect(),
            })
            .collect(),
        bytes_apart: apart,
        bytes_shared: once,
        bytes_saved: saved,
        percent_saved: if apart == 0 { 0.0 } else { saved as f64 * 100.0 / apart as f64 },
        bytes_in_common_blocks: shared.bytes_in_common_blocks() as u64,
        unshared: Vec::new(),
    }
}

/// Why weights in common are in no common block.
fn explain_sharing(names: &[String], shared: &SharedPartitions) -> Vec<UnsharedRow> {
    let row = |found: UnsharedWeights| UnsharedRow {
        models: [names[found.models.0].clone(), names[found.models.1].clone()],
        blocks: [found.blocks.0, found.blocks.1],
        bytes: found.bytes as u64,
        reason: found.reason,
    };
    find_unshared(shared).into_iter().map(row).collect()
}

fn print_sharing(report: &ShareReport) -> Result<()> {
    let mut table = Table::new(&["block", ">weights", ">models", "used by"]);
    for block in &report.blocks {
        let mut users = block.models.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
        if block.models.len() > 4 {
            users += ", …";
        }
        table.add_row([
            block.block.short_hex(),
            format_bytes(block.weight_bytes),
            block.models.len().to_string(),
            users,
        ]);
    }
    table.print_table()?;
    output::print_line("")?;
    let mut table = Table::new(&["model", "path"]);
    for model in &report.models {
        let path: Vec<String> = model.path.iter().map(ContentHash::short_hex).collect();
        table.add_row([model.name.clone(), path.join(" → ")]);
    }
    table.print_table()?;
    output::print_line("")?;
    output::print_line(&format!(
        "{} of weights instead of {}: {} saved on disk ({:.1} %), {} in memory and computing",
        format_bytes(report.bytes_shared),
        format_bytes(report.bytes_apart),
        format_bytes(report.bytes_saved),
        report.percent_saved,
        format_bytes(report.bytes_in_common_blocks)
    ))?;
    if report.bytes_in_common_blocks < report.bytes_saved && report.unshared.is_empty() {
        output::print_line(
            "--explain says which weights in common are in no common block, and why",
        )?;
    }
    if report.unshared.is_empty() {
        return Ok(());
    }
    output::print_line("")?;
    let mut table = Table::new(&[">weights", "of", "in", "which differ in"]);
    for row in report.unshared.iter().take(SHOWN_UNSHARED) {
        table.add_row([
            format_bytes(row.bytes),
            row.models.join(", "),
            row.blocks.map(|block| block.short_hex()).join(", "),
            row.reason.clone(),
        ]);
    }
    table.print_table()?;
    match report.unshared.len().saturating_sub(SHOWN_UNSHARED) {
        0 => Ok(()),
        more => output::print_line(&format!("and {more} more; --json has all")),
    }
}
