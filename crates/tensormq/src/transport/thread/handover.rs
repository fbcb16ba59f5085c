//! The hand-over between threads: a bounded queue, and an alarm for each end.
//!
//! `tests/handover.rs` compiles this file against loom and goes through the interleavings.

use std::collections::VecDeque;

use crate::alarm::claim_wakeup;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering, lock};

/// Why something was not put into a queue; the thing comes back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused<T> {
    Full(T),
    ReceiverGone(T),
}

/// A bounded queue between one sender and one receiver.
pub(crate) struct Handover<T> {
    queue: Mutex<VecDeque<T>>,
    /// Length of the queue, to look at without the lock while spinning.
    len: AtomicUsize,
    taken: AtomicU64,
    capacity: usize,
    sender_gone: AtomicBool,
    receiver_gone: AtomicBool,
    pub(crate) receiver_alarm: AtomicU32,
    pub(crate) sender_alarm: AtomicU32,
}

impl<T> Handover<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            queue: Mutex::new(VecDeque::with_capacity(capacity.min(1024))),
            len: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            capacity,
            sender_gone: AtomicBool::new(false),
            receiver_gone: AtomicBool::new(false),
            receiver_alarm: AtomicU32::new(0),
            sender_alarm: AtomicU32::new(0),
        }
    }

    /// Puts something in; tells whether the receiver must be woken.
    pub(crate) fn push(&self, item: T) -> Result<bool, Refused<T>> {
        let mut queue = lock(&self.queue);
        if self.receiver_gone.load(Ordering::Relaxed) {
            return Err(Refused::ReceiverGone(item));
        }
        if queue.len() >= self.capacity {
            return Err(Refused::Full(item));
        }
        queue.push_back(item);
        self.len.store(queue.len(), Ordering::Release);
        drop(queue);
        Ok(claim_wakeup(&self.receiver_alarm))
    }

    /// Takes the oldest out; tells whether the sender must be woken.
    pub(crate) fn pop(&self) -> Option<(T, bool)> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut queue = lock(&self.queue);
        let item = queue.pop_front()?;
        self.len.store(queue.len(), Ordering::Release);
        self.taken.fetch_add(1, Ordering::Release);
        drop(queue);
        Some((item, claim_wakeup(&self.sender_alarm)))
    }

    /// How many were taken out so far.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// How many are in.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// The sender will put nothing more in; tells whether the receiver must be woken.
    #[must_use]
    pub(crate) fn end_sending(&self) -> bool {
        self.sender_gone.store(true, Ordering::Release);
        claim_wakeup(&self.receiver_alarm)
    }

    /// Whether the sender is gone and everything was taken out.
    pub(crate) fn is_over(&self) -> bool {
        // In this order: what the sender put in before it went must be seen.
        self.sender_gone.load(Ordering::Acquire) && self.len() == 0
    }

    /// The receiver will take nothing more; gives back what was not taken, and tells whether the
    /// sender must be woken.
    pub(crate) fn end_receiving(&self) -> (VecDeque<T>, bool) {
        let mut queue = lock(&self.queue);
        self.receiver_gone.store(true, Ordering::Relaxed);
        let rest = std::mem::take(&mut *queue);
        self.len.store(0, Ordering::Release);
        drop(queue);
        (rest, claim_wakeup(&self.sender_alarm))
    }

    /// Whether the receiver is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        let _queue = lock(&self.queue);
        self.receiver_gone.load(Ordering::Relaxed)
    }
}
