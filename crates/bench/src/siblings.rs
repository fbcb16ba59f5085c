//! `tessera bench siblings`: what many models with layers in common take, on disk and in memory.

use std::collections::{BTreeMap, HashMap};
use tessera_report::{Table, format_bytes, output};

use clap::Args;
use serde::{Deserialize, Serialize};
use tessera_command::{EngineArguments, RepositoryArgument};
use tessera_core::{Error, Result};
use tessera_graph::{NoExternalData, SharedModel, infer, onnx};
use tessera_node::{ExitPolicy, ModelLoader};
use tessera_repository::Repository;
use tessera_repository::unfinished_files::temporary_folder;
use tessera_zoo::{Architecture, Recipe, SharedStages, random_inputs};

use crate::process_memory;

/// Options of `tessera bench siblings`.
#[derive(Args)]
pub struct BenchSiblings {
    /// Zoo architecture
    #[arg(long, default_value = "resnet50")]
    pub(crate) model: String,
    /// How many siblings
    #[arg(long, default_value_t = 20)]
    pub(crate) count: u64,
    /// How many of their first stages they have in common
    #[arg(long, default_value_t = 3)]
    pub(crate) stages: usize,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `tessera bench resident`.
#[derive(Args)]
pub struct BenchResident {
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct SiblingsReport {
    model: String,
    count: u64,
    stages: usize,
    /// Bytes of weights if every model kept its own.
    bytes_apart: u64,
    /// Bytes of the distinct weights.
    distinct_weight_bytes: u64,
    percent_saved: f64,
    /// Bytes of everything in the repository.
    repository_bytes: u64,
    /// The repository over the distinct weights.
    repository_ratio: f64,
    #[serde(flatten)]
    resident: ResidentMemory,
    /// 1.3 times the distinct weights and 200 MB: what we want to stay below.
    resident_limit_bytes: u64,
}

/// The memory of a process with all models of a repository loaded.
#[derive(Serialize, Deserialize)]
struct ResidentMemory {
    engine: String,
    models: usize,
    /// Resident memory before anything was loaded.
    resident_empty_bytes: u64,
    /// With all models loaded.
    resident_loaded_bytes: u64,
    /// After each of them ran once.
    resident_ran_bytes: u64,
    /// What of that is backed by files, and so shared between processes.
    resident_file_bytes: u64,
}

pub(crate) fn bench_siblings(arguments: &BenchSiblings) -> Result<()> {
    let architecture: Architecture = arguments.model.parse()?;
    let folder = temporary_folder()?;
    let root = folder.path().join("repository");
    let bar = output::progress_bar(arguments.count * 3, "making siblings");
    let mut models = Vec::new();
    for seed in 1..=arguments.count {
        let mut recipe = Recipe::new(architecture);
        recipe.seed = seed;
        recipe.shared_stages = Some(SharedStages { seed: 0, stages: arguments.stages });
        let graph = onnx::read::from_proto(recipe.build_model()?.model, &mut NoExternalData)?;
        let types = infer::infer_types(&graph, &BTreeMap::new())?;
        models.push((graph, types));
        bar.inc(1);
    }
    let views: Vec<SharedModel<'_>> =
        models.iter().map(|(graph, types)| SharedModel { graph, types, exits: &[] }).collect();
    let shared = tessera_graph::share_blocks(&views, &mut |_| bar.inc(1))?;
    let repository = Repository::open_or_create(&root)?;
    for (seed, partition) in (1..).zip(&shared.partitions) {
        repository.put_model(&format!("{}-{seed}", arguments.model), partition)?;
        bar.inc(1);
    }
    let usage = repository.measure_usage()?;
    let (apart, distinct) = (shared.bytes_apart() as u64, shared.bytes_shared() as u64);
    bar.finish_and_clear();
    // A process of its own: this one has had all the weights in memory.
    let resident = measure_in_child(arguments, &root)?;
    let report = SiblingsReport {
        model: arguments.model.clone(),
        count: arguments.count,
        stages: arguments.stages,
        bytes_apart: apart,
        distinct_weight_bytes: distinct,
        percent_saved: (apart - distinct) as f64 * 100.0 / apart.max(1) as f64,
        repository_bytes: usage.total_bytes,
        repository_ratio: usage.total_bytes as f64 / distinct.max(1) as f64,
        resident,
        resident_limit_bytes: distinct * 13 / 10 + 200_000_000,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    output::print_line(&format!(
        "{} siblings of {} with {} stages in common",
        report.count, report.model, report.stages
    ))?;
    let mut table = Table::new(&["", ">bytes"]);
    for (name, bytes) in [
        ("weights, every model its own", report.bytes_apart),
        ("weights, distinct", report.distinct_weight_bytes),
        ("repository", report.repository_bytes),
        ("process, nothing loaded", report.resident.resident_empty_bytes),
        ("process, all loaded", report.resident.resident_loaded_bytes),
        ("process, each ran once", report.resident.resident_ran_bytes),
        ("limit: 1.3 × distinct + 200 MB", report.resident_limit_bytes),
    ] {
        table.add_row([name.to_owned(), format_bytes(bytes)]);
    }
    table.print_table()?;
    output::print_line(&format!(
        "{:.1} % saved; repository {:.4} times the distinct weights; on {}",
        report.percent_saved, report.repository_ratio, report.resident.engine
    ))
}

fn measure_in_child(arguments: &BenchSiblings, root: &std::path::Path) -> Result<ResidentMemory> {
    let fail = |error: std::io::Error| Error::from_io("a process of our own", &error);
    let own = std::env::current_exe().map_err(fail)?;
    let result = std::process::Command::new(own)
        .args(["bench", "resident", "--json", "--repo"])
        .arg(root)
        .args(["--engine", &arguments.engine.engine.to_string()])
        .args(["--threads", &arguments.engine.threads.to_string()])
        .output()
        .map_err(fail)?;
    if !result.status.success() {
        // In its words, and through this process: it says nothing more once it was interrupted.
        let words = String::from_utf8_lossy(&result.stderr);
        return Err(Error::engine(format!("the process that loads all models: {}", words.trim())));
    }
    serde_json::from_slice(&result.stdout)
        .map_err(|error| Error::invalid(format!("the process that loads all models: {error}")))
}

pub(crate) fn bench_resident(arguments: &BenchResident) -> Result<()> {
    let repository = Repository::open(&arguments.repository.repo)?;
    let resident_empty_bytes = process_memory::resident_bytes("self")?;
    let engine = arguments.engine.choose_engine()?;
    let loader = ModelLoader::new(engine, arguments.engine.load_options());
    let names = repository.list_models()?;
    let bar = output::progress_bar(names.len() as u64 * 2, "loading");
    let mut models = Vec::with_capacity(names.len());
    for entry in &names {
        models.push(loader.load_model(&repository.read_model(&entry.name)?, &repository)?);
        bar.inc(1);
    }
    let resident_loaded_bytes = process_memory::resident_bytes("self")?;
    for model in &models {
        let given = random_inputs(&model.graph().inputs, &HashMap::new(), 0)?;
        model.run_model(&given, ExitPolicy::SkipExits)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let report = ResidentMemory {
        engine: format!("{} {}", loader.engine().name(), loader.engine().version()),
        models: models.len(),
        resident_empty_bytes,
        resident_loaded_bytes,
        resident_ran_bytes: process_memory::resident_bytes("self")?,
        resident_file_bytes: process_memory::status_bytes("self", "RssFile")?,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    output::print_line(&format!(
        "{} models on {}: {} resident with all loaded, {} after each ran once",
        report.models,
        report.engine,
        format_bytes(report.resident_loaded_bytes),
        format_bytes(report.resident_ran_bytes)
    ))
}
