//! Senders: where a unit sends to.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tessera_core::{Error, Result};

use crate::async_notifier::AsyncNotifier;
use crate::channel::{ChannelPeer, NotSent, OutgoingChannel, SendAttempt};
use crate::in_flight::FailedMessage;
use crate::keep_alive::KeepAlive;
use crate::message::Message;
use crate::wait::{Deadline, Wait};

/// The sending end of a channel. Messages arrive in the order in which they were sent, each once.
pub struct Sender {
    channel: Arc<dyn OutgoingChannel>,
    peer: ChannelPeer,
    spin_time: Duration,
    /// What drives the channel, for as long as somebody sends on it.
    _endpoint: KeepAlive,
    /// The channel's notifier at tokio, once a task has waited.
    async_notifier: Option<AsyncNotifier>,
}

/// Sent, under this number; or to be tried again.
type SendOutcome = ControlFlow<u64, Message>;

impl Sender {
    pub(crate) fn new(
        channel: Arc<dyn OutgoingChannel>,
        peer: ChannelPeer,
        spin_time: Duration,
        endpoint: KeepAlive,
    ) -> Self {
        Self { channel, peer, spin_time, _endpoint: endpoint, async_notifier: None }
    }

    /// Who receives.
    pub fn peer(&self) -> &ChannelPeer {
        &self.peer
    }

    /// Sends a message, and returns its number in the channel.
    ///
    /// Where the receiver is behind it waits, as it is told, for room; `Full` or `TimedOut` says
    /// that there was none, and the message comes back. That it was sent does not mean that it was
    /// received: should the receiver die first, [`Sender::take_failed_messages`] lists it.
    pub fn send(&mut self, message: Message, wait: Wait) -> Result<u64, Box<NotSent>> {
        let mut message = match self.send_or_return(message, wait)? {
            ControlFlow::Break(sequence) => return Ok(sequence),
            ControlFlow::Continue(message) => message,
        };
        // Another look for as long as it pays.
        let spun = Deadline::after(self.spin_time);
        while !spun.has_passed() {
            std::hint::spin_loop();
            message = match self.channel.try_send(message)? {
                SendAttempt::Sent(sequence) => return Ok(sequence),
                SendAttempt::Full(message) => message,
            };
        }
        loop {
            message = match self.send_or_arm(message)? {
                ControlFlow::Break(sequence) => return Ok(sequence),
                ControlFlow::Continue(message) => message,
            };
            if !self.channel.notifier().sleep_until_notified(wait.poll_slice()) && wait.is_over() {
                self.channel.disarm_wakeup();
                return Err(self.receiver_behind(message, Error::timed_out));
            }
        }
    }

    /// Sends without a thread that waits. Dropped before it is done, it drops the message.
    pub async fn send_async(&mut self, message: Message, wait: Wait) -> Result<u64, Box<NotSent>> {
        let mut message = match self.send_or_return(message, wait)? {
            ControlFlow::Break(sequence) => return Ok(sequence),
            ControlFlow::Continue(message) => message,
        };
        let async_notifier =
            match self.async_notifier.take().map_or_else(|| self.async_notifier(), Ok) {
                Ok(async_notifier) => async_notifier,
                Err(error) => return Err(Box::new(NotSent { error, message })),
            };
        loop {
            message = match self.send_or_arm(message)? {
                ControlFlow::Break(sequence) => {
                    self.async_notifier = Some(async_notifier);
                    return Ok(sequence);
                }
                ControlFlow::Continue(message) => message,
            };
            match async_notifier
                .sleep_until_notified(self.channel.notifier(), wait.poll_slice())
                .await
            {
                Ok(notified) if notified || !wait.is_over() => {}
                done => {
                    self.channel.disarm_wakeup();
                    return Err(match done {
                        Err(error) => Box::new(NotSent { error, message }),
                        Ok(_) => self.receiver_behind(message, Error::timed_out),
                    });
                }
            }
        }
    }

    fn async_notifier(&self) -> Result<AsyncNotifier> {
        AsyncNotifier::new(self.channel.notifier())
    }

    /// Sends where there is room; else the message comes back, as an error where it is not to wait.
    fn send_or_return(&self, message: Message, wait: Wait) -> Result<SendOutcome, Box<NotSent>> {
        match self.channel.try_send(message)? {
            SendAttempt::Sent(sequence) => Ok(ControlFlow::Break(sequence)),
            SendAttempt::Full(message) if wait == Wait::No => {
                Err(self.receiver_behind(message, Error::full))
            }
            SendAttempt::Full(message) => Ok(ControlFlow::Continue(message)),
        }
    }

    /// The same, and where there is no room the notifier wakes us when there may be some.
    fn send_or_arm(&self, message: Message) -> Result<SendOutcome, Box<NotSent>> {
        self.channel.arm_wakeup();
        let outcome = self.send_or_return(message, Wait::Forever);
        if !matches!(outcome, Ok(ControlFlow::Continue(_))) {
            self.channel.disarm_wakeup();
        }
        outcome
    }

    /// Waits until the receiver has taken everything that was sent.
    pub fn wait_until_taken(&mut self, wait: Wait) -> Result<()> {
        self.wait_until(wait, |channel| channel.in_flight().untaken_count() == 0)
    }

    /// Waits until the receiver is done with everything that was sent.
    pub fn wait_until_finished(&mut self, wait: Wait) -> Result<()> {
        self.wait_until(wait, |channel| channel.in_flight().unfinished_count() == 0)
    }

    fn wait_until(
        &mut self,
        wait: Wait,
        done: impl Fn(&dyn OutgoingChannel) -> bool,
    ) -> Result<()> {
        loop {
            self.channel.arm_wakeup();
            self.channel.collect_receipts();
            let lost = self.channel.is_lost();
            if done(&*self.channel) {
                self.channel.disarm_wakeup();
                // What ended with the receiver is not in flight either, and was not taken.
                let failed = lost && self.channel.in_flight().has_failures();
                return if failed { Err(Error::lost("the receiver is gone")) } else { Ok(()) };
            }
            if lost {
                return Err(Error::lost("the receiver is gone"));
            }
            if !self.channel.notifier().sleep_until_notified(wait) {
                self.channel.disarm_wakeup();
                return Err(Error::timed_out(format!(
                    "{} messages are in flight still",
                    self.in_flight_count()
                )));
            }
        }
    }

    /// How many messages the receiver is not done with.
    pub fn in_flight_count(&self) -> usize {
        self.channel.collect_receipts();
        self.channel.in_flight().unfinished_count()
    }

    /// How many messages the receiver has not taken yet.
    pub fn queued_count(&self) -> usize {
        self.channel.collect_receipts();
        self.channel.in_flight().untaken_count()
    }

    /// Whether the receiver is gone for good.
    pub fn is_lost(&self) -> bool {
        self.channel.is_lost()
    }

    /// Whether the connection to the receiver is gone, and may come back. What is sent meanwhile
    /// waits.
    pub fn is_interrupted(&self) -> bool {
        self.channel.collect_receipts();
        self.channel.is_interrupted()
    }

    /// The messages that were sent and will not be done, each told once.
    pub fn take_failed_messages(&mut self) -> Vec<FailedMessage> {
        self.channel.collect_receipts();
        self.channel.in_flight().take_failed()
    }

    fn receiver_behind(&self, message: Message, kind: impl Fn(String) -> Error) -> Box<NotSent> {
        let error = kind(format!("the receiver is behind: {} messages wait", self.queued_count()));
        Box::new(NotSent { error, message })
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.channel.close_sending();
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sender({:?})", self.peer)
    }
}
