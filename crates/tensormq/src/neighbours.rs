//! Other processes of this host: how they find each other, and open channels and pools.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tessera_core::{Error, PoolId, Result};

use crate::address::{Address, Transport};
use crate::bell::Bell;
use crate::channel::{Outgoing, Peer};
use crate::courier::Inner;
use crate::driver::{Source, Token};
use crate::pool::{OpenPool, Settle};
use crate::protocol::Packet;
use crate::ring::Ring;
use crate::shm::{ShmIncoming, ShmOutgoing};
use crate::sync::lock;
use crate::unix::{Link, Listener, Packet as Arrival};
use crate::wait::Wait;

/// How long a process of this host may take to answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Most processes that have connected and not said what they want.
const MOST_GUESTS: usize = 256;

impl Inner {
    /// A channel to an inbox of another process.
    pub(crate) fn connect_shm(&self, address: &Address) -> Result<(Arc<dyn Outgoing>, Peer)> {
        let link = Link::connect(&socket_name(address.courier))?;
        let bell = Bell::new()?;
        let open = Packet::Open { inbox: address.inbox.clone(), courier: self.id };
        link.send(&open.encode(), &[bell.as_fd()])?;
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

    /// A pool by its name, ours or another's.
    pub(crate) fn pool_of(self: &Arc<Self>, id: PoolId) -> Result<Arc<OpenPool>> {
        if id.owner == self.id {
            let pool = self.own_pool(id);
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

    /// A pool that whoever gets a tensor of it can open: its owner is there.
    pub(crate) fn open_pool(&self, id: PoolId) -> Option<Arc<OpenPool>> {
        if id.owner == self.id {
            return self.own_pool(id);
        }
        let landlord = lock(&self.landlords).get(&id).cloned()?;
        let pool = lock(&landlord.pool).clone();
        pool.filter(|_| !landlord.gone.load(Ordering::Acquire))
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
        let gpu = self.gpu();
        let owner = Arc::clone(&link);
        let pool = OpenPool::open(plan, control, payload, bell, settle, owner, gpu.as_ref())?;
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
    fn welcome(self: &Arc<Self>, link: &Arc<Link>, bytes: &[u8], fds: Vec<OwnedFd>) {
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
        fds: Vec<OwnedFd>,
    ) -> Result<()> {
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

/// The answer of another process; its refusal is an error.
fn answer(link: &Link) -> Result<(Packet, Vec<OwnedFd>)> {
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
pub(crate) struct Door {
    listener: Listener,
    courier: Weak<Inner>,
}

impl Door {
    /// Opens it: from now on the driver lets others in.
    pub(crate) fn open(courier: &Arc<Inner>) -> Result<Arc<Self>> {
        let door = Arc::new(Self {
            listener: Listener::bind(&socket_name(courier.id))?,
            courier: Arc::downgrade(courier),
        });
        let source: Arc<dyn Source> = Arc::<Self>::clone(&door);
        courier.driver.add(&door.listener, Arc::downgrade(&source))?;
        Ok(door)
    }
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
pub(crate) struct Guest {
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
pub(crate) struct Tenant {
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
pub(crate) struct Landlord {
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
                if let Some(courier) = self.courier.upgrade() {
                    if let Some(pool) = pool {
                        courier.owner_is_gone(pool);
                    }
                    if let Some(token) = self.token.get() {
                        courier.driver.remove(&*self.link, *token);
                    }
                }
            }
        }
    }
}

/// The name of a transport's socket.
fn socket_name(id: u64) -> String {
    format!("{id:016x}")
}
