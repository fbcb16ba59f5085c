//! `tessera bench hop`: how long a tensor takes to the next block.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tessera_core::{DType, Error, Result, Tensor, TensorMut};
use tessera_tensormq::{
    Address, Buffers, Courier, CourierOptions, Deadline, Message, RequestId, Sender, Transport,
};

use super::peer::{
    self, Process, connect, end_with_parent, inbox_options, median_and_p99, patience, receive, say,
};
use super::{hop_compare, stream};
use crate::arguments::bench::BenchHop;
use crate::output;

/// Messages before the first that counts.
const WARM_UP: usize = 200;

/// What is measured.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) transport: Transport,
    pub(super) bytes: usize,
    pub(super) count: usize,
    pub(super) gap: Duration,
    pub(super) spin: Duration,
}

#[derive(Clone, Serialize)]
pub(super) struct Report {
    pub(super) transport: String,
    pub(super) bytes: usize,
    pub(super) count: usize,
    /// Time between a message and the next.
    pub(super) gap_us: f64,
    /// How long the receiver looked before it went to sleep.
    pub(super) spin_us: f64,
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
}

/// What the other process is to do.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Task {
    transport: Transport,
    count: usize,
    spin_ns: u64,
    /// Where answers go.
    answers: Address,
}

pub(super) fn run(arguments: &BenchHop) -> Result<()> {
    if arguments.compare {
        return hop_compare::run(arguments);
    }
    if arguments.stream {
        return stream::run(arguments);
    }
    let spin = arguments.spin.map(Duration::from_micros);
    let report = measure(Plan {
        transport: arguments.transport,
        bytes: arguments.bytes,
        count: arguments.count,
        gap: Duration::from_micros(arguments.gap),
        spin: spin.unwrap_or(CourierOptions::default().spin),
    })?;
    if arguments.json {
        return output::print_json(&report);
    }
    let mut table = output::Table::new(&["transport", ">bytes", ">count", ">median µs", ">p99 µs"]);
    table.row([
        report.transport.clone(),
        report.bytes.to_string(),
        report.count.to_string(),
        format!("{:.2}", report.median_us),
        format!("{:.2}", report.p99_us),
    ]);
    table.print()
}

pub(super) fn measure(plan: Plan) -> Result<Report> {
    let Plan { transport, bytes, count, gap, spin } = plan;
    if count == 0 || bytes < 8 {
        return Err(Error::usage("bench hop needs a count of at least 1 and 8 bytes"));
    }
    let courier = Courier::start(CourierOptions { spin, ..CourierOptions::default() })?;
    let mut answers = courier.inbox("answers", &inbox_options(transport, false))?;
    let spin_ns = u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX);
    let total = count + WARM_UP;
    let task = Task { transport, count: total, spin_ns, answers: answers.address().clone() };
    let other = match transport {
        Transport::Thread => Err(std::thread::spawn({
            let courier = courier.clone();
            move || answer(&courier, &task)
        })),
        _ => Ok(Process::start(&peer::Task::Hop(task))?),
    };
    let there: Address = peer::from_json(receive(&mut answers)?.task())?;
    let mut sender = connect(&courier, &there, transport, 1)?;
    let pool = courier.pool(&[Buffers { bytes, count: 4 }])?;
    for _ in 0..total {
        if gap > Duration::ZERO {
            std::thread::sleep(gap);
        }
        let buffer = pool.borrow(bytes, patience())?;
        let mut tensor = TensorMut::over(DType::U8, &[bytes], buffer)?;
        let message = Message::new(RequestId(1), "hop", &["next"])?;
        stamp(&mut tensor);
        sender.send(message.with_tensors(vec![tensor.freeze()]), patience())?;
        receive(&mut answers)?;
    }
    let result = receive(&mut answers)?;
    let times = result.tensors().first().and_then(Tensor::to_f64).unwrap_or_default();
    // The other side waits until we are done with its answers.
    drop((result, sender));
    match other {
        Ok(process) => {
            process.end()?;
        }
        Err(thread) => thread.join().map_err(|_| Error::engine("the other thread failed"))??,
    }
    let mut times = times.into_iter().skip(WARM_UP).collect::<Vec<_>>();
    let (median_us, p99_us) = median_and_p99(&mut times);
    Ok(Report {
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
fn stamp(tensor: &mut TensorMut) {
    let now = Deadline::now().nanoseconds();
    if let Some(target) = tensor.bytes_mut().and_then(|bytes| bytes.first_chunk_mut::<8>()) {
        *target = now.to_le_bytes();
    }
}

/// How long ago the time in a tensor was, in microseconds.
fn age(tensor: &Tensor) -> Option<f64> {
    let now = Deadline::now().nanoseconds();
    let sent = u64::from_le_bytes(*tensor.bytes()?.first_chunk::<8>()?);
    Some(now.saturating_sub(sent) as f64 / 1e3)
}

pub(super) fn peer(task: &Task) -> Result<()> {
    let spin = Duration::from_nanos(task.spin_ns);
    let courier = Courier::start(CourierOptions { spin, ..CourierOptions::default() })?;
    answer(&courier, task)?;
    // What this process sent is in the other's hands; it says when it is done.
    end_with_parent();
    say(&"done")?;
    std::thread::sleep(peer::PATIENCE);
    Ok(())
}

fn answer(courier: &Courier, task: &Task) -> Result<()> {
    let mut inbox = courier.inbox("hops", &inbox_options(task.transport, false))?;
    let mut answers = connect(courier, &task.answers, task.transport, 1)?;
    let address = peer::to_json(inbox.address())?;
    answers.send(Message::new(RequestId(0), &address, &[])?, patience())?;
    let mut times = Vec::with_capacity(task.count);
    for _ in 0..task.count {
        let message = receive(&mut inbox)?;
        times.extend(message.tensors().first().and_then(age));
        drop(message);
        send(&mut answers, Vec::new())?;
    }
    let times: Vec<f32> = times.iter().map(|time| *time as f32).collect();
    send(&mut answers, vec![Tensor::from_f32(&[times.len()], &times)?])?;
    answers.finish(patience())
}

fn send(sender: &mut Sender, tensors: Vec<Tensor>) -> Result<()> {
    let message = Message::new(RequestId(1), "answer", &[])?.with_tensors(tensors);
    sender.send(message, patience())?;
    Ok(())
}
