//! `tessera repo`

use serde_json::json;
use tessera_core::{Error, Result};
use tessera_repository::Repository;

use crate::arguments::{Repo, RepoCommand, RepoGc, RepoNamed};
use crate::output::{self, Table};

pub(super) fn run(command: &Repo) -> Result<()> {
    match command {
        Repo::List(arguments) => list(arguments),
        Repo::Show(arguments) => show(arguments),
        Repo::Remove(arguments) => remove(arguments),
        Repo::Verify(arguments) => verify(arguments),
        Repo::Gc(arguments) => gc(arguments),
    }
}

fn list(arguments: &RepoCommand) -> Result<()> {
    let repository = Repository::open(&arguments.repository.repo)?;
    let (models, usage) = (repository.models()?, repository.usage()?);
    if arguments.json {
        return output::print_json(&json!({ "models": models, "usage": usage }));
    }
    let mut table = Table::new(&["model", ">blocks", ">exits", "hash"]);
    for model in &models {
        let graph = repository.model(&model.name)?;
        table.row([
            model.name.clone(),
            graph.blocks.len().to_string(),
            graph.exits.len().to_string(),
            model.hash.short(),
        ]);
    }
    table.print()?;
    output::print("")?;
    output::print(&format!(
        "{} models, {} blocks, {} weights of {}, {} in all",
        usage.models,
        usage.blocks,
        usage.weights,
        output::bytes(usage.weight_bytes),
        output::bytes(usage.total_bytes)
    ))
}

fn show(arguments: &RepoNamed) -> Result<()> {
    let repository = Repository::open(&arguments.repository.repo)?;
    let graph = repository.model(&arguments.name)?;
    let rows = super::split::rows(&graph, |hash| repository.block(hash).ok());
    if arguments.json {
        return output::print_json(&json!({
            "name": arguments.name, "inputs": graph.inputs, "outputs": graph.outputs,
            "exits": graph.exits, "blocks": rows,
        }));
    }
    super::split::print_rows(&rows)
}

fn remove(arguments: &RepoNamed) -> Result<()> {
    Repository::open(&arguments.repository.repo)?.remove(&arguments.name)?;
    match arguments.json {
        true => output::print_json(&json!({ "removed": arguments.name })),
        false => output::print(&format!(
            "{} removed; `tessera repo gc` frees what only it needed",
            arguments.name
        )),
    }
}

fn verify(arguments: &RepoCommand) -> Result<()> {
    let repository = Repository::open(&arguments.repository.repo)?;
    let usage = repository.usage()?;
    let bar = output::progress(usage.total_bytes, "checking");
    let problems = repository.verify(&mut |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    if arguments.json {
        output::print_json(&json!({ "usage": usage, "problems": problems }))?;
    } else {
        for problem in &problems {
            output::print(&problem.message)?;
        }
    }
    match problems.len() {
        0 if arguments.json => Ok(()),
        0 => output::print(&format!(
            "{} blocks and {} weights ({}) are sound",
            usage.blocks,
            usage.weights,
            output::bytes(usage.total_bytes)
        )),
        1 => Err(Error::corrupt(problems[0].message.clone())),
        count => Err(Error::corrupt(format!("{count} problems found"))),
    }
}

fn gc(arguments: &RepoGc) -> Result<()> {
    let report = Repository::open(&arguments.repository.repo)?.gc(arguments.dry_run)?;
    if arguments.json {
        return output::print_json(&report);
    }
    let done = if arguments.dry_run { "would be removed" } else { "removed" };
    output::print(&format!(
        "{} models, {} blocks, {} weights and {} unfinished files {done}, {}",
        report.models,
        report.blocks,
        report.weights,
        report.unfinished,
        output::bytes(report.bytes)
    ))
}
