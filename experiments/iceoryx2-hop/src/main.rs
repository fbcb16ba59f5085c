//! Measures iceoryx2 as a shared-memory transport: latency of a hop, detection of a dead peer,
//! what a killed pair leaves behind. The binary starts itself again as the other process.

use std::process::{Child, Command};
use std::time::{Duration, Instant};
use std::{env, thread};

use iceoryx2::port::{listener::Listener, notifier::Notifier, subscriber::Subscriber};
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::{event, publish_subscribe};

type Ipc = ipc::Service;
type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

const DEAD_EVENT: usize = 7;

/// CLOCK_MONOTONIC is the same clock in every process, which `Instant` does not let us write down.
fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The number after `--key` on the command line.
fn option(key: &str, default: u64) -> u64 {
    let mut words = env::args().skip_while(|w| w.strip_prefix("--") != Some(key));
    words.nth(1).map_or(default, |v| v.parse().expect("every option takes a number"))
}

/// A second process of this binary, which never outlives the experiment.
struct Peer(Child);

fn spawn(words: &str) -> Fallible<Peer> {
    Ok(Peer(Command::new(env::current_exe()?).args(words.split(' ')).spawn()?))
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Payload and both directions of wake-up. The limits are those of one producer and one consumer:
/// the publisher's segment has room for every sample that the limits could need.
struct Services {
    node: Node<Ipc>,
    data: publish_subscribe::PortFactory<Ipc, [u8], ()>,
    ping: event::PortFactory<Ipc>,
    pong: event::PortFactory<Ipc>,
}

impl Services {
    fn open(config: &Config) -> Fallible<Self> {
        let node = NodeBuilder::new().config(config).create::<Ipc>()?;
        let data = node.service_builder(&"hop/data".try_into()?).publish_subscribe::<[u8]>();
        let data = data.max_publishers(1).max_subscribers(1).open_or_create()?;
        let event = |name: &str| -> Fallible<event::PortFactory<Ipc>> {
            let builder = node.service_builder(&name.try_into()?).event();
            Ok(builder.notifier_dead_event(EventId::new(DEAD_EVENT)).open_or_create()?)
        };
        let (ping, pong) = (event("hop/ping")?, event("hop/pong")?);
        Ok(Self { node, data, ping, pong })
    }

    fn consumer(&self) -> Fallible<Consumer> {
        Ok(Consumer {
            samples: self.data.subscriber_builder().create()?,
            wake: self.ping.listener_builder().create()?,
            answer: self.pong.notifier_builder().create()?,
        })
    }
}

struct Consumer {
    samples: Subscriber<Ipc, [u8], ()>,
    wake: Listener<Ipc>,
    answer: Notifier<Ipc>,
}

impl Consumer {
    /// Takes what has arrived and answers each sample; adds the latencies in ns to `into`.
    fn drain(&self, into: &mut Vec<u64>) -> Fallible<()> {
        while let Some(sample) = self.samples.receive()? {
            let stamp = u64::from_le_bytes(sample.payload()[..8].try_into()?);
            into.push(now_ns() - stamp);
            drop(sample);
            self.answer.notify()?;
        }
        Ok(())
    }
}

/// Process A. Waits for the answer with a limit, so that a consumer that came late only costs time.
fn produce() -> Fallible<()> {
    // On another core than the consumer if asked: left alone, the scheduler often puts both ends of
    // a ping-pong on the same one.
    if let Ok(core) = env::var("PRODUCER_CORE") {
        Command::new("taskset").args(["-cp", &core, &std::process::id().to_string()]).output()?;
    }
    let (bytes, gap) = (option("bytes", 4096) as usize, option("gap-us", 0));
    let services = Services::open(&Config::default())?;
    let publisher = services.data.publisher_builder().initial_max_slice_len(bytes).create()?;
    let answers = services.pong.listener_builder().create()?;
    let ping = services.ping.notifier_builder().create()?;
    for _ in 0..option("count", u64::MAX) {
        let mut sample = publisher.loan_slice_uninit(bytes)?;
        for (to, from) in sample.payload_mut().iter_mut().zip(now_ns().to_le_bytes()) {
            to.write(from);
        }
        // SAFETY: pages of a fresh segment read as zero, so the rest of the bytes is set too.
        unsafe { sample.assume_init() }.send()?;
        ping.notify()?;
        answers.timed_wait(|_| {}, Duration::from_millis(100))?;
        thread::sleep(Duration::from_micros(gap)); // no system call for 0
    }
    Ok(())
}

/// Process B on its own, for `leftovers`, which kills it.
fn consume() -> Fallible<()> {
    let consumer = Services::open(&Config::default())?.consumer()?;
    loop {
        consumer.wake.blocking_wait(|_| {})?;
        consumer.drain(&mut Vec::new())?;
    }
}

fn spread(mut ns: Vec<u64>) -> String {
    ns.sort_unstable();
    let at = |percent: usize| ns[(ns.len() - 1) * percent / 100] as f64 / 1000.0;
    format!("median {:.1} us, p99 {:.1} us", at(50), at(99))
}

fn hop() -> Fallible<()> {
    let (bytes, count) = (option("bytes", 4096), option("count", 10_000) as usize);
    let mut config = Config::default();
    let cleanup = option("no-cleanup", 0) == 0;
    config.global.node.cleanup_dead_nodes_on_creation = cleanup;
    config.global.node.cleanup_dead_nodes_on_destruction = cleanup;
    config.global.service.cleanup_dead_nodes_on_open = cleanup;
    let services = Services::open(&config)?;
    let consumer = services.consumer()?;
    let warm_up = count / 10;
    let (sent, gap) = (count + warm_up, option("gap-us", 0));
    let mut peer = spawn(&format!("produce --bytes {bytes} --count {sent} --gap-us {gap}"))?;
    let mut ns = Vec::new();
    while ns.len() < sent {
        // The same wait as `blocking_wait`, but a producer that could not start ends this too.
        if consumer.wake.timed_wait(|_| {}, Duration::from_secs(3))? == 0 && ns.is_empty() {
            return Err("no sample within 3 s".into());
        }
        consumer.drain(&mut ns)?;
    }
    peer.0.wait()?;
    println!("{bytes} bytes: {}", spread(ns.split_off(warm_up)));
    Ok(())
}

fn dead_nodes() -> Fallible<usize> {
    let mut dead = 0;
    Node::<Ipc>::list(&Config::default(), |state| {
        dead += usize::from(matches!(state, NodeState::Dead(_)));
        CallbackProgression::Continue
    })?;
    Ok(dead)
}

fn time_of_checks() -> Fallible<String> {
    let time = |start| dead_nodes().map(|_| now_ns() - start);
    Ok(spread((0..1000).map(|_| time(now_ns())).collect::<Fallible<_>>()?))
}

fn death() -> Fallible<()> {
    let services = Services::open(&Config::default())?;
    let consumer = services.consumer()?;
    let exchange = || -> Fallible<Peer> {
        let peer = spawn("produce --gap-us 1000")?;
        let mut got = Vec::new();
        while got.len() < 20 {
            consumer.wake.blocking_wait(|_| {})?;
            consumer.drain(&mut got)?;
        }
        Ok(peer)
    };

    let peer = exchange()?;
    println!("Node::list, peer alive: {}", time_of_checks()?);
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        drop(peer);
    });
    let mut start = Instant::now();
    while consumer.wake.timed_wait(|_| {}, Duration::from_secs(1))? > 0 {
        consumer.drain(&mut Vec::new())?;
        start = Instant::now();
    }
    println!("the wait (limit 1 s) in which the peer was killed took {:?}", start.elapsed());
    println!("Node::list, peer dead: {}", time_of_checks()?);
    let start = Instant::now();
    services.node.try_cleanup_dead_nodes();
    println!("try_cleanup_dead_nodes took {:?}", start.elapsed());
    let mut ids = Vec::new();
    consumer.wake.timed_wait(|e| ids.push(e.id.as_value()), Duration::from_secs(1))?;
    println!("events after that clean-up: {ids:?} ({DEAD_EVENT} = a notifier is dead)");

    let mut seen = Vec::new();
    for _ in 0..20 {
        let mut peer = exchange()?;
        let start = now_ns();
        peer.0.kill()?;
        while dead_nodes()? == 0 {}
        seen.push(now_ns() - start);
        services.node.try_cleanup_dead_nodes();
    }
    println!("from kill to a spinning Node::list that says dead: {}", spread(seen));

    let waitset = WaitSetBuilder::new().create::<Ipc>()?;
    drop(exchange()?);
    while consumer.wake.try_wait(|_| {})? > 0 {}
    let guard = waitset.attach_deadline(&consumer.wake, Duration::from_millis(100))?;
    let start = Instant::now();
    waitset.wait_and_process_once(|id| {
        println!("deadline missed={}: {:?}", id.has_missed_deadline(&guard), start.elapsed());
        CallbackProgression::Continue
    })?;
    Ok(())
}

/// What iceoryx2 has on the file systems now: type, permission bits, size and path of each.
fn inventory(title: &str, in_full: bool) -> Fallible<()> {
    for (root, name) in [("/dev/shm", "iox2_*"), ("/tmp/iceoryx2", "*")] {
        let find = [root, "-name", name, "-printf", "%y %m %s %p\n"];
        let list = String::from_utf8(Command::new("find").args(find).output()?.stdout)?;
        let files = list.lines().filter(|line| !line.starts_with('d'));
        let sizes: Vec<u64> = files.filter_map(|l| l.split(' ').nth(2)?.parse().ok()).collect();
        println!("{title}: {root}: {} files, {} bytes", sizes.len(), sizes.iter().sum::<u64>());
        print!("{}", if in_full { &list } else { "" });
    }
    Ok(())
}

/// The documented way out when a service is stuck, as a process of its own because it may hang too.
fn force() -> Fallible<()> {
    let node = NodeBuilder::new().create::<Ipc>()?;
    let (data, event) = (MessagingPattern::PublishSubscribe, MessagingPattern::Event);
    for (name, kind) in [("hop/data", data), ("hop/ping", event), ("hop/pong", event)] {
        // SAFETY: the users of these services are dead.
        unsafe { node.force_remove_service(&name.try_into()?, kind) }?;
    }
    Ok(())
}

/// Says whether the subcommand ended well within 5 s.
fn works(words: &str) -> Fallible<bool> {
    let (mut peer, began, mut status) = (spawn(words)?, Instant::now(), None);
    while status.is_none() && began.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(1));
        status = peer.0.try_wait()?;
    }
    println!("{words}: {:?} in {:?}", status.map(|s| s.success()), began.elapsed());
    Ok(status.is_some_and(|s| s.success()))
}

/// Kills a pair in mid-exchange, then starts again under the same names. With several rounds the
/// moment of the kill wanders from 0 to `after-us`, so that it also falls into the set-up.
fn leftovers() -> Fallible<()> {
    let (rounds, bytes) = (option("rounds", 1), option("bytes", 3_211_264));
    let (mut stuck, mut cured) = (0, 0);
    for round in 1..=rounds {
        let pair = (spawn("consume")?, spawn(&format!("produce --bytes {bytes}"))?);
        thread::sleep(Duration::from_micros(option("after-us", 500_000) * round / rounds));
        drop(pair);
        if rounds == 1 {
            inventory("killed", true)?;
            works("hop --count 100 --no-cleanup 1")?;
        }
        if !works("hop --count 100")? {
            stuck += 1;
            cured += usize::from(works("force")? && works("hop --count 100")?);
            // For the next round; other iceoryx2 programs of this user would lose theirs too.
            Command::new("sh").args(["-c", "rm -rf /tmp/iceoryx2 /dev/shm/iox2_*"]).status()?;
        }
    }
    println!("{stuck} of {rounds} rounds stuck, {cured} of them cured by force_remove_service");
    inventory("after a start and a regular end", rounds == 1)
}

fn main() -> Fallible<()> {
    set_log_level(LogLevel::Error);
    match env::args().nth(1).unwrap_or_default().as_str() {
        "hop" => hop(),
        "death" => death(),
        "leftovers" => leftovers(),
        "produce" => produce(),
        "consume" => consume(),
        "force" => force(),
        _ => Err("one of: hop death leftovers".into()),
    }
}
