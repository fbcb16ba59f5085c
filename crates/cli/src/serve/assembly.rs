//! A site put together: its node, its dispatcher and who manages them, without the front ends.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tessera_control::{Defaults, Manager, Store};
use tessera_core::{DType, Error, Result, TensorMut};
use tessera_engine::EngineName;
use tessera_gateway::{Dispatcher, DispatcherOptions, Monitor, Observer};
use tessera_node::{HostMemory, Memory, Node, NodeOptions, SharedMemory};
use tessera_tensormq::{Courier, CourierOptions, Peers, Transport, Wait};

use super::catalogue::RepositoryCatalogue;
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

/// Memory for inputs: such as the blocks that run can read it.
pub(super) struct InputMemory {
    host: HostMemory,
    shared: SharedMemory,
    /// Whether any block is in a process of its own.
    pub(super) is_shared: AtomicBool,
}

impl InputMemory {
    fn tensor(&self, dtype: DType, shape: &[usize]) -> Result<TensorMut> {
        if dtype == DType::String {
            return Err(Error::unsupported("strings have no memory of their own"));
        }
        match self.is_shared.load(Ordering::Relaxed) {
            true => self.shared.tensor(dtype, shape, Wait::No),
            false => self.host.tensor(dtype, shape, Wait::No),
        }
    }
}

impl Assembly {
    /// Puts a site together, on the runtime that this is called on.
    pub(crate) fn start(options: AssemblyOptions) -> Result<Self> {
        let AssemblyOptions {
            repository,
            store,
            engine,
            cores,
            transport,
            monitor,
            observer,
            defaults,
        } = options;
        let courier = Courier::start(CourierOptions::default())?;
        let peers = Arc::new(Peers::over(courier.clone(), transport));
        let memory = Arc::new(InputMemory {
            host: HostMemory::default(),
            shared: SharedMemory::new(courier.clone()),
            is_shared: AtomicBool::new(false),
        });
        let make = Arc::clone(&memory);
        let dispatcher = Dispatcher::start(DispatcherOptions {
            courier: courier.clone(),
            peers: Arc::clone(&peers),
            cores: cores.get(),
            memory: Arc::new(move |dtype, shape| make.tensor(dtype, shape)),
            most_waiting: MOST_WAITING,
            observer,
        })?;
        let node = Node::new(
            NodeOptions {
                engine,
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
