//! Whether a process that starts gets anywhere: one that hangs would hold up every change.

use std::time::{Duration, Instant};

use tessera_core::ProcessStat;

/// How long it may do nothing at all.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take in all, whatever it does; and longer by its weights, which come from a disk
/// of this speed or a quicker one.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const SLOWEST_BYTES_PER_SECOND: u64 = 5_000_000;

/// What a process did since it was started.
pub(crate) struct StartProgress {
    process: u32,
    started: Instant,
    timeout: Duration,
    /// When it was last seen to do something, and the processor time that it had taken by then.
    active: (Instant, u64),
}

/// How long a unit with so many bytes of weights may take to start, whatever it does.
pub(crate) fn start_timeout(weight_bytes: u64) -> Duration {
    START_TIMEOUT + Duration::from_secs(weight_bytes / SLOWEST_BYTES_PER_SECOND)
}

impl StartProgress {
    /// A process that was started now and loads so many bytes.
    pub(crate) fn new(process: u32, weight_bytes: u64) -> Self {
        let now = Instant::now();
        let timeout = start_timeout(weight_bytes);
        Self { process, started: now, timeout, active: (now, 0) }
    }

    /// Looks at the process, which may wait for others; an error says for how long it got nowhere.
    pub(crate) fn check_process(&mut self, waits_for_others: bool) -> Result<(), String> {
        let stat = read_stat(self.process);
        let (state, ticks) = stat.map_or(('?', 0), |stat| (stat.state, stat.ticks));
        // It computes, it reads from a disk, or there is no core for it.
        let is_active = ticks != self.active.1 || matches!(state, 'R' | 'D') || waits_for_others;
        if is_active {
            self.active = (Instant::now(), ticks);
        }
        if self.active.0.elapsed() > IDLE_TIMEOUT {
            return Err(format!(
                "did nothing for {} s while it was starting",
                IDLE_TIMEOUT.as_secs()
            ));
        }
        if self.started.elapsed() > self.timeout {
            return Err(format!("did not start within {} s", self.timeout.as_secs()));
        }
        Ok(())
    }
}

fn read_stat(process: u32) -> Option<ProcessStat> {
    let bytes = std::fs::read(format!("/proc/{process}/stat")).ok()?;
    ProcessStat::parse_line(&String::from_utf8_lossy(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_nothing_is_noticed_and_who_waits_for_others_is_not() {
        let long_ago = Instant::now() - IDLE_TIMEOUT * 2;
        // There is no such process: nothing is ever done.
        let mut progress = StartProgress::new(u32::MAX, 0);
        (progress.started, progress.active.0) = (long_ago, long_ago);
        assert!(progress.check_process(false).is_err_and(|reason| reason.contains("nothing")));
        assert!(progress.check_process(true).is_ok());
        assert!(progress.check_process(false).is_ok());
    }
}
