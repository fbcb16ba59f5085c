//! An instance of a unit that runs: on threads of this process, or as a process of its own.

use std::collections::HashMap;
use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use tessera_core::{ContentHash, Error, Result};
use tessera_deploy::Unit;
use tessera_tensormq::Address;

use crate::calibration::Calibration;
use crate::permits::MachineCorePermits;
use crate::process_network::PeerTraffic;
use crate::process_permits::ProcessPermits;
use crate::process_protocol::{
    Loss, StartUnit, UnitProcessCommand, UnitProcessReport, read_line, write_line,
};
use crate::residency::{ManagedRoom, WeightManager, WeightPart, WeightRoom as _};
use crate::start_progress::StartProgress;
use crate::worker::{Heartbeat, Worker};
use tessera_core::lock;

/// How often a process that starts is looked at.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// An instance that runs.
pub(crate) enum RunningInstance {
    Threads(Worker),
    Process(Arc<UnitProcess>),
}

/// What is known of an instance when it is ready.
pub(crate) struct ReadyInstance {
    pub(crate) address: Address,
    pub(crate) weight_bytes: usize,
    pub(crate) is_fused: bool,
    pub(crate) calibration: Calibration,
    pub(crate) takes_turns: bool,
}

/// The process of an instance, seen from its node.
pub(crate) struct UnitProcess {
    child: Mutex<Child>,
    pub(crate) id: u32,
    input: Mutex<Option<ChildStdin>>,
    permits: Arc<ProcessPermits>,
    /// Room for its weights, where that is bounded; `None` once it has ended.
    room: Mutex<Option<Arc<ManagedRoom>>>,
    heartbeat: Mutex<(Instant, Heartbeat)>,
    traffic: Mutex<Vec<PeerTraffic>>,
    pings: Mutex<HashMap<u64, std::sync::mpsc::Sender<()>>>,
}

/// Room that a process has before it is started.
pub(crate) struct PendingRoom {
    room: ManagedRoom,
    /// Whose weights leave it.
    process: Arc<OnceLock<Weak<UnitProcess>>>,
}

impl PendingRoom {
    /// Waits until there is room for the weights of a process that is to be started.
    pub(crate) fn wait_for_room(
        manager: &Arc<WeightManager>,
        instance: &str,
        unit: &Unit,
        bytes: u64,
    ) -> Result<Self> {
        let process: Arc<OnceLock<Weak<UnitProcess>>> = Arc::default();
        let whose = Arc::clone(&process);
        let leave = move || {
            if let Some(process) = whose.get().and_then(Weak::upgrade) {
                // One that can't be told is at its end.
                process.send_command(&UnitProcessCommand::LeaveWeights).ok();
            }
        };
        // No other process shares what it has.
        let part = WeightPart { hash: ContentHash::of_content(instance.as_bytes()), bytes };
        let choice = unit.settings.residency;
        let room = ManagedRoom::open(manager, instance, choice, vec![part], Arc::new(leave));
        room.wait_for_room(None)?;
        Ok(Self { room, process })
    }
}

impl UnitProcess {
    /// Starts a process and waits until it is ready. `on_loss` is called when it reports a loss,
    /// and everyone knows when it returns; `on_end` when it has ended, however it did, with its
    /// number.
    pub(crate) fn spawn_and_wait(
        program: &Path,
        start: StartUnit,
        weight_bytes: u64,
        cores: MachineCorePermits,
        room: Option<PendingRoom>,
        on_loss: impl Fn(Loss) + Send + 'static,
        on_end: impl FnOnce(u32) + Send + 'static,
    ) -> Result<(Arc<Self>, ReadyInstance)> {
        let name = start.name.clone();
        let fail = |error: std::io::Error| {
            Error::from_io(format!("the process of instance {name}"), &error)
        };
        let mut child = Command::new(program)
            .arg("instance")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // An interrupt from the terminal is for the server, which lets instances end what they
            // do.
            .process_group(0)
            .spawn()
            .map_err(fail)?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::lost(format!("the process of instance {name} has no pipes")));
        };
        let started = write_line(&mut input, &UnitProcessCommand::Start(Box::new(start)));
        let process = Arc::new(Self {
            id: child.id(),
            child: Mutex::new(child),
            input: Mutex::new(Some(input)),
            permits: Arc::new(ProcessPermits::new(cores)),
            room: Mutex::default(),
            heartbeat: Mutex::new((Instant::now(), Heartbeat::default())),
            traffic: Mutex::default(),
            pings: Mutex::default(),
        });
        if let Some(PendingRoom { room, process: whose }) = room {
            *lock(&process.room) = Some(Arc::new(room));
            whose.set(Arc::downgrade(&process)).ok();
        }
        let (ready, is_ready) = std::sync::mpsc::channel();
        let reader = Arc::clone(&process);
        let listen = move || {
            reader.read_reports(&mut BufReader::new(output), &ready, &on_loss);
            reader.reap_process();
            drop(ready);
            on_end(reader.id);
        };
        let spawned = std::thread::Builder::new().name(format!("process-{name}")).spawn(listen);
        if let Err(error) = spawned {
            process.kill_process();
            return Err(fail(error));
        }
        started.map_err(fail)?;
        let progress = StartProgress::new(process.id, weight_bytes);
        let ready = process.wait_until_ready(&name, progress, &is_ready)?;
        Ok((process, ready))
    }

    /// Waits for a process that starts, for as long as it does something.
    fn wait_until_ready(
        &self,
        name: &str,
        mut progress: StartProgress,
        is_ready: &std::sync::mpsc::Receiver<Result<ReadyInstance>>,
    ) -> Result<ReadyInstance> {
        loop {
            match is_ready.recv_timeout(PROGRESS_INTERVAL) {
                Ok(result) => return result,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Error::lost(format!(
                        "the process of instance {name} ended while it was starting"
                    )));
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    if let Err(reason) = progress.check_process(self.permits.waits_for_cores()) {
                        self.kill_process();
                        return Err(Error::timed_out(format!("instance {name} {reason}")));
                    }
                }
            }
        }
    }

    fn read_reports(
        self: &Arc<Self>,
        output: &mut BufReader<std::process::ChildStdout>,
        ready: &std::sync::mpsc::Sender<Result<ReadyInstance>>,
        on_loss: &dyn Fn(Loss),
    ) {
        while let Ok(Some(line)) = read_line::<UnitProcessReport>(output) {
            match line {
                UnitProcessReport::Ready {
                    address,
                    weight_bytes,
                    is_fused,
                    calibration,
                    takes_turns,
                } => {
                    lock(&self.heartbeat).0 = Instant::now();
                    let is_ready =
                        ReadyInstance { address, weight_bytes, is_fused, calibration, takes_turns };
                    ready.send(Ok(is_ready)).ok();
                }
                UnitProcessReport::Failed { kind, message } => {
                    ready.send(Err(Error::new(kind, message))).ok();
                }
                UnitProcessReport::Ask { ticket, since } => {
                    self.with_room(|room| room.note_use());
                    self.request_permit(ticket, since);
                }
                UnitProcessReport::WantsRoom { ticket, order } => {
                    let process = Arc::clone(self);
                    let give = move || {
                        let line = UnitProcessCommand::RoomForWeights(ticket);
                        // One that can't be told is at its end, and its room comes back then.
                        process.send_command(&line).ok();
                    };
                    self.with_room(|room| room.wish_room(order, Box::new(give)));
                }
                UnitProcessReport::WeightsLoaded(microseconds) => {
                    let took = Duration::from_micros(microseconds);
                    self.with_room(|room| room.note_loaded(took, None));
                }
                UnitProcessReport::WeightsLeft => self.with_room(ManagedRoom::cancel_wish),
                UnitProcessReport::Finished(ticket) => self.permits.finish_run(ticket),
                UnitProcessReport::GiveBack(ticket) => self.permits.give_back(ticket),
                UnitProcessReport::Lost(number, loss) => {
                    on_loss(loss);
                    // One that can't be told is at its end.
                    self.send_command(&UnitProcessCommand::Known(number)).ok();
                }
                UnitProcessReport::Pong(number, heartbeat, traffic) => {
                    *lock(&self.traffic) = traffic;
                    *lock(&self.heartbeat) = (Instant::now(), *heartbeat);
                    // Dropping it wakes whoever waits.
                    lock(&self.pings).remove(&number);
                }
            }
        }
    }

    fn request_permit(self: &Arc<Self>, ticket: u64, since: u64) {
        let process = Arc::clone(self);
        self.permits.request_permit(ticket, since, move |cores| {
            // Where it can't be told the process is at its end, and its permits come back then.
            process.send_command(&UnitProcessCommand::Grant { ticket, cores }).ok();
        });
    }

    fn with_room(&self, call: impl FnOnce(&ManagedRoom)) {
        let room = lock(&self.room).clone();
        if let Some(room) = room {
            call(&room);
        }
    }

    /// Takes cores back that it does nothing with: it was stopped, or hangs.
    pub(crate) fn reclaim_unused_cores(&self) {
        let silence = lock(&self.heartbeat).0.elapsed();
        let cores = self.permits.reclaim_unused(silence, Instant::now());
        if cores > 0 {
            tracing::warn!(process = self.id, cores, "it kept cores and did nothing");
        }
    }

    /// Takes back the cores of a process that is gone, and lets the system forget it.
    fn reap_process(&self) {
        self.permits.reclaim_all();
        let room = lock(&self.room).take();
        drop(room);
        lock(&self.pings).clear();
        self.kill_process();
        drop(lock(&self.child).wait());
    }

    /// Tells it something.
    pub(crate) fn send_command(&self, line: &UnitProcessCommand) -> Result<()> {
        let mut input = lock(&self.input);
        let sent = match input.as_mut() {
            Some(input) => write_line(input, line),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|error| {
            Error::from_io(format!("the process {} of an instance", self.id), &error)
        })
    }

    /// Sends a ping and waits for its answer.
    pub(crate) fn ping_and_wait(&self, number: u64, patience: Duration) -> Result<Heartbeat> {
        let (sender, answer) = std::sync::mpsc::channel();
        lock(&self.pings).insert(number, sender);
        self.send_command(&UnitProcessCommand::Ping(number))?;
        match answer.recv_timeout(patience) {
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                lock(&self.pings).remove(&number);
                Err(Error::timed_out(format!("no answer to a ping within {patience:?}")))
            }
            _ if self.has_ended() => Err(Error::lost("the process of the instance is gone")),
            _ => Ok(lock(&self.heartbeat).1),
        }
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.permits.has_ended()
    }

    /// When it was last heard of, and what it was doing.
    pub(crate) fn last_heartbeat(&self) -> (Instant, Heartbeat) {
        *lock(&self.heartbeat)
    }

    /// What its connections to other hosts had done when it was last heard of.
    pub(crate) fn last_traffic(&self) -> Vec<PeerTraffic> {
        lock(&self.traffic).clone()
    }

    /// Asks it to go, and ends it where it does not within `patience`.
    pub(crate) fn stop_or_kill(&self, patience: Duration) {
        if self.send_command(&UnitProcessCommand::Stop).is_ok() {
            drop(lock(&self.input).take());
            let until = Instant::now() + patience;
            while Instant::now() < until {
                if !matches!(lock(&self.child).try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.kill_process();
    }

    /// Ends it at once.
    pub(crate) fn kill_process(&self) {
        // One that has ended already needs no killing.
        lock(&self.child).kill().ok();
    }
}
