//! What the kernel tells of a process: processor time and memory.
//!
//! From `stat` and `statm`, which cost some 20 µs. `smaps_rollup` would tell memory that is shared
//! by several processes apart from memory of files, but walks every page.

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
    let (began, ticks) = parse_stat(&text("stat")?)?;
    let (resident, shared) = parse_statm(&text("statm")?)?;
    let bytes = |pages: u64| pages.saturating_mul(rustix::param::page_size() as u64);
    Some(ProcessReading { began, ticks, resident: bytes(resident), shared: bytes(shared) })
}

/// When a process began and the time that it computed; `None` for one that is only a corpse.
fn parse_stat(line: &str) -> Option<(u64, u64)> {
    // The second field is the name, in parentheses. It may hold spaces and parentheses, so that
    // only the last one is sure to be its end.
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    // Fields 14 (user), 15 (system) and 22 (start) of proc(5), which counts from 1.
    let user: u64 = fields.nth(10)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let began = fields.nth(6)?.parse().ok()?;
    Some((began, user.saturating_add(system)))
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

    fn stat(name: &str, state: &str) -> String {
        format!(
            "4711 ({name}) {state} 1 4711 4711 0 -1 4194304 1523 0 7 0 421 58 3 2 20 0 9 0 \
             8675309 2281701376 5120 18446744073709551615 1 1 0 0 0 0 0 4096 17642 0 0 0 17 1 0 0 0\n"
        )
    }

    #[test]
    fn names_with_anything_in_them_are_read_past() {
        for name in
            ["tessera", "tokio worker", "a) R 1 (b", "(sd-pam)", ") S 9 9 9", "", "\u{fffd}"]
        {
            assert_eq!(parse_stat(&stat(name, "S")), Some((8_675_309, 479)), "{name:?}");
        }
    }

    #[test]
    fn a_corpse_is_gone_and_garbage_is_nothing() {
        assert_eq!(parse_stat(&stat("tessera", "Z")), None);
        for line in ["", ")", "1 (a) S", "1 (a) S 1 1 1 0 -1 0 0 0 0 0 x 1 1 1 1 1 1 1 1"] {
            assert_eq!(parse_stat(line), None, "{line:?}");
        }
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
