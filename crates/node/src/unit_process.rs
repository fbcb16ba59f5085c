//! The process of an instance: it does what its node tells it, and goes when the node is gone.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tessera_core::{Device, Error, Result};
use tessera_engine::{LoadOptions, is_device_shared};
use tessera_repository::Repository;
use tessera_tensormq::{Endpoint, EndpointOptions, Peers, RequestId, TlsIdentity};

use crate::calibration::{calibrate_unit, warm_up_known_unit};
use crate::cancelled::CancelledRequests;
use crate::executor::{UnitMemory, UnitResources};
use crate::process_limits::{join_group, limit_process_memory, volunteer_for_oom};
use crate::process_network::ProcessNetwork;
use crate::process_protocol::{
    Loss, NodeCorePermits, StartUnit, UnitProcessCommand, UnitProcessReport, read_line, write_line,
};
use crate::residency::{ProcessWeightRooms, ProcessWeights};
use crate::run_memory::RunMemory;
use crate::run_watch::RunWatch;
use crate::supervisor::{RELEASE_INTERVAL, WATCH_INTERVAL};
use crate::unit::LoadedUnit;
use crate::worker::{LossReporter, Worker, WorkerParts};
use tessera_core::lock;

/// Runs the unit that the first line of `input` names until the node says stop or is gone.
///
/// Where the node is gone before the unit runs, `end_process` is called: what is being loaded or
/// tried out then may never come to an end.
pub fn run_unit_process(
    mut input: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
    end_process: impl FnOnce() + Send + 'static,
) -> Result<()> {
    let output: Arc<Mutex<dyn Write + Send>> = Arc::new(Mutex::new(output));
    let Some(UnitProcessCommand::Start(start)) = read_line(&mut input)? else {
        return Ok(());
    };
    let is_starting = Arc::new(AtomicBool::new(true));
    let commands = read_commands(input, Arc::clone(&is_starting), end_process)?;
    let cores = Arc::new(NodeCorePermits::new(start.cores, Arc::clone(&output)));
    let send_report = |line: &UnitProcessReport| {
        // Where nobody listens the next line that is read is the end.
        write_line(&mut *lock(&output), line).ok();
    };
    let weights = ProcessWeights::new(Arc::clone(&output));
    let cancelled = Arc::new(CancelledRequests::default());
    let losses = Arc::new(NodeLossReporter {
        output: Arc::clone(&output),
        next_number: AtomicU64::new(1),
        pending: Mutex::default(),
    });
    volunteer_for_oom();
    if let Some(group) = &start.instance_group {
        join_group(group);
    }
    if let Some(bytes) = start.run_limits.memory {
        tessera_engine::limit_run_memory(usize::try_from(bytes).unwrap_or(0));
    }
    let run_watch = watch_runs(start.run_limits.time)?;
    let shared = ProcessParts { cores, weights, cancelled, losses, run_watch };
    let (worker, peers) = match start_worker(&start, &shared) {
        Ok((worker, peers, ready)) => {
            send_report(&ready);
            (worker, peers)
        }
        Err(error) => {
            send_report(&UnitProcessReport::Failed {
                kind: error.kind(),
                message: error.to_string(),
            });
            return Ok(());
        }
    };
    is_starting.store(false, Ordering::Release);
    let ProcessParts { cores, weights, cancelled, losses, .. } = shared;
    let mut released = Instant::now();
    for line in commands {
        match line {
            UnitProcessCommand::Start(_) => {}
            UnitProcessCommand::Peers(found) => {
                for (name, address) in found {
                    peers.add_peer(&name, address);
                }
            }
            UnitProcessCommand::Forget(name) => peers.forget_peer(&name),
            UnitProcessCommand::Credentials(credentials) => {
                if let Some(identity) = peers.endpoint().tls_identity()
                    && let Err(error) = credentials.apply_to(identity)
                {
                    tracing::error!(%error, "the certificate is not renewed");
                }
            }
            UnitProcessCommand::Grant { ticket, cores: granted } => {
                cores.deliver_permit(ticket, granted);
            }
            UnitProcessCommand::RoomForWeights(ticket) => weights.deliver_room(ticket),
            UnitProcessCommand::LeaveWeights => weights.leave_memory(),
            UnitProcessCommand::Cancel(request) => {
                if let Ok(number) = u128::from_str_radix(&request, 16) {
                    cancelled.mark_cancelled(RequestId(number));
                }
            }
            UnitProcessCommand::Known(number) => losses.acknowledge_loss(number),
            UnitProcessCommand::Ping(number) => {
                if released.elapsed() >= RELEASE_INTERVAL {
                    released = Instant::now();
                    worker.release_idle_memory();
                }
                if !worker.is_alive() {
                    break;
                }
                let identity = peers.endpoint().tls_identity();
                let traffic = identity.map(TlsIdentity::connection_traffic).unwrap_or_default();
                let heartbeat = Box::new(worker.current_heartbeat());
                send_report(&UnitProcessReport::Pong(number, heartbeat, traffic));
            }
            UnitProcessCommand::Stop => break,
        }
    }
    // What has begun may still want cores, which nobody gives out any more: it ends with the
    // process.
    worker.stop_without_waiting();
    Ok(())
}

/// What the node says, until it is gone.
fn read_commands(
    mut input: impl BufRead + Send + 'static,
    is_starting: Arc<AtomicBool>,
    end_process: impl FnOnce() + Send + 'static,
) -> Result<Receiver<UnitProcessCommand>> {
    let (sender, commands) = std::sync::mpsc::channel();
    let read = move || {
        while let Ok(Some(line)) = read_line(&mut input) {
            let is_stop = matches!(line, UnitProcessCommand::Stop);
            if sender.send(line).is_err() || is_stop {
                break;
            }
        }
        if is_starting.load(Ordering::Acquire) {
            end_process();
        }
    };
    let spawned = std::thread::Builder::new().name("commands".to_owned()).spawn(read);
    spawned.map_err(|error| Error::from_io("a thread that listens to the node", &error))?;
    Ok(commands)
}

/// Ends the runs of this process whose time has passed, from now on.
fn watch_runs(limit: Option<Duration>) -> Result<Arc<RunWatch>> {
    let watch = Arc::new(RunWatch::new(limit));
    let watched = Arc::downgrade(&watch);
    let look = move || {
        while let Some(watch) = watched.upgrade() {
            watch.end_overdue_runs();
            drop(watch);
            std::thread::sleep(WATCH_INTERVAL);
        }
    };
    let spawned = std::thread::Builder::new().name("watch-runs".to_owned()).spawn(look);
    spawned.map_err(|error| Error::from_io("a thread that watches over runs", &error))?;
    Ok(watch)
}

/// What the node is told that others may wait for in vain.
///
/// A GPU that waits for what a process was to write waits for good where that process is gone. It
/// may go on, on what is there instead, once the node knows that whatever comes of it is no answer.
struct NodeLossReporter {
    output: Arc<Mutex<dyn Write + Send>>,
    next_number: AtomicU64,
    /// What is to be done when the node knows.
    pending: Mutex<HashMap<u64, Box<dyn FnOnce() + Send>>>,
}

impl NodeLossReporter {
    fn report_loss(&self, loss: Loss, then: Box<dyn FnOnce() + Send>) {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        lock(&self.pending).insert(number, then);
        // Where nobody listens this process is at its end.
        write_line(&mut *lock(&self.output), &UnitProcessReport::Lost(number, loss)).ok();
    }

    fn acknowledge_loss(&self, number: u64) {
        let then = lock(&self.pending).remove(&number);
        if let Some(then) = then {
            then();
        }
    }
}

impl LossReporter for NodeLossReporter {
    fn report_lost(&self, requests: Vec<(RequestId, u32)>, then: Box<dyn FnOnce() + Send>) {
        let requests = requests.into_iter().map(|(request, part)| (request.to_string(), part));
        self.report_loss(Loss::Requests(requests.collect()), then);
    }
}

/// What the unit of a process shares with whoever listens to its node.
struct ProcessParts {
    cores: Arc<NodeCorePermits>,
    weights: Arc<ProcessWeights>,
    cancelled: Arc<CancelledRequests>,
    losses: Arc<NodeLossReporter>,
    run_watch: Arc<RunWatch>,
}

fn start_worker(
    start: &StartUnit,
    shared: &ProcessParts,
) -> Result<(Worker, Arc<Peers>, UnitProcessReport)> {
    let ProcessParts { cores, weights, cancelled, losses, run_watch } = shared;
    let gpu = match start.unit.settings.device {
        Device::Cpu => None,
        Device::Cuda(number) => Some(number),
    };
    let tls = start.network.as_ref().map(ProcessNetwork::tls_identity).transpose()?;
    let endpoint = Endpoint::start(EndpointOptions { gpu, tls, ..EndpointOptions::default() })?;
    let reporter = Arc::clone(losses);
    endpoint.on_pool_owner_lost(move |process, free| {
        reporter.report_loss(Loss::Process(process), free);
    });
    let (engine, _) = tessera_engine::choose_engine(start.engine_name()?)?;
    let repository = Repository::open(&start.repository)?;
    let options =
        LoadOptions { cache: start.cache.clone(), cuda: start.cuda, ..LoadOptions::default() };
    let resources = UnitResources {
        permits: Arc::new(Arc::clone(cores)),
        memory: UnitMemory::Shared(endpoint.clone()),
        run_memory: Arc::new(
            start.run_limits.memory.map_or_else(RunMemory::default, RunMemory::new),
        ),
        run_watch: Arc::clone(run_watch),
        weight_rooms: start
            .asks_for_room
            .then(|| Arc::new(ProcessWeightRooms(Arc::clone(weights))) as _),
    };
    let unit = LoadedUnit::load_blocks(engine, &repository, &start.unit, resources, options)?;
    let (weight_bytes, is_fused) = (unit.weight_bytes(), unit.is_fused());
    let calibration = match start.calibration {
        Some(known) => {
            warm_up_known_unit(&start.unit, &unit);
            known
        }
        None => calibrate_unit(&start.unit, &unit),
    };
    let mut peers = Peers::with_transport(endpoint, start.transport);
    if let Some(network) = &start.network {
        peers = network.extend_peers(peers, &start.name);
    }
    let peers = Arc::new(peers);
    for (name, address) in &start.peers {
        peers.add_peer(name, address.clone());
    }
    let most_concurrent_runs = unit.concurrent_runs(start.cores);
    let worker = Worker::spawn_threads(WorkerParts {
        name: start.name.clone(),
        unit,
        batching: calibration.batching,
        peers: Arc::clone(&peers),
        most_concurrent_runs,
        cancelled: Arc::clone(cancelled),
        local_workers: Arc::default(),
        loss_reporter: Arc::clone(losses) as _,
    })?;
    let address = worker.address().clone();
    tessera_engine::release_freed_memory();
    // On a GPU much is reserved that is never used.
    if let (Some(bytes), Device::Cpu) = (start.run_limits.memory, start.unit.settings.device) {
        limit_process_memory(bytes);
    }
    let takes_turns = !is_device_shared(start.unit.settings.device);
    let ready =
        UnitProcessReport::Ready { address, weight_bytes, is_fused, calibration, takes_turns };
    Ok((worker, peers, ready))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_gone_before_the_unit_runs_ends_the_process() {
        for is_starting in [true, false] {
            let mut input = Vec::new();
            write_line(&mut input, &UnitProcessCommand::Ping(7)).unwrap();
            let (sender, ended) = std::sync::mpsc::channel();
            let end_process = move || sender.send(()).unwrap();
            let is_starting_flag = Arc::new(AtomicBool::new(is_starting));
            let input = std::io::Cursor::new(input);
            let commands = read_commands(input, is_starting_flag, end_process).unwrap();
            // Once what was said is heard, whoever listens hears that nothing more comes.
            assert!(matches!(commands.recv(), Ok(UnitProcessCommand::Ping(7))));
            assert!(commands.recv().is_err());
            assert_eq!(ended.recv().is_ok(), is_starting);
        }
    }
}
