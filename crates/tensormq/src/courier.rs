//! The transport of a process: it makes inboxes, senders and pools, and keeps what they share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tessera_core::{Buffer, Error, PoolId, PoolSlot, Result, Tensor};

use crate::MOST_DEPTH;
use crate::address::{Address, Transport, host};
use crate::channel::{Outgoing, Peer};
use crate::driver::Driver;
use crate::inbox::{Inbox, InboxShared, check_name};
use crate::neighbours::{Door, Guest, Landlord, Tenant};
use crate::pool::{Buffers, OpenPool, Pool, Settle, Writer};
use crate::sender::Sender;
use crate::sync::lock;
use crate::thread::{ThreadChannel, ThreadIncoming};
use crate::wait::Wait;
use crate::zeromq::listener::ZmqListener;
use crate::zeromq::outgoing::{Route, ZmqOutgoing};
use crate::zeromq::{Keys, Listen, Network};

/// Buffers of each size for tensors that are not in a pool when they are sent.
const SPILL_BUFFERS: usize = 64;

/// How a process takes part.
#[derive(Clone, Debug)]
pub struct CourierOptions {
    /// How long to look again and again before going to sleep.
    ///
    /// See `docs/tensormq.md` for the measurement behind the default.
    pub spin: Duration,
    /// For connections between hosts that are encrypted: our key pair.
    pub keys: Option<Keys>,
    /// A GPU that tensors are copied to: memory of other processes is prepared for that when it is first seen.
    pub gpu: Option<u32>,
}

impl Default for CourierOptions {
    fn default() -> Self {
        // Looking on while the only core is needed by whoever we wait for would be waiting for
        // ourselves.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { spin: if cores > 1 { DEFAULT_SPIN } else { Duration::ZERO }, keys: None, gpu: None }
    }
}

/// About what it costs to go to sleep and be woken: looking on for longer can't win more than that.
const DEFAULT_SPIN: Duration = Duration::from_micros(10);

/// What an inbox is like.
#[derive(Clone, Debug)]
pub struct InboxOptions {
    /// How many messages of each sender may wait.
    pub depth: u32,
    /// Where it listens, beside shared memory.
    pub listen: Vec<Listen>,
    /// How long a connection from another host may be gone before what it brought is given up. Senders
    /// give up after that and as long again, 3 s at least.
    pub lease: Duration,
    /// Bytes of the largest tensor that is accepted from the network.
    pub largest: usize,
}

impl Default for InboxOptions {
    fn default() -> Self {
        Self { depth: 16, listen: Vec::new(), lease: Duration::from_secs(5), largest: 1 << 30 }
    }
}

/// How to connect to an inbox.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The way there; by default the fastest that leads there.
    pub transport: Option<Transport>,
    /// Connections to another host: more than one where one does not fill the link.
    pub lanes: u16,
    /// How long to try.
    pub timeout: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { transport: None, lanes: 1, timeout: Duration::from_secs(5) }
    }
}

/// The transport of a process. Cheap to clone; it ends with the last clone, inbox and sender.
#[derive(Clone)]
pub struct Courier(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) id: u64,
    host: String,
    options: CourierOptions,
    pub(crate) driver: Driver,
    inboxes: Mutex<HashMap<String, Weak<InboxShared>>>,
    /// Our own pools.
    pub(crate) pools: Mutex<HashMap<u64, Weak<OpenPool>>>,
    next_pool: AtomicU64,
    /// Pools of other processes, each opened once.
    pub(crate) landlords: Mutex<HashMap<PoolId, Arc<Landlord>>>,
    /// Processes that have a pool of ours open.
    pub(crate) tenants: Mutex<Vec<Arc<Tenant>>>,
    /// Processes that have connected and not said what they want.
    pub(crate) guests: Mutex<Vec<Arc<Guest>>>,
    /// Channels that we send on, until nothing is in flight on them.
    pub(crate) outgoing: Mutex<Vec<Arc<dyn Outgoing>>>,
    /// Listeners of inboxes that are closed, until their senders know.
    pub(crate) retiring: Mutex<Vec<Arc<ZmqListener>>>,
    /// Pools for tensors that are in none when they are sent, by size.
    spills: Mutex<HashMap<usize, Pool>>,
    pub(crate) copied: AtomicU64,
    network: Mutex<Option<Arc<Network>>>,
    door: OnceLock<Arc<Door>>,
    gone: OnceLock<WhenGone>,
    pub(crate) own: Weak<Self>,
}

/// Has nobody wait any longer for what a process that is gone was to write on a GPU. What they read then is not what
/// it should be: whoever it is for must know before.
pub type FreeWaiters = Box<dyn FnOnce() + Send>;

/// What to do when a process is gone.
type WhenGone = Box<dyn Fn(u64, FreeWaiters) + Send + Sync>;

impl Courier {
    /// Starts the transport of this process.
    pub fn start(options: CourierOptions) -> Result<Self> {
        let id = random()?;
        let (driver, host) = (Driver::start()?, host()?);
        let inner = Arc::new_cyclic(|own| Inner {
            id,
            host,
            options,
            driver,
            inboxes: Mutex::default(),
            pools: Mutex::default(),
            next_pool: AtomicU64::new(1),
            landlords: Mutex::default(),
            tenants: Mutex::default(),
            guests: Mutex::default(),
            outgoing: Mutex::default(),
            retiring: Mutex::default(),
            spills: Mutex::default(),
            copied: AtomicU64::new(0),
            network: Mutex::default(),
            door: OnceLock::new(),
            gone: OnceLock::new(),
            own: own.clone(),
        });
        inner.door.set(Door::open(&inner)?).ok();
        Ok(Self(inner))
    }

    /// The number of this transport, unique over all processes and restarts.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// A pool of buffers on the host, as [`Self::pool`] makes, which a GPU of ours copies to without another; also
    /// after they were sent [ahead](Message::ahead).
    pub fn pool_for(&self, gpu: u32, buffers: &[Buffers]) -> Result<Pool> {
        let gpu = tessera_cuda::Gpu::open(gpu)?;
        Ok(Pool(self.0.create_pool(buffers, Writer::Gpu(&gpu))?, Some(Arc::clone(&self.0))))
    }

    /// A pool of buffers on a GPU that any process of this host can read there.
    ///
    /// Fails where the GPU's memory can't be shared between processes (CUDA IPC).
    pub fn pool_on(&self, gpu: u32, buffers: &[Buffers]) -> Result<Pool> {
        Ok(Pool(self.0.create_pool_on(gpu, buffers)?, Some(Arc::clone(&self.0))))
    }

    /// Has the GPU say that a tensor in a pool of ours is written, once all that it was told so far is done: for
    /// messages that went [ahead](Message::ahead).
    pub fn written(&self, tensor: &Tensor) -> Result<()> {
        let own = self.0.own_slot(tensor);
        own.map_or(Ok(()), |(pool, slot)| pool.write_flag(slot.slot as usize, slot.generation))
    }

    /// Has nobody wait any longer for a tensor in a pool of ours that a GPU was to write, and won't.
    pub fn free_waiters(&self, tensor: &Tensor) {
        if let Some((pool, slot)) = self.0.own_slot(tensor) {
            pool.set_flag(slot.slot as usize, slot.generation);
        }
    }

    /// What to do when a process is gone that others wait for on a GPU: its number, and what has nobody wait any
    /// longer. By default that is called at once. Set once.
    pub fn when_gone(&self, what: impl Fn(u64, FreeWaiters) + Send + Sync + 'static) {
        self.0.gone.get_or_init(|| Box::new(what));
    }

    /// A pool of buffers that any process of this host can read.
    pub fn pool(&self, buffers: &[Buffers]) -> Result<Pool> {
        Ok(Pool(self.0.create_pool(buffers, Writer::Host)?, Some(Arc::clone(&self.0))))
    }

    /// An inbox under a name that no other inbox of this process has.
    pub fn inbox(&self, name: &str, options: &InboxOptions) -> Result<Inbox> {
        check_name(name)?;
        if !(1..=MOST_DEPTH).contains(&options.depth) {
            return Err(Error::usage(format!(
                "inbox \"{name}\": its depth must be between 1 and {MOST_DEPTH}"
            )));
        }
        let shared = Arc::new(InboxShared::new(name, options.depth)?);
        let mut inboxes = lock(&self.0.inboxes);
        if inboxes.get(name).is_some_and(|other| other.strong_count() > 0) {
            return Err(Error::usage(format!("there is an inbox \"{name}\" already")));
        }
        inboxes.insert(name.to_owned(), Arc::downgrade(&shared));
        drop(inboxes);
        let mut address = Address {
            inbox: name.to_owned(),
            courier: self.0.id,
            host: self.0.host.clone(),
            ipc: None,
            tcp: None,
            device: None,
            key: None,
        };
        let mut listeners = Vec::new();
        for listen in &options.listen {
            let InboxOptions { lease, largest, .. } = *options;
            let keys = self.0.options.keys.as_ref();
            let listening = ZmqListener::bind(listen, &shared, keys, lease, largest, &self.0)
                .map_err(|error| error.within(format!("inbox \"{name}\"")))?;
            match listen {
                Listen::Ipc => address.ipc = Some(listening.endpoint),
                Listen::Tcp { .. } => address.tcp = Some(listening.endpoint),
            }
            address.key = address.key.or(listening.key);
            listeners.push(listening.listener);
        }
        let spin = self.0.options.spin;
        Ok(Inbox::new(shared, Arc::clone(&self.0), address, spin, listeners))
    }

    /// The way from here to an inbox: the fastest that leads there.
    pub fn transport_to(&self, address: &Address) -> Result<Transport> {
        if address.courier == self.0.id {
            Ok(Transport::Thread)
        } else if address.host == self.0.host {
            Ok(Transport::Shm)
        } else if address.tcp.is_some() {
            Ok(Transport::ZmqTcp)
        } else {
            Err(Error::usage(format!(
                "inbox \"{}\" is on another host, and does not listen for other hosts",
                address.inbox
            )))
        }
    }

    /// A channel to an inbox, by the fastest way that leads there.
    pub fn connect(&self, address: &Address) -> Result<Sender> {
        self.connect_with(address, &ConnectOptions::default())
    }

    /// A channel to an inbox.
    pub fn connect_with(&self, address: &Address, options: &ConnectOptions) -> Result<Sender> {
        let transport = match options.transport {
            Some(transport) => transport,
            None => self.transport_to(address)?,
        };
        let (channel, peer) = match transport {
            Transport::Thread => self.0.connect_thread(address),
            Transport::Shm => self.0.connect_shm(address),
            Transport::ZmqIpc | Transport::ZmqTcp => {
                self.0.connect_zmq(transport, address, options)
            }
        }
        .map_err(|error| error.within(format!("inbox \"{}\" over {transport}", address.inbox)))?;
        Ok(Sender::new(channel, peer, self.0.options.spin, Arc::clone(&self.0)))
    }

    /// Bytes that were copied because a tensor was not in a pool when it was sent.
    pub fn copied_bytes(&self) -> u64 {
        self.0.copied.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Courier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Courier({:016x})", self.0.id)
    }
}

impl Inner {
    pub(crate) fn arc(&self) -> Result<Arc<Self>> {
        self.own.upgrade().ok_or_else(|| Error::lost("the transport ended"))
    }

    /// The GPU that tensors are copied to.
    pub(crate) fn gpu(&self) -> Option<Arc<tessera_cuda::Gpu>> {
        self.options.gpu.and_then(|number| tessera_cuda::Gpu::open(number).ok())
    }

    /// The owner of a pool is gone.
    pub(crate) fn owner_is_gone(&self, pool: Arc<OpenPool>) {
        pool.orphan();
        if pool.device().is_none() {
            return;
        }
        let owner = pool.id.owner;
        let free = Box::new(move || pool.free_waiters());
        match self.gone.get() {
            Some(gone) => gone(owner, free),
            None => free(),
        }
    }

    pub(crate) fn create_pool(
        &self,
        buffers: &[Buffers],
        writer: Writer<'_>,
    ) -> Result<Arc<OpenPool>> {
        let number = self.next_pool.fetch_add(1, Ordering::Relaxed);
        let id = PoolId { owner: self.id, number };
        let settle: Weak<dyn Settle> = Weak::<Self>::clone(&self.own);
        let pool = OpenPool::create(id, buffers, settle, writer)?;
        Ok(self.keep_pool(pool))
    }

    /// Where a tensor is, where that is a pool of ours.
    fn own_slot(&self, tensor: &Tensor) -> Option<(Arc<OpenPool>, PoolSlot)> {
        let slot = tensor.region().and_then(|(region, _)| region.pooled())?;
        Some((self.own_pool(slot.pool)?, slot))
    }

    /// A pool, where it is one of ours.
    pub(crate) fn own_pool(&self, pool: PoolId) -> Option<Arc<OpenPool>> {
        let number = Some(pool.number).filter(|_| pool.owner == self.id)?;
        lock(&self.pools).get(&number).and_then(Weak::upgrade)
    }

    fn create_pool_on(&self, gpu: u32, buffers: &[Buffers]) -> Result<Arc<OpenPool>> {
        let number = self.next_pool.fetch_add(1, Ordering::Relaxed);
        let id = PoolId { owner: self.id, number };
        let settle: Weak<dyn Settle> = Weak::<Self>::clone(&self.own);
        let gpu = tessera_cuda::Gpu::open(gpu)?;
        Ok(self.keep_pool(OpenPool::create_on(&gpu, id, buffers, settle)?))
    }

    fn keep_pool(&self, pool: Arc<OpenPool>) -> Arc<OpenPool> {
        let number = pool.id.number;
        let mut pools = lock(&self.pools);
        pools.retain(|_, pool| pool.strong_count() > 0);
        pools.insert(number, Arc::downgrade(&pool));
        pool
    }

    /// Memory for a tensor that is in no pool; `Full` where all of that size is in use.
    pub(crate) fn spill(&self, len: usize) -> Result<Buffer> {
        let size = len.max(4096).checked_next_power_of_two();
        let size = size.ok_or_else(|| Error::usage("a tensor that is larger than memory"))?;
        let mut spills = lock(&self.spills);
        let pool = match spills.get(&size) {
            Some(pool) => pool.clone(),
            None => {
                // Without a hold on us: we hold it.
                let buffers = [Buffers { bytes: size, count: SPILL_BUFFERS }];
                let pool = Pool(self.create_pool(&buffers, Writer::Host)?, None);
                spills.insert(size, pool.clone());
                pool
            }
        };
        drop(spills);
        pool.borrow(len, Wait::No)
    }

    pub(crate) fn local_inbox(&self, name: &str) -> Result<Arc<InboxShared>> {
        lock(&self.inboxes)
            .get(name)
            .and_then(Weak::upgrade)
            .ok_or_else(|| Error::not_found(format!("there is no inbox \"{name}\"")))
    }

    pub(crate) fn forget_inbox(&self, inbox: &Arc<InboxShared>) {
        let mut inboxes = lock(&self.inboxes);
        if inboxes.get(&inbox.name).is_some_and(|known| known.as_ptr() == Arc::as_ptr(inbox)) {
            inboxes.remove(&inbox.name);
        }
    }

    /// Lets go of channels on which nothing is in flight any more.
    pub(crate) fn forget_outgoing(&self) {
        let mut over = Vec::new();
        let mut outgoing = lock(&self.outgoing);
        let mut index = 0;
        while index < outgoing.len() {
            if outgoing[index].is_over() {
                over.push(outgoing.swap_remove(index));
            } else {
                index += 1;
            }
        }
        drop(outgoing);
        drop(over);
    }

    fn connect_thread(&self, address: &Address) -> Result<(Arc<dyn Outgoing>, Peer)> {
        if address.courier != self.id {
            return Err(Error::usage("it is in another process"));
        }
        let inbox = self.local_inbox(&address.inbox)?;
        let process = Some(std::process::id());
        let peer = Peer { transport: Transport::Thread, courier: self.id, process };
        let channel = ThreadChannel::new(inbox.depth, peer.clone(), Arc::clone(&inbox.bell))?;
        inbox.add(Arc::new(ThreadIncoming(Arc::clone(&channel))))?;
        Ok((channel, peer))
    }

    fn connect_zmq(
        &self,
        transport: Transport,
        address: &Address,
        options: &ConnectOptions,
    ) -> Result<(Arc<dyn Outgoing>, Peer)> {
        let (endpoint, server_key) = match transport {
            Transport::ZmqIpc => (address.ipc.clone(), None),
            _ => (address.tcp.clone(), address.key.clone()),
        };
        let endpoint = endpoint.ok_or_else(|| Error::usage("it does not listen there"))?;
        let route = Route {
            transport,
            endpoint,
            server_key,
            keys: self.options.keys.clone(),
            inbox: address.inbox.clone(),
            lanes: options.lanes,
        };
        let session = u128::from(random()?) << 64 | u128::from(random()?);
        let wait = Wait::at_most(options.timeout);
        let channel = ZmqOutgoing::connect(route, session, &self.arc()?, wait)?;
        lock(&self.outgoing).push(Arc::<ZmqOutgoing>::clone(&channel) as Arc<dyn Outgoing>);
        Ok((channel, Peer { transport, courier: address.courier, process: None }))
    }

    /// ZeroMQ, which starts when it is needed.
    pub(crate) fn network(&self) -> Result<Arc<Network>> {
        let mut network = lock(&self.network);
        if let Some(network) = &*network {
            return Ok(Arc::clone(network));
        }
        let new = Arc::new(Network::new()?);
        *network = Some(Arc::clone(&new));
        Ok(new)
    }
}

impl Settle for Inner {
    fn settle(&self) {
        let outgoing: Vec<_> = lock(&self.outgoing).clone();
        for channel in outgoing {
            channel.settle();
        }
    }
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    let read = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    read.map_err(|error| Error::io("random numbers", &error.into()))?;
    Ok(u64::from_ne_bytes(bytes))
}
