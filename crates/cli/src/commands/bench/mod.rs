//! `tessera bench`: benchmarks that compare within one run.

mod chain;
mod hop;
mod siblings;

use tessera_core::Result;

use crate::arguments::Bench;

pub(super) fn run(command: &Bench) -> Result<()> {
    match command {
        Bench::Chain(arguments) => chain::run(arguments),
        Bench::Hop(arguments) => hop::run(arguments),
        Bench::HopPeer(arguments) => hop::peer(arguments),
        Bench::Siblings(arguments) => siblings::run(arguments),
        Bench::Resident(arguments) => siblings::resident(arguments),
    }
}
