//! `tessera repo`

use serde_json::json;
use tessera_core::{Error, Result};
use tessera_report::{Table, format_bytes, output};
use tessera_repository::Repository;

use super::repo_transfer;
use crate::arguments::{Repo, RepoCommand, RepoGc, RepoNamed};

pub(super) fn run_repo(command: &Repo) -> Result<()> {
    match command {
        Repo::List(arguments) => list_models(arguments),
        Repo::Show(arguments) => show_model(arguments),
        Repo::Remove(arguments) => remove_model(arguments),
        Repo::Verify(arguments) => verify_repository(arguments),
        Repo::Gc(arguments) => collect_garbage(arguments),
        Repo::Push(arguments) => repo_transfer::push_models(arguments),
        Repo::Pull(arguments) => repo_transfer::pull_models(arguments),
    }
}

fn list_models(arguments: &RepoCommand) -> Result<()> {
    let repository = Repository::open(&arguments.repository.repo)?;
    let (models, usage) = (repository.list_models()?, repository.measure_usage()?);
    if arguments.json {
        return output::print_json(&json!({ "models": models, "usage": usage }));
    }
    let mut table = Table::new(&["model", ">blocks", ">exits", "hash"]);
    for model in &models {
        let graph = repository.read_model(&model.name)?;
        table.add_row([
            model.name.clone(),
            graph.blocks.len().to_string(),
            graph.exits.len().to_string(),
            model.hash.short_hex(),
        ]);
    }
    table.print_table()?;
    output::print_line("")?;
    output::print_line(&format!(
        "{} models, {} blocks, {} weights of {}, {} in all",
        usage.models,
        usage.blocks,
        usage.weights,
        format_bytes(usage.weight_bytes),
        format_bytes(usage.total_bytes)
    ))
}

fn show_model(arguments: &RepoNamed) -> Result<()> {
    let repository = Repository::open(&arguments.repository.repo)?;
    let graph = repository.read_model(&arguments.name)?;
    let rows = super::split::block_rows(&graph, |hash| repository.read_block(hash).ok());
    if arguments.json {
        return output::print_json(&json!({
            "name": arguments.name, "inputs": graph.inputs, "outputs": graph.outputs,
            "exits": graph.exits, "blocks": rows,
        }));
    }
    super::split::print_block_rows(&rows)
}

fn remove_model(arguments: &RepoNamed) -> Result<()> {
    Repository::open(&arguments.repository.repo)?.remove_model(&arguments.name)?;
    if arguments.json {
        output::print_json(&json!({ "removed": arguments.name }))
    } else {
        output::print_line(&format!(
            "{} removed; `tessera repo gc` frees what only it needed",
            arguments.name
        ))
    }
}

fn verify_repository(arguments: &RepoCommand) -> Result<()> {
    let repository = Repository::open(&arguments.repository.repo)?;
    let usage = repository.measure_usage()?;
    let bar = output::progress_bar(usage.total_bytes, "checking");
    let problems = repository.verify_integrity(&mut |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    if arguments.json {
        output::print_json(&json!({ "usage": usage, "problems": problems }))?;
    } else {
        for problem in &problems {
            output::print_line(&problem.message)?;
        }
    }
    match problems.len() {
        0 if arguments.json => Ok(()),
        0 => output::print_line(&format!(
            "{} blocks and {} weights ({}) are sound",
            usage.blocks,
            usage.weights,
            format_bytes(usage.total_bytes)
        )),
        1 => Err(Error::corrupt(problems[0].message.clone())),
        count => Err(Error::corrupt(format!("{count} problems found"))),
    }
}

fn collect_garbage(arguments: &RepoGc) -> Result<()> {
    let report =
        Repository::open(&arguments.repository.repo)?.collect_garbage(arguments.dry_run)?;
    if arguments.json {
        return output::print_json(&report);
    }
    let done = if arguments.dry_run { "would be removed" } else { "removed" };
    output::print_line(&format!(
        "{} models, {} blocks, {} weights and {} unfinished files {done}, {}",
        report.models,
        report.blocks,
        report.weights,
        report.unfinished,
        format_bytes(report.bytes)
    ))
}
