//! `tessera bench hop`: how long a tensor takes to the next block.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tessera_core::{DType, Error, Result, Tensor, TensorMut};
use tessera_tensormq::{
    Address, Buffers, ConnectOptions, Courier, CourierOptions, Deadline, Inbox, InboxOptions,
    Listen, Message, Received, RequestId, Security, Sender, Transport, Wait,
};

use crate::arguments::{BenchHop, BenchHopPeer};
use crate::output;

/// Messages before the first that counts.
const WARM_UP: usize = 200;
/// How long the other side may take for anything.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) transport: Transport,
    pub(super) bytes: usize,
    pub(super) count: usize,
    pub(super) gap_us: u64,
    pub(super) spin_us: f64,
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
    pub(super) min_us: f64,
}

/// What the other process is to do.
#[derive(Clone, Serialize, Deserialize)]
struct Task {
    transport: Transport,
    count: usize,
    spin_ns: u64,
    /// Where answers go.
    answers: Address,
}

pub(super) fn run(arguments: &BenchHop) -> Result<()> {
    let report = measure(arguments)?;
    if arguments.json {
        return output::print_json(&report);
    }
    let mut table = output::Table::new(&["transport", ">bytes", ">count", ">median µs", ">p99 µs"]);
    table.row([
        report.transport.to_string(),
        report.bytes.to_string(),
        report.count.to_string(),
        format!("{:.2}", report.median_us),
        format!("{:.2}", report.p99_us),
    ]);
    table.print()
}

pub(super) fn measure(arguments: &BenchHop) -> Result<Report> {
    if arguments.count == 0 || arguments.bytes < 8 {
        return Err(Error::usage("bench hop needs a count of at least 1 and 8 bytes"));
    }
    let mut options = CourierOptions::default();
    if let Some(spin) = arguments.spin {
        options.spin = Duration::from_micros(spin);
    }
    let spin = options.spin;
    let courier = Courier::start(options)?;
    let mut answers = courier.inbox("answers", &inbox_options(arguments.transport))?;
    let task = Task {
        transport: arguments.transport,
        count: arguments.count + WARM_UP,
        spin_ns: spin.as_nanos() as u64,
        answers: answers.address().clone(),
    };
    let other = Other::start(&courier, task)?;
    let ping: Address = {
        let hello = receive(&mut answers)?;
        serde_json::from_str(hello.task()).map_err(|error| Error::invalid(error.to_string()))?
    };
    let mut sender = courier.connect_with(&ping, &by(arguments.transport))?;
    let pool = courier.pool(&[Buffers { bytes: arguments.bytes, count: 4 }])?;
    for _ in 0..arguments.count + WARM_UP {
        if arguments.gap > 0 {
            std::thread::sleep(Duration::from_micros(arguments.gap));
        }
        let buffer = pool.borrow(arguments.bytes, Wait::at_most(PATIENCE))?;
        let mut tensor = TensorMut::over(DType::U8, &[arguments.bytes], buffer)?;
        let message = Message::new(RequestId(1), "hop", &["next"])?;
        stamp(&mut tensor);
        sender.send(message.with_tensors(vec![tensor.freeze()]), Wait::at_most(PATIENCE))?;
        receive(&mut answers)?;
    }
    let result = receive(&mut answers)?;
    let mut times = result.tensors().first().and_then(Tensor::to_f64).unwrap_or_default();
    // The other side waits until we are done with its answers.
    drop((result, sender));
    other.end()?;
    times.drain(..WARM_UP.min(times.len()));
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times.get(((times.len() as f64 - 1.0) * part) as usize).copied();
    Ok(Report {
        transport: arguments.transport,
        bytes: arguments.bytes,
        count: times.len(),
        gap_us: arguments.gap,
        spin_us: spin.as_secs_f64() * 1e6,
        median_us: at(0.5).unwrap_or(f64::NAN),
        p99_us: at(0.99).unwrap_or(f64::NAN),
        min_us: at(0.0).unwrap_or(f64::NAN),
    })
}

/// An inbox that can be reached over `transport`.
fn inbox_options(transport: Transport) -> InboxOptions {
    let listen = match transport {
        Transport::Thread | Transport::Shm => vec![],
        Transport::ZmqIpc => vec![Listen::Ipc],
        Transport::ZmqTcp => vec![Listen::Tcp {
            endpoint: "tcp://127.0.0.1:0".to_owned(),
            advertise: None,
            security: Security::Plain,
        }],
    };
    InboxOptions { listen, ..InboxOptions::default() }
}

fn by(transport: Transport) -> ConnectOptions {
    ConnectOptions { transport: Some(transport), ..ConnectOptions::default() }
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

fn receive(inbox: &mut Inbox) -> Result<Message> {
    match inbox.receive(Wait::at_most(PATIENCE)) {
        Some(Received::Message(message)) => Ok(message),
        Some(Received::Failed { error, .. } | Received::Lost(_, error)) => Err(error),
        Some(_) => Err(Error::lost("the other side went away")),
        None => Err(Error::timed_out("the other side is silent")),
    }
}

/// The other side: a process, or a thread for the transport between threads.
enum Other {
    Process(Child),
    Thread(std::thread::JoinHandle<Result<()>>),
}

impl Other {
    fn start(courier: &Courier, task: Task) -> Result<Self> {
        if task.transport == Transport::Thread {
            let courier = courier.clone();
            return Ok(Self::Thread(std::thread::spawn(move || answer(&courier, &task))));
        }
        let text =
            serde_json::to_string(&task).map_err(|error| Error::invalid(error.to_string()))?;
        let fail = |error: std::io::Error| Error::io("a process of our own", &error);
        let own = std::env::current_exe().map_err(fail)?;
        let command = Command::new(own)
            .args(["bench", "hop-peer", &text])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        command.map(Self::Process).map_err(fail)
    }

    fn end(self) -> Result<()> {
        match self {
            Self::Thread(thread) => {
                thread.join().map_err(|_| Error::engine("the other thread failed"))?
            }
            Self::Process(mut child) => match child.wait() {
                Ok(status) if status.success() => Ok(()),
                Ok(status) => Err(Error::engine(format!("the other process ended with {status}"))),
                Err(error) => Err(Error::io("the other process", &error)),
            },
        }
    }
}

pub(super) fn peer(arguments: &BenchHopPeer) -> Result<()> {
    let task: Task = serde_json::from_str(&arguments.task)
        .map_err(|error| Error::usage(format!("the task: {error}")))?;
    let options =
        CourierOptions { spin: Duration::from_nanos(task.spin_ns), ..CourierOptions::default() };
    answer(&Courier::start(options)?, &task)
}

fn answer(courier: &Courier, task: &Task) -> Result<()> {
    let mut inbox = courier.inbox("hops", &inbox_options(task.transport))?;
    let mut answers = courier.connect_with(&task.answers, &by(task.transport))?;
    let address = serde_json::to_string(inbox.address())
        .map_err(|error| Error::invalid(error.to_string()))?;
    answers.send(Message::new(RequestId(0), &address, &[])?, Wait::at_most(PATIENCE))?;
    let mut times = Vec::with_capacity(task.count);
    for _ in 0..task.count {
        let message = receive(&mut inbox)?;
        times.extend(message.tensors().first().and_then(age));
        drop(message);
        send(&mut answers, Vec::new())?;
    }
    let times: Vec<f32> = times.iter().map(|time| *time as f32).collect();
    send(&mut answers, vec![Tensor::from_f32(&[times.len()], &times)?])?;
    answers.finish(Wait::at_most(PATIENCE))
}

fn send(sender: &mut Sender, tensors: Vec<Tensor>) -> Result<()> {
    let message = Message::new(RequestId(1), "answer", &[])?.with_tensors(tensors);
    sender.send(message, Wait::at_most(PATIENCE))?;
    Ok(())
}
