//! How much of a link measuring may take.

use std::time::{Duration, Instant};

/// Share of a link that trains may take, in the long run. Short ones have a share of their own, and
/// echoes take about a four-hundredth of a slow link.
const TRAIN_SHARE: f64 = 0.001;
/// Share of a link that short trains may take.
pub(crate) const SHORT_TRAIN_SHARE: f64 = 0.0015;
/// What may be saved up for trains: those of an hour would be a flood.
const MOST_SAVED: Duration = Duration::from_secs(300);

/// Seconds of the link that trains may be ahead of what they may take.
const MOST_DEBT: f64 = 0.5;

/// What trains may still take of a link. The first one is free to be sent, and paid for afterwards.
#[derive(Debug)]
pub(crate) struct TrainBudget {
    /// In seconds of the whole link.
    balance: f64,
    since: Instant,
}

impl TrainBudget {
    pub(crate) fn new(now: Instant) -> Self {
        Self { balance: 0.0, since: now }
    }

    /// Whether a train may be sent.
    pub(crate) fn allows_train(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since);
        self.since = now;
        let most = MOST_SAVED.as_secs_f64() * TRAIN_SHARE;
        self.balance = (self.balance + passed.as_secs_f64() * TRAIN_SHARE).min(most);
        self.balance >= 0.0
    }

    /// Whether one may be sent that is not paid for yet, as something seems to have changed.
    pub(crate) fn allows_debt(&mut self, now: Instant) -> bool {
        self.allows_train(now) || self.balance > -MOST_DEBT
    }

    /// A train took the link for so many seconds.
    pub(crate) fn pay(&mut self, seconds: f64) {
        self.balance -= seconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trains_take_their_share_and_no_more() {
        let start = Instant::now();
        let mut budget = TrainBudget::new(start);
        let (mut sent, seconds) = (0, 3600);
        for second in 0..seconds {
            if budget.allows_train(start + Duration::from_secs(second)) {
                budget.pay(0.36);
                sent += 1;
            }
        }
        let share = f64::from(sent) * 0.36 / seconds as f64;
        assert!((0.8 * TRAIN_SHARE..1.1 * TRAIN_SHARE).contains(&share), "{share}");
    }
}
