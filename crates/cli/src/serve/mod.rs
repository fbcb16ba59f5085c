//! `tessera serve`: a node, its dispatcher, the front ends of the protocol and the control plane.

mod assembly;
mod catalogue;
mod gpus;
mod input_memory;
mod listeners;
mod models;
mod service;
mod site;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use tessera_control::{Defaults, MemoryStore, RedbStore, Store};
use tessera_core::{Error, Result};
use tessera_engine::{CudaOptions, EngineName};
use tessera_gateway::{
    FrontEndOptions, Monitor, MonitorOptions, TakeSample, TraceOptions, grpc_service, http_router,
};
use tessera_plan::Isolation;
use tessera_repository::Repository;
use tessera_tensormq::Transport;
use tokio::sync::watch;

use crate::arguments::Serve;
use crate::{interrupt, output};
pub(crate) use assembly::{Assembly, AssemblyOptions};
use listeners::{Addresses, Listeners};
use service::SiteService;
use site::ServeSite;

/// What a server says of itself once it answers.
#[derive(Serialize)]
struct Started<'a> {
    #[serde(flatten)]
    addresses: &'a Addresses,
    process: u32,
    engine: String,
    cores: usize,
    tasks: Vec<tessera_control::TaskStatus>,
    blocks: Vec<tessera_control::BlockStatus>,
}

pub(crate) fn run(arguments: &Serve) -> Result<()> {
    crate::logs::start(arguments.log, arguments.log_json);
    tessera_engine::give_large_memory_back();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::io("the runtime of the server", &error))?;
    let (stop, stopped) = watch::channel(false);
    interrupt::instead(move || {
        // Whoever listens no more is at its end already.
        stop.send(true).ok();
    });
    runtime.block_on(serve(arguments, stopped))?;
    // Threads that still compute for nobody are not waited for.
    runtime.shutdown_background();
    Ok(())
}

async fn serve(arguments: &Serve, mut stopped: watch::Receiver<bool>) -> Result<()> {
    if arguments.transport == Some(Transport::Thread) {
        return Err(Error::usage(
            "--transport thread leads to no other process, expected shm, zmq-ipc or zmq-tcp",
        ));
    }
    let listeners = Listeners::bind(arguments).await?;
    let repository = arguments.repository.repo.clone();
    for model in &arguments.models {
        // Before anything is made.
        std::fs::File::open(model).map_err(|error| Error::io(model.display(), &error))?;
    }
    Repository::open_or_create(&repository)?;
    let state = repository.join("serve");
    std::fs::create_dir_all(&state).map_err(|error| Error::io(state.display(), &error))?;
    let store: Arc<dyn Store> = match arguments.no_store {
        true => Arc::new(MemoryStore::default()),
        false => Arc::new(RedbStore::open(state.join("intent.redb"))?),
    };
    let cores = cores(arguments.cores);
    let traces = arguments.traces.clone().map(|endpoint| TraceOptions {
        endpoint,
        sampled: 1.0,
        service: "tessera".to_owned(),
    });
    let monitor = Monitor::new(MonitorOptions { traces })?;
    let Assembly { site, dispatcher, manager } = Assembly::start(AssemblyOptions {
        repository: repository.clone(),
        store,
        engine: arguments.engine,
        cuda: CudaOptions { recordings: !arguments.no_recordings, ..arguments.cuda.options() },
        cores,
        transport: arguments.transport,
        monitor: Arc::clone(&monitor),
        observer: Arc::clone(&monitor) as _,
        defaults: Defaults {
            isolation: arguments.isolation,
            deadline: Duration::from_millis(arguments.deadline),
            device: arguments.device,
        },
    })?;
    let (engine, version) = site.node.engine();
    let is_up = Arc::new(AtomicBool::new(false));
    let service: Arc<dyn tessera_gateway::Service> = Arc::new(SiteService {
        site: Arc::clone(&site),
        manager: manager.clone(),
        repository,
        is_up: Arc::clone(&is_up),
    });
    let front = FrontEndOptions::default();
    let sampled = Arc::clone(&site);
    let sample: TakeSample = Arc::new(move || sampled.sample());
    let (closing, closed) = watch::channel(false);
    let addresses = listeners.addresses();
    let running = listeners.serve(
        http_router(Arc::clone(&service), front.clone()),
        tonic::service::Routes::new(grpc_service(service, front)).into_axum_router(),
        monitor.router(Arc::clone(&sample)),
        tessera_control::router(&manager),
        closed,
    );
    tokio::spawn(Arc::clone(&monitor).watch(sample));

    let starting = async {
        match arguments.models.is_empty() {
            true => manager.restore().await.map(drop),
            false => models::put(arguments, &manager).await,
        }
    };
    tokio::select! {
        started = starting => started?,
        _ = stopped.changed() => {
            tokio::task::block_in_place(|| site.node.end());
            return Ok(());
        }
    }
    tessera_engine::release_freed_memory();
    is_up.store(true, Ordering::Release);
    let engine = format!("{engine} {version}");
    announce(arguments, &addresses, engine, cores, &site)?;
    // The sender lives as long as the process.
    stopped.changed().await.ok();
    tracing::info!("stopping: {} requests are on their way", site.in_flight());
    is_up.store(false, Ordering::Release);
    dispatcher.close();
    let patience = Duration::from_millis(arguments.drain);
    if tokio::time::timeout(patience, dispatcher.idle()).await.is_err() {
        tracing::warn!("{} requests were not done in time", site.in_flight());
    }
    closing.send(true).ok();
    tokio::time::timeout(Duration::from_secs(2), running).await.ok();
    tokio::task::block_in_place(|| site.node.end());
    Ok(())
}

/// Says where the server is and what it serves.
fn announce(
    arguments: &Serve,
    addresses: &Addresses,
    engine: String,
    cores: NonZeroUsize,
    site: &ServeSite,
) -> Result<()> {
    use tessera_control::Site;
    let (tasks, blocks) = (site.tasks(), site.blocks());
    if arguments.json {
        let process = std::process::id();
        let cores = cores.get();
        return output::print_json_line(&Started {
            addresses,
            process,
            engine,
            cores,
            tasks,
            blocks,
        });
    }
    output::print(&format!("tessera {}, {engine}, {cores} cores", env!("CARGO_PKG_VERSION")))?;
    for (what, url) in addresses.shown() {
        output::print(&format!("  {what:<8} {url}"))?;
    }
    let by_name: BTreeMap<&str, &tessera_control::BlockStatus> =
        blocks.iter().map(|block| (block.name.as_str(), block)).collect();
    for task in &tasks {
        let path: Vec<String> = task
            .path
            .iter()
            .map(|name| match by_name.get(name.as_str()) {
                Some(block) if block.tasks.len() > 1 => format!("{name} (shared)"),
                Some(block) if block.blocks.len() > 1 => {
                    format!("{name} ({} blocks as one)", block.blocks.len())
                }
                _ => name.clone(),
            })
            .collect();
        output::print(&format!("  task {}: {}", task.name, path.join(" → ")))?;
    }
    if tasks.is_empty() {
        output::print("  no tasks yet: tessera serve MODEL.onnx, or PUT /v1/system")?;
    }
    output::print("ready; Ctrl-C stops")
}

fn cores(asked: Option<NonZeroUsize>) -> NonZeroUsize {
    let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    asked.unwrap_or(all)
}

/// Whether blocks are in processes of their own.
pub(crate) fn isolation(text: &str) -> Result<Isolation, String> {
    text.parse().map_err(|error: Error| error.to_string())
}

/// The engine by name.
pub(crate) fn engine(text: &str) -> Result<EngineName, String> {
    text.parse().map_err(|error: Error| error.to_string())
}
