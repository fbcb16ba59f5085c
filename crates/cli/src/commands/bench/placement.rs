//! `tessera bench placement`: strategies of placement against each other.

mod instances;
mod measure;
mod random;
mod scenario;

use tessera_core::Result;

use crate::arguments::bench::placement::BenchPlacement;

pub(super) fn run(arguments: &BenchPlacement) -> Result<()> {
    if arguments.alone {
        return scenario::alone(arguments);
    }
    match (&arguments.instances, arguments.tight, arguments.loose) {
        (Some(file), ..) => instances::run(arguments, file),
        (None, Some(size), _) => random::run(arguments, size, random::Memory::Tight),
        (None, None, Some(size)) => random::run(arguments, size, random::Memory::Enough),
        (None, None, None) => scenario::run(arguments),
    }
}

/// The strategies that the user names; each is there, or a program.
fn strategies(arguments: &BenchPlacement, default: &[&str]) -> Result<Vec<String>> {
    let names: Vec<String> = match arguments.strategies.is_empty() {
        true => default.iter().map(|&name| name.to_owned()).collect(),
        false => arguments.strategies.clone(),
    };
    for name in &names {
        measure::choose(name, arguments.time_limit)?;
    }
    Ok(names)
}
