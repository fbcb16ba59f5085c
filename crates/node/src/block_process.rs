//! The process of a block: it does what its node tells it, and goes when the node is gone.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tessera_core::{Device, Result};
use tessera_engine::{LoadOptions, is_shared};
use tessera_repository::Repository;
use tessera_tensormq::{Courier, CourierOptions, Peers, RequestId};

use crate::cores::{Cores, at_once};
use crate::given_up::GivenUp;
use crate::link::{CoresOfNode, FromBlock, Loss, StartBlock, ToBlock, read_line, write_line};
use crate::lock;
use crate::memory::{DeviceMemory, SharedMemory};
use crate::probe::{run_once, try_out};
use crate::unit::LoadedUnit;
use crate::worker::{Overseer, Worker, WorkerParts};

/// Runs the block that the first line of `input` names until the node says stop or is gone.
pub fn run_block(input: &mut dyn BufRead, output: impl Write + Send + 'static) -> Result<()> {
    let output: Arc<Mutex<dyn Write + Send>> = Arc::new(Mutex::new(output));
    let Some(ToBlock::Start(start)) = read_line(input)? else {
        return Ok(());
    };
    let cores = Arc::new(CoresOfNode::new(start.cores, Arc::clone(&output)));
    let tell = |line: &FromBlock| {
        // Where nobody listens the next line that is read is the end.
        write_line(&mut *lock(&output), line).ok();
    };
    let given_up = Arc::new(GivenUp::default());
    let losses = Arc::new(Losses {
        output: Arc::clone(&output),
        next: AtomicU64::new(1),
        told: Mutex::default(),
    });
    let (worker, peers) = match start_worker(&start, &cores, &given_up, &losses) {
        Ok((worker, peers, ready)) => {
            tell(&ready);
            (worker, peers)
        }
        Err(error) => {
            tell(&FromBlock::Failed { kind: error.kind(), message: error.to_string() });
            return Ok(());
        }
    };
    while let Ok(Some(line)) = read_line(input) {
        match line {
            ToBlock::Start(_) => {}
            ToBlock::Peers(found) => {
                for (name, address) in found {
                    peers.add(&name, address);
                }
            }
            ToBlock::Forget(name) => peers.forget(&name),
            ToBlock::Grant { ticket, cores: granted } => cores.granted(ticket, granted),
            ToBlock::GiveUp(request) => {
                if let Ok(number) = u128::from_str_radix(&request, 16) {
                    given_up.add(RequestId(number));
                }
            }
            ToBlock::Known(number) => losses.known(number),
            ToBlock::Ping(number) => tell(&FromBlock::Pong(number, worker.pulse())),
            ToBlock::Stop => break,
        }
    }
    // What has begun may still want cores, which nobody gives out any more: it ends with the process.
    worker.abandon();
    Ok(())
}

/// What the node is told that others may wait for in vain.
///
/// A GPU that waits for what a process was to write waits for good where that process is gone. It may go on, on what
/// is there instead, once the node knows that whatever comes of it is no answer.
struct Losses {
    output: Arc<Mutex<dyn Write + Send>>,
    next: AtomicU64,
    /// What is to be done when the node knows.
    told: Mutex<HashMap<u64, Box<dyn FnOnce() + Send>>>,
}

impl Losses {
    fn tell(&self, loss: Loss, then: Box<dyn FnOnce() + Send>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.told).insert(number, then);
        // Where nobody listens this process is at its end.
        write_line(&mut *lock(&self.output), &FromBlock::Lost(number, loss)).ok();
    }

    fn known(&self, number: u64) {
        let then = lock(&self.told).remove(&number);
        if let Some(then) = then {
            then();
        }
    }
}

impl Overseer for Losses {
    fn lost(&self, requests: Vec<(RequestId, u32)>, then: Box<dyn FnOnce() + Send>) {
        let requests = requests.into_iter().map(|(request, part)| (request.to_string(), part));
        self.tell(Loss::Requests(requests.collect()), then);
    }
}

fn start_worker(
    start: &StartBlock,
    cores: &Arc<CoresOfNode>,
    given_up: &Arc<GivenUp>,
    losses: &Arc<Losses>,
) -> Result<(Worker, Arc<Peers>, FromBlock)> {
    let gpu = match start.unit.settings.device {
        Device::Cpu => None,
        Device::Cuda(number) => Some(number),
    };
    let courier = Courier::start(CourierOptions { gpu, ..CourierOptions::default() })?;
    let gone = Arc::clone(losses);
    courier.when_gone(move |process, free| gone.tell(Loss::Process(process), free));
    let (engine, _) = tessera_engine::choose(start.engine()?)?;
    let repository = Repository::open(&start.repository)?;
    let options =
        LoadOptions { cache: start.cache.clone(), cuda: start.cuda, ..LoadOptions::default() };
    let unit = LoadedUnit::load(engine, &repository, &start.unit, &cores.sizes(), options)?;
    let (weight_bytes, is_fused) = (unit.weight_bytes(), unit.is_fused());
    let findings = match start.findings {
        Some(known) => {
            run_once(&start.unit, &unit);
            known
        }
        None => try_out(&start.unit, &unit),
    };
    let peers = Arc::new(Peers::over(courier.clone(), start.transport));
    for (name, address) in &start.peers {
        peers.add(name, address.clone());
    }
    let worker = Worker::start(WorkerParts {
        name: start.name.clone(),
        unit,
        batching: findings.batching,
        cores: Arc::new(Arc::clone(cores)),
        memory: match start.unit.settings.device {
            Device::Cpu => Arc::new(SharedMemory::new(courier)),
            Device::Cuda(number) => Arc::new(DeviceMemory::new(courier, number)),
        },
        peers: Arc::clone(&peers),
        at_once: at_once(start.cores, start.unit.settings.device),
        given_up: Arc::clone(given_up),
        local: Arc::default(),
        overseer: Arc::clone(losses) as _,
    })?;
    let address = worker.address().clone();
    tessera_engine::release_freed_memory();
    let takes_turns = !is_shared(start.unit.settings.device);
    let ready = FromBlock::Ready { address, weight_bytes, is_fused, findings, takes_turns };
    Ok((worker, peers, ready))
}
