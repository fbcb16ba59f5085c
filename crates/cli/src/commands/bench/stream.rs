//! `tessera bench hop --stream`: how much gets through when tensors follow each other, beside what a
//! plain socket moves.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tessera_core::{DType, Error, Result, TensorMut};
use tessera_tensormq::{
    Address, Buffers, Courier, CourierOptions, Keys, Message, Received, RequestId, Transport,
};

use super::peer::{
    self, Process, connect, end_with_parent, inbox_options, median_and_p99, patience, say,
};
use crate::arguments::bench::BenchHop;
use crate::output;

/// How often each is measured, in turns, and for how long.
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1500);

#[derive(Clone, Serialize)]
pub(super) struct Report {
    pub(super) transport: String,
    pub(super) bytes: usize,
    pub(super) lanes: u16,
    pub(super) encrypted: bool,
    /// Megabytes per second, the median of the rounds.
    pub(super) mb_per_s: f64,
    /// The same for a plain TCP socket that is written as much at a time.
    pub(super) plain_socket_mb_per_s: f64,
    /// One over the other; the median over the rounds, each of which measures both.
    pub(super) ratio: f64,
}

/// What the other process is to do.
#[derive(Serialize, Deserialize)]
pub(super) enum Task {
    /// Take what comes to an inbox.
    Inbox { transport: Transport, encrypted: bool },
    /// Take what comes to a socket, so much at a time.
    Socket { bytes: usize },
}

/// What the other process took.
#[derive(Serialize, Deserialize)]
struct Took {
    bytes: u64,
    seconds: f64,
}

impl Took {
    fn rate(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }
}

pub(super) fn run(arguments: &BenchHop) -> Result<()> {
    let BenchHop { transport, bytes, lanes, encrypt, .. } = *arguments;
    let report = measure(transport, bytes, lanes, encrypt)?;
    if arguments.json {
        return output::print_json(&report);
    }
    let mut table =
        output::Table::new(&["transport", ">bytes", ">lanes", ">MB/s", ">plain", ">ratio"]);
    table.row([
        report.transport.clone(),
        report.bytes.to_string(),
        report.lanes.to_string(),
        format!("{:.0}", report.mb_per_s),
        format!("{:.0}", report.plain_socket_mb_per_s),
        format!("{:.2}", report.ratio),
    ]);
    table.print()
}

pub(super) fn measure(
    transport: Transport,
    bytes: usize,
    lanes: u16,
    encrypted: bool,
) -> Result<Report> {
    if transport == Transport::Thread {
        return Err(Error::usage("bench hop --stream is between processes"));
    }
    if transport != Transport::ZmqTcp && (lanes != 1 || encrypted) {
        return Err(Error::usage("--lanes and --encrypt are for --transport zmq-tcp"));
    }
    let (mut ours, mut plain, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let bar = output::progress(ROUNDS as u64, "streaming");
    for _ in 0..ROUNDS {
        let (first, second) = (channel(transport, bytes, lanes, encrypted)?, socket(bytes)?);
        ours.push(first);
        plain.push(second);
        ratios.push(first / second);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Report {
        transport: transport.to_string(),
        bytes,
        lanes,
        encrypted,
        mb_per_s: median_and_p99(&mut ours).0,
        plain_socket_mb_per_s: median_and_p99(&mut plain).0,
        ratio: median_and_p99(&mut ratios).0,
    })
}

fn courier(encrypted: bool) -> Result<Courier> {
    let keys = if encrypted { Some(Keys::generate()?) } else { None };
    Courier::start(CourierOptions { keys, ..CourierOptions::default() })
}

fn channel(transport: Transport, bytes: usize, lanes: u16, encrypted: bool) -> Result<f64> {
    let mut other = Process::start(&peer::Task::Stream(Task::Inbox { transport, encrypted }))?;
    let address: Address = other.hear()?;
    let courier = courier(encrypted)?;
    let mut sender = connect(&courier, &address, transport, lanes)?;
    let pool = courier.pool(&[Buffers { bytes, count: 16 }])?;
    let start = Instant::now();
    while start.elapsed() < ROUND {
        let buffer = pool.borrow(bytes, patience())?;
        let tensor = TensorMut::over(DType::U8, &[bytes], buffer)?.freeze();
        let message = Message::new(RequestId(1), "stream", &[])?.with_tensors(vec![tensor]);
        sender.send(message, patience())?;
    }
    sender.finish(patience())?;
    drop(sender);
    let took: Took = other.hear()?;
    other.end()?;
    Ok(took.rate())
}

fn socket(bytes: usize) -> Result<f64> {
    let fail = |error: std::io::Error| Error::io("a plain socket", &error);
    let mut other = Process::start(&peer::Task::Stream(Task::Socket { bytes }))?;
    let port: u16 = other.hear()?;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(fail)?;
    let data = vec![1; bytes];
    let start = Instant::now();
    while start.elapsed() < ROUND {
        stream.write_all(&data).map_err(fail)?;
    }
    drop(stream);
    let took: Took = other.hear()?;
    other.end()?;
    Ok(took.rate())
}

pub(super) fn peer(task: &Task) -> Result<()> {
    end_with_parent();
    let took = match task {
        Task::Inbox { transport, encrypted } => take_messages(*transport, *encrypted)?,
        Task::Socket { bytes } => take_bytes(*bytes)?,
    };
    say(&took)?;
    std::thread::sleep(peer::PATIENCE);
    Ok(())
}

fn take_messages(transport: Transport, encrypted: bool) -> Result<Took> {
    let courier = courier(encrypted)?;
    let mut inbox = courier.inbox("stream", &inbox_options(transport, encrypted))?;
    say(inbox.address())?;
    let mut start = None;
    let mut took = Took { bytes: 0, seconds: 0.0 };
    loop {
        match inbox.receive(patience()) {
            Some(Received::Message(message)) => {
                // From the first on: what came before it was the connection.
                let start = *start.get_or_insert_with(Instant::now);
                let elapsed = start.elapsed().as_secs_f64();
                if elapsed > 0.0 && took.seconds < elapsed {
                    let bytes: usize = message.tensors().iter().map(|t| t.byte_len()).sum();
                    took = Took { bytes: took.bytes + bytes as u64, seconds: elapsed };
                }
            }
            Some(Received::Closed(_)) => return Ok(took),
            Some(Received::Lost(_, error) | Received::Failed { error, .. }) => return Err(error),
            Some(_) => return Err(Error::lost("the sender went away")),
            None => return Err(Error::timed_out("nothing comes")),
        }
    }
}

fn take_bytes(size: usize) -> Result<Took> {
    let fail = |error: std::io::Error| Error::io("a plain socket", &error);
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(fail)?;
    say(&listener.local_addr().map_err(fail)?.port())?;
    let (mut stream, _) = listener.accept().map_err(fail)?;
    let mut data = vec![0; size];
    let start = Instant::now();
    let mut bytes = 0;
    loop {
        match stream.read(&mut data).map_err(fail)? {
            0 => return Ok(Took { bytes, seconds: start.elapsed().as_secs_f64() }),
            count => bytes += count as u64,
        }
    }
}
