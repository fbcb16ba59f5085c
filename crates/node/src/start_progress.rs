//! Whether a process that starts gets anywhere: one that hangs would hold up every change.

use std::time::{Duration, Instant};

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
        let (state, ticks) = read_activity(self.process).unwrap_or(('?', 0));
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

/// The state of a process as the kernel has it, and the processor time that it took.
fn read_activity(process: u32) -> Option<(char, u64)> {
    parse_activity(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

fn parse_activity(stat: &str) -> Option<(char, u64)> {
    // The name of the program may hold anything, also what ends it.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?.chars().next()?;
    let mut times = words.skip(10);
    let (user, system) = (times.next()?.parse::<u64>().ok()?, times.next()?.parse::<u64>().ok()?);
    Some((state, user + system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activity_is_read_whatever_the_program_is_called() {
        let stat = "7 (a b) S) T 1 7 7 0 -1 4194304 100 0 0 0 12 30 0 0 20 0 1 0 5 0 0";
        assert_eq!(parse_activity(stat), Some(('T', 42)));
        assert_eq!(parse_activity("7 (a"), None);
        assert!(read_activity(std::process::id()).is_some());
    }

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
