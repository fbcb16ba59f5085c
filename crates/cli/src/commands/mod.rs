//! The commands, one file each.

mod bench;
mod devices;
mod inspect;
mod load;
mod plan;
mod profile;
mod repo;
mod run;
mod share;
mod split;
mod verify;
mod zoo;

use std::sync::Arc;

use tessera_core::Result;
use tessera_engine::{Engine, choose};

use crate::arguments::{Command, EngineArguments};

/// Carries out a command.
pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Zoo(arguments) => zoo::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Split(arguments) => split::run(&arguments),
        Command::Share(arguments) => share::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Repo(command) => repo::run(&command),
        Command::Serve(arguments) => crate::serve::run(&arguments),
        Command::Load(arguments) => load::run(&arguments),
        Command::Plan(command) => plan::run(&command),
        Command::Bench(command) => bench::run(&command),
        Command::Block => block(),
    }
}

/// Runs a block for the server that started this process.
fn block() -> Result<()> {
    crate::logs::start(tracing::level_filters::LevelFilter::WARN, false);
    tessera_engine::give_large_memory_back();
    let result = tessera_node::run_block(&mut std::io::stdin().lock(), std::io::stdout());
    if let Err(error) = &result {
        eprintln!("tessera: {error}");
    }
    // Without the usual goodbyes: libraries for GPUs take theirs badly.
    signal_hook::low_level::exit(i32::from(result.is_err()))
}

/// The engine that the user asked for; says so where it is not the fast one.
fn engine(arguments: &EngineArguments) -> Result<Arc<dyn Engine>> {
    let (engine, note) = choose(arguments.engine)?;
    if let Some(note) = note {
        eprintln!("tessera: {note}");
    }
    Ok(engine)
}
