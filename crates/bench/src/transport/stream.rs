//! `tessera bench hop --stream`: how much gets through when tensors follow each other, beside what
//! a plain socket moves.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tessera_report::{Table, output};

use serde::{Deserialize, Serialize};
use tessera_core::{DType, Error, Result, TensorMut};
use tessera_tensormq::{
    Address, Buffers, CurveKeys, Endpoint, EndpointOptions, Message, Received, RequestId, Transport,
};

use super::hop::BenchHop;
use super::peer::{
    self, PeerKind, PeerProcess, connect_over, end_with_parent, inbox_options, median_and_p99,
    peer_wait, send_to_parent,
};

/// How often each is measured, in turns, and for how long.
const ROUNDS: usize = 5;
const ROUND_DURATION: Duration = Duration::from_millis(1500);

#[derive(Clone, Serialize)]
pub(crate) struct StreamReport {
    pub(crate) transport: String,
    pub(crate) bytes: usize,
    pub(crate) lanes: u16,
    pub(crate) encrypted: bool,
    /// Megabytes per second, the median of the rounds.
    pub(crate) mb_per_s: f64,
    /// The same for a plain TCP socket that is written as much at a time.
    pub(crate) plain_socket_mb_per_s: f64,
    /// One over the other; the median over the rounds, each of which measures both.
    pub(crate) ratio: f64,
}

/// What the other process is to do.
#[derive(Serialize, Deserialize)]
pub(crate) enum StreamPeerTask {
    /// Take what comes to an inbox.
    Inbox { transport: Transport, encrypted: bool },
    /// Take what comes to a socket, so much at a time.
    Socket { bytes: usize },
}

/// What the other process took.
#[derive(Serialize, Deserialize)]
struct StreamTotal {
    bytes: u64,
    seconds: f64,
}

impl StreamTotal {
    fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }
}

pub(crate) fn bench_stream(arguments: &BenchHop) -> Result<()> {
    let BenchHop { transport, bytes, lanes, encrypt, .. } = *arguments;
    let report = measure_stream(transport, bytes, lanes, encrypt)?;
    if arguments.json {
        return output::print_json(&report);
    }
    let mut table = Table::new(&["transport", ">bytes", ">lanes", ">MB/s", ">plain", ">ratio"]);
    table.add_row([
        report.transport.clone(),
        report.bytes.to_string(),
        report.lanes.to_string(),
        format!("{:.0}", report.mb_per_s),
        format!("{:.0}", report.plain_socket_mb_per_s),
        format!("{:.2}", report.ratio),
    ]);
    table.print_table()
}

pub(crate) fn measure_stream(
    transport: Transport,
    bytes: usize,
    lanes: u16,
    encrypted: bool,
) -> Result<StreamReport> {
    if transport == Transport::THREAD {
        return Err(Error::usage("bench hop --stream is between processes"));
    }
    if transport != Transport::ZMQ_TCP && (lanes != 1 || encrypted) {
        return Err(Error::usage("--lanes and --encrypt are for --transport zmq-tcp"));
    }
    let (mut ours, mut plain, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let bar = output::progress_bar(ROUNDS as u64, "streaming");
    for _ in 0..ROUNDS {
        let (first, second) =
            (stream_messages(transport, bytes, lanes, encrypted)?, stream_socket(bytes)?);
        ours.push(first);
        plain.push(second);
        ratios.push(first / second);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(StreamReport {
        transport: transport.to_string(),
        bytes,
        lanes,
        encrypted,
        mb_per_s: median_and_p99(&mut ours).0,
        plain_socket_mb_per_s: median_and_p99(&mut plain).0,
        ratio: median_and_p99(&mut ratios).0,
    })
}

fn start_endpoint(encrypted: bool) -> Result<Endpoint> {
    let keys = if encrypted { Some(CurveKeys::generate()?) } else { None };
    Endpoint::start(EndpointOptions { keys, ..EndpointOptions::default() })
}

fn stream_messages(transport: Transport, bytes: usize, lanes: u16, encrypted: bool) -> Result<f64> {
    let mut other =
        PeerProcess::start_peer(PeerKind::Stream, &StreamPeerTask::Inbox { transport, encrypted })?;
    let address: Address = other.next_message()?;
    let endpoint = start_endpoint(encrypted)?;
    let mut sender = connect_over(&endpoint, &address, transport, lanes)?;
    let pool = endpoint.create_pool(&[Buffers { bytes, count: 16 }])?;
    let start = Instant::now();
    while start.elapsed() < ROUND_DURATION {
        let buffer = pool.borrow_buffer(bytes, peer_wait())?;
        let tensor = TensorMut::from_buffer(DType::U8, &[bytes], buffer)?.freeze();
        let message = Message::new(RequestId(1), "stream", &[])?.with_tensors(vec![tensor]);
        sender.send(message, peer_wait())?;
    }
    sender.wait_until_finished(peer_wait())?;
    drop(sender);
    let took: StreamTotal = other.next_message()?;
    other.wait_for_end()?;
    Ok(took.megabytes_per_second())
}

fn stream_socket(bytes: usize) -> Result<f64> {
    let fail = |error: std::io::Error| Error::from_io("a plain socket", &error);
    let mut other = PeerProcess::start_peer(PeerKind::Stream, &StreamPeerTask::Socket { bytes })?;
    let port: u16 = other.next_message()?;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(fail)?;
    let data = vec![1; bytes];
    let start = Instant::now();
    while start.elapsed() < ROUND_DURATION {
        stream.write_all(&data).map_err(fail)?;
    }
    drop(stream);
    let took: StreamTotal = other.next_message()?;
    other.wait_for_end()?;
    Ok(took.megabytes_per_second())
}

pub(crate) fn run_stream_peer(task: &StreamPeerTask) -> Result<()> {
    end_with_parent();
    let took = match task {
        StreamPeerTask::Inbox { transport, encrypted } => take_messages(*transport, *encrypted)?,
        StreamPeerTask::Socket { bytes } => take_bytes(*bytes)?,
    };
    send_to_parent(&took)?;
    std::thread::sleep(peer::PEER_TIMEOUT);
    Ok(())
}

fn take_messages(transport: Transport, encrypted: bool) -> Result<StreamTotal> {
    let endpoint = start_endpoint(encrypted)?;
    let mut inbox = endpoint.create_inbox("stream", &inbox_options(transport, encrypted))?;
    send_to_parent(inbox.address())?;
    let mut start = None;
    let mut took = StreamTotal { bytes: 0, seconds: 0.0 };
    loop {
        match inbox.receive(peer_wait()) {
            Some(Received::Message(message)) => {
                // From the first on: what came before it was the connection.
                let start = *start.get_or_insert_with(Instant::now);
                let elapsed = start.elapsed().as_secs_f64();
                if elapsed > 0.0 && took.seconds < elapsed {
                    let bytes: usize = message.tensors().iter().map(|t| t.byte_len()).sum();
                    took = StreamTotal { bytes: took.bytes + bytes as u64, seconds: elapsed };
                }
            }
            Some(Received::Closed(_)) => return Ok(took),
            Some(Received::Lost(_, error) | Received::Failed { error, .. }) => return Err(error),
            Some(_) => return Err(Error::lost("the sender went away")),
            None => return Err(Error::timed_out("nothing comes")),
        }
    }
}

fn take_bytes(size: usize) -> Result<StreamTotal> {
    let fail = |error: std::io::Error| Error::from_io("a plain socket", &error);
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(fail)?;
    send_to_parent(&listener.local_addr().map_err(fail)?.port())?;
    let (mut stream, _) = listener.accept().map_err(fail)?;
    let mut data = vec![0; size];
    let start = Instant::now();
    let mut bytes = 0;
    loop {
        match stream.read(&mut data).map_err(fail)? {
            0 => return Ok(StreamTotal { bytes, seconds: start.elapsed().as_secs_f64() }),
            count => bytes += count as u64,
        }
    }
}
