//! Between processes of a host: headers through a ring in shared memory, tensors where they are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tessera_core::{Error, ErrorKind, Location, Region, Result, Tensor};

use crate::bell::Bell;
use crate::channel::{Attempt, Incoming, NotSent, Outgoing, Peer, Received};
use crate::courier::Inner;
use crate::driver::{Source, Token};
use crate::flight::{Fate, Finish, Flight, Receipt};
use crate::handover::{arm, disarm};
use crate::layout::{Clock, Descriptor, Place, View};
use crate::message::{Message, RequestId};
use crate::payload;
use crate::pool::OpenPool;
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
        let mut tensors = Vec::with_capacity(message.tensors.len());
        let mut descriptors = Vec::with_capacity(message.tensors.len());
        for tensor in &message.tensors {
            let Some((tensor, descriptor)) = courier.share(tensor)? else { return Ok(None) };
            tensors.extend(tensor);
            descriptors.push(descriptor);
        }
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
                self.flight.remove_last();
                return full_or_failed.map(|_| None);
            }
        }
        drop(state);
        if self.gone.load(Ordering::Acquire) {
            // It died meanwhile, perhaps after what was in flight was gathered.
            self.flight.end(self.ring.taken(), Fate::NotTaken);
        }
        Ok(Some(sequence))
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
        let receipts = lock(&self.state).writer.receipts(&self.ring);
        let taken = self.ring.taken();
        self.flight.took(taken);
        for sequence in receipts.unwrap_or_default() {
            self.flight.finish(sequence);
        }
        if self.ring.receiver_closed() {
            self.flight.abandon(taken);
        }
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
        self.settle();
        self.flight.end(self.ring.taken(), Fate::NotTaken);
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
        let view = View::parse(&header);
        let result = view.as_ref().map_err(|error| Error::new(error.kind(), error.to_string()));
        let mut pools = Vec::new();
        let result = result.and_then(|view| self.message(view, &mut pools));
        if reader.pop(&self.ring, header.len()) {
            self.sender_bell.ring();
        }
        drop(reader);
        for pool in pools {
            pool.nudge();
        }
        Ok(Some(match result {
            Ok(message) => Received::Message(message),
            Err(error) => {
                let view = view.ok();
                if let Some(view) = view {
                    self.finish(view.sequence());
                }
                Received::Failed {
                    peer: self.peer.clone(),
                    request: view.map(|view| RequestId(view.request())),
                    error,
                }
            }
        }))
    }

    /// The message of a header, and the pools that its tensors are in.
    fn message(&self, view: &View<'_>, pools: &mut Vec<Arc<OpenPool>>) -> Result<Message> {
        let courier = self.courier.upgrade().ok_or_else(|| Error::lost("the transport ended"))?;
        let tensors = view.tensors().map(|tensor| courier.resolve(&tensor, pools));
        let tensors = tensors.collect::<Result<Vec<Tensor>>>()?;
        let channel: Arc<dyn Finish> =
            self.own.upgrade().ok_or_else(|| Error::lost("the channel ended"))?;
        Ok(Message {
            envelope: view.envelope(),
            tensors,
            receipt: Some(Receipt::new(view.sequence(), channel)),
        })
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
    /// How a receiver finds a tensor: where it is if that is shared, else a copy that is.
    ///
    /// `None` where there is no memory free for a copy.
    pub(crate) fn share(&self, tensor: &Tensor) -> Result<Option<(Option<Tensor>, Descriptor)>> {
        let tensor = tensor.clone().settled()?;
        if tensor.location() != Location::Host {
            return Err(Error::unsupported(
                "a tensor that is not in host memory can't go through shared memory",
            ));
        }
        if let Some((region, offset)) = tensor.region()
            && let Some(slot) = region.pooled()
        {
            let place = Place::Slot { slot, offset: offset as u64 };
            let descriptor =
                Descriptor::contiguous(tensor.dtype(), tensor.shape(), tensor.byte_len(), place);
            return Ok(Some((Some(tensor), descriptor)));
        }
        let packed;
        let bytes = match tensor.bytes() {
            Some(bytes) => bytes,
            None => {
                packed = payload::pack_strings(tensor.strings().unwrap_or_default());
                &packed
            }
        };
        let mut buffer = match self.spill(bytes.len()) {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == ErrorKind::Full => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(target) = buffer.bytes_mut().and_then(|target| target.get_mut(..bytes.len())) {
            target.copy_from_slice(bytes);
        }
        self.copied.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let region: Arc<dyn Region> = buffer.into();
        let slot = region.pooled().ok_or_else(|| Error::usage("a pool without slots"))?;
        let descriptor = Descriptor::contiguous(
            tensor.dtype(),
            tensor.shape(),
            bytes.len(),
            Place::Slot { slot, offset: 0 },
        );
        let len = bytes.len();
        let held = Tensor::from_region(tessera_core::DType::U8, &[len], region)?;
        Ok(Some((Some(held), descriptor)))
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
        pools.push(pool);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        payload::tensor(descriptor, Arc::new(region), offset)
    }
}
