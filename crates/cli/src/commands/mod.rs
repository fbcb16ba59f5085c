//! The commands, one file each.

mod bench;
mod inspect;
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
        Command::Repo(command) => repo::run(&command),
        Command::Bench(command) => bench::run(&command),
    }
}

/// The engine that the user asked for; says so where it is not the fast one.
fn engine(arguments: &EngineArguments) -> Result<Arc<dyn Engine>> {
    let (engine, note) = choose(arguments.engine)?;
    if let Some(note) = note {
        eprintln!("tessera: {note}");
    }
    Ok(engine)
}
