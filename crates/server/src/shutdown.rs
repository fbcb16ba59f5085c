//! When to stop, handed in from outside: a signal of the operating system, or a test.

use tokio::sync::watch;

/// Asks whoever has the signal to stop.
pub struct ShutdownTrigger(watch::Sender<bool>);

/// Tells when to stop.
#[derive(Clone)]
pub struct ShutdownSignal(watch::Receiver<bool>);

/// A shutdown, and the signal to hand in.
pub fn shutdown_channel() -> (ShutdownTrigger, ShutdownSignal) {
    let (trigger, signal) = watch::channel(false);
    (ShutdownTrigger(trigger), ShutdownSignal(signal))
}

impl ShutdownTrigger {
    /// Asks to stop.
    pub fn request_shutdown(&self) {
        // Whoever listens no more is at its end already.
        self.0.send(true).ok();
    }
}

impl ShutdownSignal {
    /// Waits until it is asked for; nobody who could ask any more counts as asking.
    pub async fn shutdown_requested(&mut self) {
        self.0.wait_for(|requested| *requested).await.ok();
    }
}
