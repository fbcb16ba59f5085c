//! `tessera bench`: benchmarks that compare within one run.

mod chain;
mod disturb;
mod faults;
mod gpu;
mod hop;
mod hop_compare;
mod kill;
mod memory;
mod overload;
mod peer;
mod placement;
mod relay;
mod serve;
mod server;
mod siblings;
mod stream;

use tessera_core::Result;

use crate::arguments::Bench;

pub(super) fn run(command: &Bench) -> Result<()> {
    match command {
        Bench::Chain(arguments) => chain::run(arguments),
        Bench::Hop(arguments) => hop::run(arguments),
        Bench::Relay(arguments) => relay::run(arguments),
        Bench::Serve(arguments) => serve::run(arguments),
        Bench::Overload(arguments) => overload::run(arguments),
        Bench::Change(arguments) => disturb::change(arguments),
        Bench::Faults(arguments) => faults::run(arguments),
        Bench::Gpu(arguments) => gpu::run(arguments),
        Bench::Kill(arguments) => kill::run(arguments),
        Bench::Peer(arguments) => peer::run(arguments),
        Bench::Placement(arguments) => placement::run(arguments),
        Bench::Siblings(arguments) => siblings::run(arguments),
        Bench::Resident(arguments) => siblings::resident(arguments),
    }
}
