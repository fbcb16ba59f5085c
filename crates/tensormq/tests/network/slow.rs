//! Processes that are merely slow, here: stopped for seconds. Leases are for those that are gone.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tessera_core::{DType, Tensor};
use tessera_tensormq::{
    Address, ConnectOptions, Endpoint, Inbox, Message, Received, RequestId, Sender, Wait,
};

use crate::NETWORK;
use crate::common::network::{AUTHORITY, Cluster};
use crate::common::{options, start_endpoint};

const SOON: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(1);
/// What the other process is to be, in its environment.
const ROLE: &str = "TESSERA_SLOW_ROLE";

fn open_inbox(endpoint: &Endpoint) -> Inbox {
    endpoint.create_inbox("unit", &options(LEASE)).unwrap()
}

fn connect(endpoint: &Endpoint, address: &Address) -> Sender {
    let transport = Some(NETWORK.transport());
    let options = ConnectOptions { transport, ..ConnectOptions::default() };
    endpoint.connect_with_options(address, &options).unwrap()
}

fn send(sender: &mut Sender, request: u128) {
    let tensor = Tensor::copy_from_bytes(DType::U8, &[3], &[1, 2, 3]).unwrap();
    let message = Message::new(RequestId(request), "task", b"unit").unwrap();
    sender.send(message.with_tensors(vec![tensor]), Wait::at_most(SOON)).unwrap();
}

/// Another process of this test, which can be stopped.
struct OtherProcess(Child);

impl OtherProcess {
    fn start(role: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "slow::other_process", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(AUTHORITY, Cluster::shared().to_text());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn stop_for(&self, duration: Duration) {
        self.signal(Signal::STOP);
        thread::sleep(duration);
        self.signal(Signal::CONT);
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// What the other process does; nothing where this is the test itself.
#[test]
fn other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let endpoint = start_endpoint();
    let mut lines = std::io::stdin().lock().lines();
    if role == "receiver" {
        let mut inbox = open_inbox(&endpoint);
        println!("=address {}", serde_json::to_string(inbox.address()).unwrap());
        loop {
            match inbox.receive(Wait::at_most(SOON)) {
                Some(Received::Message(message)) => drop(message),
                Some(Received::Interrupted(_) | Received::Resumed(_)) => {}
                Some(Received::Closed(_)) => return println!("=closed"),
                other => return println!("={other:?}"),
            }
        }
    }
    let address = lines.next().unwrap().unwrap();
    let mut sender = connect(&endpoint, &serde_json::from_str(&address).unwrap());
    send(&mut sender, 0);
    println!("=sent");
    lines.next().unwrap().unwrap();
    send(&mut sender, 1);
    // Until the test ends this process.
    thread::sleep(SOON);
}

/// The next thing that the other process says.
fn hear(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the other process ended");
        if let Some((_, said)) = line.split_once('=') {
            return said.trim().to_owned();
        }
    }
}

#[test]
fn a_sender_that_leaves_while_its_receiver_stands_still_is_heard_to_leave() {
    let mut other = OtherProcess::start("receiver");
    let mut said = BufReader::new(other.0.stdout.take().unwrap());
    let address = hear(&mut said);
    let address = serde_json::from_str(address.strip_prefix("address ").unwrap()).unwrap();
    let endpoint = start_endpoint();
    let mut sender = connect(&endpoint, &address);
    for request in 0..20 {
        send(&mut sender, request);
    }
    sender.wait_until_finished(Wait::at_most(SOON)).unwrap();
    other.signal(Signal::STOP);
    let leaving = thread::spawn(move || drop((sender, endpoint)));
    thread::sleep(Duration::from_secs(1));
    other.signal(Signal::CONT);
    leaving.join().unwrap();
    assert_eq!(hear(&mut said), "closed");
}

#[test]
fn a_sender_that_stands_still_is_not_gone_and_one_that_is_killed_is_at_once() {
    let endpoint = start_endpoint();
    let mut inbox = open_inbox(&endpoint);
    let mut other = OtherProcess::start("sender");
    let mut said = BufReader::new(other.0.stdout.take().unwrap());
    let mut orders = other.0.stdin.take().unwrap();
    writeln!(orders, "{}", serde_json::to_string(inbox.address()).unwrap()).unwrap();
    assert_eq!(hear(&mut said), "sent");
    let Some(Received::Message(first)) = inbox.receive(Wait::at_most(SOON)) else { panic!() };
    drop(first);
    // Much longer than silence and lease together.
    let stopped = thread::spawn(move || {
        other.stop_for(Duration::from_secs(6));
        other
    });
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        let left = until.saturating_duration_since(Instant::now());
        let meanwhile = inbox.receive(Wait::at_most(left));
        assert!(matches!(meanwhile, None | Some(Received::Interrupted(_))), "{meanwhile:?}");
    }
    let mut other = stopped.join().unwrap();
    writeln!(orders, "go on").unwrap();
    loop {
        match inbox.receive(Wait::at_most(SOON)) {
            Some(Received::Message(message)) => break assert_eq!(message.request(), RequestId(1)),
            Some(Received::Interrupted(_) | Received::Resumed(_)) => {}
            unexpected => panic!("{unexpected:?}"),
        }
    }
    let killed = Instant::now();
    other.0.kill().unwrap();
    loop {
        match inbox.receive(Wait::at_most(SOON)) {
            Some(Received::Interrupted(_) | Received::Resumed(_)) => {}
            Some(Received::Lost(..)) => break,
            unexpected => panic!("{unexpected:?}"),
        }
    }
    assert!(killed.elapsed() < LEASE + Duration::from_secs(2), "{:?}", killed.elapsed());
}
