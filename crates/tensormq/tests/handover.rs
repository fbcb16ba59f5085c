//! Goes through the interleavings of the hand-over between threads: nobody sleeps on, and every
//! message is somewhere, once.
//!
//! Compiles `src/alarm.rs` and `src/transport/thread/handover.rs` against loom, which reports a
//! lost wake-up as a deadlock. How senders and inboxes use it is modelled here; where
//! `Inbox::receive` or `Sender::send` change, so must this.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::sync::Arc;

use loom::model::Builder;
use loom::sync::Condvar;
use loom::sync::atomic::AtomicU32;
use loom::thread;

use alarm::{arm_alarm, claim_wakeup, disarm_alarm};
use handover::{Handover, Refused};
use sync::{Mutex, lock};

/// What the hand-over is made from, as `src/sync.rs` has it, but of loom.
mod sync {
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[allow(dead_code, reason = "the models need only part of it")]
#[path = "../src/alarm.rs"]
mod alarm;

#[allow(dead_code, reason = "the models need only part of it")]
#[path = "../src/transport/thread/handover.rs"]
mod handover;

/// Preemptions per execution, so that the models stay small enough for every run of the tests;
/// `LOOM_MAX_PREEMPTIONS` goes further.
const PREEMPTIONS: usize = 3;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS));
    builder.check(model);
}

/// An eventfd: once notified it stays so until somebody wakes from it.
struct Notifier {
    notified: Mutex<bool>,
    changed: Condvar,
}

impl Notifier {
    fn new() -> Self {
        Self { notified: Mutex::new(false), changed: Condvar::new() }
    }

    fn notify(&self) {
        *lock(&self.notified) = true;
        self.changed.notify_one();
    }

    fn sleep_until_notified(&self) {
        let mut notified = lock(&self.notified);
        while !*notified {
            notified = self.changed.wait(notified).unwrap();
        }
        *notified = false;
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Message(u32),
    Over,
}

enum Attempt {
    Sent,
    Full(u32),
}

/// What `ThreadChannel` is, with numbers for messages.
struct Channel {
    handover: Handover<u32>,
    inbox_notifier: Notifier,
    sender_notifier: Notifier,
}

impl Channel {
    fn new(capacity: usize) -> Arc<Self> {
        // Not loom's `Arc`: who frees the channel is not the question, and would only cost time.
        Arc::new(Self {
            handover: Handover::new(capacity),
            inbox_notifier: Notifier::new(),
            sender_notifier: Notifier::new(),
        })
    }

    /// As in `ThreadIncoming::take_next`.
    fn take(&self) -> Option<Taken> {
        match self.handover.pop() {
            Some((message, wake)) => {
                if wake {
                    self.sender_notifier.notify();
                }
                Some(Taken::Message(message))
            }
            None if self.handover.is_over() => Some(Taken::Over),
            None => None,
        }
    }

    /// As in `Inbox::receive`, for ever.
    fn receive(&self) -> Taken {
        if let Some(taken) = self.take() {
            return taken;
        }
        loop {
            arm_alarm(&self.handover.receiver_alarm);
            if let Some(taken) = self.take() {
                disarm_alarm(&self.handover.receiver_alarm);
                return taken;
            }
            self.inbox_notifier.sleep_until_notified();
            disarm_alarm(&self.handover.receiver_alarm);
            if let Some(taken) = self.take() {
                return taken;
            }
        }
    }

    /// As in `ThreadIncoming::close_receiving`; gives back what was not taken.
    fn close_inbox(&self) -> Vec<u32> {
        let (rest, wake) = self.handover.end_receiving();
        if wake {
            self.sender_notifier.notify();
        }
        rest.into()
    }

    /// As in `ThreadChannel::try_send`; the message comes back where the receiver is gone.
    fn try_send(&self, message: u32) -> Result<Attempt, u32> {
        match self.handover.push(message) {
            Ok(wake) => {
                if wake {
                    self.inbox_notifier.notify();
                }
                Ok(Attempt::Sent)
            }
            Err(Refused::Full(message)) => Ok(Attempt::Full(message)),
            Err(Refused::ReceiverGone(message)) => Err(message),
        }
    }

    /// As in `Sender::send`, for ever.
    fn send(&self, message: u32) -> Result<(), u32> {
        let mut message = match self.try_send(message)? {
            Attempt::Sent => return Ok(()),
            Attempt::Full(message) => message,
        };
        loop {
            arm_alarm(&self.handover.sender_alarm);
            message = match self.try_send(message) {
                Ok(Attempt::Full(message)) => message,
                done => {
                    disarm_alarm(&self.handover.sender_alarm);
                    return done.map(|_| ());
                }
            };
            self.sender_notifier.sleep_until_notified();
        }
    }

    /// As in `ThreadChannel::close_sending`.
    fn close_sender(&self) {
        if self.handover.end_sending() {
            self.inbox_notifier.notify();
        }
    }
}

#[test]
fn messages_arrive_in_order_and_once_and_nobody_sleeps_on() {
    check(|| {
        let channel = Channel::new(1);
        let sender = thread::spawn({
            let channel = Arc::clone(&channel);
            move || {
                channel.send(1).unwrap();
                channel.send(2).unwrap();
            }
        });
        assert_eq!(channel.receive(), Taken::Message(1));
        assert_eq!(channel.receive(), Taken::Message(2));
        sender.join().unwrap();
        assert_eq!(channel.handover.taken(), 2);
        assert_eq!(channel.handover.len(), 0);
        assert_eq!(channel.take(), None);
    });
}

#[test]
fn a_receiver_sees_the_end_after_everything_that_was_sent() {
    check(|| {
        let channel = Channel::new(1);
        let sender = thread::spawn({
            let channel = Arc::clone(&channel);
            move || {
                channel.send(1).unwrap();
                channel.close_sender();
            }
        });
        assert_eq!(channel.receive(), Taken::Message(1));
        assert_eq!(channel.receive(), Taken::Over);
        sender.join().unwrap();
    });
}

#[test]
fn a_receiver_sees_the_end_of_a_sender_that_sent_nothing() {
    check(|| {
        let channel = Channel::new(1);
        let sender = thread::spawn({
            let channel = Arc::clone(&channel);
            move || channel.close_sender()
        });
        assert_eq!(channel.receive(), Taken::Over);
        sender.join().unwrap();
    });
}

/// Sends until the receiver is gone: how many were sent, and the message that was not.
fn send_until_refused(channel: &Channel) -> (u32, u32) {
    let mut sent = 0;
    loop {
        match channel.send(sent + 1) {
            Ok(()) => sent += 1,
            Err(back) => return (sent, back),
        }
    }
}

#[test]
fn a_sender_that_waits_for_room_learns_that_the_receiver_is_gone() {
    check(|| {
        let channel = Channel::new(1);
        let sender = thread::spawn({
            let channel = Arc::clone(&channel);
            move || send_until_refused(&channel)
        });
        let rest = channel.close_inbox();
        let (sent, back) = sender.join().unwrap();
        // What was sent is in what the receiver gives back; what was not, at the sender.
        assert_eq!(rest, (1..=sent).collect::<Vec<_>>());
        assert_eq!(back, sent + 1);
        assert!(channel.handover.is_abandoned());
        assert_eq!(channel.take(), None);
    });
}

#[test]
fn a_message_is_taken_or_given_back_and_never_both() {
    check(|| {
        let channel = Channel::new(1);
        let sender = thread::spawn({
            let channel = Arc::clone(&channel);
            move || send_until_refused(&channel)
        });
        let taken = channel.receive();
        let rest = channel.close_inbox();
        let (sent, back) = sender.join().unwrap();
        assert_eq!(taken, Taken::Message(1));
        assert_eq!(rest, (2..=sent).collect::<Vec<_>>());
        assert_eq!(back, sent + 1);
        assert_eq!(channel.handover.taken(), 1);
    });
}

#[test]
fn of_those_who_could_wake_a_sleeper_one_is_told() {
    check(|| {
        let alarm = Arc::new(AtomicU32::new(0));
        arm_alarm(&alarm);
        let other = thread::spawn({
            let alarm = Arc::clone(&alarm);
            move || claim_wakeup(&alarm)
        });
        let told = claim_wakeup(&alarm);
        assert!(told != other.join().unwrap());
        assert!(!claim_wakeup(&alarm));
    });
}

/// The models find what they are for: without the second look there is a lost wake-up.
#[test]
#[should_panic(expected = "deadlock")]
fn a_receiver_that_does_not_look_again_before_it_sleeps_sleeps_on() {
    check(|| {
        let channel = Channel::new(1);
        let sender = thread::spawn({
            let channel = Arc::clone(&channel);
            move || channel.send(1).unwrap()
        });
        if channel.take().is_none() {
            arm_alarm(&channel.handover.receiver_alarm);
            channel.inbox_notifier.sleep_until_notified();
        }
        sender.join().unwrap();
    });
}
