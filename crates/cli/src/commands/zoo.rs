//! `tessera zoo`

use std::path::{Path, PathBuf};

use prost::Message;
use serde_json::json;
use tessera_core::{Error, Result};
use tessera_graph::ExitSpec;
use tessera_zoo::{Architecture, Batch, Recipe, Share};

use crate::arguments::Zoo;
use crate::{model_file, output};

pub(super) fn run(arguments: &Zoo) -> Result<()> {
    if arguments.list {
        let names: Vec<String> = Architecture::ALL.iter().map(ToString::to_string).collect();
        return match arguments.json {
            true => output::print_json(&names),
            false => output::print(&names.join("\n")),
        };
    }
    let name = arguments.name.as_deref().unwrap_or_default();
    let mut recipe = Recipe::new(name.parse()?);
    recipe.seed = arguments.seed;
    recipe.exits = arguments.exits;
    recipe.batch_norm = arguments.batch_norm;
    recipe.share = match (arguments.share_with, arguments.stages) {
        (Some(seed), Some(stages)) => Some(Share { seed, stages }),
        _ => None,
    };
    recipe.batch = match arguments.batch.as_str() {
        "dynamic" => Batch::Symbolic,
        text => Batch::Fixed(text.parse().map_err(|_| {
            Error::usage(format!("--batch \"{text}\", expected a number or \"dynamic\""))
        })?),
    };
    let path = arguments.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.onnx")));
    let working = output::spinner(format!("writing {}", path.display()));
    let written = write(&recipe, &path)?;
    working.finish_and_clear();
    if arguments.json {
        return output::print_json(&json!({
            "model": path, "bytes": written.bytes, "parameters": written.parameters,
            "exits": written.exits,
        }));
    }
    let exits = match written.exits.len() {
        0 => String::new(),
        _ => format!(", exits in {}", model_file::manifest_path(&path).display()),
    };
    output::print(&format!(
        "{}: {} parameters, {}{exits}",
        path.display(),
        output::count(written.parameters),
        output::bytes(written.bytes)
    ))
}

struct Written {
    bytes: u64,
    parameters: u64,
    exits: Vec<ExitSpec>,
}

/// Builds a model of the zoo and writes it, with its manifest where it has exits.
fn write(recipe: &Recipe, path: &Path) -> Result<Written> {
    let parameters = recipe.parameters()?;
    let made = recipe.build()?;
    let bytes = made.model.encode_to_vec();
    drop(made.model);
    model_file::write_whole(path, &bytes)?;
    let exits: Vec<ExitSpec> =
        made.exits.into_iter().map(|(output, threshold)| ExitSpec { output, threshold }).collect();
    let manifest = model_file::manifest_path(path);
    if !exits.is_empty() {
        model_file::write_manifest(path, exits.clone())?;
    } else if manifest.exists() {
        // Left from a model with exits that this one has replaced.
        std::fs::remove_file(&manifest).map_err(|error| Error::io(manifest.display(), &error))?;
    }
    Ok(Written { bytes: bytes.len() as u64, parameters, exits })
}
