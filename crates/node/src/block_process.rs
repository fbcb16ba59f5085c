//! The process of a block: it does what its node tells it, and goes when the node is gone.

use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex};

use tessera_core::{Device, Result};
use tessera_repository::Repository;
use tessera_tensormq::{Courier, CourierOptions, Peers, RequestId};

use crate::cores::{Cores, at_once};
use crate::given_up::GivenUp;
use crate::link::{CoresOfNode, FromBlock, StartBlock, ToBlock, read_line, write_line};
use crate::lock;
use crate::memory::{DeviceMemory, SharedMemory};
use crate::probe::try_out;
use crate::unit::LoadedUnit;
use crate::worker::{Worker, WorkerParts};

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
    let (worker, peers) = match start_worker(&start, &cores, &given_up) {
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
            ToBlock::Ping(number) => tell(&FromBlock::Pong(number, worker.pulse())),
            ToBlock::Stop => break,
        }
    }
    // What has begun may still want cores, which nobody gives out any more: it ends with the process.
    worker.abandon();
    Ok(())
}

fn start_worker(
    start: &StartBlock,
    cores: &Arc<CoresOfNode>,
    given_up: &Arc<GivenUp>,
) -> Result<(Worker, Arc<Peers>, FromBlock)> {
    let courier = Courier::start(CourierOptions::default())?;
    let (engine, _) = tessera_engine::choose(start.engine()?)?;
    let repository = Repository::open(&start.repository)?;
    let unit =
        LoadedUnit::load(engine, &repository, &start.unit, &cores.sizes(), start.cache.clone())?;
    let (weight_bytes, is_fused) = (unit.weight_bytes(), unit.is_fused());
    let findings = start.findings.unwrap_or_else(|| try_out(&start.unit, &unit));
    let peers = Arc::new(Peers::new(courier.clone()));
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
    })?;
    let address = worker.address().clone();
    tessera_engine::release_freed_memory();
    let ready = FromBlock::Ready { address, weight_bytes, is_fused, findings };
    Ok((worker, peers, ready))
}
