//! Answers whose tensors a GPU is still to write.
//!
//! A block in a process of its own sends an answer before its GPU has computed it, so that nothing is left to do when it has:
//! whoever waits sees the GPU write. One thread waits for all of them. It stays awake for that, as the blocks would have to
//! otherwise, and sleeps while there is nothing to wait for.

use std::sync::Weak;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use tessera_core::{Error, Result, Tensor};
use tessera_tensormq::Message;

use super::Inner;

/// How long it stays awake without anything happening; then it looks now and then.
const AWAKE: Duration = Duration::from_millis(100);
const NOW_AND_THEN: Duration = Duration::from_micros(100);

/// Waits for answers.
pub(super) struct Arriving(Sender<Message>);

impl Arriving {
    /// Starts the thread that waits; it ends with this.
    pub(super) fn start(dispatcher: Weak<Inner>) -> Result<Self> {
        let (sender, receiver) = channel();
        let is_alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        let awake = if is_alone { Duration::ZERO } else { AWAKE };
        std::thread::Builder::new()
            .name("answers".to_owned())
            .spawn(move || {
                wait(&receiver, awake, |message| match dispatcher.upgrade() {
                    Some(dispatcher) => dispatcher.came_home(message),
                    None => drop(message),
                })
            })
            .map_err(|error| Error::io("a thread that waits for answers", &error))?;
        Ok(Self(sender))
    }

    /// Takes an answer that has to be waited for; gives back one that is there.
    pub(super) fn take(&self, message: Message) -> Option<Message> {
        match is_there(&message) {
            true => Some(message),
            // Without the thread there is no dispatcher.
            false => self.0.send(message).err().map(|unsent| unsent.0),
        }
    }
}

/// Whether nothing has to be waited for.
fn is_there(message: &Message) -> bool {
    let mut events = message.tensors().iter().filter_map(Tensor::after);
    events.all(|event| event.is_done())
}

fn wait(receiver: &Receiver<Message>, awake: Duration, mut arrived: impl FnMut(Message)) {
    let mut waiting: Vec<Message> = Vec::new();
    let mut since = Instant::now();
    loop {
        let next = match waiting.is_empty() {
            true => receiver.recv().map_err(|_| TryRecvError::Disconnected),
            false => receiver.try_recv(),
        };
        match next {
            Ok(message) => {
                waiting.push(message);
                since = Instant::now();
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {}
        }
        // In the order in which they came, which is mostly that in which they are there.
        let mut index = 0;
        while index < waiting.len() {
            match is_there(&waiting[index]) {
                true => {
                    arrived(waiting.remove(index));
                    since = Instant::now();
                }
                false => index += 1,
            }
        }
        if !waiting.is_empty() {
            match since.elapsed() < awake {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(NOW_AND_THEN),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tessera_core::Event;
    use tessera_tensormq::RequestId;

    #[derive(Default)]
    struct Written(AtomicBool);

    impl Event for Written {
        fn is_done(&self) -> bool {
            self.0.load(Ordering::Acquire)
        }
        fn wait(&self) -> Result<()> {
            Ok(())
        }
    }

    fn answer(number: u128, after: &Arc<Written>) -> Message {
        let tensor = Tensor::from_f32(&[1], &[1.0]).unwrap();
        let after: Arc<dyn Event> = Arc::<Written>::clone(after);
        let message = Message::new(RequestId(number), "task", &["done"]).unwrap();
        message.with_tensors(vec![tensor.awaiting(after)])
    }

    #[test]
    fn answers_come_when_they_are_written_in_any_order_and_none_is_left_behind() {
        for awake in [Duration::ZERO, AWAKE] {
            let (sender, receiver) = channel();
            let (told, came) = channel();
            let waiter = std::thread::spawn(move || {
                wait(&receiver, awake, |message| told.send(message.request()).unwrap());
            });
            let all: Vec<Arc<Written>> = (0..8).map(|_| Arc::default()).collect();
            for (number, after) in all.iter().enumerate() {
                sender.send(answer(number as u128, after)).unwrap();
            }
            assert!(came.recv_timeout(Duration::from_millis(20)).is_err());
            for number in [3, 0, 7, 1, 2, 4, 6, 5] {
                all[number].0.store(true, Ordering::Release);
                let found = came.recv_timeout(Duration::from_secs(10)).unwrap();
                assert_eq!(found, RequestId(number as u128));
            }
            // It sleeps now, and is woken by the next.
            std::thread::sleep(Duration::from_millis(5));
            sender.send(answer(9, &all[0])).unwrap();
            assert_eq!(came.recv_timeout(Duration::from_secs(10)).unwrap(), RequestId(9));
            drop(sender);
            waiter.join().unwrap();
        }
    }
}
