//! Between processes of a host: headers through a ring in shared memory, tensors where they are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tessera_core::{DType, Error, ErrorKind, Event, Location, Region, Result, Tensor};

use crate::bell::Bell;
use crate::channel::{Attempt, Incoming, NotSent, Outgoing, Peer, Received};
use crate::courier::Inner;
use crate::driver::{Source, Token};
use crate::flight::{Fate, Finish, Flight, Receipt};
use crate::handover::{arm, disarm};
use crate::layout::{Clock, Descriptor, Place, View};
use crate::message::{Message, RequestId};
use crate::payload;
use crate::pool::{OpenPool, Written};
use crate::ring::{Ring, RingReader, RingWriter};
use crate::sync::lock;
use crate::unix::{Link, Packet};
use crate::wait::Wait;

/// The sending end.
pub(crate) struct ShmOutgoing {
    ring: Ring,
    state: Mutex<OutgoingState>,
    depth: u32,
    link: Link,
    inbox_bell: Bell,
    bell: Bell,
    flight: Flight,
    gone: AtomicBool,
    closed: AtomicBool,
    courier: Weak<Inner>,
    token: OnceLock<Token>,
}

struct OutgoingState {
    writer: RingWriter,
    sequence: u64,
}

impl ShmOutgoing {
    pub(crate) fn new(
        ring: Ring,
        depth: u32,
        link: Link,
        inbox_bell: Bell,
        bell: Bell,
        courier: &Arc<Inner>,
    ) -> Result<Arc<Self>> {
        let channel = Arc::new(Self {
            ring,
            state: Mutex::new(OutgoingState { writer: RingWriter::new(), sequence: 0 }),
            depth,
            link,
            inbox_bell,
            bell,
            flight: Flight::default(),
            gone: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            courier: Arc::downgrade(courier),
            token: OnceLock::new(),
        });
        let source: Arc<dyn Source> = Arc::<Self>::clone(&channel);
        let token = courier.driver.add(&channel.link, Arc::downgrade(&source))?;
        channel.token.set(token).ok();
        Ok(channel)
    }

    /// Learns what the receiver took and is done with. All of it with the state locked: whoever looks
    /// after us must find what we found.
    fn learn(&self, state: &mut OutgoingState) {
        // In this order: what was taken before it closed must not count as not taken.
        let closed = self.ring.receiver_closed();
        let receipts = state.writer.receipts(&self.ring);
        let taken = self.ring.taken().min(state.sequence);
        self.flight.took(taken);
        for sequence in receipts.unwrap_or_default() {
            self.flight.finish(sequence);
        }
        if closed {
            self.flight.abandon(taken);
        }
    }

    /// Puts the message into the ring if there is room; gives back what to keep of it.
    fn put(&self, message: &Message) -> Result<Option<u64>> {
        if self.gone.load(Ordering::Acquire) {
            return Err(Error::lost("the receiver's process is gone"));
        }
        if self.ring.receiver_closed() {
            return Err(crate::sender::inbox_closed());
        }
        self.settle();
        // Before anything is copied: is there room?
        if self.flight.untaken() >= self.depth as usize {
            return Ok(None);
        }
        let courier = self.courier.upgrade().ok_or_else(|| Error::lost("the transport ended"))?;
        let Some((tensors, descriptors)) = courier.share(&message.tensors, message.is_ahead)?
        else {
            return Ok(None);
        };
        let mut state = lock(&self.state);
        let sequence = state.sequence + 1;
        let header = message.envelope.encode(sequence, Clock::Host, &descriptors)?;
        if !self.flight.add(sequence, message.request(), tensors) {
            return Ok(None);
        }
        match state.writer.push(&self.ring, &header) {
            Ok(Some(wake)) => {
                state.sequence = sequence;
                if wake {
                    self.inbox_bell.ring();
                }
            }
            full_or_failed => {
                self.flight.remove(sequence);
                return full_or_failed.map(|_| None);
            }
        }
        if self.gone.load(Ordering::Acquire) {
            // It died meanwhile, perhaps after what was in flight was gathered.
            self.flight.end(self.ring.taken().min(sequence), Fate::NotTaken);
        }
        drop(state);
        Ok(Some(sequence))
    }
}

impl Drop for ShmOutgoing {
    fn drop(&mut self) {
        if let (Some(courier), Some(token)) = (self.courier.upgrade(), self.token.get()) {
            courier.driver.remove(&self.link, *token);
        }
    }
}

impl Drop for ShmIncoming {
    fn drop(&mut self) {
        if let (Some(courier), Some(token)) = (self.courier.upgrade(), self.token.get()) {
            courier.driver.remove(&*self.link, *token);
        }
    }
}

impl Outgoing for ShmOutgoing {
    fn try_send(&self, message: Message) -> Result<Attempt, Box<NotSent>> {
        match self.put(&message) {
            Ok(Some(sequence)) => Ok(Attempt::Sent(sequence)),
            Ok(None) => Ok(Attempt::Full(message)),
            Err(error) => Err(Box::new(NotSent { error, message })),
        }
    }

    fn arm(&self) {
        arm(self.ring.sender_alarm());
    }

    fn disarm(&self) {
        disarm(self.ring.sender_alarm());
    }

    fn bell(&self) -> &Bell {
        &self.bell
    }

    fn flight(&self) -> &Flight {
        &self.flight
    }

    fn settle(&self) {
        self.learn(&mut lock(&self.state));
    }

    fn is_lost(&self) -> bool {
        self.gone.load(Ordering::Acquire) || self.ring.receiver_closed()
    }

    fn is_over(&self) -> bool {
        let closed = self.closed.load(Ordering::Acquire) && self.flight.unfinished() == 0;
        closed || self.gone.load(Ordering::Acquire)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if self.ring.end_sending() {
            self.inbox_bell.ring();
        }
        if let Some(courier) = self.courier.upgrade() {
            courier.forget_outgoing();
        }
    }
}

impl Source for ShmOutgoing {
    fn ready(&self) {
        // The receiver says nothing here: what comes is the end.
        if let Ok(Packet::Nothing | Packet::Data(..)) = self.link.receive(Wait::No) {
            return;
        }
        self.gone.store(true, Ordering::Release);
        let mut state = lock(&self.state);
        self.learn(&mut state);
        self.flight.end(self.ring.taken().min(state.sequence), Fate::NotTaken);
        drop(state);
        self.bell.ring();
        if let Some(courier) = self.courier.upgrade() {
            if let Some(token) = self.token.get() {
                courier.driver.remove(&self.link, *token);
            }
            courier.forget_outgoing();
        }
    }
}

/// The receiving end.
pub(crate) struct ShmIncoming {
    ring: Ring,
    reader: Mutex<RingReader>,
    link: Arc<Link>,
    peer: Peer,
    inbox_bell: Arc<Bell>,
    sender_bell: Bell,
    gone: AtomicBool,
    courier: Weak<Inner>,
    token: OnceLock<Token>,
    own: Weak<Self>,
}

impl ShmIncoming {
    pub(crate) fn new(
        ring: Ring,
        link: Arc<Link>,
        peer: Peer,
        inbox_bell: Arc<Bell>,
        sender_bell: Bell,
        courier: &Arc<Inner>,
    ) -> Result<Arc<Self>> {
        let channel = Arc::new_cyclic(|own| Self {
            ring,
            reader: Mutex::new(RingReader::new()),
            link,
            peer,
            inbox_bell,
            sender_bell,
            gone: AtomicBool::new(false),
            courier: Arc::downgrade(courier),
            token: OnceLock::new(),
            own: own.clone(),
        });
        let source: Arc<dyn Source> = Arc::<Self>::clone(&channel);
        let token = courier.driver.add(&*channel.link, Arc::downgrade(&source))?;
        channel.token.set(token).ok();
        Ok(channel)
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    fn read(&self) -> Result<Option<Received>> {
        let mut reader = lock(&self.reader);
        let Some(header) = reader.peek(&self.ring)? else { return Ok(None) };
        // Tensors are held before the message counts as taken: the sender lets go of them then.
        let mut pools = Vec::new();
        let (request, result) = match View::read(&header) {
            Ok((view, descriptors)) => {
                let tensors = self.tensors(&descriptors, &mut pools);
                (Some(RequestId(view.request())), tensors.map(|all| (view.envelope(), all)))
            }
            Err(error) => (None, Err(error)),
        };
        let (sequence, wake) = reader.pop(&self.ring, header.len());
        if wake {
            self.sender_bell.ring();
        }
        drop(reader);
        for pool in pools {
            pool.nudge();
        }
        let own = self.own.upgrade().ok_or_else(|| Error::lost("the channel ended"))?;
        let receipt = Some(Receipt::new(sequence, own));
        Ok(Some(match result {
            Ok((envelope, tensors)) => {
                Received::Message(Message { envelope, tensors, receipt, is_ahead: false })
            }
            Err(error) => Received::Failed { peer: self.peer.clone(), request, error },
        }))
    }

    /// The tensors of a header, held, and the pools that they are in.
    fn tensors(
        &self,
        descriptors: &[Descriptor],
        pools: &mut Vec<Arc<OpenPool>>,
    ) -> Result<Vec<Tensor>> {
        let courier = self.courier.upgrade().ok_or_else(|| Error::lost("the transport ended"))?;
        descriptors.iter().map(|tensor| courier.resolve(tensor, pools)).collect()
    }
}

impl Incoming for ShmIncoming {
    fn take(&self) -> Option<Received> {
        // Read before looking for messages: what came before the end is received before it.
        let gone = self.gone.load(Ordering::Acquire);
        let closed = self.ring.sender_closed();
        match self.read() {
            Ok(Some(received)) => Some(received),
            Ok(None) if closed => Some(Received::Closed(self.peer.clone())),
            Ok(None) if gone => {
                Some(Received::Lost(self.peer.clone(), Error::lost("the sender's process is gone")))
            }
            Ok(None) => None,
            Err(error) => {
                self.close();
                Some(Received::Lost(self.peer.clone(), error))
            }
        }
    }

    fn arm(&self) {
        arm(self.ring.receiver_alarm());
    }

    fn disarm(&self) {
        disarm(self.ring.receiver_alarm());
    }

    fn close(&self) {
        if self.ring.end_receiving() {
            self.sender_bell.ring();
        }
    }
}

impl Finish for ShmIncoming {
    fn finish(&self, sequence: u64) {
        if lock(&self.reader).finish(&self.ring, sequence) {
            self.sender_bell.ring();
        }
    }
}

impl Source for ShmIncoming {
    fn ready(&self) {
        if let Ok(Packet::Nothing | Packet::Data(..)) = self.link.receive(Wait::No) {
            return;
        }
        self.gone.store(true, Ordering::Release);
        if let (Some(courier), Some(token)) = (self.courier.upgrade(), self.token.get()) {
            courier.driver.remove(&*self.link, *token);
        }
        self.inbox_bell.ring();
    }
}

impl Inner {
    /// How a receiver finds tensors: where they are if that is shared, else copies that are. Also what
    /// to hold until they are taken.
    ///
    /// `None` where there is no memory free for copies.
    pub(crate) fn share(
        &self,
        all: &[Tensor],
        ahead: bool,
    ) -> Result<Option<(Vec<Tensor>, Vec<Descriptor>)>> {
        let mut tensors = Vec::with_capacity(all.len());
        let mut descriptors = Vec::with_capacity(all.len());
        // Those that must be copied go into one buffer: there are few.
        let mut copies: Vec<(usize, usize, Vec<u8>)> = Vec::new();
        let mut copied = 0usize;
        for (index, tensor) in all.iter().enumerate() {
            let pooled = tensor.region().and_then(|(region, offset)| {
                let slot = region.pooled()?;
                Some((slot, offset, self.open_pool(slot.pool)?))
            });
            // What a GPU writes is waited for by the receiver, or by its GPU.
            let tensor = match (tensor.location(), &pooled) {
                (Location::Host, Some((_, _, pool))) if ahead && pool.is_flagged_by_us() => {
                    tensor.clone()
                }
                (Location::Host, pooled) => {
                    let settled = tensor.clone().settled()?;
                    if let Some((slot, _, pool)) = pooled
                        && pool.is_flagged_by_us()
                    {
                        pool.set_flag(slot.slot as usize, slot.generation);
                    }
                    settled
                }
                (_, Some((slot, _, pool))) => {
                    if !ahead {
                        pool.write_flag(slot.slot as usize, slot.generation)?;
                    }
                    tensor.clone()
                }
                (_, None) => {
                    let what = "a tensor on a GPU that is in no pool can't be sent";
                    return Err(Error::unsupported(what));
                }
            };
            let (dtype, shape) = (tensor.dtype(), tensor.shape());
            let (bytes, place) = match pooled {
                Some((slot, offset, _)) => {
                    (tensor.byte_len(), Place::Slot { slot, offset: offset as u64 })
                }
                None => {
                    let packed = tensor.strings().map(payload::pack_strings).unwrap_or_default();
                    let bytes = tensor.bytes().map_or(packed.len(), <[u8]>::len);
                    copies.push((index, copied, packed));
                    copied = copied.saturating_add(bytes.next_multiple_of(64));
                    // Where it is, is filled in below.
                    (bytes, Place::Frame(0))
                }
            };
            descriptors.push(Descriptor::contiguous(dtype, shape, bytes, place));
            tensors.push(tensor);
        }
        if copies.is_empty() {
            return Ok(Some((tensors, descriptors)));
        }
        let mut buffer = match self.spill(copied) {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == ErrorKind::Full => return Ok(None),
            Err(error) => return Err(error),
        };
        let slot = buffer.pooled().ok_or_else(|| Error::usage("a pool without slots"))?;
        for (index, offset, packed) in copies {
            let bytes = tensors[index].bytes().unwrap_or(&packed);
            let target = buffer.bytes_mut().and_then(|all| all.get_mut(offset..));
            if let Some(target) = target.and_then(|target| target.get_mut(..bytes.len())) {
                target.copy_from_slice(bytes);
            }
            self.copied.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            descriptors[index].place = Place::Slot { slot, offset: offset as u64 };
        }
        let region: Arc<dyn Region> = buffer.into();
        let len = region.len();
        tensors.push(Tensor::from_region(DType::U8, &[len], region)?);
        Ok(Some((tensors, descriptors)))
    }

    /// The tensor that a header describes, held by this process.
    pub(crate) fn resolve(
        self: &Arc<Self>,
        descriptor: &Descriptor,
        pools: &mut Vec<Arc<OpenPool>>,
    ) -> Result<Tensor> {
        let Place::Slot { slot, offset } = descriptor.place else {
            return Err(Error::invalid("a tensor in a frame, where there are none"));
        };
        let pool = self.pool_of(slot.pool)?;
        let region = pool.hold(slot.slot, slot.generation).ok_or_else(|| {
            Error::lost("a tensor's memory is in use for something else: its sender is gone")
        })?;
        let written = Written::of(&pool, slot);
        pools.push(pool);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let region: Arc<dyn Region> = Arc::new(region);
        let Some(written) = written else { return payload::tensor(descriptor, region, offset) };
        if payload::is_copied(descriptor, &*region, offset) {
            // Here and now.
            written.wait()?;
        }
        Ok(payload::tensor(descriptor, region, offset)?.awaiting(Arc::new(written)))
    }
}
