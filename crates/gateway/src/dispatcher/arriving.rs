//! Answers whose tensors a GPU is still to write.
//!
//! A block in a process of its own sends an answer before its GPU has computed it, so that nothing is left to do when it has:
//! whoever waits sees the GPU write. One thread waits for all of them. It stays awake for that, as the blocks would have to
//! otherwise, and sleeps while there is nothing to wait for.

use std::sync::Weak;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, Tensor};
use tessera_tensormq::{Deadline, Message};

use super::Inner;

/// How long it stays awake for an answer; then it looks now and then.
const AWAKE: Duration = Duration::from_millis(100);
const NOW_AND_THEN: Duration = Duration::from_micros(100);

/// How long after its deadline an answer is waited for: whoever is to write it may be about to be started again.
const GRACE: Duration = Duration::from_secs(1);

/// Waits for answers.
pub(super) struct Arriving(Sender<Message>);

impl Arriving {
    /// Starts the thread that waits; it ends with this.
    pub(super) fn start(dispatcher: Weak<Inner>) -> Result<Self> {
        let (sender, receiver) = channel();
        let is_alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        let awake = if is_alone { Duration::ZERO } else { AWAKE };
        let arrived = move |message, state| {
            let Some(dispatcher) = dispatcher.upgrade() else { return };
            let tell = || dispatcher.came_home(message, state == State::There);
            // The others are waited for all the same.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(tell)).is_err() {
                tracing::error!("an answer can't be taken in");
            }
        };
        std::thread::Builder::new()
            .name("answers".to_owned())
            .spawn(move || wait(&receiver, awake, GRACE, arrived))
            .map_err(|error| Error::io("a thread that waits for answers", &error))?;
        Ok(Self(sender))
    }

    /// Takes an answer that has to be waited for; gives back one that is there.
    pub(super) fn take(&self, message: Message) -> Option<Message> {
        match state(&message) {
            State::There => Some(message),
            State::NotYet | State::Never => {
                // The thread is there for as long as this is.
                drop(self.0.send(message));
                None
            }
        }
    }
}

/// How an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    There,
    NotYet,
    /// Whoever was to write it is gone. It may be sent again; until its deadline that is not for us to say.
    Never,
}

fn state(message: &Message) -> State {
    let events = || message.tensors().iter().filter_map(Tensor::after);
    if events().any(|event| !event.is_done()) {
        return State::NotYet;
    }
    // What is done need not be waited for: this tells whether it went well.
    match events().all(|event| event.wait().is_ok()) {
        true => State::There,
        false => State::Never,
    }
}

fn wait(
    receiver: &Receiver<Message>,
    awake: Duration,
    grace: Duration,
    mut arrived: impl FnMut(Message, State),
) {
    let mut waiting: Vec<(Message, Instant)> = Vec::new();
    loop {
        let next = match waiting.is_empty() {
            true => receiver.recv().map_err(|_| TryRecvError::Disconnected),
            false => receiver.try_recv(),
        };
        match next {
            Ok(message) => waiting.push((message, Instant::now())),
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {}
        }
        // In the order in which they came, which is mostly that in which they are there.
        let (mut index, mut stays_awake) = (0, false);
        while let Some((message, since)) = waiting.get(index) {
            let state = state(message);
            let is_young = since.elapsed() < awake;
            let is_over = !is_young && is_overdue(message, grace);
            if state == State::There || is_over {
                arrived(waiting.remove(index).0, state);
                continue;
            }
            stays_awake |= is_young && state == State::NotYet;
            index += 1;
        }
        match stays_awake || waiting.is_empty() {
            true => std::hint::spin_loop(),
            false => std::thread::sleep(NOW_AND_THEN),
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
    use tessera_core::Event;
    use tessera_tensormq::RequestId;

    /// 0: not yet; 1: written; 2: never will be.
    #[derive(Default)]
    struct Written(AtomicU8);

    impl Event for Written {
        fn is_done(&self) -> bool {
            self.0.load(Ordering::Acquire) > 0
        }
        fn wait(&self) -> Result<()> {
            match self.0.load(Ordering::Acquire) {
                2 => Err(Error::lost("gone")),
                _ => Ok(()),
            }
        }
    }

    fn answer(number: u128, after: &Arc<Written>, allowed: Duration) -> Message {
        let tensor = Tensor::from_f32(&[1], &[1.0]).unwrap();
        let after: Arc<dyn Event> = Arc::<Written>::clone(after);
        let message = Message::new(RequestId(number), "task", &["done"]).unwrap();
        let message = message.with_deadline(Deadline::after(allowed));
        message.with_tensors(vec![tensor.awaiting(after)])
    }

    #[test]
    fn answers_come_when_they_are_written_in_any_order_and_none_is_left_behind() {
        const LONG: Duration = Duration::from_secs(60);
        const PATIENCE: Duration = Duration::from_secs(10);
        for awake in [Duration::ZERO, AWAKE] {
            let (sender, receiver) = channel();
            let (told, came) = channel();
            let waiter = std::thread::spawn(move || {
                wait(&receiver, awake, Duration::ZERO, |message, state| {
                    told.send((message.request(), state)).unwrap();
                });
            });
            let all: Vec<Arc<Written>> = (0..8).map(|_| Arc::default()).collect();
            for (number, after) in all.iter().enumerate() {
                sender.send(answer(number as u128, after, LONG)).unwrap();
            }
            assert!(came.recv_timeout(Duration::from_millis(20)).is_err());
            for number in [3, 0, 7, 1, 2, 4, 6, 5] {
                all[number].0.store(1, Ordering::Release);
                let found = came.recv_timeout(PATIENCE).unwrap();
                assert_eq!(found, (RequestId(number as u128), State::There));
            }
            // It sleeps now, and is woken by the next.
            std::thread::sleep(Duration::from_millis(5));
            sender.send(answer(9, &all[0], LONG)).unwrap();
            assert_eq!(came.recv_timeout(PATIENCE).unwrap(), (RequestId(9), State::There));
            // What never comes is told when its deadline has passed, and holds nobody up.
            let short = Duration::from_millis(300);
            let (gone, hangs) = (Arc::new(Written(AtomicU8::new(2))), Arc::default());
            sender.send(answer(10, &gone, short)).unwrap();
            sender.send(answer(11, &hangs, short)).unwrap();
            sender.send(answer(12, &all[0], LONG)).unwrap();
            assert_eq!(came.recv_timeout(PATIENCE).unwrap(), (RequestId(12), State::There));
            let late = [(); 2].map(|()| came.recv_timeout(PATIENCE).unwrap());
            assert_eq!(late, [(RequestId(10), State::Never), (RequestId(11), State::NotYet)]);
            drop(sender);
            waiter.join().unwrap();
        }
    }
}
