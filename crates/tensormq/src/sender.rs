//! Senders: where a block sends to.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tessera_core::{Error, Result};

use crate::asynchronous::AsyncBell;
use crate::channel::{Attempt, NotSent, Outgoing, Peer};
use crate::courier::Inner;
use crate::flight::Failed;
use crate::message::Message;
use crate::wait::{Deadline, Wait};

/// The sending end of a channel. Messages arrive in the order in which they were sent, each once.
pub struct Sender {
    channel: Arc<dyn Outgoing>,
    peer: Peer,
    spin: Duration,
    /// What drives the channel, for as long as somebody sends on it.
    _courier: Arc<Inner>,
    /// The channel's bell at tokio, once a task has waited.
    async_bell: Option<AsyncBell>,
}

pub(crate) fn inbox_closed() -> Error {
    Error::lost("the receiver closed its inbox")
}

/// Sent, under this number; or to be tried again.
type Offer = ControlFlow<u64, Message>;

impl Sender {
    pub(crate) fn new(
        channel: Arc<dyn Outgoing>,
        peer: Peer,
        spin: Duration,
        courier: Arc<Inner>,
    ) -> Self {
        Self { channel, peer, spin, _courier: courier, async_bell: None }
    }

    /// Who receives.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Sends a message, and returns its number in the channel.
    ///
    /// Where the receiver is behind it waits, as it is told, for room; `Full` or `TimedOut` says that
    /// there was none, and the message comes back. That it was sent does not mean that it was
    /// received: should the receiver die first, [`Sender::failed`] lists it.
    pub fn send(&mut self, message: Message, wait: Wait) -> Result<u64, Box<NotSent>> {
        let mut message = match self.offer(message, wait)? {
            ControlFlow::Break(sequence) => return Ok(sequence),
            ControlFlow::Continue(message) => message,
        };
        // Another look for as long as it pays.
        let spun = Deadline::after(self.spin);
        while !spun.has_passed() {
            std::hint::spin_loop();
            message = match self.channel.try_send(message)? {
                Attempt::Sent(sequence) => return Ok(sequence),
                Attempt::Full(message) => message,
            };
        }
        loop {
            message = match self.offer_and_arm(message)? {
                ControlFlow::Break(sequence) => return Ok(sequence),
                ControlFlow::Continue(message) => message,
            };
            if !self.channel.bell().sleep(wait.slice()) && wait.is_over() {
                self.channel.disarm();
                return Err(self.full(message, Error::timed_out));
            }
        }
    }

    /// Sends without a thread that waits. Dropped before it is done, it drops the message.
    pub async fn send_async(&mut self, message: Message, wait: Wait) -> Result<u64, Box<NotSent>> {
        let mut message = match self.offer(message, wait)? {
            ControlFlow::Break(sequence) => return Ok(sequence),
            ControlFlow::Continue(message) => message,
        };
        let bell = match self.async_bell.take().map_or_else(|| self.async_bell(), Ok) {
            Ok(bell) => bell,
            Err(error) => return Err(Box::new(NotSent { error, message })),
        };
        loop {
            message = match self.offer_and_arm(message)? {
                ControlFlow::Break(sequence) => {
                    self.async_bell = Some(bell);
                    return Ok(sequence);
                }
                ControlFlow::Continue(message) => message,
            };
            match bell.sleep(self.channel.bell(), wait.slice()).await {
                Ok(rang) if rang || !wait.is_over() => {}
                done => {
                    self.channel.disarm();
                    return Err(match done {
                        Err(error) => Box::new(NotSent { error, message }),
                        Ok(_) => self.full(message, Error::timed_out),
                    });
                }
            }
        }
    }

    fn async_bell(&self) -> Result<AsyncBell> {
        AsyncBell::new(self.channel.bell())
    }

    /// Sends where there is room; else the message comes back, as an error where it is not to wait.
    fn offer(&self, message: Message, wait: Wait) -> Result<Offer, Box<NotSent>> {
        match self.channel.try_send(message)? {
            Attempt::Sent(sequence) => Ok(ControlFlow::Break(sequence)),
            Attempt::Full(message) if wait == Wait::No => Err(self.full(message, Error::full)),
            Attempt::Full(message) => Ok(ControlFlow::Continue(message)),
        }
    }

    /// The same, and where there is no room the bell rings when there may be some.
    fn offer_and_arm(&self, message: Message) -> Result<Offer, Box<NotSent>> {
        self.channel.arm();
        let offer = self.offer(message, Wait::Forever);
        if !matches!(offer, Ok(ControlFlow::Continue(_))) {
            self.channel.disarm();
        }
        offer
    }

    /// Waits until the receiver has taken everything that was sent.
    pub fn flush(&mut self, wait: Wait) -> Result<()> {
        self.wait_until(wait, |channel| channel.flight().untaken() == 0)
    }

    /// Waits until the receiver is done with everything that was sent.
    pub fn finish(&mut self, wait: Wait) -> Result<()> {
        self.wait_until(wait, |channel| channel.flight().unfinished() == 0)
    }

    fn wait_until(&mut self, wait: Wait, done: impl Fn(&dyn Outgoing) -> bool) -> Result<()> {
        loop {
            self.channel.arm();
            self.channel.settle();
            let lost = self.channel.is_lost();
            if done(&*self.channel) {
                self.channel.disarm();
                // What ended with the receiver is not in flight either, and was not taken.
                let failed = lost && self.channel.flight().is_flawed();
                return if failed { Err(Error::lost("the receiver is gone")) } else { Ok(()) };
            }
            if lost {
                return Err(Error::lost("the receiver is gone"));
            }
            if !self.channel.bell().sleep(wait) {
                self.channel.disarm();
                return Err(Error::timed_out(format!(
                    "{} messages are in flight still",
                    self.in_flight()
                )));
            }
        }
    }

    /// How many messages the receiver is not done with.
    pub fn in_flight(&self) -> usize {
        self.channel.settle();
        self.channel.flight().unfinished()
    }

    /// How many messages the receiver has not taken yet.
    pub fn queued(&self) -> usize {
        self.channel.settle();
        self.channel.flight().untaken()
    }

    /// Whether the receiver is gone for good.
    pub fn is_lost(&self) -> bool {
        self.channel.is_lost()
    }

    /// Whether the connection to the receiver is gone, and may come back. What is sent meanwhile waits.
    pub fn is_interrupted(&self) -> bool {
        self.channel.settle();
        self.channel.is_interrupted()
    }

    /// The messages that were sent and will not be done, each told once.
    pub fn failed(&mut self) -> Vec<Failed> {
        self.channel.settle();
        self.channel.flight().take_failed()
    }

    fn full(&self, message: Message, kind: impl Fn(String) -> Error) -> Box<NotSent> {
        let error = kind(format!("the receiver is behind: {} messages wait", self.queued()));
        Box::new(NotSent { error, message })
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.channel.close();
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sender({:?})", self.peer)
    }
}
