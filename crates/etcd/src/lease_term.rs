//! Until when a lease is counted on.

use std::time::Duration;

use tokio::sync::watch;

use crate::lease_clock::LeaseTime;

/// How often it is looked at the clock by whoever waits for the end: a timer does not count the
/// time in which the machine sleeps.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The time for which a lease is counted on.
///
/// It runs from when the last request that etcd has answered was *sent*: etcd's own count starts
/// later, so nobody else has the lease's key before this has ended. What has ended stays so,
/// although etcd may keep a lease for longer and answer once more.
#[derive(Debug)]
pub(crate) struct LeaseTerm(watch::Sender<TermState>);

#[derive(Clone, Copy, Debug)]
struct TermState {
    expires: LeaseTime,
    has_ended: bool,
}

impl LeaseTerm {
    pub(crate) fn new(sent: LeaseTime, ttl: Duration) -> Self {
        Self(watch::Sender::new(TermState { expires: sent.after(ttl), has_ended: false }))
    }

    /// Whether it runs, by the clock as it is now.
    pub(crate) fn is_running(&self) -> bool {
        self.0.borrow().is_running()
    }

    /// How long it runs unless it is renewed.
    pub(crate) fn remaining(&self) -> Duration {
        let state = *self.0.borrow();
        if state.has_ended { Duration::ZERO } else { state.expires.remaining() }
    }

    /// etcd has answered a request that was sent at `sent`. False where that came too late.
    pub(crate) fn renew(&self, sent: LeaseTime, ttl: Duration) -> bool {
        let mut is_renewed = false;
        self.0.send_modify(|state| {
            is_renewed = state.is_running();
            if is_renewed {
                state.expires = state.expires.max(sent.after(ttl));
            } else {
                state.has_ended = true;
            }
        });
        is_renewed
    }

    /// It is over.
    pub(crate) fn end(&self) {
        self.0.send_modify(|state| state.has_ended = true);
    }

    /// Waits until it is over.
    pub(crate) async fn ended(&self) {
        let mut changes = self.0.subscribe();
        loop {
            let state = *changes.borrow_and_update();
            if !state.is_running() {
                return;
            }
            let look = state.expires.remaining().min(LOOK_INTERVAL);
            // Either way the next turn looks at what there is.
            drop(tokio::time::timeout(look, changes.changed()).await);
        }
    }
}

impl TermState {
    fn is_running(&self) -> bool {
        !self.has_ended && self.expires.remaining() > Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_millis(60);

    #[tokio::test]
    async fn a_term_runs_from_when_the_request_was_sent() {
        let sent = LeaseTime::now();
        let term = LeaseTerm::new(sent, TTL);
        assert!(term.is_running());
        tokio::time::sleep(TTL / 2).await;
        assert!(term.renew(sent.after(TTL / 4), TTL));
        assert!(term.remaining() < TTL);
        term.ended().await;
        assert!(!term.is_running() && sent.after(TTL + TTL / 4).remaining().is_zero());
    }

    #[tokio::test]
    async fn an_answer_that_comes_too_late_renews_nothing() {
        let term = LeaseTerm::new(LeaseTime::now(), TTL);
        std::thread::sleep(TTL);
        assert!(!term.is_running());
        assert!(!term.renew(LeaseTime::now(), TTL) && !term.is_running());
        term.ended().await;
    }
}
