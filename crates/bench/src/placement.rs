//! `tessera bench placement`: strategies of placement against each other.

mod arguments;
mod instances;
mod measure;
mod random;
mod scenario;

use tessera_core::Result;

pub(crate) use arguments::BenchPlacement;

pub(crate) fn bench_placement(arguments: &BenchPlacement) -> Result<()> {
    if arguments.alone {
        return scenario::measure_planning_memory(arguments);
    }
    match (&arguments.instances, arguments.tight, arguments.loose) {
        (Some(file), ..) => instances::bench_instances(arguments, file),
        (None, Some(size), _) => {
            random::bench_random_problems(arguments, size, random::MemoryTightness::Tight)
        }
        (None, None, Some(size)) => {
            random::bench_random_problems(arguments, size, random::MemoryTightness::Enough)
        }
        (None, None, None) => scenario::bench_hierarchies(arguments),
    }
}

/// The strategies that the user names; each is there, or a program.
fn chosen_strategies(arguments: &BenchPlacement, default: &[&str]) -> Result<Vec<String>> {
    let names: Vec<String> = if arguments.strategies.is_empty() {
        default.iter().map(|&name| name.to_owned()).collect()
    } else {
        arguments.strategies.clone()
    };
    for name in &names {
        measure::choose_strategy(name, arguments.time_limit)?;
    }
    Ok(names)
}
