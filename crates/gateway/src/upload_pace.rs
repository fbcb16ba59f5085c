//! How quickly a request must come: what has come of it takes memory that others need.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Each time a client was waited for so long, enough must have come meanwhile.
const WINDOW: Duration = Duration::from_secs(10);
/// Bytes a second that must come.
const LEAST_RATE: u64 = 16 << 10;
/// However large a request is that says how large: it is to be there when it was waited for so
/// long.
const LONGEST_UPLOAD: Duration = Duration::from_secs(600);

/// Whether something comes quickly enough. Only the time counts in which its client is waited for.
#[derive(Debug)]
pub struct UploadPace {
    /// Bytes that must come in each window.
    least_bytes: u64,
    /// Bytes that have come in this one, and for how long they were waited for.
    received: u64,
    waited: Duration,
    /// Since when nothing has been there.
    waiting_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl UploadPace {
    /// For something of so many bytes, where its client has said how many.
    pub fn new(announced: Option<u64>) -> Self {
        let whole = announced.unwrap_or(0).div_ceil(LONGEST_UPLOAD.as_secs());
        let least_bytes = LEAST_RATE.max(whole).saturating_mul(WINDOW.as_secs());
        Self { least_bytes, received: 0, waited: Duration::ZERO, waiting_since: None, timer: None }
    }

    /// So many bytes more have come.
    pub fn note_received(&mut self, bytes: usize) {
        self.received = self.received.saturating_add(bytes as u64);
        if let Some(since) = self.waiting_since.take() {
            self.waited += since.elapsed();
        }
        self.timer = None;
    }

    /// Ready, with the reason, when too little has come; else wakes whoever asks when that may be
    /// so. To be asked whenever nothing is there.
    pub fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<String> {
        loop {
            let since = *self.waiting_since.get_or_insert_with(Instant::now);
            let waited = self.waited + since.elapsed();
            if waited >= WINDOW {
                if self.received < self.least_bytes {
                    let rate = (self.least_bytes / WINDOW.as_secs()) >> 10;
                    return Poll::Ready(format!("it comes with less than {rate} KiB a second"));
                }
                (self.received, self.waited) = (0, Duration::ZERO);
                self.waiting_since = Some(Instant::now());
                continue;
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(WINDOW - waited)));
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// How long it takes until a client is given up who sends so many bytes a second for a while.
    async fn time_until_stalled(pace: &mut UploadPace, per_second: usize, seconds: u64) -> u64 {
        let begun = Instant::now();
        for _ in 0..seconds {
            let second = tokio::time::timeout(
                Duration::from_secs(1),
                poll_fn(|context| pace.poll_stalled(context)),
            );
            if second.await.is_ok() {
                return begun.elapsed().as_secs();
            }
            pace.note_received(per_second);
        }
        poll_fn(|context| pace.poll_stalled(context)).await;
        begun.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_much_and_then_rests_has_no_credit() {
        let mut pace = UploadPace::new(None);
        assert_eq!(time_until_stalled(&mut pace, 0, 0).await, 10);
        let mut pace = UploadPace::new(None);
        pace.note_received(900 << 20);
        assert_eq!(time_until_stalled(&mut pace, 0, 0).await, 20, "the first window was full");
    }

    #[tokio::test(start_paused = true)]
    async fn who_sends_slowly_but_surely_is_let_go_on() {
        let mut pace = UploadPace::new(None);
        assert!(time_until_stalled(&mut pace, 20 << 10, 100).await >= 100);
        let mut pace = UploadPace::new(None);
        assert_eq!(time_until_stalled(&mut pace, 10 << 10, 100).await, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_large_must_come_more_quickly() {
        let mut pace = UploadPace::new(Some(1 << 30));
        assert_eq!(time_until_stalled(&mut pace, 1 << 20, 100).await, 10, "1 GiB in 17 minutes");
        let mut pace = UploadPace::new(Some(1 << 30));
        assert!(time_until_stalled(&mut pace, 2 << 20, 100).await >= 100);
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_waits_does_not_count() {
        let mut pace = UploadPace::new(None);
        for _ in 0..10 {
            // It has come already when it is asked for, a minute later.
            tokio::time::advance(Duration::from_secs(60)).await;
            pace.note_received(100);
        }
        assert_eq!(time_until_stalled(&mut pace, 0, 0).await, 10);
    }
}
