//! Benchmarks that compare within one run: the commands of `tessera bench`.
//!
//! Each owns its options and its report, prints a table for people and JSON for machines, and takes
//! turns with what it is compared with, so that what else the machine does hits both alike. Those
//! that need another process start this binary again: `tessera serve` as its users do, or
//! `tessera bench peer`.

#![forbid(unsafe_code)]

mod announced_process;
mod attack;
mod background_clients;
mod chain;
mod change;
mod cluster;
mod cold;
mod faults;
mod finding;
mod gpu;
mod hostile_connections;
mod in_process_site;
mod isolation_choice;
mod overload;
mod placement;
mod process_memory;
mod request;
mod serve;
mod server_files;
mod server_footprint;
mod siblings;
mod soak;
mod stored_model;
pub mod strategies;
mod tasks;
mod test_client;
mod test_server;
mod tiny_model_file;
mod transport;
mod unit_processes;
mod zoo_file;

use clap::Subcommand;
use tessera_core::Result;

use attack::BenchAttack;
use chain::BenchChain;
use change::BenchChange;
use cluster::BenchCluster;
use cold::BenchCold;
use faults::BenchFaults;
use gpu::BenchGpu;
use overload::BenchOverload;
use placement::BenchPlacement;
use request::BenchRequest;
use serve::BenchServe;
use siblings::{BenchResident, BenchSiblings};
use soak::BenchSoak;
use tasks::BenchTasks;
use transport::{BenchHop, BenchKill, BenchPeer, BenchRelay};

/// What can be measured.
#[derive(Subcommand)]
pub enum BenchCommand {
    /// A chain of blocks against the whole model, measured in turns
    Chain(BenchChain),
    /// Many siblings of a model: bytes in the repository, and in memory with all of them loaded
    Siblings(BenchSiblings),
    /// How long a tensor takes to the next unit, one way, over each transport
    ///
    /// Between two processes (two threads for `thread`) that take turns: the receiver notes when a
    /// message is there, compared with the time that the sender wrote into its tensor just before.
    Hop(BenchHop),
    /// A chain of processes that pass tensors on for a while: hops per second, and memory
    Relay(BenchRelay),
    /// A server with a model in blocks beside the bare engine with the whole model
    ///
    /// Latency with one client, throughput with several, with units on threads and in processes,
    /// and with ten tasks that share stages; and the memory of an idle server.
    Serve(BenchServe),
    /// A server that is asked for more than it can do: goodput, and memory
    Overload(BenchOverload),
    /// Change the tasks of a server under load, and count the failed requests of one that stays
    Change(BenchChange),
    /// A request to a model that does nothing: what the server itself takes, and how many it answers
    Request(BenchRequest),
    /// More and more tasks that share a trunk: memory for each, and how long a change takes
    Tasks(BenchTasks),
    /// Kill the processes of a server's units under load, and count answers and how soon units are
    /// back
    Faults(BenchFaults),
    /// What hostile clients and models do to a server, and the bounds that it must hold meanwhile
    ///
    /// Runs without end, memory that is needed once, connections that stall, bodies that unpack to
    /// gigabytes, pages of other sites, units that are killed while they start. Each has a server
    /// of its own; some need 10 GB of memory. Fails where a bound does not hold.
    Attack(BenchAttack),
    /// Very many requests of known answers, while units are killed, tasks change and clients
    /// misbehave
    ///
    /// Fails where an answer is wrong or missing, or anything is left a minute later: memory,
    /// descriptors, threads, processes, files.
    Soak(BenchSoak),
    /// Requests whose weights are not in memory, beside those whose are
    ///
    /// Two siblings take turns in memory, beside a third that stays: how long each of them waits,
    /// what the bus would need at least, and whether every answer has the same bits.
    Cold(BenchCold),
    /// Kill processes that hand tensors over, at random, and count what is left of them
    ///
    /// Three processes in a row, of which some are killed at a random moment from their start on.
    /// The others must learn it within 100 ms and get their buffers back. Fails where anything is
    /// left: shared memory, temporary files, sockets, processes.
    Kill(BenchKill),
    /// A model in blocks on a GPU beside the whole model: latency, energy, throughput and video
    /// memory
    ///
    /// The experiments of the BlockFlow thesis' chapter 4, on whatever GPU there is:
    /// `--device cuda:0`. Without it they run on the CPU, to try them out.
    Gpu(BenchGpu),
    /// Strategies of placement: how long they plan, and how far from the optimum they are
    ///
    /// On hierarchies of nodes that are drawn as in the addnn thesis' section 7.2, or on instances
    /// from a file.
    Placement(BenchPlacement),
    /// A cluster on networks in a box: joining, fetching blocks, hosts and controllers that die
    ///
    /// Hosts in network namespaces of this machine, with links that are shaped and cut. Needs root.
    /// Fails where a bound does not hold.
    Cluster(BenchCluster),
    /// Another process of one of these
    #[command(hide = true)]
    Peer(BenchPeer),
    /// Load every model of a repository and print the memory that this process holds
    Resident(BenchResident),
}

/// Measures, and prints what came of it.
pub fn run_bench(command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Chain(arguments) => chain::bench_chain(arguments),
        BenchCommand::Hop(arguments) => transport::bench_hop(arguments),
        BenchCommand::Relay(arguments) => transport::bench_relay(arguments),
        BenchCommand::Serve(arguments) => serve::bench_serve(arguments),
        BenchCommand::Overload(arguments) => overload::bench_overload(arguments),
        BenchCommand::Change(arguments) => change::bench_change(arguments),
        BenchCommand::Request(arguments) => request::bench_request(arguments),
        BenchCommand::Tasks(arguments) => tasks::bench_tasks(arguments),
        BenchCommand::Faults(arguments) => faults::bench_faults(arguments),
        BenchCommand::Attack(arguments) => attack::bench_attack(arguments),
        BenchCommand::Cold(arguments) => cold::bench_cold(arguments),
        BenchCommand::Cluster(arguments) => cluster::bench_cluster(arguments),
        BenchCommand::Soak(arguments) => soak::bench_soak(arguments),
        BenchCommand::Gpu(arguments) => gpu::bench_gpu(arguments),
        BenchCommand::Kill(arguments) => transport::bench_kill(arguments),
        BenchCommand::Peer(arguments) => transport::run_peer(arguments),
        BenchCommand::Placement(arguments) => placement::bench_placement(arguments),
        BenchCommand::Siblings(arguments) => siblings::bench_siblings(arguments),
        BenchCommand::Resident(arguments) => siblings::bench_resident(arguments),
    }
}
