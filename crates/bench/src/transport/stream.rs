//! `tessera bench hop --stream`: how much gets through when tensors follow each other, beside what
//! a plain socket moves.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tessera_report::{Table, output};

use serde::{Deserialize, Serialize};
use tessera_core::{DType, Error, Result, TensorMut};
use tessera_identity::{Authority, CertificateRequest, NodeName};
use tessera_tensormq::{
    Address, Buffers, CurveKeys, Endpoint, EndpointOptions, Message, Received, RequestId,
    TlsIdentity, Transport,
};

use super::hop::BenchHop;
use super::peer::{
    self, PeerKind, PeerProcess, connect_over, end_with_parent, inbox_options, median_and_p99,
    peer_wait, send_to_parent,
};

/// How often each is measured, in turns, and for how long.
const ROUNDS: usize = 5;
const ROUND_DURATION: Duration = Duration::from_millis(1500);
/// Tensors that are sent in turn: as many as an inbox lets wait.
const STREAM_BUFFERS: usize = 16;

/// What streams go over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamWay {
    pub(crate) transport: Transport,
    pub(crate) encrypted: bool,
}

/// How much went through one way.
#[derive(Clone, Serialize)]
pub(crate) struct StreamReport {
    pub(crate) transport: String,
    pub(crate) bytes: usize,
    pub(crate) lanes: u16,
    pub(crate) encrypted: bool,
    /// Megabytes per second, the median of the rounds.
    pub(crate) mb_per_s: f64,
    /// The same for a plain TCP socket that is written as much at a time, from as much memory.
    pub(crate) plain_socket_mb_per_s: f64,
    /// One over the other; the median over the rounds, each of which measures all.
    pub(crate) ratio: f64,
    /// Over a plain socket that sends one tensor again and again, out of the processor's cache.
    pub(crate) ratio_to_one_buffer: f64,
}

/// All that were measured, in turns.
#[derive(Serialize)]
pub(crate) struct StreamComparison {
    pub(crate) streams: Vec<StreamReport>,
    /// Over tcp with TLS, over what gets through zmq-tcp with CURVE.
    pub(crate) tls_over_curve: Option<f64>,
}

/// What the other process is to do.
#[derive(Serialize, Deserialize)]
pub(crate) enum StreamPeerTask {
    /// Take what comes to an inbox.
    Inbox { transport: Transport, identity: StreamIdentity },
    /// Take what comes to a socket, so much at a time.
    Socket { bytes: usize },
}

/// With what a stream is encrypted.
#[derive(Serialize, Deserialize)]
pub(crate) enum StreamIdentity {
    Plain,
    Curve,
    Tls { name: String, certificate: String, key: String, authority: String },
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
    let BenchHop { bytes, lanes, encrypt, .. } = *arguments;
    let ways = match arguments.transport {
        Some(transport) => vec![StreamWay { transport, encrypted: encrypt }],
        None => ways_between_hosts(),
    };
    let comparison = compare_streams(&ways, bytes, lanes)?;
    if arguments.json {
        return output::print_json(&comparison);
    }
    let mut table = Table::new(&[
        "transport",
        "encrypted",
        ">bytes",
        ">lanes",
        ">MB/s",
        ">plain",
        ">ratio",
        ">to one buffer",
    ]);
    for report in &comparison.streams {
        table.add_row([
            report.transport.clone(),
            if report.encrypted { "yes" } else { "no" }.to_owned(),
            report.bytes.to_string(),
            report.lanes.to_string(),
            format!("{:.0}", report.mb_per_s),
            format!("{:.0}", report.plain_socket_mb_per_s),
            format!("{:.2}", report.ratio),
            format!("{:.2}", report.ratio_to_one_buffer),
        ]);
    }
    table.print_table()?;
    match comparison.tls_over_curve {
        Some(ratio) => output::print_line(&format!("TLS over CURVE: {ratio:.1}")),
        None => Ok(()),
    }
}

/// All that this build has.
pub(crate) fn ways_between_hosts() -> Vec<StreamWay> {
    let between_hosts = |transport: &Transport| is_between_hosts(*transport);
    let transports = Transport::built_in().filter(between_hosts);
    transports
        .flat_map(|transport| [false, true].map(|encrypted| StreamWay { transport, encrypted }))
        .collect()
}

fn is_between_hosts(transport: Transport) -> bool {
    [Transport::TCP, Transport::ZMQ_TCP].contains(&transport)
}

/// How much gets through each of these, in turns.
pub(crate) fn compare_streams(
    ways: &[StreamWay],
    bytes: usize,
    lanes: u16,
) -> Result<StreamComparison> {
    for way in ways {
        if way.transport == Transport::THREAD {
            return Err(Error::usage("bench hop --stream is between processes"));
        }
        if !is_between_hosts(way.transport) && (lanes != 1 || way.encrypted) {
            return Err(Error::usage("--lanes and --encrypt are for --transport tcp and zmq-tcp"));
        }
    }
    let (mut plain, mut one_buffer) = (Vec::new(), Vec::new());
    let mut ours: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    let bar = output::progress_bar((ROUNDS * (ways.len() + 2)) as u64, "streaming");
    for _ in 0..ROUNDS {
        plain.push(stream_socket(bytes, STREAM_BUFFERS)?);
        one_buffer.push(stream_socket(bytes, 1)?);
        bar.inc(2);
        for (way, rates) in ways.iter().zip(&mut ours) {
            rates.push(stream_messages(*way, bytes, lanes)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let find = |transport: Transport| {
        let wanted = StreamWay { transport, encrypted: true };
        ways.iter().position(|way| *way == wanted).map(|index| &ours[index])
    };
    let tls_over_curve = find(Transport::TCP).zip(find(Transport::ZMQ_TCP));
    let tls_over_curve = tls_over_curve.map(|(tls, curve)| median_ratio(tls, curve));
    let streams = ways.iter().zip(&ours).map(|(way, rates)| StreamReport {
        transport: way.transport.to_string(),
        bytes,
        lanes,
        encrypted: way.encrypted,
        mb_per_s: median_and_p99(&mut rates.clone()).0,
        plain_socket_mb_per_s: median_and_p99(&mut plain.clone()).0,
        ratio: median_ratio(rates, &plain),
        ratio_to_one_buffer: median_ratio(rates, &one_buffer),
    });
    Ok(StreamComparison { streams: streams.collect(), tls_over_curve })
}

/// One over the other in each round, and of these the median.
fn median_ratio(above: &[f64], below: &[f64]) -> f64 {
    let mut ratios: Vec<f64> =
        above.iter().zip(below).map(|(above, below)| above / below).collect();
    median_and_p99(&mut ratios).0
}

impl StreamIdentity {
    fn start_endpoint(&self) -> Result<Endpoint> {
        let (keys, tls) = match self {
            Self::Plain => (None, None),
            Self::Curve => (Some(CurveKeys::generate()?), None),
            Self::Tls { name, certificate, key, authority } => {
                (None, Some(TlsIdentity::from_pem(name, certificate, key, authority)?))
            }
        };
        Endpoint::start(EndpointOptions { keys, tls, ..EndpointOptions::default() })
    }

    fn is_encrypted(&self) -> bool {
        !matches!(self, Self::Plain)
    }
}

/// For both ends of a stream.
fn make_identities(way: StreamWay) -> Result<[StreamIdentity; 2]> {
    match way {
        StreamWay { encrypted: false, .. } => Ok([StreamIdentity::Plain, StreamIdentity::Plain]),
        StreamWay { transport: Transport::TCP, .. } => {
            let authority = Authority::generate("bench")?;
            Ok([issue_identity(&authority, "sender")?, issue_identity(&authority, "receiver")?])
        }
        _ => Ok([StreamIdentity::Curve, StreamIdentity::Curve]),
    }
}

fn issue_identity(authority: &Authority, name: &str) -> Result<StreamIdentity> {
    let name: NodeName = name.parse()?;
    let request = CertificateRequest::generate(&name)?;
    let name = name.certificate_name();
    let (names, life) = (std::slice::from_ref(&name), Duration::from_secs(3600));
    let certificate = authority.sign_request(request.request_pem(), names, life)?.certificate_pem;
    let (key, authority) = (request.key_pem(), authority.certificate_pem().to_owned());
    Ok(StreamIdentity::Tls { name, certificate, key, authority })
}

fn stream_messages(way: StreamWay, bytes: usize, lanes: u16) -> Result<f64> {
    let transport = way.transport;
    let [own, identity] = make_identities(way)?;
    let task = StreamPeerTask::Inbox { transport, identity };
    let mut other = PeerProcess::start_peer(PeerKind::Stream, &task)?;
    let address: Address = other.next_message()?;
    let endpoint = own.start_endpoint()?;
    let mut sender = connect_over(&endpoint, &address, transport, lanes)?;
    let pool = endpoint.create_pool(&[Buffers { bytes, count: STREAM_BUFFERS }])?;
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

/// The same over a plain socket, from so many buffers in turn.
fn stream_socket(bytes: usize, buffers: usize) -> Result<f64> {
    let fail = |error: std::io::Error| Error::from_io("a plain socket", &error);
    let mut other = PeerProcess::start_peer(PeerKind::Stream, &StreamPeerTask::Socket { bytes })?;
    let port: u16 = other.next_message()?;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(fail)?;
    let buffers = vec![vec![1; bytes]; buffers];
    let start = Instant::now();
    for data in buffers.iter().cycle().take_while(|_| start.elapsed() < ROUND_DURATION) {
        stream.write_all(data).map_err(fail)?;
    }
    drop(stream);
    let took: StreamTotal = other.next_message()?;
    other.wait_for_end()?;
    Ok(took.megabytes_per_second())
}

pub(crate) fn run_stream_peer(task: &StreamPeerTask) -> Result<()> {
    end_with_parent();
    let took = match task {
        StreamPeerTask::Inbox { transport, identity } => take_messages(*transport, identity)?,
        StreamPeerTask::Socket { bytes } => take_bytes(*bytes)?,
    };
    send_to_parent(&took)?;
    std::thread::sleep(peer::PEER_TIMEOUT);
    Ok(())
}

fn take_messages(transport: Transport, identity: &StreamIdentity) -> Result<StreamTotal> {
    let endpoint = identity.start_endpoint()?;
    let options = inbox_options(transport, identity.is_encrypted());
    let mut inbox = endpoint.create_inbox("stream", &options)?;
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
