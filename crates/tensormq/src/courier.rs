//! The transport of a process: it makes inboxes, senders and pools, and keeps what they share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tessera_core::{Buffer, Error, PoolId, Result};

use crate::MOST_DEPTH;
use crate::address::{Address, Transport, host};
use crate::bell::Bell;
use crate::channel::{Outgoing, Peer};
use crate::driver::{Driver, Source, Token};
use crate::inbox::{Inbox, InboxShared, check_name};
use crate::pool::{Buffers, OpenPool, Pool, Settle};
use crate::protocol::Packet;
use crate::ring::Ring;
use crate::sender::Sender;
use crate::shm::{ShmIncoming, ShmOutgoing};
use crate::sync::lock;
use crate::thread::{ThreadChannel, ThreadIncoming};
use crate::unix::{Link, Listener, Packet as Arrival};
use crate::wait::Wait;
use crate::zeromq::incoming::ZmqListener;
use crate::zeromq::outgoing::{Route, ZmqOutgoing};
use crate::zeromq::{Keys, Listen, Network};

/// How long a process of this host may take to answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Most processes that have connected and not said what they want.
const MOST_GUESTS: usize = 256;
/// Buffers of each size for tensors that are not in a pool when they are sent.
const SPILL_BUFFERS: usize = 8;

/// How a process takes part.
#[derive(Clone, Debug)]
pub struct CourierOptions {
    /// How long to look again and again before going to sleep.
    ///
    /// See `docs/tensormq.md` for the measurement behind the default.
    pub spin: Duration,
    /// For connections between hosts that are encrypted: our key pair.
    pub keys: Option<Keys>,
}

impl Default for CourierOptions {
    fn default() -> Self {
        // Looking on while the only core is needed by whoever we wait for would be waiting for
        // ourselves.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { spin: if cores > 1 { DEFAULT_SPIN } else { Duration::ZERO }, keys: None }
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
    pools: Mutex<HashMap<u64, Weak<OpenPool>>>,
    next_pool: AtomicU64,
    /// Pools of other processes, each opened once.
    landlords: Mutex<HashMap<PoolId, Arc<Landlord>>>,
    /// Processes that have a pool of ours open.
    tenants: Mutex<Vec<Arc<Tenant>>>,
    /// Processes that have connected and not said what they want.
    guests: Mutex<Vec<Arc<Guest>>>,
    /// Channels that we send on, until nothing is in flight on them.
    outgoing: Mutex<Vec<Arc<dyn Outgoing>>>,
    /// Listeners of inboxes that are closed, until their senders know.
    pub(crate) retiring: Mutex<Vec<Arc<ZmqListener>>>,
    /// Pools for tensors that are in none when they are sent, by size.
    spills: Mutex<HashMap<usize, Pool>>,
    pub(crate) copied: AtomicU64,
    network: Mutex<Option<Arc<Network>>>,
    door: OnceLock<Arc<Door>>,
    own: Weak<Self>,
}

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
            own: own.clone(),
        });
        let door = Arc::new(Door {
            listener: Listener::bind(&socket_name(id))?,
            courier: Arc::downgrade(&inner),
        });
        let source: Arc<dyn Source> = Arc::<Door>::clone(&door);
        inner.driver.add(&door.listener, Arc::downgrade(&source))?;
        inner.door.set(door).ok();
        Ok(Self(inner))
    }

    /// The number of this transport, unique over all processes and restarts.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// A pool of buffers that any process of this host can read.
    pub fn pool(&self, buffers: &[Buffers]) -> Result<Pool> {
        Ok(Pool(self.0.create_pool(buffers)?, Some(Arc::clone(&self.0))))
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
    fn arc(&self) -> Result<Arc<Self>> {
        self.own.upgrade().ok_or_else(|| Error::lost("the transport ended"))
    }

    fn create_pool(&self, buffers: &[Buffers]) -> Result<Arc<OpenPool>> {
        let number = self.next_pool.fetch_add(1, Ordering::Relaxed);
        let id = PoolId { owner: self.id, number };
        let settle: Weak<dyn Settle> = Weak::<Self>::clone(&self.own);
        let pool = OpenPool::create(id, buffers, settle)?;
        let mut pools = lock(&self.pools);
        pools.retain(|_, pool| pool.strong_count() > 0);
        pools.insert(number, Arc::downgrade(&pool));
        Ok(pool)
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
                let pool = Pool(self.create_pool(&buffers)?, None);
                spills.insert(size, pool.clone());
                pool
            }
        };
        drop(spills);
        pool.borrow(len, Wait::No)
    }

    fn local_inbox(&self, name: &str) -> Result<Arc<InboxShared>> {
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

    fn connect_shm(&self, address: &Address) -> Result<(Arc<dyn Outgoing>, Peer)> {
        let link = Link::connect(&socket_name(address.courier))?;
        let bell = Bell::new()?;
        let open = Packet::Open { inbox: address.inbox.clone(), courier: self.id };
        link.send(&open.encode(), &[std::os::fd::AsFd::as_fd(&bell)])?;
        let (answer, fds) = answer(&link)?;
        let mut fds = fds.into_iter();
        let (Packet::Opened { len, depth }, Some(memory), Some(inbox_bell)) =
            (answer, fds.next(), fds.next())
        else {
            return Err(Error::invalid("an answer to something else"));
        };
        let ring = Ring::open(memory, len, depth)?;
        let process = Some(link.peer_process());
        let peer = Peer { transport: Transport::Shm, courier: address.courier, process };
        let courier = self.arc()?;
        let bells = (Bell::from_peer(inbox_bell), bell);
        let channel = ShmOutgoing::new(ring, depth, link, bells.0, bells.1, &courier)?;
        lock(&self.outgoing).push(Arc::<ShmOutgoing>::clone(&channel) as Arc<dyn Outgoing>);
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

    /// A pool by its name, ours or another's.
    pub(crate) fn pool_of(self: &Arc<Self>, id: PoolId) -> Result<Arc<OpenPool>> {
        if id.owner == self.id {
            let pool = lock(&self.pools).get(&id.number).and_then(Weak::upgrade);
            return pool.ok_or_else(|| Error::not_found("a tensor in a pool that is gone"));
        }
        // Held while the owner is asked, so that a pool is opened once; the driver never takes it.
        let mut landlords = lock(&self.landlords);
        if let Some(landlord) = landlords.get(&id)
            && !landlord.gone.load(Ordering::Acquire)
            && let Some(pool) = &*lock(&landlord.pool)
        {
            return Ok(Arc::clone(pool));
        }
        landlords.retain(|_, landlord| !landlord.gone.load(Ordering::Acquire));
        let landlord = self.attach(id).map_err(|error| error.within("the pool of a tensor"))?;
        let pool = lock(&landlord.pool).clone();
        landlords.insert(id, landlord);
        pool.ok_or_else(|| Error::lost("the owner of a pool went away"))
    }

    /// Whether whoever gets a tensor of a pool can open it: its owner is there.
    pub(crate) fn is_open(&self, id: PoolId) -> bool {
        id.owner == self.id
            || lock(&self.landlords)
                .get(&id)
                .is_some_and(|landlord| !landlord.gone.load(Ordering::Acquire))
    }

    fn attach(self: &Arc<Self>, id: PoolId) -> Result<Arc<Landlord>> {
        let link = Arc::new(Link::connect(&socket_name(id.owner))?);
        link.send(&Packet::Attach { pool: id }.encode(), &[])?;
        // The owner may be short of buffers at this very moment, and ask us too.
        let (answer, fds) = loop {
            match answer(&link)? {
                (Packet::Settle, _) => {}
                other => break other,
            }
        };
        let mut fds = fds.into_iter();
        let (Packet::Attached(plan), Some(control), Some(payload), Some(bell)) =
            (answer, fds.next(), fds.next(), fds.next())
        else {
            return Err(Error::invalid("an answer to something else"));
        };
        if plan.id != id {
            return Err(Error::invalid("another pool than the one that was asked for"));
        }
        let settle: Weak<dyn Settle> = Weak::<Self>::clone(&self.own);
        let bell = Bell::from_peer(bell);
        let pool = OpenPool::open(plan, control, payload, bell, settle, Arc::clone(&link))?;
        let landlord = Arc::new(Landlord {
            pool: Mutex::new(Some(pool)),
            link,
            gone: AtomicBool::new(false),
            courier: Weak::clone(&self.own),
            token: OnceLock::new(),
        });
        let source: Arc<dyn Source> = Arc::<Landlord>::clone(&landlord);
        let token = self.driver.add(&*landlord.link, Arc::downgrade(&source))?;
        landlord.token.set(token).ok();
        Ok(landlord)
    }

    /// Answers a process that said what it wants.
    fn welcome(self: &Arc<Self>, link: &Arc<Link>, bytes: &[u8], fds: Vec<std::os::fd::OwnedFd>) {
        let done = match Packet::parse(bytes) {
            Ok(Packet::Open { inbox, courier }) => self.open_channel(link, &inbox, courier, fds),
            Ok(Packet::Attach { pool }) => self.let_pool(link, pool),
            Ok(_) => Err(Error::invalid("neither a channel nor a pool was asked for")),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            // It may be gone already; then there is nobody to tell.
            link.send(&Packet::refused(&error).encode(), &[]).ok();
        }
    }

    fn open_channel(
        self: &Arc<Self>,
        link: &Arc<Link>,
        inbox: &str,
        courier: u64,
        fds: Vec<std::os::fd::OwnedFd>,
    ) -> Result<()> {
        use std::os::fd::AsFd;
        let inbox = self.local_inbox(inbox)?;
        let bell = fds.into_iter().next();
        let bell = bell.ok_or_else(|| Error::invalid("a channel without a bell"))?;
        let ring = Ring::create(inbox.depth)?;
        let process = Some(link.peer_process());
        let peer = Peer { transport: Transport::Shm, courier, process };
        let inbox_bell = Arc::clone(&inbox.bell);
        let bell = Bell::from_peer(bell);
        let channel = ShmIncoming::new(ring, Arc::clone(link), peer, inbox_bell, bell, self)?;
        let len = channel.ring().segment().len() as u64;
        let opened = Packet::Opened { len, depth: inbox.depth };
        let memory = channel.ring().segment().as_fd();
        link.send(&opened.encode(), &[memory, inbox.bell.as_fd()])?;
        inbox.add(channel)
    }

    fn let_pool(self: &Arc<Self>, link: &Arc<Link>, id: PoolId) -> Result<()> {
        use std::os::fd::AsFd;
        let pool = lock(&self.pools).get(&id.number).filter(|_| id.owner == self.id).cloned();
        let pool = pool.and_then(|pool| pool.upgrade());
        let pool = pool.ok_or_else(|| Error::not_found("there is no such pool"))?;
        let plan = pool.admit(Arc::clone(link))?;
        let tenant = Arc::new(Tenant {
            link: Arc::clone(link),
            pool: Arc::downgrade(&pool),
            courier: Weak::clone(&self.own),
            token: OnceLock::new(),
        });
        lock(&self.tenants).push(Arc::clone(&tenant));
        let source: Arc<dyn Source> = Arc::<Tenant>::clone(&tenant);
        let (control, payload, bell) = pool.descriptors();
        let fds = [control.as_fd(), payload.as_fd(), bell.as_fd()];
        // Watched before it is let in: from then on it must be noticed when it goes.
        let added = self.driver.add(&*tenant.link, Arc::downgrade(&source));
        let sent = added.and_then(|token| {
            tenant.token.set(token).ok();
            link.send(&Packet::Attached(plan).encode(), &fds)
        });
        sent.inspect_err(|_| tenant.leave())
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

/// The answer of another process; its refusal is an error.
fn answer(link: &Link) -> Result<(Packet, Vec<std::os::fd::OwnedFd>)> {
    match link.receive(Wait::at_most(ANSWER))? {
        Arrival::Data(bytes, fds) => match Packet::parse(&bytes)? {
            Packet::Refused { kind, why } => Err(Error::new(kind, why)),
            packet => Ok((packet, fds)),
        },
        Arrival::Nothing => Err(Error::timed_out(format!(
            "process {} did not answer within {} s",
            link.peer_process(),
            ANSWER.as_secs()
        ))),
        Arrival::End => Err(Error::lost("the other process went away")),
    }
}

/// Where other processes knock.
struct Door {
    listener: Listener,
    courier: Weak<Inner>,
}

impl Source for Door {
    fn ready(&self) {
        let Some(courier) = self.courier.upgrade() else { return };
        while let Some(link) = self.listener.accept() {
            let guest = Arc::new(Guest {
                link: Arc::new(link),
                courier: Weak::clone(&self.courier),
                token: OnceLock::new(),
            });
            let mut guests = lock(&courier.guests);
            if guests.len() >= MOST_GUESTS {
                continue;
            }
            guests.push(Arc::clone(&guest));
            drop(guests);
            let source: Arc<dyn Source> = Arc::<Guest>::clone(&guest);
            match courier.driver.add(&*guest.link, Arc::downgrade(&source)) {
                Ok(token) => drop(guest.token.set(token)),
                Err(_) => guest.leave(),
            }
        }
    }
}

/// A process that has connected and not said what it wants.
struct Guest {
    link: Arc<Link>,
    courier: Weak<Inner>,
    token: OnceLock<Token>,
}

impl Guest {
    fn leave(&self) {
        let Some(courier) = self.courier.upgrade() else { return };
        if let Some(token) = self.token.get() {
            courier.driver.remove(&*self.link, *token);
        }
        lock(&courier.guests).retain(|guest| !std::ptr::eq(&raw const **guest, self));
    }
}

impl Source for Guest {
    fn ready(&self) {
        let Some(courier) = self.courier.upgrade() else { return };
        match self.link.receive(Wait::No) {
            Ok(Arrival::Nothing) => {}
            Ok(Arrival::Data(bytes, fds)) => {
                // From here on the link is watched by what it becomes.
                self.leave();
                courier.welcome(&self.link, &bytes, fds);
            }
            Ok(Arrival::End) | Err(_) => self.leave(),
        }
    }
}

/// A process that has a pool of ours open.
struct Tenant {
    link: Arc<Link>,
    pool: Weak<OpenPool>,
    courier: Weak<Inner>,
    token: OnceLock<Token>,
}

impl Tenant {
    fn leave(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.dismiss(&self.link);
        }
        let Some(courier) = self.courier.upgrade() else { return };
        if let Some(token) = self.token.get() {
            courier.driver.remove(&*self.link, *token);
        }
        lock(&courier.tenants).retain(|tenant| !std::ptr::eq(&raw const **tenant, self));
    }
}

impl Source for Tenant {
    fn ready(&self) {
        if let Ok(Arrival::Nothing | Arrival::Data(..)) = self.link.receive(Wait::No) {
            return;
        }
        self.leave();
    }
}

/// Another process, whose pool we have open.
struct Landlord {
    /// Until its owner is gone or needs it no more.
    pool: Mutex<Option<Arc<OpenPool>>>,
    link: Arc<Link>,
    gone: AtomicBool,
    courier: Weak<Inner>,
    token: OnceLock<Token>,
}

impl Source for Landlord {
    fn ready(&self) {
        match self.link.receive(Wait::No) {
            Ok(Arrival::Nothing) => {}
            // Whatever it says, there is one thing that it can want.
            Ok(Arrival::Data(..)) => {
                if let Some(courier) = self.courier.upgrade() {
                    courier.settle();
                }
            }
            Ok(Arrival::End) | Err(_) => {
                self.gone.store(true, Ordering::Release);
                let pool = lock(&self.pool).take();
                drop(pool);
                if let (Some(courier), Some(token)) = (self.courier.upgrade(), self.token.get()) {
                    courier.driver.remove(&*self.link, *token);
                }
            }
        }
    }
}

/// The name of a transport's socket.
fn socket_name(id: u64) -> String {
    format!("{id:016x}")
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    let read = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    read.map_err(|error| Error::io("random numbers", &error.into()))?;
    Ok(u64::from_ne_bytes(bytes))
}
