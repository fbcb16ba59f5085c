//! `tessera bench relay`: a chain of processes that pass a tensor on, for a while.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tessera_core::{DType, Error, Result, TensorMut};
use tessera_tensormq::{
    Address, Buffers, Courier, CourierOptions, Inbox, Message, Received, RequestId, Transport, Wait,
};

use super::memory;
use super::peer::{self, Process, connect, end_with_parent, inbox_options, patience, say};
use crate::arguments::bench::BenchRelay;
use crate::output;

/// What another process is to do: pass on what comes.
#[derive(Serialize, Deserialize)]
pub(super) struct Task {
    transport: Transport,
    next: Address,
    spin_ns: u64,
}

#[derive(Serialize)]
struct Report {
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

pub(super) fn run(arguments: &BenchRelay) -> Result<()> {
    let BenchRelay { transport, processes, bytes, seconds, window, .. } = *arguments;
    if processes == 0 || window == 0 || transport == Transport::Thread {
        return Err(Error::usage(
            "bench relay needs at least one process and one tensor, and a transport between processes",
        ));
    }
    let mut options = CourierOptions::default();
    if let Some(spin) = arguments.spin {
        options.spin = Duration::from_micros(spin);
    }
    let spin_ns = u64::try_from(options.spin.as_nanos()).unwrap_or(u64::MAX);
    let courier = Courier::start(options)?;
    let mut back = courier.inbox("back", &inbox_options(transport, false))?;
    // From the last to the first, because each must know the next.
    let mut next = back.address().clone();
    let mut others = Vec::new();
    for _ in 0..processes {
        let task = peer::Task::Echo(Task { transport, next: next.clone(), spin_ns });
        let mut process = Process::start(&task)?;
        next = process.hear()?;
        others.push(process);
    }
    let mut sender = connect(&courier, &next, transport, 1)?;
    let pool = courier.pool(&[Buffers { bytes, count: window }])?;
    let mut ids: Vec<u32> = others.iter().map(Process::id).collect();
    ids.push(std::process::id());
    let bar = output::progress(seconds, "handing over");
    let start = Instant::now();
    let (mut rounds, mut in_flight, mut second) = (0u64, 0usize, 0);
    let mut memory_start_bytes = 0;
    while start.elapsed() < Duration::from_secs(seconds) {
        while in_flight < window {
            let buffer = pool.borrow(bytes, patience())?;
            let tensor = TensorMut::over(DType::U8, &[bytes], buffer)?.freeze();
            let message = Message::new(RequestId(rounds.into()), "relay", &["next"])?;
            sender.send(message.with_tensors(vec![tensor]), patience())?;
            in_flight += 1;
        }
        in_flight -= take(&mut back)?;
        rounds += 1;
        if start.elapsed().as_secs() > second {
            second += 1;
            bar.inc(1);
            if second == 1 {
                memory_start_bytes = memory(&ids)?;
            }
        }
    }
    while in_flight > 0 {
        in_flight -= take(&mut back)?;
        rounds += 1;
    }
    let elapsed = start.elapsed().as_secs_f64();
    let memory_end_bytes = memory(&ids)?;
    bar.finish_and_clear();
    let hops = rounds * (processes as u64 + 1);
    let report = Report {
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
        copied_bytes: courier.copied_bytes(),
    };
    drop(sender);
    for process in others.into_iter().rev() {
        process.end()?;
    }
    if arguments.json {
        return output::print_json(&report);
    }
    output::print(&format!(
        "{} processes, {} bytes over {}: {} hops in {:.1} s, {:.0} per second",
        report.processes, report.bytes, transport, hops, elapsed, report.hops_per_s
    ))?;
    output::print(&format!(
        "memory of all processes: {} after a second, {} at the end",
        output::bytes(memory_start_bytes),
        output::bytes(memory_end_bytes)
    ))
}

/// Takes one that came back, and drops it.
fn take(inbox: &mut Inbox) -> Result<usize> {
    peer::receive(inbox).map(|_| 1)
}

/// What processes take of memory of their own, and of the shared memory that they have touched.
fn memory(processes: &[u32]) -> Result<u64> {
    processes.iter().map(|id| memory::resident(&id.to_string())).sum()
}

pub(super) fn peer(task: &Task) -> Result<()> {
    end_with_parent();
    let spin = Duration::from_nanos(task.spin_ns);
    let courier = Courier::start(CourierOptions { spin, ..CourierOptions::default() })?;
    let mut inbox = courier.inbox("echo", &inbox_options(task.transport, false))?;
    let mut sender = connect(&courier, &task.next, task.transport, 1)?;
    say(inbox.address())?;
    loop {
        match inbox.receive(Wait::Forever) {
            Some(Received::Message(mut message)) => {
                let tensors = message.take_tensors();
                sender.send(message.onward(tensors), patience())?;
            }
            // At the end they go one after the other; before it, the first in the row finds out.
            Some(Received::Closed(_) | Received::Lost(..)) => return Ok(()),
            Some(Received::Failed { error, .. }) => return Err(error),
            _ => {}
        }
    }
}
