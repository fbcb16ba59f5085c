//! What the benchmarks of the transport have in common: other processes of this binary, and a bit
//! of talk with them.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tessera_report::output;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};
use tessera_node::{median_of_sorted, p99_of_sorted};
use tessera_tensormq::{
    Address, ConnectOptions, Inbox, InboxOptions, Listen, Message, Received, Security, Sender,
    Transport, Wait,
};

/// How long the other side may take for anything.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn peer_wait() -> Wait {
    Wait::at_most(PEER_TIMEOUT)
}

/// Which of them another process is for.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum PeerKind {
    /// Answers hops.
    Hop,
    /// Takes what follows each other.
    Stream,
    /// Passes on.
    Echo,
    /// Is killed, or learns that another was.
    Victim,
}

/// What another process of this binary is to do; the task is that benchmark's own.
#[derive(Serialize, Deserialize)]
pub(crate) struct PeerTask<Task> {
    pub(crate) kind: PeerKind,
    pub(crate) task: Task,
}

/// Another process of this binary. It ends when its input does, so it can't outlive this one.
pub(crate) struct PeerProcess {
    child: Child,
    input: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl PeerProcess {
    pub(crate) fn start_peer(kind: PeerKind, task: &impl Serialize) -> Result<Self> {
        let fail = |error: std::io::Error| Error::from_io("a process of our own", &error);
        let own = std::env::current_exe().map_err(fail)?;
        let mut child = Command::new(own)
            .args(["bench", "peer", &to_json(&PeerTask { kind, task })?])
            // Ctrl-C is for this process; the other ends with it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(fail)?;
        let missing = || Error::engine("a process without pipes");
        let input = Some(child.stdin.take().ok_or_else(missing)?);
        let lines = BufReader::new(child.stdout.take().ok_or_else(missing)?).lines();
        Ok(Self { child, input, lines })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next thing that it says.
    pub(crate) fn next_message<T: DeserializeOwned>(&mut self) -> Result<T> {
        match self.lines.next() {
            Some(Ok(line)) => from_json(&line),
            Some(Err(error)) => Err(Error::from_io("the other process", &error)),
            None => Err(Error::lost("the other process ended")),
        }
    }

    /// Ends it at once, as the kernel does.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
    }

    /// Lets it end, and waits for that; kills it where it does not.
    pub(crate) fn wait_for_end(mut self) -> Result<ExitStatus> {
        drop(self.input.take());
        let start = Instant::now();
        while start.elapsed() < PEER_TIMEOUT {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => std::thread::sleep(Duration::from_micros(200)),
                Err(error) => return Err(Error::from_io("the other process", &error)),
            }
        }
        Err(Error::timed_out("the other process does not end"))
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        self.kill();
        // So that no zombie stays; it is dead.
        drop(self.child.wait());
    }
}

/// Says something to the process that started this one.
pub(crate) fn send_to_parent(what: &impl Serialize) -> Result<()> {
    output::print_line(&to_json(what)?)
}

/// Ends this process when the one that started it closes our input, or is gone.
pub(crate) fn end_with_parent() {
    std::thread::spawn(|| {
        let _ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}

pub(crate) fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::invalid(error.to_string()))
}

pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::invalid(format!("{error} in {text}")))
}

/// An inbox that can be reached over `transport`.
pub(crate) fn inbox_options(transport: Transport, encrypted: bool) -> InboxOptions {
    let security = match (encrypted, transport) {
        (false, _) => Security::Plain,
        (true, Transport::TCP) => Security::Tls,
        (true, _) => Security::Curve { allowed: Vec::new() },
    };
    let listen = vec![Listen { security, ..Listen::within_host(transport) }];
    InboxOptions { listen, ..InboxOptions::default() }
}

pub(crate) fn connect_over(
    endpoint: &tessera_tensormq::Endpoint,
    address: &Address,
    transport: Transport,
    lanes: u16,
) -> Result<Sender> {
    let options = ConnectOptions { transport: Some(transport), lanes, ..ConnectOptions::default() };
    endpoint.connect_with_options(address, &options)
}

/// The next message; anything else is an error.
pub(crate) fn receive_message(inbox: &mut Inbox) -> Result<Message> {
    match inbox.receive(peer_wait()) {
        Some(Received::Message(message)) => Ok(message),
        Some(Received::Failed { error, .. } | Received::Lost(_, error)) => Err(error),
        Some(_) => Err(Error::lost("the other side went away")),
        None => Err(Error::timed_out("the other side is silent")),
    }
}

/// The middle and the one that 99 of 100 are below, of times that are not sorted yet.
pub(crate) fn median_and_p99(times: &mut [f64]) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (median_of_sorted(times).unwrap_or(f64::NAN), p99_of_sorted(times).unwrap_or(f64::NAN))
}
