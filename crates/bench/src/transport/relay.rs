//! `tessera bench relay`: a chain of processes that pass a tensor on, for a while.

use std::time::{Duration, Instant};
use tessera_report::{format_bytes, output};

use clap::Args;
use serde::{Deserialize, Serialize};
use tessera_core::{DType, Error, Result, TensorMut};
use tessera_tensormq::{
    Address, Buffers, Endpoint, EndpointOptions, Inbox, Message, Received, RequestId, Transport,
    Wait,
};

use super::peer::{
    self, PeerKind, PeerProcess, connect_over, end_with_parent, inbox_options, peer_wait,
    send_to_parent,
};
use crate::process_memory;

/// Options of `tessera bench relay`.
#[derive(Args)]
pub struct BenchRelay {
    /// shm, zmq-ipc or zmq-tcp
    #[arg(long, default_value = "shm")]
    pub(crate) transport: Transport,
    /// Processes that pass on
    #[arg(long, default_value_t = 4)]
    pub(crate) processes: usize,
    /// Bytes of the tensor
    #[arg(long, default_value_t = 3_211_264)]
    pub(crate) bytes: usize,
    /// How long
    #[arg(long, default_value_t = 30)]
    pub(crate) seconds: u64,
    /// Tensors that are under way at the same time
    #[arg(long, default_value_t = 8)]
    pub(crate) window: usize,
    /// Microseconds to look again and again before going to sleep; default by measurement
    #[arg(long)]
    pub(crate) spin: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What another process is to do: pass on what comes.
#[derive(Serialize, Deserialize)]
pub(crate) struct RelayPeerTask {
    transport: Transport,
    next: Address,
    spin_ns: u64,
}

#[derive(Serialize)]
struct RelayReport {
    transport: Transport,
    processes: usize,
    bytes: usize,
    seconds: f64,
    /// Tensors that went all the way round.
    rounds: u64,
    /// From one process to the next.
    hops: u64,
    hops_per_s: f64,
    /// Memory of all processes together, after the first second and at the end.
    memory_start_bytes: u64,
    memory_end_bytes: u64,
    /// Of that, what grew.
    memory_growth_bytes: i64,
    /// Bytes that were copied because a tensor was not in shared memory.
    copied_bytes: u64,
}

pub(crate) fn bench_relay(arguments: &BenchRelay) -> Result<()> {
    let BenchRelay { transport, processes, bytes, seconds, window, .. } = *arguments;
    if processes == 0 || window == 0 || transport == Transport::THREAD {
        return Err(Error::usage(
            "bench relay needs at least one process and one tensor, and a transport between processes",
        ));
    }
    let mut options = EndpointOptions::default();
    if let Some(spin) = arguments.spin {
        options.spin_time = Duration::from_micros(spin);
    }
    let spin_ns = u64::try_from(options.spin_time.as_nanos()).unwrap_or(u64::MAX);
    let endpoint = Endpoint::start(options)?;
    let mut back = endpoint.create_inbox("back", &inbox_options(transport, false))?;
    // From the last to the first, because each must know the next.
    let mut next = back.address().clone();
    let mut others = Vec::new();
    for _ in 0..processes {
        let task = RelayPeerTask { transport, next: next.clone(), spin_ns };
        let mut process = PeerProcess::start_peer(PeerKind::Echo, &task)?;
        next = process.next_message()?;
        others.push(process);
    }
    let mut sender = connect_over(&endpoint, &next, transport, 1)?;
    let pool = endpoint.create_pool(&[Buffers { bytes, count: window }])?;
    let mut ids: Vec<u32> = others.iter().map(PeerProcess::id).collect();
    ids.push(std::process::id());
    let bar = output::progress_bar(seconds, "handing over");
    let start = Instant::now();
    let (mut rounds, mut in_flight, mut second) = (0u64, 0usize, 0);
    let mut memory_start_bytes = 0;
    while start.elapsed() < Duration::from_secs(seconds) {
        while in_flight < window {
            let buffer = pool.borrow_buffer(bytes, peer_wait())?;
            let tensor = TensorMut::from_buffer(DType::U8, &[bytes], buffer)?.freeze();
            let message = Message::new(RequestId(rounds.into()), "relay", b"next")?;
            sender.send(message.with_tensors(vec![tensor]), peer_wait())?;
            in_flight += 1;
        }
        in_flight -= take_returned(&mut back)?;
        rounds += 1;
        if start.elapsed().as_secs() > second {
            second += 1;
            bar.inc(1);
            if second == 1 {
                memory_start_bytes = total_memory(&ids)?;
            }
        }
    }
    while in_flight > 0 {
        in_flight -= take_returned(&mut back)?;
        rounds += 1;
    }
    let elapsed = start.elapsed().as_secs_f64();
    let memory_end_bytes = total_memory(&ids)?;
    bar.finish_and_clear();
    let hops = rounds * (processes as u64 + 1);
    let report = RelayReport {
        transport,
        processes,
        bytes,
        seconds: elapsed,
        rounds,
        hops,
        hops_per_s: hops as f64 / elapsed,
        memory_start_bytes,
        memory_end_bytes,
        memory_growth_bytes: memory_end_bytes as i64 - memory_start_bytes as i64,
        copied_bytes: endpoint.copied_bytes(),
    };
    drop(sender);
    for process in others.into_iter().rev() {
        process.wait_for_end()?;
    }
    if arguments.json {
        return output::print_json(&report);
    }
    output::print_line(&format!(
        "{} processes, {} bytes over {}: {} hops in {:.1} s, {:.0} per second",
        report.processes, report.bytes, transport, hops, elapsed, report.hops_per_s
    ))?;
    output::print_line(&format!(
        "memory of all processes: {} after a second, {} at the end",
        format_bytes(memory_start_bytes),
        format_bytes(memory_end_bytes)
    ))
}

/// Takes one that came back, and drops it.
fn take_returned(inbox: &mut Inbox) -> Result<usize> {
    peer::receive_message(inbox).map(|_| 1)
}

/// What processes take of memory of their own, and of the shared memory that they have touched.
fn total_memory(processes: &[u32]) -> Result<u64> {
    processes.iter().map(|id| process_memory::resident_bytes(&id.to_string())).sum()
}

pub(crate) fn run_relay_peer(task: &RelayPeerTask) -> Result<()> {
    end_with_parent();
    let spin = Duration::from_nanos(task.spin_ns);
    let endpoint =
        Endpoint::start(EndpointOptions { spin_time: spin, ..EndpointOptions::default() })?;
    let mut inbox = endpoint.create_inbox("echo", &inbox_options(task.transport, false))?;
    let mut sender = connect_over(&endpoint, &task.next, task.transport, 1)?;
    send_to_parent(inbox.address())?;
    loop {
        match inbox.receive(Wait::Forever) {
            Some(Received::Message(mut message)) => {
                let tensors = message.take_tensors();
                sender.send(message.forward_with(tensors), peer_wait())?;
            }
            // At the end they go one after the other; before it, the first in the row finds out.
            Some(Received::Closed(_) | Received::Lost(..)) => return Ok(()),
            Some(Received::Failed { error, .. }) => return Err(error),
            _ => {}
        }
    }
}
