//! Benchmarks of the transport, between processes that take turns.

mod hop;
mod hop_compare;
mod kill;
mod peer;
mod relay;
mod stream;

pub(crate) use hop::BenchHop;
pub(crate) use kill::{BenchKill, bench_kill};
pub(crate) use relay::{BenchRelay, bench_relay};

use clap::Args;
use serde_json::Value;
use tessera_core::{Error, Result};

use peer::{PeerKind, PeerTask};

/// Options of the other process.
#[derive(Args)]
pub struct BenchPeer {
    /// What to do, as JSON
    pub(crate) task: String,
}

/// Measures hops: of one transport, of all, or one after the other.
pub(crate) fn bench_hop(arguments: &BenchHop) -> Result<()> {
    if arguments.compare {
        hop_compare::bench_hop_comparison(arguments)
    } else if arguments.stream {
        stream::bench_stream(arguments)
    } else {
        hop::bench_single_hop(arguments)
    }
}

/// Runs as the other process.
pub(crate) fn run_peer(arguments: &BenchPeer) -> Result<()> {
    let PeerTask { kind, task } = peer::from_json::<PeerTask<Value>>(&arguments.task)?;
    match kind {
        PeerKind::Hop => hop::run_hop_peer(&read_task(task)?),
        PeerKind::Stream => stream::run_stream_peer(&read_task(task)?),
        PeerKind::Echo => relay::run_relay_peer(&read_task(task)?),
        PeerKind::Victim => kill::run_kill_peer(&read_task(task)?),
    }
}

fn read_task<Task: serde::de::DeserializeOwned>(task: Value) -> Result<Task> {
    serde_json::from_value(task).map_err(|error| Error::invalid(format!("a peer's task: {error}")))
}
