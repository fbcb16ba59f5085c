//! Pools: a fixed number of buffers in shared memory, borrowed, handed around, given back.
//!
//! A pool belongs to the process that made it, which alone borrows from it; others open it once, when
//! the first tensor from it reaches them, and from then on a tensor is a slot number. The payload is
//! mapped read-only everywhere but in the owner's process, by order of the kernel.
//!
//! # Who holds a buffer
//! Each slot has one word in memory that all share: a bit for every process that holds the buffer,
//! and a generation, which counts how often it was borrowed. A process sets and clears only its own
//! bit, when its first reference comes and its last one goes; the owner borrows a slot when no bit is
//! set. A sender holds the buffer until the receiver has set its own bit, so that there is always one
//! set while the tensor is on its way. When a process dies the owner hears of it from the socket
//! between them and clears its bit everywhere. A message of a dead sender may come after that: its
//! receiver sets its bit and reads the generation in one step, and finds out.

#![allow(unsafe_code, reason = "buffers are slices of shared memory")]

mod slot;
mod written;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tessera_core::{Buffer, Error, PoolId, Result};
use tessera_cuda::{Gpu, Registered};

use crate::bell::Bell;
use crate::courier::Inner;
use crate::device::DevicePayload;
use crate::handover::{arm, disarm, raise};
use crate::segment::{Segment, Writers};
use crate::sync::lock;
use crate::unix::Link;
use crate::wait::Wait;
use slot::Slot;
pub(crate) use written::Written;
use written::flags;

/// How many processes may have a pool open, the owner among them.
pub const MOST_HOLDERS: u32 = 40;
/// The owner's bit.
const OWNER: u32 = 0;
const HOLDERS: u64 = (1 << MOST_HOLDERS) - 1;
const GENERATIONS: u32 = 1 << 24;

/// Largest pool that is kept in memory for a GPU to copy from.
const MOST_PINNED: usize = 256 << 20;

/// Offset of the alarm that the owner sets when it waits for a buffer.
const ALARM: usize = 0;
/// Offset of the first slot's word, and the distance to the next: a cache line each.
const WORDS: usize = 64;

/// Buffers of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Bytes of each.
    pub bytes: usize,
    /// How many.
    pub count: usize,
}

/// Where each buffer of a pool is in its payload.
fn slots_of(buffers: &[Buffers]) -> Result<(Vec<(usize, usize)>, usize)> {
    let wrong = || Error::usage("a pool must have between 1 and 65536 buffers that fit in memory");
    if buffers.len() > 200 {
        return Err(Error::usage("a pool has buffers of at most 200 sizes"));
    }
    let mut slots = Vec::new();
    let mut offset = 0usize;
    for Buffers { bytes, count } in buffers {
        // Whole pages for what is larger than one, whole cache lines for the rest.
        let step = if *bytes >= 4096 { 4096 } else { 64 };
        let size = (*bytes).max(1).checked_next_multiple_of(step).ok_or_else(wrong)?;
        offset = offset.checked_next_multiple_of(step).ok_or_else(wrong)?;
        if slots.len().saturating_add(*count) > 65536 {
            return Err(wrong());
        }
        for _ in 0..*count {
            slots.push((offset, size));
            offset = offset.checked_add(size).ok_or_else(wrong)?;
        }
    }
    let len = offset.checked_next_multiple_of(4096).filter(|&len| len < isize::MAX as usize);
    match len {
        Some(len) if !slots.is_empty() => Ok((slots, len)),
        _ => Err(wrong()),
    }
}

/// What a process needs to open a pool, beside its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) id: PoolId,
    /// The bit of the process that opens it.
    pub(crate) holder: u32,
    /// The GPU that the buffers are on; none where they are on the host.
    pub(crate) gpu: Option<u32>,
    /// Whether a GPU writes the buffers: each has a flag that says when it has.
    pub(crate) is_flagged: bool,
    pub(crate) buffers: Vec<Buffers>,
}

/// Who writes the buffers of a pool on the host.
pub(crate) enum Writer<'a> {
    /// The CPU, before they are handed over.
    Host,
    /// A GPU, which may be told of it later; it copies to and from them while the host does other things.
    Gpu(&'a Arc<Gpu>),
    /// The CPU, later.
    #[cfg(test)]
    HostLater,
}

/// A pool of buffers that this process owns.
///
/// It lives for as long as this or any of its buffers does, and keeps the transport that looks after it.
#[derive(Clone)]
pub struct Pool(
    pub(crate) Arc<OpenPool>,
    #[allow(dead_code, reason = "held, not used")] pub(crate) Option<Arc<Inner>>,
);

/// Asked for help when a pool is empty: buffers may be held for messages that were taken long ago.
pub(crate) trait Settle: Send + Sync {
    fn settle(&self);
}

/// A pool that this process has open, its own or another's.
pub(crate) struct OpenPool {
    pub(crate) id: PoolId,
    buffers: Vec<Buffers>,
    slots: Vec<(usize, usize)>,
    // These three before the memory that they are over.
    device: Option<DevicePayload>,
    /// What has a GPU of ours say that it has written a buffer on the host.
    flags: Option<Registered>,
    /// What lets a GPU of ours copy from its buffers, or to them, while the host does other things.
    #[allow(dead_code, reason = "held, not used")]
    pinned: Option<Registered>,
    control: Segment,
    /// The buffers; or where they are on a GPU, what others need to open them.
    payload: Segment,
    is_flagged: bool,
    /// Whether its owner, another process, is gone.
    is_orphan: AtomicBool,
    /// Rings when a buffer comes back while the owner waits.
    bell: Bell,
    /// Our bit.
    holder: u32,
    /// References of this process to each slot.
    local: Vec<Mutex<u32>>,
    /// Threads that wait for a buffer.
    waiters: AtomicUsize,
    borrowed: AtomicU64,
    /// The processes that have it open; empty where we are one of them.
    holders: Mutex<Vec<Option<Arc<Link>>>>,
    settle: Weak<dyn Settle>,
    /// To the owner, where that is another process: it clears our bit when this closes.
    _owner: Option<Arc<Link>>,
}

impl OpenPool {
    /// A pool of ours.
    pub(crate) fn create(
        id: PoolId,
        buffers: &[Buffers],
        settle: Weak<dyn Settle>,
        writer: Writer<'_>,
    ) -> Result<Arc<Self>> {
        let (slots, len) = slots_of(buffers)?;
        let control = Segment::create(control_len(slots.len()), Writers::All)?;
        let payload = Segment::create(len, Writers::Creator)?;
        let is_flagged = !matches!(writer, Writer::Host);
        let plan = Plan { id, holder: OWNER, gpu: None, is_flagged, buffers: buffers.to_vec() };
        let bell = Bell::new()?;
        let gpu = match writer {
            Writer::Gpu(gpu) => Some(gpu),
            _ => None,
        };
        let flags = gpu.map(|gpu| flags(gpu, &control)).transpose()?;
        // SAFETY: the segment is mapped in whole pages, and a pool lets go of this before it. Where it can't be, the GPU
        // copies all the same.
        let pin = |gpu| unsafe { Registered::over(gpu, payload.address(), payload.len()) }.ok();
        let pinned = gpu.filter(|_| len <= MOST_PINNED).and_then(pin);
        let payload = (payload, None);
        let mut made = Self::over(plan, slots, control, payload, bell, settle, None);
        (made.pinned, made.flags) = (pinned, flags);
        Ok(Arc::new(made))
    }

    /// The same with buffers on a GPU.
    pub(crate) fn create_on(
        gpu: &Arc<Gpu>,
        id: PoolId,
        buffers: &[Buffers],
        settle: Weak<dyn Settle>,
    ) -> Result<Arc<Self>> {
        let (slots, len) = slots_of(buffers)?;
        let control = Segment::create(control_len(slots.len()), Writers::All)?;
        let payload = Segment::create(DevicePayload::HANDLES, Writers::Creator)?;
        let (device, handles) = DevicePayload::create(gpu, len, flags(gpu, &control)?)?;
        payload.write(0, &handles).ok_or_else(|| Error::usage("no room for handles"))?;
        let gpu = Some(gpu.number());
        let plan = Plan { id, holder: OWNER, gpu, is_flagged: true, buffers: buffers.to_vec() };
        let payload = (payload, Some(device));
        Ok(Arc::new(Self::over(plan, slots, control, payload, Bell::new()?, settle, None)))
    }

    /// Opens the pool of another process.
    pub(crate) fn open(
        plan: Plan,
        control: std::os::fd::OwnedFd,
        payload: std::os::fd::OwnedFd,
        bell: Bell,
        settle: Weak<dyn Settle>,
        owner: Arc<Link>,
        gpu: Option<&Arc<Gpu>>,
    ) -> Result<Arc<Self>> {
        let (slots, len) = slots_of(&plan.buffers)?;
        if plan.holder == OWNER || plan.holder >= MOST_HOLDERS {
            return Err(Error::invalid("a pool that gives us a place which does not exist"));
        }
        let control = Segment::open(control, control_len(slots.len()), true)?;
        let mut pinned = None;
        let payload = match plan.gpu {
            None => {
                let payload = Segment::open(payload, len, false)?;
                if let Some(gpu) = gpu.filter(|_| len <= MOST_PINNED) {
                    pinned = pin(gpu, &payload);
                }
                (payload, None)
            }
            Some(number) => {
                let payload = Segment::open(payload, DevicePayload::HANDLES, false)?;
                let handle = payload.read(0, DevicePayload::HANDLES).unwrap_or_default();
                let gpu = Gpu::open(number)?;
                let flags = flags(&gpu, &control)?;
                (payload, Some(DevicePayload::open(gpu, &handle, flags)?))
            }
        };
        let mut opened = Self::over(plan, slots, control, payload, bell, settle, Some(owner));
        opened.pinned = pinned;
        Ok(Arc::new(opened))
    }

    fn over(
        plan: Plan,
        slots: Vec<(usize, usize)>,
        control: Segment,
        (payload, device): (Segment, Option<DevicePayload>),
        bell: Bell,
        settle: Weak<dyn Settle>,
        owner: Option<Arc<Link>>,
    ) -> Self {
        Self {
            device,
            is_orphan: AtomicBool::new(false),
            pinned: None,
            flags: None,
            is_flagged: plan.is_flagged,
            id: plan.id,
            buffers: plan.buffers,
            local: slots.iter().map(|_| Mutex::default()).collect(),
            slots,
            control,
            payload,
            bell,
            holder: plan.holder,
            waiters: AtomicUsize::new(0),
            borrowed: AtomicU64::new(0),
            holders: Mutex::default(),
            settle,
            _owner: owner,
        }
    }

    fn word(&self, slot: usize) -> &AtomicU64 {
        self.control.u64(WORDS + 64 * slot)
    }

    /// Whether it is another process' pool.
    pub(crate) fn is_anothers(&self) -> bool {
        self.holder != OWNER
    }

    fn bit(&self) -> u64 {
        1 << self.holder
    }

    /// A reference to a buffer that a message named; `None` where it is no longer what it was.
    pub(crate) fn hold(self: &Arc<Self>, slot: u32, generation: u32) -> Option<Slot> {
        let index = usize::try_from(slot).ok()?;
        let mut references = lock(self.local.get(index)?);
        let word = self.word(index);
        if *references == 0 {
            let before = word.fetch_or(self.bit(), Ordering::AcqRel);
            if generation_of(before) != generation {
                self.clear(index, self.bit());
                return None;
            }
        } else if generation_of(word.load(Ordering::Acquire)) != generation {
            return None;
        }
        *references += 1;
        let len = self.slots[index].1;
        Some(Slot { pool: Arc::clone(self), index, len, generation, writable: false })
    }

    /// Takes a free buffer that is large enough; the owner's alone.
    fn take(self: &Arc<Self>, len: usize) -> Option<Slot> {
        // The smallest that fits; of those the first, which was in use most recently: its memory is
        // in the caches still, and what is not needed is never touched.
        let free = |index: &usize| self.word(*index).load(Ordering::Relaxed) & HOLDERS == 0;
        let fitting = (0..self.slots.len()).filter(|&index| self.slots[index].1 >= len);
        let index = fitting.filter(free).min_by_key(|&index| self.slots[index].1)?;
        let mut references = lock(&self.local[index]);
        if *references != 0 {
            return None;
        }
        let word = self.word(index);
        let before = word.load(Ordering::Relaxed);
        let generation = (generation_of(before) + 1) % GENERATIONS;
        let after = u64::from(generation) << MOST_HOLDERS | self.bit();
        if before & HOLDERS != 0
            || word.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return None;
        }
        *references = 1;
        self.borrowed.fetch_add(1, Ordering::Relaxed);
        Some(Slot { pool: Arc::clone(self), index, len, generation, writable: true })
    }

    /// Tries a few times: another thread may have taken what we saw.
    fn try_take(self: &Arc<Self>, len: usize) -> Option<Slot> {
        (0..64).find_map(|_| self.take(len))
    }

    /// Where its buffers are on a GPU.
    pub(crate) fn device(&self) -> Option<&DevicePayload> {
        self.device.as_ref()
    }

    pub(crate) fn release(&self, slot: usize) {
        let mut references = lock(&self.local[slot]);
        *references -= 1;
        if *references == 0 {
            // Under the lock: a reference that comes now must find the bit as it is.
            self.clear(slot, self.bit());
        }
    }

    fn clear(&self, slot: usize, bit: u64) {
        let before = self.word(slot).fetch_and(!bit, Ordering::AcqRel);
        if before & HOLDERS & !bit == 0 && raise(self.control.u32(ALARM)) {
            self.bell.ring();
        }
    }

    /// Tells the owner, where it waits, that a buffer of its pool was taken over: whoever handed it
    /// over can let go of it, and may have to be asked to.
    pub(crate) fn nudge(&self) {
        if raise(self.control.u32(ALARM)) {
            self.bell.ring();
        }
    }

    /// Lets another process in: its number, and what it needs.
    pub(crate) fn admit(&self, link: Arc<Link>) -> Result<Plan> {
        let mut holders = lock(&self.holders);
        let free = holders.iter().position(Option::is_none).unwrap_or(holders.len());
        let holder = u32::try_from(free).unwrap_or(u32::MAX).saturating_add(OWNER + 1);
        if holder >= MOST_HOLDERS {
            return Err(Error::full(format!(
                "a pool is open in {MOST_HOLDERS} processes already, the most there can be"
            )));
        }
        if free == holders.len() {
            holders.push(None);
        }
        holders[free] = Some(link);
        let gpu = self.device.as_ref().map(DevicePayload::number);
        let (is_flagged, buffers) = (self.is_flagged, self.buffers.clone());
        Ok(Plan { id: self.id, holder, gpu, is_flagged, buffers })
    }

    /// A process that had the pool open is gone: what it held is free.
    pub(crate) fn dismiss(&self, link: &Arc<Link>) {
        let mut holders = lock(&self.holders);
        let same = |holder: &Option<Arc<Link>>| {
            holder.as_ref().is_some_and(|holder| Arc::ptr_eq(holder, link))
        };
        let Some(position) = holders.iter().position(same) else { return };
        let bit = 1 << (position as u32 + OWNER + 1);
        for slot in 0..self.slots.len() {
            if self.word(slot).load(Ordering::Relaxed) & bit != 0 {
                self.clear(slot, bit);
            }
        }
        // Its number is given out again only now that its bit is nowhere.
        holders[position] = None;
        // It may have died after it had seen that the owner waits and before it rang.
        self.bell.ring();
    }

    pub(crate) fn descriptors(&self) -> (&Segment, &Segment, &Bell) {
        (&self.control, &self.payload, &self.bell)
    }

    /// Buffers that somebody holds, and all there are.
    fn in_use(&self) -> (usize, usize) {
        let held = |slot: &usize| self.word(*slot).load(Ordering::Relaxed) & HOLDERS != 0;
        ((0..self.slots.len()).filter(held).count(), self.slots.len())
    }

    /// Asks everyone to let go of what they hold for messages that were taken.
    fn ask(&self) {
        if let Some(settle) = self.settle.upgrade() {
            settle.settle();
        }
        let holders: Vec<_> = lock(&self.holders).iter().flatten().cloned().collect();
        for holder in holders {
            // One that is gone is dismissed by the driver; one that is asked already need not be
            // asked again.
            holder.send(&crate::protocol::settle(), &[]).ok();
        }
    }
}

impl Drop for OpenPool {
    fn drop(&mut self) {
        // Those who have it open need it no more, and don't know it.
        for holder in lock(&self.holders).iter().flatten() {
            holder.shut_down();
        }
    }
}

/// Has a GPU copy from the buffers of a pool without the host; where that can't be it copies all the same.
fn pin(gpu: &Arc<Gpu>, payload: &Segment) -> Option<Registered> {
    // SAFETY: the segment is mapped in whole pages, and a pool lets go of this before it.
    unsafe { Registered::to_read(gpu, payload.address(), payload.len()) }.ok()
}

fn control_len(slots: usize) -> usize {
    (WORDS + 64 * slots).next_multiple_of(4096)
}

fn generation_of(word: u64) -> u32 {
    (word >> MOST_HOLDERS) as u32
}

impl Pool {
    /// Which pool it is.
    pub fn id(&self) -> PoolId {
        self.0.id
    }

    /// Borrows a buffer of at least `len` bytes, to write and send; its content is what it was.
    ///
    /// Fails with `Full` or `TimedOut` where none comes back in time, and with `Usage` where none is
    /// large enough.
    pub fn borrow(&self, len: usize, wait: Wait) -> Result<Buffer> {
        if let Some(slot) = self.0.try_take(len) {
            return Ok(Box::new(slot));
        }
        self.check_size(len)?;
        if let Some(settle) = self.0.settle.upgrade() {
            settle.settle();
        }
        if let Some(slot) = self.0.try_take(len) {
            return Ok(Box::new(slot));
        }
        if wait == Wait::No {
            self.0.ask();
            return Err(self.exhausted(Error::full, len));
        }
        self.0.waiters.fetch_add(1, Ordering::AcqRel);
        let slot = self.wait_for(len, wait);
        if self.0.waiters.fetch_sub(1, Ordering::AcqRel) > 1 {
            // A ring wakes one thread; there may be something for the next.
            self.0.bell.ring();
        }
        match slot {
            Some(slot) => Ok(Box::new(slot)),
            None => Err(self.exhausted(Error::timed_out, len)),
        }
    }

    fn wait_for(&self, len: usize, wait: Wait) -> Option<Slot> {
        let alarm = self.0.control.u32(ALARM);
        loop {
            arm(alarm);
            self.0.ask();
            if let Some(slot) = self.0.try_take(len) {
                disarm(alarm);
                return Some(slot);
            }
            if !self.0.bell.sleep(wait.slice()) && wait.is_over() {
                return self.0.try_take(len);
            }
        }
    }

    /// The same without a thread that waits.
    pub async fn borrow_async(&self, len: usize, wait: Wait) -> Result<Buffer> {
        match self.borrow(len, Wait::No) {
            Err(error) if error.kind() == tessera_core::ErrorKind::Full && wait != Wait::No => {}
            done => return done,
        }
        let bell = crate::asynchronous::AsyncBell::new(&self.0.bell)?;
        let alarm = self.0.control.u32(ALARM);
        self.0.waiters.fetch_add(1, Ordering::AcqRel);
        let waiting = Waiting(&self.0);
        loop {
            arm(alarm);
            self.0.ask();
            if let Some(slot) = self.0.try_take(len) {
                disarm(alarm);
                drop(waiting);
                return Ok(Box::new(slot));
            }
            if !bell.sleep(&self.0.bell, wait.slice()).await? && wait.is_over() {
                drop(waiting);
                let slot = self.0.try_take(len);
                return slot
                    .map(|slot| Box::new(slot) as Buffer)
                    .ok_or_else(|| self.exhausted(Error::timed_out, len));
            }
        }
    }

    fn check_size(&self, len: usize) -> Result<()> {
        let largest = self.0.slots.iter().map(|slot| slot.1).max().unwrap_or(0);
        match len <= largest {
            true => Ok(()),
            false => Err(Error::usage(format!(
                "a pool whose largest buffer has {largest} bytes has none of {len}"
            ))),
        }
    }

    fn exhausted(&self, kind: impl Fn(String) -> Error, len: usize) -> Error {
        let (used, all) = self.0.in_use();
        kind(format!("no buffer of {len} bytes is free: {used} of {all} are in use"))
    }

    /// How many buffers somebody holds.
    pub fn in_use(&self) -> usize {
        self.0.in_use().0
    }

    /// How many buffers there are.
    pub fn buffers(&self) -> usize {
        self.0.in_use().1
    }

    /// How often one was borrowed.
    pub fn borrowed(&self) -> u64 {
        self.0.borrowed.load(Ordering::Relaxed)
    }
}

/// Counts as waiting until dropped, also where the future that waits is.
struct Waiting<'a>(&'a OpenPool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.0.waiters.fetch_sub(1, Ordering::AcqRel) > 1 {
            self.0.bell.ring();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, all) = self.0.in_use();
        write!(f, "Pool({used} of {all} in use)")
    }
}
