//! Pools: a fixed number of buffers in shared memory, borrowed, handed around, given back.
//!
//! A pool belongs to the process that made it, which alone borrows from it; others open it once,
//! when the first tensor from it reaches them, and from then on a tensor is a slot number. The
//! payload is mapped read-only everywhere but in the owner's process, by order of the kernel.
//!
//! # Who holds a buffer
//! Each slot has one word in memory that all share: a bit for every process that holds the buffer,
//! and a generation, which counts how often it was borrowed. A process sets and clears only its own
//! bit, when its first reference comes and its last one goes; the owner borrows a slot when no bit
//! is set. A sender holds the buffer until the receiver has set its own bit, so that there is
//! always one set while the tensor is on its way. When a process dies the owner hears of it from
//! the socket between them and clears its bit everywhere. A message of a dead sender may come after
//! that: its receiver sets its bit and reads the generation in one step, and finds out.

#![allow(unsafe_code, reason = "buffers are slices of shared memory")]

mod borrow;
mod device;
mod registry;
mod slot;
mod slot_layout;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tessera_core::{Error, PoolId, Result, lock};

use crate::alarm::claim_wakeup;
use crate::keep_alive::KeepAlive;
use crate::notifier::Notifier;
use crate::segment::{Segment, SegmentWriters};
pub use borrow::Pool;
use device::PoolDevice;
pub use device::ReleaseFenceWaiters;
pub(crate) use device::{DeviceHooks, WriteFence, prepare_for_receiver};
pub(crate) use registry::PoolRegistry;
use slot::BufferSlot;
pub use slot_layout::Buffers;
use slot_layout::{SLOT_WORDS_OFFSET, control_len, slot_layout};

/// How many processes may have a pool open, the owner among them.
pub const MAX_HOLDERS: u32 = 40;
/// The owner's bit.
const OWNER_HOLDER: u32 = 0;
const HOLDERS_MASK: u64 = (1 << MAX_HOLDERS) - 1;
const GENERATION_COUNT: u32 = 1 << 24;

/// Offset of the alarm that the owner sets when it waits for a buffer.
const ALARM_OFFSET: usize = 0;

/// What a process needs to open a pool, beside its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolDescription {
    pub(crate) id: PoolId,
    /// The bit of the process that opens it.
    pub(crate) holder: u32,
    /// What the buffers are on: 0 is the host, others are devices.
    pub(crate) device_code: u32,
    /// Whether buffers may be handed over before they are written: each has a flag that says when
    /// it is.
    pub(crate) is_flagged: bool,
    pub(crate) buffers: Vec<Buffers>,
}

/// Asked for help when a pool is empty: buffers may be held for messages that were taken long ago.
pub(crate) trait BufferReclaimer: Send + Sync {
    fn reclaim_buffers(&self);
}

/// Another process that has a pool of ours open.
pub(crate) trait PoolHolder: Send + Sync {
    /// Asks it to let go of what it can.
    fn request_buffers_back(&self);
    /// Tells it that the pool is gone.
    fn end_holding(&self);
}

/// A pool that this process has open, its own or another's.
pub(crate) struct OpenPool {
    pub(crate) id: PoolId,
    buffers: Vec<Buffers>,
    slots: Vec<(usize, usize)>,
    /// What devices have to do with it. Before the memory that it is over.
    device: PoolDevice,
    control: Segment,
    /// The buffers; or where they are on a device, what others need to open them.
    payload: Segment,
    /// Notified when a buffer comes back while the owner waits.
    notifier: Notifier,
    /// Our bit.
    holder: u32,
    /// References of this process to each slot.
    local_references: Vec<Mutex<u32>>,
    /// Threads that wait for a buffer.
    waiters: AtomicUsize,
    borrow_count: AtomicU64,
    /// The processes that have it open; empty where we are one of them.
    holders: Mutex<Vec<Option<Arc<dyn PoolHolder>>>>,
    reclaimer: Weak<dyn BufferReclaimer>,
    /// To the owner, where that is another process: it clears our bit when this closes.
    _owner_connection: Option<KeepAlive>,
}

/// What a pool is made from.
struct PoolParts {
    id: PoolId,
    /// Our bit.
    holder: u32,
    buffers: Vec<Buffers>,
    slots: Vec<(usize, usize)>,
    control: Segment,
    payload: Segment,
    device: PoolDevice,
    notifier: Notifier,
}

impl OpenPool {
    /// A pool of ours on the host.
    pub(crate) fn create_on_host(
        id: PoolId,
        buffers: &[Buffers],
        reclaimer: Weak<dyn BufferReclaimer>,
    ) -> Result<Arc<Self>> {
        Self::create_with_device(id, buffers, reclaimer, |_, len| {
            Ok((Segment::create(len, SegmentWriters::Creator)?, PoolDevice::without_device()))
        })
    }

    /// A pool of ours: `create_payload` is given the memory that all share and the bytes of all
    /// buffers, and makes these.
    fn create_with_device(
        id: PoolId,
        buffers: &[Buffers],
        reclaimer: Weak<dyn BufferReclaimer>,
        create_payload: impl FnOnce(&Segment, usize) -> Result<(Segment, PoolDevice)>,
    ) -> Result<Arc<Self>> {
        let (slots, len) = slot_layout(buffers)?;
        let control = Segment::create(control_len(slots.len()), SegmentWriters::All)?;
        let (payload, device) = create_payload(&control, len)?;
        let parts = PoolParts {
            id,
            holder: OWNER_HOLDER,
            buffers: buffers.to_vec(),
            slots,
            control,
            payload,
            device,
            notifier: Notifier::new()?,
        };
        Ok(Arc::new(Self::from_parts(parts, reclaimer, None)))
    }

    /// Opens the pool of another process; `owner` is held for as long as it is open.
    pub(crate) fn open_imported(
        description: PoolDescription,
        control: OwnedFd,
        payload: OwnedFd,
        notifier: Notifier,
        reclaimer: Weak<dyn BufferReclaimer>,
        owner: KeepAlive,
        devices: &DeviceHooks,
    ) -> Result<Arc<Self>> {
        let (slots, len) = slot_layout(&description.buffers)?;
        if description.holder == OWNER_HOLDER || description.holder >= MAX_HOLDERS {
            return Err(Error::invalid("a pool that gives us a place which does not exist"));
        }
        let control = Segment::open(control, control_len(slots.len()), true)?;
        let (payload, device) =
            PoolDevice::open_payload(&description, payload, len, &control, devices)?;
        let PoolDescription { id, holder, buffers, .. } = description;
        let parts = PoolParts { id, holder, buffers, slots, control, payload, device, notifier };
        Ok(Arc::new(Self::from_parts(parts, reclaimer, Some(owner))))
    }

    fn from_parts(
        parts: PoolParts,
        reclaimer: Weak<dyn BufferReclaimer>,
        owner: Option<KeepAlive>,
    ) -> Self {
        let PoolParts { id, holder, buffers, slots, control, payload, device, notifier } = parts;
        Self {
            id,
            buffers,
            local_references: slots.iter().map(|_| Mutex::default()).collect(),
            slots,
            device,
            control,
            payload,
            notifier,
            holder,
            waiters: AtomicUsize::new(0),
            borrow_count: AtomicU64::new(0),
            holders: Mutex::default(),
            reclaimer,
            _owner_connection: owner,
        }
    }

    fn slot_word(&self, slot: usize) -> &AtomicU64 {
        self.control.atomic_u64(SLOT_WORDS_OFFSET + 64 * slot)
    }

    /// Whether it is another process' pool.
    pub(crate) fn is_imported(&self) -> bool {
        self.holder != OWNER_HOLDER
    }

    fn holder_bit(&self) -> u64 {
        1 << self.holder
    }

    /// A reference to a buffer that a message named; `None` where it is no longer what it was.
    pub(crate) fn hold_slot(self: &Arc<Self>, slot: u32, generation: u32) -> Option<BufferSlot> {
        let index = usize::try_from(slot).ok()?;
        let mut references = lock(self.local_references.get(index)?);
        let word = self.slot_word(index);
        if *references == 0 {
            let before = word.fetch_or(self.holder_bit(), Ordering::AcqRel);
            if generation_of(before) != generation {
                self.clear_holder_bit(index, self.holder_bit());
                return None;
            }
        } else if generation_of(word.load(Ordering::Acquire)) != generation {
            return None;
        }
        *references += 1;
        let len = self.slots[index].1;
        Some(BufferSlot { pool: Arc::clone(self), index, len, generation, writable: false })
    }

    /// Takes a free buffer that is large enough; the owner's alone.
    fn try_claim_slot(self: &Arc<Self>, len: usize) -> Option<BufferSlot> {
        // The smallest that fits; of those the first, which was in use most recently: its memory is
        // in the caches still, and what is not needed is never touched.
        let free =
            |index: &usize| self.slot_word(*index).load(Ordering::Relaxed) & HOLDERS_MASK == 0;
        let fitting = (0..self.slots.len()).filter(|&index| self.slots[index].1 >= len);
        let index = fitting.filter(free).min_by_key(|&index| self.slots[index].1)?;
        let mut references = lock(&self.local_references[index]);
        if *references != 0 {
            return None;
        }
        let word = self.slot_word(index);
        let before = word.load(Ordering::Relaxed);
        let generation = (generation_of(before) + 1) % GENERATION_COUNT;
        let after = u64::from(generation) << MAX_HOLDERS | self.holder_bit();
        if before & HOLDERS_MASK != 0
            || word.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return None;
        }
        *references = 1;
        self.borrow_count.fetch_add(1, Ordering::Relaxed);
        Some(BufferSlot { pool: Arc::clone(self), index, len, generation, writable: true })
    }

    /// Tries a few times: another thread may have taken what we saw.
    fn claim_slot(self: &Arc<Self>, len: usize) -> Option<BufferSlot> {
        (0..64).find_map(|_| self.try_claim_slot(len))
    }

    pub(crate) fn release_slot(&self, slot: usize) {
        let mut references = lock(&self.local_references[slot]);
        *references -= 1;
        if *references == 0 {
            // Under the lock: a reference that comes now must find the bit as it is.
            self.clear_holder_bit(slot, self.holder_bit());
        }
    }

    fn clear_holder_bit(&self, slot: usize, bit: u64) {
        let before = self.slot_word(slot).fetch_and(!bit, Ordering::AcqRel);
        if before & HOLDERS_MASK & !bit == 0 && claim_wakeup(self.control.atomic_u32(ALARM_OFFSET))
        {
            self.notifier.notify();
        }
    }

    /// Tells the owner, where it waits, that a buffer of its pool was taken over: whoever handed it
    /// over can let go of it, and may have to be asked to.
    pub(crate) fn notify_owner(&self) {
        if claim_wakeup(self.control.atomic_u32(ALARM_OFFSET)) {
            self.notifier.notify();
        }
    }

    /// Admits another process: its number, and what it needs.
    pub(crate) fn admit_holder(&self, process: Arc<dyn PoolHolder>) -> Result<PoolDescription> {
        let mut holders = lock(&self.holders);
        let free = holders.iter().position(Option::is_none).unwrap_or(holders.len());
        let holder = u32::try_from(free).unwrap_or(u32::MAX).saturating_add(OWNER_HOLDER + 1);
        if holder >= MAX_HOLDERS {
            return Err(Error::full(format!(
                "a pool is open in {MAX_HOLDERS} processes already, the most there can be"
            )));
        }
        if free == holders.len() {
            holders.push(None);
        }
        holders[free] = Some(process);
        Ok(PoolDescription {
            id: self.id,
            holder,
            device_code: self.device.wire_code(),
            is_flagged: self.device.is_flagged(),
            buffers: self.buffers.clone(),
        })
    }

    /// A process that had the pool open is gone: what it held is free.
    pub(crate) fn dismiss_holder(&self, process: &Arc<dyn PoolHolder>) {
        let mut holders = lock(&self.holders);
        let same = |holder: &Option<Arc<dyn PoolHolder>>| {
            holder
                .as_ref()
                .is_some_and(|holder| std::ptr::addr_eq(Arc::as_ptr(holder), Arc::as_ptr(process)))
        };
        let Some(position) = holders.iter().position(same) else { return };
        let bit = 1 << (position as u32 + OWNER_HOLDER + 1);
        for slot in 0..self.slots.len() {
            if self.slot_word(slot).load(Ordering::Relaxed) & bit != 0 {
                self.clear_holder_bit(slot, bit);
            }
        }
        // Its number is given out again only now that its bit is nowhere.
        holders[position] = None;
        // It may have died after it had seen that the owner waits and before it notified it.
        self.notifier.notify();
    }

    pub(crate) fn shared_descriptors(&self) -> (&Segment, &Segment, &Notifier) {
        (&self.control, &self.payload, &self.notifier)
    }

    /// Buffers that somebody holds, and all there are.
    fn usage_counts(&self) -> (usize, usize) {
        let held = |slot: &usize| self.slot_word(*slot).load(Ordering::Relaxed) & HOLDERS_MASK != 0;
        ((0..self.slots.len()).filter(held).count(), self.slots.len())
    }

    /// Asks everyone to let go of what they hold for messages that were taken.
    fn request_buffers_back(&self) {
        if let Some(reclaimer) = self.reclaimer.upgrade() {
            reclaimer.reclaim_buffers();
        }
        let holders: Vec<_> = lock(&self.holders).iter().flatten().cloned().collect();
        for holder in holders {
            holder.request_buffers_back();
        }
    }
}

impl Drop for OpenPool {
    fn drop(&mut self) {
        // Those who have it open need it no more, and don't know it.
        for holder in lock(&self.holders).iter().flatten() {
            holder.end_holding();
        }
    }
}

fn generation_of(word: u64) -> u32 {
    (word >> MAX_HOLDERS) as u32
}
