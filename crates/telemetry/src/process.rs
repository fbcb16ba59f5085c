//! What the kernel tells of a process: processor time and memory.
//!
//! From `stat` and `statm`, which cost some 20 µs. `smaps_rollup` would tell memory that is shared
//! by several processes apart from memory of files, but walks every page.

use tessera_core::ProcessStat;

/// What a process has used until now, and holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessReading {
    /// When it began, in ticks since the host did: another process with the same number has
    /// another.
    pub(crate) began: u64,
    /// Processor time, in ticks.
    pub(crate) ticks: u64,
    /// Bytes that are in memory.
    pub(crate) resident: u64,
    /// Those of them that others may hold too: shared memory, and files such as weights and
    /// libraries.
    pub(crate) shared: u64,
}

/// Reads of a process; `None` where it has ended.
pub(crate) fn read_process(pid: u32) -> Option<ProcessReading> {
    let text = |name: &str| {
        // A name of a process may be of any bytes.
        let bytes = std::fs::read(format!("/proc/{pid}/{name}")).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let stat = ProcessStat::parse_line(&text("stat")?).filter(|stat| !stat.has_ended())?;
    let (resident, shared) = parse_statm(&text("statm")?)?;
    let bytes = |pages: u64| pages.saturating_mul(rustix::param::page_size() as u64);
    let ProcessStat { began, ticks, .. } = stat;
    Some(ProcessReading { began, ticks, resident: bytes(resident), shared: bytes(shared) })
}

/// Pages that are in memory, and those of them that are shared.
fn parse_statm(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let resident = fields.next()?.parse().ok()?;
    let shared = fields.next()?.parse().ok()?;
    Some((resident, shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_and_garbage_is_nothing() {
        assert_eq!(parse_statm("9000 5120 1024 12 0 800 0\n"), Some((5120, 1024)));
        assert_eq!(parse_statm("9000 5120"), None);
    }

    #[test]
    fn our_own_process_is_there_and_none_is_not() {
        let reading = read_process(std::process::id()).unwrap();
        assert!(reading.resident > reading.shared && reading.shared > 0, "{reading:?}");
        // Above the largest number that Linux gives.
        assert_eq!(read_process(u32::MAX), None);
    }
}
