//! A site put together: its node, its dispatcher and who manages them, without the front ends.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use tessera_control::{Defaults, Manager, Store};
use tessera_core::{Error, Result};
use tessera_engine::{CudaOptions, EngineName};
use tessera_gateway::{Dispatcher, DispatcherOptions, Monitor, Observer};
use tessera_node::{Node, NodeOptions};
use tessera_tensormq::{Courier, CourierOptions, Peers, Transport};

use super::catalogue::RepositoryCatalogue;
use super::input_memory::InputMemory;
use super::site::{self, ServeSite};

/// Bytes of inputs that may wait.
const MOST_WAITING: usize = 512 << 20;

/// What a site is made of.
pub(crate) struct AssemblyOptions {
    /// Where blocks are; made where it is not there.
    pub(crate) repository: PathBuf,
    /// Where intent is kept.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) engine: EngineName,
    pub(crate) cuda: CudaOptions,
    pub(crate) cores: NonZeroUsize,
    /// The way between processes, where it is not to be the fastest.
    pub(crate) transport: Option<Transport>,
    pub(crate) monitor: Arc<Monitor>,
    /// Who is told how requests ended.
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) defaults: Defaults,
}

/// A site that serves nothing yet.
pub(crate) struct Assembly {
    pub(crate) site: Arc<ServeSite>,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) manager: Manager,
}

impl Assembly {
    /// Puts a site together, on the runtime that this is called on.
    pub(crate) fn start(options: AssemblyOptions) -> Result<Self> {
        let AssemblyOptions {
            repository,
            store,
            engine,
            cuda,
            cores,
            transport,
            monitor,
            observer,
            defaults,
        } = options;
        let courier = Courier::start(CourierOptions::default())?;
        let peers = Arc::new(Peers::over(courier.clone(), transport));
        let memory = Arc::new(InputMemory::new(courier.clone()));
        let (make, share) = (Arc::clone(&memory), Arc::clone(&memory));
        let dispatcher = Dispatcher::start(DispatcherOptions {
            courier: courier.clone(),
            peers: Arc::clone(&peers),
            cores: cores.get(),
            memory: Arc::new(move |dtype, shape| make.tensor(dtype, shape)),
            share: Arc::new(move |tensor, device| share.share(tensor, device)),
            most_waiting: MOST_WAITING,
            observer,
        })?;
        let node = Node::new(
            NodeOptions {
                engine,
                cuda,
                cores,
                program: program()?,
                cache: Some(repository.join("serve").join("prepared")),
                repository: repository.clone(),
            },
            peers,
            site::pass_on(dispatcher.clone(), Arc::clone(&monitor)),
        )?;
        let blocks = node.clone();
        dispatcher.when_given_up(move |request| blocks.give_up(request));
        let site = Arc::new(ServeSite::new(
            node,
            dispatcher.clone(),
            monitor,
            courier,
            cores.get(),
            Arc::clone(&memory),
        ));
        let catalogue = Arc::new(RepositoryCatalogue { repository });
        let manager = Manager::new(store, catalogue, Arc::clone(&site) as _, defaults);
        Ok(Self { site, dispatcher, manager })
    }
}

/// This program, for blocks in processes of their own.
fn program() -> Result<PathBuf> {
    // The file itself, even where it is replaced by another while we run.
    let own = PathBuf::from("/proc/self/exe");
    match own.exists() {
        true => Ok(own),
        false => {
            std::env::current_exe().map_err(|error| Error::io("where this program is", &error))
        }
    }
}
