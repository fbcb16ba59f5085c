//! `tessera zoo`

use std::path::{Path, PathBuf};
use tessera_report::{format_bytes, format_count, output};

use crate::arguments::ZooArguments;
use prost::Message;
use serde_json::json;
use tessera_core::{Error, Result};
use tessera_graph::ExitSpec;
use tessera_repository::unfinished_files::write_whole;
use tessera_repository::{manifest_path, write_manifest};
use tessera_zoo::{Architecture, BatchSize, Recipe, SharedStages};

pub(super) fn run_zoo(arguments: &ZooArguments) -> Result<()> {
    if arguments.list {
        let names: Vec<String> = Architecture::ALL.iter().map(ToString::to_string).collect();
        return if arguments.json {
            output::print_json(&names)
        } else {
            output::print_line(&names.join("\n"))
        };
    }
    let name = arguments.name.as_deref().unwrap_or_default();
    let mut recipe = Recipe::new(name.parse()?);
    recipe.seed = arguments.seed;
    recipe.exits = arguments.exits;
    recipe.batch_norm = arguments.batch_norm;
    recipe.sequence = arguments.sequence;
    recipe.shared_stages = match (arguments.share_with, arguments.stages) {
        (Some(seed), Some(stages)) => Some(SharedStages { seed, stages }),
        _ => None,
    };
    recipe.batch = match arguments.batch.as_str() {
        "dynamic" => BatchSize::Symbolic,
        text => BatchSize::Fixed(text.parse().map_err(|_| {
            Error::usage(format!("--batch \"{text}\", expected a number or \"dynamic\""))
        })?),
    };
    let path = arguments.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.onnx")));
    let working = output::spinner(format!("writing {}", path.display()));
    let written = write_model(&recipe, &path)?;
    working.finish_and_clear();
    if arguments.json {
        return output::print_json(&json!({
            "model": path, "bytes": written.bytes, "parameters": written.parameters,
            "exits": written.exits,
        }));
    }
    let exits = match written.exits.len() {
        0 => String::new(),
        _ => format!(", exits in {}", manifest_path(&path).display()),
    };
    output::print_line(&format!(
        "{}: {} parameters, {}{exits}",
        path.display(),
        format_count(written.parameters),
        format_bytes(written.bytes)
    ))
}

struct WrittenModel {
    bytes: u64,
    parameters: u64,
    exits: Vec<ExitSpec>,
}

/// Builds a model of the zoo and writes it, with its manifest where it has exits.
fn write_model(recipe: &Recipe, path: &Path) -> Result<WrittenModel> {
    let parameters = recipe.count_parameters()?;
    let made = recipe.build_model()?;
    let bytes = made.model.encode_to_vec();
    drop(made.model);
    write_whole(path, &bytes)?;
    let exits: Vec<ExitSpec> =
        made.exits.into_iter().map(|(output, threshold)| ExitSpec { output, threshold }).collect();
    let manifest = manifest_path(path);
    if !exits.is_empty() {
        write_manifest(path, exits.clone())?;
    } else if manifest.exists() {
        // Left from a model with exits that this one has replaced.
        std::fs::remove_file(&manifest)
            .map_err(|error| Error::from_io(manifest.display(), &error))?;
    }
    Ok(WrittenModel { bytes: bytes.len() as u64, parameters, exits })
}
