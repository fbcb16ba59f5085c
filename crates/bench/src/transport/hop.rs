//! `tessera bench hop`: how long a tensor takes to the next unit.

use std::time::Duration;
use tessera_report::{Table, output};

use clap::Args;
use serde::{Deserialize, Serialize};
use tessera_core::{DType, Error, Result, Tensor, TensorMut};
use tessera_tensormq::{
    Address, Buffers, Deadline, Endpoint, EndpointOptions, Message, RequestId, Sender, Transport,
};

use super::peer::{
    self, PeerKind, PeerProcess, connect_over, end_with_parent, inbox_options, median_and_p99,
    peer_wait, receive_message, send_to_parent,
};

/// Options of `tessera bench hop`.
#[derive(Args)]
pub struct BenchHop {
    /// thread, shm, tcp, zmq-ipc or zmq-tcp; shm by default, and for streams all between hosts
    #[arg(long)]
    pub(crate) transport: Option<Transport>,
    /// Bytes of the tensor
    #[arg(long, default_value_t = 3_211_264)]
    pub(crate) bytes: usize,
    /// Messages that are measured
    #[arg(long, default_value_t = 10_000)]
    pub(crate) count: usize,
    /// Microseconds between a message and the next; with a gap the receiver has gone to sleep
    #[arg(long, default_value_t = 0)]
    pub(crate) gap: u64,
    /// Microseconds to look again and again before going to sleep; default by measurement
    #[arg(long)]
    pub(crate) spin: Option<u64>,
    /// All transports at 4 KB, 3.2 MB and 12.8 MB, beside ZeroMQ with pickled tensors in Python
    #[arg(long)]
    pub(crate) compare: bool,
    /// How much gets through when tensors follow each other, beside a plain TCP socket
    #[arg(long, conflicts_with = "compare")]
    pub(crate) stream: bool,
    /// Connections, for streams over tcp and zmq-tcp
    #[arg(long, default_value_t = 1)]
    pub(crate) lanes: u16,
    /// Encrypt streams: with TLS over tcp, with CURVE over zmq-tcp
    #[arg(long)]
    pub(crate) encrypt: bool,
    /// The Python for --compare, with pyzmq (and numpy)
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    pub(crate) python: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Messages before the first that counts.
const WARM_UP: usize = 200;

/// What is measured.
#[derive(Clone, Copy)]
pub(crate) struct HopMeasurement {
    pub(crate) transport: Transport,
    pub(crate) bytes: usize,
    pub(crate) count: usize,
    pub(crate) gap: Duration,
    pub(crate) spin: Duration,
}

#[derive(Clone, Serialize)]
pub(crate) struct HopReport {
    pub(crate) transport: String,
    pub(crate) bytes: usize,
    pub(crate) count: usize,
    /// Time between a message and the next.
    pub(crate) gap_us: f64,
    /// How long the receiver looked before it went to sleep.
    pub(crate) spin_us: f64,
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
}

/// What the other process is to do.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct HopPeerTask {
    transport: Transport,
    count: usize,
    spin_ns: u64,
    /// Where answers go.
    answers: Address,
}

pub(crate) fn bench_single_hop(arguments: &BenchHop) -> Result<()> {
    let spin = arguments.spin.map(Duration::from_micros);
    let report = measure_hop(HopMeasurement {
        transport: arguments.transport.unwrap_or(Transport::SHM),
        bytes: arguments.bytes,
        count: arguments.count,
        gap: Duration::from_micros(arguments.gap),
        spin: spin.unwrap_or(EndpointOptions::default().spin_time),
    })?;
    if arguments.json {
        return output::print_json(&report);
    }
    let mut table = Table::new(&["transport", ">bytes", ">count", ">median µs", ">p99 µs"]);
    table.add_row([
        report.transport.clone(),
        report.bytes.to_string(),
        report.count.to_string(),
        format!("{:.2}", report.median_us),
        format!("{:.2}", report.p99_us),
    ]);
    table.print_table()
}

pub(crate) fn measure_hop(plan: HopMeasurement) -> Result<HopReport> {
    let HopMeasurement { transport, bytes, count, gap, spin } = plan;
    if count == 0 || bytes < 8 {
        return Err(Error::usage("bench hop needs a count of at least 1 and 8 bytes"));
    }
    let endpoint =
        Endpoint::start(EndpointOptions { spin_time: spin, ..EndpointOptions::default() })?;
    let mut answers = endpoint.create_inbox("answers", &inbox_options(transport, false))?;
    let spin_ns = u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX);
    let total = count + WARM_UP;
    let task = HopPeerTask { transport, count: total, spin_ns, answers: answers.address().clone() };
    let other = match transport {
        Transport::THREAD => Err(std::thread::spawn({
            let endpoint = endpoint.clone();
            move || answer_hops(&endpoint, &task)
        })),
        _ => Ok(PeerProcess::start_peer(PeerKind::Hop, &task)?),
    };
    let there: Address = peer::from_json(receive_message(&mut answers)?.task())?;
    let mut sender = connect_over(&endpoint, &there, transport, 1)?;
    let pool = endpoint.create_pool(&[Buffers { bytes, count: 4 }])?;
    for _ in 0..total {
        if gap > Duration::ZERO {
            std::thread::sleep(gap);
        }
        let buffer = pool.borrow_buffer(bytes, peer_wait())?;
        let mut tensor = TensorMut::from_buffer(DType::U8, &[bytes], buffer)?;
        let message = Message::new(RequestId(1), "hop", b"next")?;
        stamp_time(&mut tensor);
        sender.send(message.with_tensors(vec![tensor.freeze()]), peer_wait())?;
        receive_message(&mut answers)?;
    }
    let result = receive_message(&mut answers)?;
    let times = result.tensors().first().and_then(Tensor::to_f64).unwrap_or_default();
    // The other side waits until we are done with its answers.
    drop((result, sender));
    match other {
        Ok(process) => {
            process.wait_for_end()?;
        }
        Err(thread) => thread.join().map_err(|_| Error::engine("the other thread failed"))??,
    }
    let mut times = times.into_iter().skip(WARM_UP).collect::<Vec<_>>();
    let (median_us, p99_us) = median_and_p99(&mut times);
    Ok(HopReport {
        transport: transport.to_string(),
        bytes,
        count: times.len(),
        gap_us: gap.as_secs_f64() * 1e6,
        spin_us: spin.as_secs_f64() * 1e6,
        median_us,
        p99_us,
    })
}

/// Writes the time into a tensor.
fn stamp_time(tensor: &mut TensorMut) {
    let now = Deadline::now().nanoseconds();
    if let Some(target) = tensor.bytes_mut().and_then(|bytes| bytes.first_chunk_mut::<8>()) {
        *target = now.to_le_bytes();
    }
}

/// How long ago the time in a tensor was, in microseconds.
fn microseconds_since_stamp(tensor: &Tensor) -> Option<f64> {
    let now = Deadline::now().nanoseconds();
    let sent = u64::from_le_bytes(*tensor.bytes()?.first_chunk::<8>()?);
    Some(now.saturating_sub(sent) as f64 / 1e3)
}

pub(crate) fn run_hop_peer(task: &HopPeerTask) -> Result<()> {
    let spin = Duration::from_nanos(task.spin_ns);
    let endpoint =
        Endpoint::start(EndpointOptions { spin_time: spin, ..EndpointOptions::default() })?;
    answer_hops(&endpoint, task)?;
    // What this process sent is in the other's hands; it says when it is done.
    end_with_parent();
    send_to_parent(&"done")?;
    std::thread::sleep(peer::PEER_TIMEOUT);
    Ok(())
}

fn answer_hops(endpoint: &Endpoint, task: &HopPeerTask) -> Result<()> {
    let mut inbox = endpoint.create_inbox("hops", &inbox_options(task.transport, false))?;
    let mut answers = connect_over(endpoint, &task.answers, task.transport, 1)?;
    let address = peer::to_json(inbox.address())?;
    answers.send(Message::new(RequestId(0), &address, &[])?, peer_wait())?;
    let mut times = Vec::with_capacity(task.count);
    for _ in 0..task.count {
        let message = receive_message(&mut inbox)?;
        times.extend(message.tensors().first().and_then(microseconds_since_stamp));
        drop(message);
        send_answer(&mut answers, Vec::new())?;
    }
    let times: Vec<f32> = times.iter().map(|time| *time as f32).collect();
    send_answer(&mut answers, vec![Tensor::from_f32(&[times.len()], &times)?])?;
    answers.wait_until_finished(peer_wait())
}

fn send_answer(sender: &mut Sender, tensors: Vec<Tensor>) -> Result<()> {
    let message = Message::new(RequestId(1), "answer", &[])?.with_tensors(tensors);
    sender.send(message, peer_wait())?;
    Ok(())
}
