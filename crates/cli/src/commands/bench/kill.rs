//! `tessera bench kill`: processes are killed at random while they hand tensors over, again and again,
//! and what is left of them is counted.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tessera_core::{DType, Error, Random, Result, TensorMut};
use tessera_tensormq::{
    Address, Buffers, ConnectOptions, Courier, CourierOptions, Deadline, Message, Received,
    RequestId, Sender, Transport, Wait,
};

use super::peer::{self, Process, end_with_parent, inbox_options, median_and_p99, say};
use crate::arguments::bench::BenchKill;
use crate::output;

/// Bytes of the tensors that are under way.
const BYTES: usize = 100_000;
/// By when a peer must know.
const LIMIT_MS: f64 = 100.0;

/// What another process is to do, until it is killed or learns that another was.
#[derive(Serialize, Deserialize)]
pub(super) enum Task {
    /// Receive.
    Last { transport: Transport },
    /// Receive and pass on.
    Middle { transport: Transport, next: Address },
    /// Send, from a pool of its own.
    First { transport: Transport, next: Address },
}

/// What a process says that learnt that another is gone.
#[derive(Serialize, Deserialize)]
struct Learnt {
    /// When, by the host's clock.
    at_ns: u64,
    /// Buffers of its pool that did not come back.
    buffers_missing: usize,
}

#[derive(Default, Serialize)]
struct Report {
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
    /// What was there afterwards and not before: shared memory, temporary files, sockets, processes.
    left_over: Vec<String>,
}

pub(super) fn run(arguments: &BenchKill) -> Result<()> {
    if arguments.count == 0 || arguments.transport == Transport::Thread {
        return Err(Error::usage("bench kill needs at least one kill, and processes to kill"));
    }
    let before = files();
    let mut couriers = BTreeSet::new();
    let mut report = Report { transport: arguments.transport.to_string(), ..Report::default() };
    let mut random = Random::new(arguments.seed);
    let bar = output::progress(arguments.count as u64, "killing");
    let mut times = Vec::new();
    while report.kills < arguments.count {
        round(arguments.transport, &mut random, &mut report, &mut times, &mut couriers)?;
        bar.set_position(report.kills as u64);
    }
    bar.finish_and_clear();
    report.learnt = times.len();
    report.learnt_max_ms = times.iter().copied().fold(0.0, f64::max);
    report.learnt_median_ms = median_and_p99(&mut times).0;
    report.late += times.iter().filter(|time| **time > LIMIT_MS).count();
    report.left_over = files().difference(&before).cloned().chain(sockets(&couriers)).collect();
    let Report { late, hung, buffers_missing, ref left_over, .. } = report;
    let sound = late + hung + buffers_missing == 0 && left_over.is_empty();
    if arguments.json {
        output::print_json(&report)?;
    } else {
        output::print(&format!(
            "{} kills in {} rounds over {}: {} neighbours learnt it, median {:.2} ms, at most {:.2} ms",
            report.kills,
            report.rounds,
            report.transport,
            report.learnt,
            report.learnt_median_ms,
            report.learnt_max_ms
        ))?;
        output::print(&format!(
            "{late} late, {hung} hung, {buffers_missing} buffers missing, {} left over",
            left_over.len()
        ))?;
        for trace in left_over {
            output::print(trace)?;
        }
    }
    match sound {
        true => Ok(()),
        false => Err(Error::engine("processes that were killed left something behind")),
    }
}

/// Starts three in a row, kills some of them, and asks the others.
fn round(
    transport: Transport,
    random: &mut Random,
    report: &mut Report,
    times: &mut Vec<f64>,
    couriers: &mut BTreeSet<u64>,
) -> Result<()> {
    report.rounds += 1;
    let mut last = Process::start(&peer::Task::Victim(Task::Last { transport }))?;
    let next: Address = last.hear()?;
    couriers.insert(next.courier);
    let mut middle = Process::start(&peer::Task::Victim(Task::Middle { transport, next }))?;
    let next: Address = middle.hear()?;
    couriers.insert(next.courier);
    let first = Process::start(&peer::Task::Victim(Task::First { transport, next }))?;
    // From before they have met until they are well at work.
    std::thread::sleep(Duration::from_micros(random.below(30_000)));
    let mut row = [first, middle, last];
    // Any of them, any two, or all.
    let who = 1 + random.below(7);
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
        match process.hear::<Option<Learnt>>() {
            Ok(Some(learnt)) => {
                times.push(learnt.at_ns.saturating_sub(at) as f64 / 1e6);
                report.buffers_missing += learnt.buffers_missing;
            }
            Ok(None) => {}
            Err(_) => report.late += 1,
        }
    }
    for process in row {
        match process.end() {
            Ok(_) => {}
            Err(_) => report.hung += 1,
        }
    }
    Ok(())
}

pub(super) fn peer(task: &Task) -> Result<()> {
    end_with_parent();
    let learnt = match task {
        Task::Last { transport } => receive(*transport, None),
        Task::Middle { transport, next } => receive(*transport, Some(next)),
        Task::First { transport, next } => send(*transport, next),
    }?;
    say(&learnt)?;
    std::thread::sleep(peer::PATIENCE);
    Ok(())
}

/// How long to wait before looking whether somebody is gone.
fn slice() -> Wait {
    Wait::at_most(Duration::from_millis(5))
}

/// Connects to one that was there a moment ago: where it does not answer soon, it is gone.
fn connect(courier: &Courier, address: &Address, transport: Transport) -> Result<Sender> {
    let timeout = Duration::from_millis(60);
    let options = ConnectOptions { transport: Some(transport), timeout, ..Default::default() };
    courier.connect_with(address, &options)
}

fn learnt() -> Option<Learnt> {
    Some(Learnt { at_ns: Deadline::now().nanoseconds(), buffers_missing: 0 })
}

/// Takes what comes, and passes it on where there is a next.
fn receive(transport: Transport, next: Option<&Address>) -> Result<Option<Learnt>> {
    let courier = Courier::start(CourierOptions::default())?;
    let mut inbox = courier.inbox("row", &inbox_options(transport, false))?;
    // The address first, so that being killed while connecting is among what is tried.
    say(inbox.address())?;
    let mut sender = match next.map(|next| connect(&courier, next, transport)) {
        None => None,
        Some(Ok(sender)) => Some(sender),
        Some(Err(_)) => return Ok(learnt()),
    };
    let mut silent = 0;
    loop {
        match inbox.receive(slice()) {
            Some(Received::Message(mut message)) => {
                silent = 0;
                let Some(sender) = &mut sender else { continue };
                let tensors = message.take_tensors();
                let mut onward = message.onward(tensors);
                while let Err(not_sent) = sender.send(onward, slice()) {
                    if sender.is_lost() || sender.is_interrupted() {
                        return Ok(learnt());
                    }
                    onward = not_sent.message;
                }
            }
            Some(Received::Lost(..) | Received::Interrupted(_)) => return Ok(learnt()),
            // A message of one that died may be beyond saving; its death is told too.
            Some(_) => {}
            None => {
                silent += 1;
                if sender.as_ref().is_some_and(|next| next.is_lost() || next.is_interrupted()) {
                    return Ok(learnt());
                }
                // Nobody came: the one before was killed before it had met us.
                if silent > 40 && inbox.senders() == 0 {
                    return Ok(None);
                }
            }
        }
    }
}

/// Sends until the next is gone.
fn send(transport: Transport, next: &Address) -> Result<Option<Learnt>> {
    let courier = Courier::start(CourierOptions::default())?;
    let Ok(mut sender) = connect(&courier, next, transport) else { return Ok(learnt()) };
    let pool = courier.pool(&[Buffers { bytes: BYTES, count: 8 }])?;
    let learnt = loop {
        if sender.is_lost() || sender.is_interrupted() {
            break learnt();
        }
        let Ok(buffer) = pool.borrow(BYTES, slice()) else { continue };
        let tensor = TensorMut::over(DType::U8, &[BYTES], buffer)?.freeze();
        let message = Message::new(RequestId(1), "row", &["middle", "last"])?;
        // Lost or late, the loop finds out.
        drop(sender.send(message.with_tensors(vec![tensor]), slice()));
    };
    // Whoever holds buffers still is alive and lets go, or dead and is found so.
    let end = Deadline::after(Duration::from_secs(2));
    drop(sender);
    while transport == Transport::Shm && pool.in_use() > 0 && !end.has_passed() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let buffers_missing = if transport == Transport::Shm { pool.in_use() } else { 0 };
    Ok(learnt.map(|learnt| Learnt { buffers_missing, ..learnt }))
}

/// Files that processes could have left behind, in shared memory and in the temporary folder.
fn files() -> BTreeSet<String> {
    let folders = ["/dev/shm".into(), std::env::temp_dir()];
    let entries = folders.iter().flat_map(std::fs::read_dir).flatten().flatten();
    let paths = entries.map(|entry| entry.path().display().to_string());
    paths.filter(|path| path.contains("tessera")).collect()
}

/// Sockets of these transports that are there still.
fn sockets(couriers: &BTreeSet<u64>) -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7));
    let ours = names.filter(|name| {
        let ids = name.split('/').filter_map(|part| u64::from_str_radix(part, 16).ok());
        name.starts_with("@tessera/") && ids.into_iter().any(|id| couriers.contains(&id))
    });
    ours.map(str::to_owned).collect()
}
