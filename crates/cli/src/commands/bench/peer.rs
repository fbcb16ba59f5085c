//! What the benchmarks of the transport have in common: other processes of this binary, and a bit of
//! talk with them.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tessera_core::{Error, Result};
use tessera_node::{median, p99};
use tessera_tensormq::{
    Address, ConnectOptions, Inbox, InboxOptions, Listen, Message, Received, Security, Sender,
    Transport, Wait,
};

use super::{hop, kill, relay, stream};
use crate::arguments::bench::BenchPeer;

/// How long the other side may take for anything.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn patience() -> Wait {
    Wait::at_most(PATIENCE)
}

/// What another process of this binary is to do.
#[derive(Serialize, Deserialize)]
pub(super) enum Task {
    Hop(hop::Task),
    Stream(stream::Task),
    Echo(relay::Task),
    Victim(kill::Task),
}

/// Runs as the other process.
pub(super) fn run(arguments: &BenchPeer) -> Result<()> {
    let task: Task = from_json(&arguments.task)?;
    match task {
        Task::Hop(task) => hop::peer(&task),
        Task::Stream(task) => stream::peer(&task),
        Task::Echo(task) => relay::peer(&task),
        Task::Victim(task) => kill::peer(&task),
    }
}

/// Another process of this binary. It ends when its input does, so it can't outlive this one.
pub(super) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Process {
    pub(super) fn start(task: &Task) -> Result<Self> {
        let fail = |error: std::io::Error| Error::io("a process of our own", &error);
        let own = std::env::current_exe().map_err(fail)?;
        let mut child = Command::new(own)
            .args(["bench", "peer", &to_json(task)?])
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

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next thing that it says.
    pub(super) fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        match self.lines.next() {
            Some(Ok(line)) => from_json(&line),
            Some(Err(error)) => Err(Error::io("the other process", &error)),
            None => Err(Error::lost("the other process ended")),
        }
    }

    /// Ends it at once, as the kernel does.
    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
    }

    /// Lets it end, and waits for that; kills it where it does not.
    pub(super) fn end(mut self) -> Result<ExitStatus> {
        drop(self.input.take());
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => std::thread::sleep(Duration::from_micros(200)),
                Err(error) => return Err(Error::io("the other process", &error)),
            }
        }
        Err(Error::timed_out("the other process does not end"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // So that no zombie stays; it is dead.
        drop(self.child.wait());
    }
}

/// Says something to the process that started this one.
pub(super) fn say(what: &impl Serialize) -> Result<()> {
    crate::output::print(&to_json(what)?)
}

/// Ends this process when the one that started it closes our input, or is gone.
pub(super) fn end_with_parent() {
    std::thread::spawn(|| {
        let _ended = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}

pub(super) fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::invalid(error.to_string()))
}

pub(super) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::invalid(format!("{error} in {text}")))
}

/// An inbox that can be reached over `transport`.
pub(super) fn inbox_options(transport: Transport, encrypted: bool) -> InboxOptions {
    let security = match encrypted {
        true => Security::Curve { allowed: Vec::new() },
        false => Security::Plain,
    };
    let listen = match transport {
        Transport::Thread | Transport::Shm => vec![],
        Transport::ZmqIpc => vec![Listen::Ipc],
        Transport::ZmqTcp => vec![Listen::Tcp {
            endpoint: "tcp://127.0.0.1:0".to_owned(),
            advertise: None,
            security,
        }],
    };
    InboxOptions { listen, ..InboxOptions::default() }
}

pub(super) fn connect(
    courier: &tessera_tensormq::Courier,
    address: &Address,
    transport: Transport,
    lanes: u16,
) -> Result<Sender> {
    let options = ConnectOptions { transport: Some(transport), lanes, ..ConnectOptions::default() };
    courier.connect_with(address, &options)
}

/// The next message; anything else is an error.
pub(super) fn receive(inbox: &mut Inbox) -> Result<Message> {
    match inbox.receive(patience()) {
        Some(Received::Message(message)) => Ok(message),
        Some(Received::Failed { error, .. } | Received::Lost(_, error)) => Err(error),
        Some(_) => Err(Error::lost("the other side went away")),
        None => Err(Error::timed_out("the other side is silent")),
    }
}

/// The middle and the one that 99 of 100 are below, of times that are not sorted yet.
pub(super) fn median_and_p99(times: &mut [f64]) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (median(times).unwrap_or(f64::NAN), p99(times).unwrap_or(f64::NAN))
}
