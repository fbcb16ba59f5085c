//! An instance of a unit that runs: on threads of this process, or as a process of its own.

use std::collections::HashMap;
use std::io::BufReader;
use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result};
use tessera_tensormq::Address;

use crate::cores::MachineCores;
use crate::link::{FromBlock, Loss, StartBlock, ToBlock, read_line, write_line};
use crate::lock;
use crate::probe::Findings;
use crate::worker::{Pulse, Worker};

/// How long a block may take to load.
const PATIENCE: Duration = Duration::from_secs(120);

/// An instance that runs.
pub(crate) enum Instance {
    Threads(Worker),
    Process(Arc<BlockProcess>),
}

/// What is known of an instance when it is ready.
pub(crate) struct Ready {
    pub(crate) address: Address,
    pub(crate) weight_bytes: usize,
    pub(crate) is_fused: bool,
    pub(crate) findings: Findings,
    pub(crate) takes_turns: bool,
}

/// The process of a block, seen from its node.
pub(crate) struct BlockProcess {
    child: Mutex<Child>,
    pub(crate) id: u32,
    input: Mutex<Option<ChildStdin>>,
    cores: MachineCores,
    shares: Mutex<Shares>,
    pulse: Mutex<(Instant, Pulse)>,
    pings: Mutex<HashMap<u64, std::sync::mpsc::Sender<()>>>,
}

/// The shares of the cores that a process has asked for.
#[derive(Default)]
struct Shares {
    is_gone: bool,
    tickets: HashMap<u64, Ticket>,
}

enum Ticket {
    Asked,
    Waiting((u64, u64)),
    Running(NonZeroUsize),
    Finished(NonZeroUsize),
}

impl BlockProcess {
    /// Starts a process and waits until it is ready. `lost` is called when it tells of a loss, and has told everyone
    /// when it returns; `gone` when it has ended, however it did.
    pub(crate) fn start(
        program: &Path,
        start: StartBlock,
        cores: MachineCores,
        lost: impl Fn(Loss) + Send + 'static,
        gone: impl FnOnce() + Send + 'static,
    ) -> Result<(Arc<Self>, Ready)> {
        let name = start.name.clone();
        let fail =
            |error: std::io::Error| Error::io(format!("the process of block {name}"), &error);
        let mut child = Command::new(program)
            .arg("block")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // An interrupt from the terminal is for the server, which lets blocks end what they do.
            .process_group(0)
            .spawn()
            .map_err(fail)?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::lost(format!("the process of block {name} has no pipes")));
        };
        let started = write_line(&mut input, &ToBlock::Start(Box::new(start)));
        let process = Arc::new(Self {
            id: child.id(),
            child: Mutex::new(child),
            input: Mutex::new(Some(input)),
            cores,
            shares: Mutex::default(),
            pulse: Mutex::new((Instant::now(), Pulse::default())),
            pings: Mutex::default(),
        });
        let (ready, is_ready) = std::sync::mpsc::channel();
        let reader = Arc::clone(&process);
        let listen = move || {
            reader.listen(&mut BufReader::new(output), &ready, &lost);
            reader.reap();
            drop(ready);
            gone();
        };
        let spawned = std::thread::Builder::new().name(format!("link-{name}")).spawn(listen);
        if let Err(error) = spawned {
            process.kill();
            return Err(fail(error));
        }
        started.map_err(fail)?;
        match is_ready.recv_timeout(PATIENCE) {
            Ok(Ok(ready)) => Ok((process, ready)),
            Ok(Err(error)) => Err(error),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                Err(Error::lost(format!("the process of block {name} ended while it was starting")))
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                process.kill();
                Err(Error::timed_out(format!("block {name} did not load within {PATIENCE:?}")))
            }
        }
    }

    fn listen(
        self: &Arc<Self>,
        output: &mut BufReader<std::process::ChildStdout>,
        ready: &std::sync::mpsc::Sender<Result<Ready>>,
        lost: &dyn Fn(Loss),
    ) {
        while let Ok(Some(line)) = read_line::<FromBlock>(output) {
            match line {
                FromBlock::Ready { address, weight_bytes, is_fused, findings, takes_turns } => {
                    lock(&self.pulse).0 = Instant::now();
                    let is_ready = Ready { address, weight_bytes, is_fused, findings, takes_turns };
                    ready.send(Ok(is_ready)).ok();
                }
                FromBlock::Failed { kind, message } => {
                    ready.send(Err(Error::new(kind, message))).ok();
                }
                FromBlock::Ask { ticket, since } => self.ask(ticket, since),
                FromBlock::Finished(ticket) => {
                    let mut shares = lock(&self.shares);
                    if let Some(running) = shares.tickets.get_mut(&ticket)
                        && let Ticket::Running(cores) = *running
                    {
                        *running = Ticket::Finished(cores);
                        drop(shares);
                        self.cores.finish();
                    }
                }
                FromBlock::GiveBack(ticket) => {
                    let ticket = lock(&self.shares).tickets.remove(&ticket);
                    self.take_back(ticket);
                }
                FromBlock::Lost(number, loss) => {
                    lost(loss);
                    // One that can't be told is at its end.
                    self.tell(&ToBlock::Known(number)).ok();
                }
                FromBlock::Pong(number, pulse) => {
                    *lock(&self.pulse) = (Instant::now(), pulse);
                    // Dropping it wakes whoever waits.
                    lock(&self.pings).remove(&number);
                }
            }
        }
    }

    fn ask(self: &Arc<Self>, ticket: u64, since: u64) {
        lock(&self.shares).tickets.insert(ticket, Ticket::Asked);
        let process = Arc::clone(self);
        let place = self.cores.ask(
            since,
            Box::new(move |cores| {
                let mut shares = lock(&process.shares);
                if shares.is_gone {
                    drop(shares);
                    process.take_back(Some(Ticket::Running(cores)));
                    return;
                }
                shares.tickets.insert(ticket, Ticket::Running(cores));
                drop(shares);
                // Where it can't be told the process is at its end, and its shares come back then.
                process.tell(&ToBlock::Grant { ticket, cores }).ok();
            }),
        );
        let mut shares = lock(&self.shares);
        if let Some(asked @ Ticket::Asked) = shares.tickets.get_mut(&ticket) {
            *asked = Ticket::Waiting(place);
        }
    }

    fn take_back(&self, ticket: Option<Ticket>) {
        match ticket {
            Some(Ticket::Running(cores)) => {
                self.cores.finish();
                self.cores.give_back(cores);
            }
            Some(Ticket::Finished(cores)) => self.cores.give_back(cores),
            // One that is granted at this moment is taken back then.
            Some(Ticket::Waiting(place)) => drop(self.cores.withdraw(place)),
            Some(Ticket::Asked) | None => {}
        }
    }

    /// Takes back the cores of a process that is gone, and lets the system forget it.
    fn reap(&self) {
        let tickets = {
            let mut shares = lock(&self.shares);
            shares.is_gone = true;
            std::mem::take(&mut shares.tickets)
        };
        for ticket in tickets.into_values() {
            self.take_back(Some(ticket));
        }
        lock(&self.pings).clear();
        self.kill();
        drop(lock(&self.child).wait());
    }

    /// Tells it something.
    pub(crate) fn tell(&self, line: &ToBlock) -> Result<()> {
        let mut input = lock(&self.input);
        let told = match input.as_mut() {
            Some(input) => write_line(input, line),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        told.map_err(|error| Error::io(format!("the process {} of a block", self.id), &error))
    }

    /// Sends a ping and waits for its answer.
    pub(crate) fn ping(&self, number: u64, patience: Duration) -> Result<Pulse> {
        let (sender, answered) = std::sync::mpsc::channel();
        lock(&self.pings).insert(number, sender);
        self.tell(&ToBlock::Ping(number))?;
        match answered.recv_timeout(patience) {
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                lock(&self.pings).remove(&number);
                Err(Error::timed_out(format!("no answer to a ping within {patience:?}")))
            }
            _ if self.is_gone() => Err(Error::lost("the process of the block is gone")),
            _ => Ok(lock(&self.pulse).1),
        }
    }

    /// Whether it has ended.
    pub(crate) fn is_gone(&self) -> bool {
        lock(&self.shares).is_gone
    }

    /// When it was last heard of, and what it was doing.
    pub(crate) fn pulse(&self) -> (Instant, Pulse) {
        *lock(&self.pulse)
    }

    /// Asks it to go, and ends it where it does not within `patience`.
    pub(crate) fn stop(&self, patience: Duration) {
        if self.tell(&ToBlock::Stop).is_ok() {
            drop(lock(&self.input).take());
            let until = Instant::now() + patience;
            while Instant::now() < until {
                if !matches!(lock(&self.child).try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.kill();
    }

    /// Ends it at once.
    pub(crate) fn kill(&self) {
        // One that has ended already needs no killing.
        lock(&self.child).kill().ok();
    }
}
