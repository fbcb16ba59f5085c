//! Early replies: their tensors a GPU is still to write.
//!
//! An instance in a process of its own sends a reply before its GPU has computed it, so that
//! nothing is left to do when it has: whoever waits sees the GPU write. One thread waits for all of
//! them. It stays awake for that, as the instances would have to otherwise, and sleeps while there
//! is nothing to wait for.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, Tensor};
use tessera_tensormq::{Deadline, Message};

/// How long it stays awake for a reply; then it looks now and then.
const SPIN_TIME: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// How long after its deadline a reply is waited for: whoever is to write it may be about to be
/// started again.
const DEADLINE_GRACE: Duration = Duration::from_secs(1);

/// Waits for early replies.
pub(crate) struct EarlyReplies(Sender<Message>);

impl EarlyReplies {
    /// Starts the thread that waits; it ends with this. `deliver` gets each reply, and whether its
    /// tensors are written.
    pub(crate) fn start_thread(deliver: impl Fn(Message, bool) + Send + 'static) -> Result<Self> {
        let (sender, receiver) = channel();
        let is_alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        let awake = if is_alone { Duration::ZERO } else { SPIN_TIME };
        let arrived = move |message, state| {
            let receive = || deliver(message, state == EarlyReplyState::Written);
            // The others are waited for all the same.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(receive)).is_err() {
                tracing::error!("a reply can't be taken in");
            }
        };
        std::thread::Builder::new()
            .name("early-replies".to_owned())
            .spawn(move || wait_for_replies(&receiver, awake, DEADLINE_GRACE, arrived))
            .map_err(|error| Error::from_io("a thread that waits for early replies", &error))?;
        Ok(Self(sender))
    }

    /// Takes a reply that has to be waited for; gives back one that is there.
    pub(crate) fn defer_unwritten(&self, message: Message) -> Option<Message> {
        match reply_state(&message) {
            EarlyReplyState::Written => Some(message),
            EarlyReplyState::NotYet | EarlyReplyState::Lost => {
                // The thread is there for as long as this is.
                drop(self.0.send(message));
                None
            }
        }
    }
}

/// How a reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EarlyReplyState {
    Written,
    NotYet,
    /// Whoever was to write it is gone. It may be sent again; until its deadline that is not for us
    /// to say.
    Lost,
}

fn reply_state(message: &Message) -> EarlyReplyState {
    let fences = || message.tensors().iter().filter_map(Tensor::fence);
    if fences().any(|fence| !fence.is_done()) {
        return EarlyReplyState::NotYet;
    }
    // What is done need not be waited for: this tells whether it went well.
    if fences().all(|fence| fence.wait_on_host().is_ok()) {
        EarlyReplyState::Written
    } else {
        EarlyReplyState::Lost
    }
}

fn wait_for_replies(
    receiver: &Receiver<Message>,
    awake: Duration,
    grace: Duration,
    mut arrived: impl FnMut(Message, EarlyReplyState),
) {
    let mut waiting: Vec<(Message, Instant)> = Vec::new();
    loop {
        let next = if waiting.is_empty() {
            receiver.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            receiver.try_recv()
        };
        match next {
            Ok(message) => waiting.push((message, Instant::now())),
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {}
        }
        // In the order in which they came, which is mostly that in which they are there.
        let (mut index, mut stays_awake) = (0, false);
        while let Some((message, since)) = waiting.get(index) {
            let state = reply_state(message);
            let is_young = since.elapsed() < awake;
            let is_over = !is_young && is_overdue(message, grace);
            if state == EarlyReplyState::Written || is_over {
                arrived(waiting.remove(index).0, state);
                continue;
            }
            stays_awake |= is_young && state == EarlyReplyState::NotYet;
            index += 1;
        }
        if stays_awake || waiting.is_empty() {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Whether the deadline passed so long ago.
fn is_overdue(message: &Message, grace: Duration) -> bool {
    let passed = |deadline: Deadline| {
        let later = deadline.nanoseconds().saturating_add(grace.as_nanos() as u64);
        Deadline::from_nanoseconds(later).has_passed()
    };
    message.deadline().is_some_and(passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU8, Ordering};
    use tessera_core::Fence;
    use tessera_tensormq::RequestId;

    /// 0: not yet; 1: written; 2: never will be.
    #[derive(Default)]
    struct Written(AtomicU8);

    impl Fence for Written {
        fn is_done(&self) -> bool {
            self.0.load(Ordering::Acquire) > 0
        }
        fn wait_on_host(&self) -> Result<()> {
            match self.0.load(Ordering::Acquire) {
                2 => Err(Error::lost("gone")),
                _ => Ok(()),
            }
        }
    }

    fn early_reply(number: u128, fence: &Arc<Written>, allowed: Duration) -> Message {
        let tensor = Tensor::from_f32(&[1], &[1.0]).unwrap();
        let fence: Arc<dyn Fence> = Arc::<Written>::clone(fence);
        let message = Message::new(RequestId(number), "task", b"done").unwrap();
        let message = message.with_deadline(Deadline::after(allowed));
        message.with_tensors(vec![tensor.with_fence(fence)])
    }

    #[test]
    fn replies_come_when_they_are_written_in_any_order_and_none_is_left_behind() {
        const LONG: Duration = Duration::from_secs(60);
        const PATIENCE: Duration = Duration::from_secs(10);
        for awake in [Duration::ZERO, SPIN_TIME] {
            let (sender, receiver) = channel();
            let (reports, came) = channel();
            let waiter = std::thread::spawn(move || {
                wait_for_replies(&receiver, awake, Duration::ZERO, |message, state| {
                    reports.send((message.request(), state)).unwrap();
                });
            });
            let all: Vec<Arc<Written>> = (0..8).map(|_| Arc::default()).collect();
            for (number, fence) in all.iter().enumerate() {
                sender.send(early_reply(number as u128, fence, LONG)).unwrap();
            }
            assert!(came.recv_timeout(Duration::from_millis(20)).is_err());
            for number in [3, 0, 7, 1, 2, 4, 6, 5] {
                all[number].0.store(1, Ordering::Release);
                let found = came.recv_timeout(PATIENCE).unwrap();
                assert_eq!(found, (RequestId(number as u128), EarlyReplyState::Written));
            }
            // It sleeps now, and is woken by the next.
            std::thread::sleep(Duration::from_millis(5));
            sender.send(early_reply(9, &all[0], LONG)).unwrap();
            assert_eq!(
                came.recv_timeout(PATIENCE).unwrap(),
                (RequestId(9), EarlyReplyState::Written)
            );
            // What never comes is told when its deadline has passed, and holds nobody up.
            let short = Duration::from_millis(300);
            let (gone, hangs) = (Arc::new(Written(AtomicU8::new(2))), Arc::default());
            sender.send(early_reply(10, &gone, short)).unwrap();
            sender.send(early_reply(11, &hangs, short)).unwrap();
            sender.send(early_reply(12, &all[0], LONG)).unwrap();
            assert_eq!(
                came.recv_timeout(PATIENCE).unwrap(),
                (RequestId(12), EarlyReplyState::Written)
            );
            let late = [(); 2].map(|()| came.recv_timeout(PATIENCE).unwrap());
            assert_eq!(
                late,
                [(RequestId(10), EarlyReplyState::Lost), (RequestId(11), EarlyReplyState::NotYet)]
            );
            drop(sender);
            waiter.join().unwrap();
        }
    }
}
