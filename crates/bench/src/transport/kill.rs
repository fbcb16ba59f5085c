//! `tessera bench kill`: processes are killed at random while they hand tensors over, again and
//! again, and what is left of them is counted.

use std::collections::BTreeSet;
use std::time::Duration;
use tessera_report::output;

use clap::Args;
use serde::{Deserialize, Serialize};
use tessera_core::{DType, Error, Random, Result, TensorMut};
use tessera_tensormq::{
    Address, Buffers, ConnectOptions, Deadline, Endpoint, EndpointOptions, Message, Received,
    RequestId, Sender, Transport, Wait,
};

use super::peer::{
    self, PeerKind, PeerProcess, end_with_parent, inbox_options, median_and_p99, send_to_parent,
};

/// Options of `tessera bench kill`.
#[derive(Args)]
pub struct BenchKill {
    /// shm, zmq-ipc or zmq-tcp
    #[arg(long, default_value = "shm")]
    pub(crate) transport: Transport,
    /// How many kills
    #[arg(long, default_value_t = 1000)]
    pub(crate) count: usize,
    /// Seed of who is killed when
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Bytes of the tensors that are under way.
const BYTES: usize = 100_000;
/// By when a peer must know.
const LIMIT_MS: f64 = 100.0;

/// What another process is to do, until it is killed or learns that another was.
#[derive(Serialize, Deserialize)]
pub(crate) enum KillPeerTask {
    /// Receive.
    Last { transport: Transport },
    /// Receive and pass on.
    Middle { transport: Transport, next: Address },
    /// Send, from a pool of its own.
    First { transport: Transport, next: Address },
}

/// What a process says that learnt that another is gone.
#[derive(Serialize, Deserialize)]
struct PeerLossNotice {
    /// When, by the host's clock.
    at_ns: u64,
    /// Buffers of its pool that did not come back.
    buffers_missing: usize,
}

#[derive(Default, Serialize)]
struct KillReport {
    transport: String,
    rounds: usize,
    /// Processes that were killed.
    kills: usize,
    /// Survivors that had a killed neighbour, and learnt it.
    learnt: usize,
    /// From the kill to that.
    learnt_median_ms: f64,
    learnt_max_ms: f64,
    /// Survivors that learnt it too late or not at all.
    late: usize,
    /// Survivors that did not end when they were told to.
    hung: usize,
    /// Buffers of survivors' pools that did not come back.
    buffers_missing: usize,
    /// What was there afterwards and not before: shared memory, temporary files, sockets,
    /// processes.
    left_over: Vec<String>,
}

pub(crate) fn bench_kill(arguments: &BenchKill) -> Result<()> {
    if arguments.count == 0 || arguments.transport == Transport::THREAD {
        return Err(Error::usage("bench kill needs at least one kill, and processes to kill"));
    }
    let before = leftover_files();
    let mut endpoint_ids = BTreeSet::new();
    let mut report =
        KillReport { transport: arguments.transport.to_string(), ..KillReport::default() };
    let mut random = Random::new(arguments.seed);
    let bar = output::progress_bar(arguments.count as u64, "killing");
    let mut times = Vec::new();
    while report.kills < arguments.count {
        kill_round(arguments.transport, &mut random, &mut report, &mut times, &mut endpoint_ids)?;
        bar.set_position(report.kills as u64);
    }
    bar.finish_and_clear();
    report.learnt = times.len();
    report.learnt_max_ms = times.iter().copied().fold(0.0, f64::max);
    report.learnt_median_ms = median_and_p99(&mut times).0;
    report.late += times.iter().filter(|time| **time > LIMIT_MS).count();
    report.left_over = leftover_files()
        .difference(&before)
        .cloned()
        .chain(leftover_sockets(&endpoint_ids))
        .collect();
    let KillReport { late, hung, buffers_missing, ref left_over, .. } = report;
    let sound = late + hung + buffers_missing == 0 && left_over.is_empty();
    if arguments.json {
        output::print_json(&report)?;
    } else {
        output::print_line(&format!(
            "{} kills in {} rounds over {}: {} neighbours learnt it, median {:.2} ms, at most {:.2} ms",
            report.kills,
            report.rounds,
            report.transport,
            report.learnt,
            report.learnt_median_ms,
            report.learnt_max_ms
        ))?;
        output::print_line(&format!(
            "{late} late, {hung} hung, {buffers_missing} buffers missing, {} left over",
            left_over.len()
        ))?;
        for trace in left_over {
            output::print_line(trace)?;
        }
    }
    if !sound {
        return Err(Error::engine("processes that were killed left something behind"));
    }
    Ok(())
}

/// Starts three in a row, kills some of them, and asks the others.
fn kill_round(
    transport: Transport,
    random: &mut Random,
    report: &mut KillReport,
    times: &mut Vec<f64>,
    endpoint_ids: &mut BTreeSet<u64>,
) -> Result<()> {
    report.rounds += 1;
    let mut last = PeerProcess::start_peer(PeerKind::Victim, &KillPeerTask::Last { transport })?;
    let next: Address = last.next_message()?;
    endpoint_ids.insert(next.endpoint_id);
    let mut middle =
        PeerProcess::start_peer(PeerKind::Victim, &KillPeerTask::Middle { transport, next })?;
    let next: Address = middle.next_message()?;
    endpoint_ids.insert(next.endpoint_id);
    let first =
        PeerProcess::start_peer(PeerKind::Victim, &KillPeerTask::First { transport, next })?;
    // From before they have met until they are well at work.
    std::thread::sleep(Duration::from_micros(random.next_below(30_000)));
    let mut row = [first, middle, last];
    // Any of them, any two, or all.
    let who = 1 + random.next_below(7);
    let killed = |index: usize| who & (1 << index) != 0;
    let at = Deadline::now().nanoseconds();
    for (index, process) in row.iter_mut().enumerate() {
        if killed(index) {
            process.kill();
            report.kills += 1;
        }
    }
    for (index, process) in row.iter_mut().enumerate() {
        let neighbour = (index > 0 && killed(index - 1)) || (index < 2 && killed(index + 1));
        if killed(index) || !neighbour {
            continue;
        }
        // One that had not met its neighbour yet has nothing to learn: it is told to end below.
        match process.next_message::<Option<PeerLossNotice>>() {
            Ok(Some(learnt)) => {
                times.push(learnt.at_ns.saturating_sub(at) as f64 / 1e6);
                report.buffers_missing += learnt.buffers_missing;
            }
            Ok(None) => {}
            Err(_) => report.late += 1,
        }
    }
    for process in row {
        match process.wait_for_end() {
            Ok(_) => {}
            Err(_) => report.hung += 1,
        }
    }
    Ok(())
}

pub(crate) fn run_kill_peer(task: &KillPeerTask) -> Result<()> {
    end_with_parent();
    let learnt = match task {
        KillPeerTask::Last { transport } => receive_until_loss(*transport, None),
        KillPeerTask::Middle { transport, next } => receive_until_loss(*transport, Some(next)),
        KillPeerTask::First { transport, next } => send_until_loss(*transport, next),
    }?;
    send_to_parent(&learnt)?;
    std::thread::sleep(peer::PEER_TIMEOUT);
    Ok(())
}

/// How long to wait before looking whether somebody is gone.
fn short_wait() -> Wait {
    Wait::at_most(Duration::from_millis(5))
}

/// Connects to one that was there a moment ago: where it does not answer soon, it is gone.
fn connect_briefly(endpoint: &Endpoint, address: &Address, transport: Transport) -> Result<Sender> {
    let timeout = Duration::from_millis(60);
    let options = ConnectOptions { transport: Some(transport), timeout, ..Default::default() };
    endpoint.connect_with_options(address, &options)
}

fn notice_loss() -> Option<PeerLossNotice> {
    Some(PeerLossNotice { at_ns: Deadline::now().nanoseconds(), buffers_missing: 0 })
}

/// Takes what comes, and passes it on where there is a next.
fn receive_until_loss(
    transport: Transport,
    next: Option<&Address>,
) -> Result<Option<PeerLossNotice>> {
    let endpoint = Endpoint::start(EndpointOptions::default())?;
    let mut inbox = endpoint.create_inbox("row", &inbox_options(transport, false))?;
    // The address first, so that being killed while connecting is among what is tried.
    send_to_parent(inbox.address())?;
    let mut sender = match next.map(|next| connect_briefly(&endpoint, next, transport)) {
        None => None,
        Some(Ok(sender)) => Some(sender),
        Some(Err(_)) => return Ok(notice_loss()),
    };
    let mut silent = 0;
    loop {
        match inbox.receive(short_wait()) {
            Some(Received::Message(mut message)) => {
                silent = 0;
                let Some(sender) = &mut sender else { continue };
                let tensors = message.take_tensors();
                let mut forwarded = message.forward_with(tensors);
                while let Err(not_sent) = sender.send(forwarded, short_wait()) {
                    if sender.is_lost() || sender.is_interrupted() {
                        return Ok(notice_loss());
                    }
                    forwarded = not_sent.message;
                }
            }
            Some(Received::Lost(..) | Received::Interrupted(_)) => return Ok(notice_loss()),
            // A message of one that died may be beyond saving; its death is told too.
            Some(_) => {}
            None => {
                silent += 1;
                if sender.as_ref().is_some_and(|next| next.is_lost() || next.is_interrupted()) {
                    return Ok(notice_loss());
                }
                // Nobody came: the one before was killed before it had met us.
                if silent > 40 && inbox.sender_count() == 0 {
                    return Ok(None);
                }
            }
        }
    }
}

/// Sends until the next is gone.
fn send_until_loss(transport: Transport, next: &Address) -> Result<Option<PeerLossNotice>> {
    let endpoint = Endpoint::start(EndpointOptions::default())?;
    let Ok(mut sender) = connect_briefly(&endpoint, next, transport) else {
        return Ok(notice_loss());
    };
    let pool = endpoint.create_pool(&[Buffers { bytes: BYTES, count: 8 }])?;
    let learnt = loop {
        if sender.is_lost() || sender.is_interrupted() {
            break notice_loss();
        }
        let Ok(buffer) = pool.borrow_buffer(BYTES, short_wait()) else { continue };
        let tensor = TensorMut::from_buffer(DType::U8, &[BYTES], buffer)?.freeze();
        let message = Message::new(RequestId(1), "row", b"middle, last")?;
        // Lost or late, the loop finds out.
        drop(sender.send(message.with_tensors(vec![tensor]), short_wait()));
    };
    // Whoever holds buffers still is alive and lets go, or dead and is found so.
    let end = Deadline::after(Duration::from_secs(2));
    drop(sender);
    while transport == Transport::SHM && pool.buffers_in_use() > 0 && !end.has_passed() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let buffers_missing = if transport == Transport::SHM { pool.buffers_in_use() } else { 0 };
    Ok(learnt.map(|learnt| PeerLossNotice { buffers_missing, ..learnt }))
}

/// Files that processes could have left behind, in shared memory and in the temporary folder.
fn leftover_files() -> BTreeSet<String> {
    let folders = ["/dev/shm".into(), std::env::temp_dir()];
    let entries = folders.iter().flat_map(std::fs::read_dir).flatten().flatten();
    let paths = entries.map(|entry| entry.path().display().to_string());
    paths.filter(|path| path.contains("tessera")).collect()
}

/// Sockets of these transports that are there still.
fn leftover_sockets(endpoint_ids: &BTreeSet<u64>) -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7));
    let ours = names.filter(|name| {
        let ids = name.split('/').filter_map(|part| u64::from_str_radix(part, 16).ok());
        name.starts_with("@tessera/") && ids.into_iter().any(|id| endpoint_ids.contains(&id))
    });
    ours.map(str::to_owned).collect()
}
