//! Two hosts on one machine: network namespaces with a cable between them, which is pulled out.
//!
//! Needs root and `ip`; says so and does nothing where they are missing.

use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tessera_core::{DType, Tensor};
use tessera_tensormq::{Address, Deadline, InboxOptions, Message, Received, RequestId, Wait};

use crate::NETWORK;
use crate::common::{listen, start_endpoint};

const SOON: Duration = Duration::from_secs(30);
const COUNT: u128 = 400;
const BYTES: usize = 200_000;

fn ip(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    output.is_ok_and(|output| output.status.success())
}

/// Two namespaces with a cable between them; gone when dropped.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    fn new(number: u32) -> Option<Self> {
        let id = std::process::id() % 100_000;
        let names = ["a", "b"].map(|side| format!("tsr{number}{side}{id}"));
        let hosts = Self { names };
        let [a, b] = &hosts.names;
        let steps = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {a} netns {a} type veth peer name {b} netns {b}"),
            format!("-n {a} addr add 10.77.{number}.1/24 dev {a}"),
            format!("-n {b} addr add 10.77.{number}.2/24 dev {b}"),
            format!("-n {a} addr add fd77:{number}::1/64 dev {a} nodad"),
            format!("-n {b} addr add fd77:{number}::2/64 dev {b} nodad"),
            format!("-n {a} link set {a} up"),
            format!("-n {b} link set {b} up"),
        ];
        steps.iter().all(|step| ip(step)).then_some(hosts)
    }

    /// Pulls the cable out, or puts it back.
    fn cable(&self, plugged: bool) {
        let b = &self.names[1];
        assert!(ip(&format!("-n {b} link set {b} {}", if plugged { "up" } else { "down" })));
    }

    /// Runs something on one of the hosts.
    fn on<T: Send + 'static>(
        &self,
        host: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let path = format!("/run/netns/{}", self.names[host]);
        thread::spawn(move || {
            let file = std::fs::File::open(path).unwrap();
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), kind).unwrap();
            work()
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

/// Receives until the sender says goodbye: the requests, and how often it was interrupted.
fn receive_all(address: mpsc::Sender<Address>, socket_address: String) -> (Vec<u128>, usize) {
    let endpoint = start_endpoint();
    let listen = listen(&socket_address, NETWORK.security());
    let options =
        InboxOptions { listen, session_lease: Duration::from_secs(20), ..InboxOptions::default() };
    let mut inbox = endpoint.create_inbox("unit", &options).unwrap();
    address.send(inbox.address().clone()).unwrap();
    let (mut requests, mut interruptions) = (Vec::new(), 0);
    loop {
        match inbox.receive(Wait::at_most(SOON)) {
            Some(Received::Message(message)) => {
                let bytes = message.tensors()[0].bytes().unwrap();
                assert!(bytes.iter().all(|byte| *byte == message.request().0 as u8));
                assert_eq!(message.route(), b"unit");
                // It was accepted before it was made, and all of it before now.
                let (accepted, made) = (message.accepted(), message.made());
                assert!(accepted <= made && made <= Deadline::now().nanoseconds());
                requests.push(message.request().0);
            }
            Some(Received::Interrupted(_)) => interruptions += 1,
            Some(Received::Resumed(_)) => {}
            Some(Received::Closed(_)) => return (requests, interruptions),
            other => panic!("after {} messages: {other:?}", requests.len()),
        }
    }
}

/// Sends to an inbox by the way that leads there, with a pause now and then.
fn send_all(address: &Address, progress: &mpsc::Sender<u128>) {
    let endpoint = start_endpoint();
    assert_eq!(endpoint.fastest_transport_to(address).unwrap(), NETWORK.transport());
    let mut sender = endpoint.connect(address).unwrap();
    for request in 0..COUNT {
        let tensor = Tensor::copy_from_bytes(DType::U8, &[BYTES], &[request as u8; BYTES]).unwrap();
        let message = Message::new(RequestId(request), "task", b"unit").unwrap();
        sender.send(message.with_tensors(vec![tensor]), Wait::at_most(SOON)).unwrap();
        // Whoever does not listen is told nothing.
        progress.send(request).ok();
    }
    sender.wait_until_finished(Wait::at_most(SOON)).unwrap();
    assert!(sender.take_failed_messages().is_empty());
}

fn between_hosts(number: u32, socket_address: &str, cuts: &[Duration]) {
    let Some(hosts) = Hosts::new(number) else {
        println!("skipped: network namespaces need root and `ip`");
        return;
    };
    let (tell, hear) = mpsc::channel();
    let socket_address = socket_address.to_owned();
    let receiving = hosts.on(1, move || receive_all(tell, socket_address));
    let address = hear.recv_timeout(SOON).unwrap();
    let (tell, progress) = mpsc::channel();
    let sending = hosts.on(0, move || send_all(&address, &tell));
    for (index, cut) in (1..).zip(cuts) {
        let at = COUNT / (cuts.len() as u128 + 1) * index;
        while progress.recv_timeout(SOON).unwrap() < at {}
        hosts.cable(false);
        thread::sleep(*cut);
        hosts.cable(true);
    }
    sending.join().unwrap();
    let (requests, interruptions) = receiving.join().unwrap();
    assert_eq!(requests, (0..COUNT).collect::<Vec<_>>());
    println!("{} messages, {interruptions} interruptions", requests.len());
}

#[test]
fn a_cable_that_is_pulled_out_for_a_while_loses_and_doubles_nothing() {
    let cuts = [300, 5000, 1000].map(Duration::from_millis);
    between_hosts(1, "tcp://10.77.1.2:0", &cuts);
}

#[test]
fn hosts_reach_each_other_over_ipv6() {
    between_hosts(2, "tcp://[fd77:2::2]:0", &[]);
}
