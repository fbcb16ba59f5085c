//! What Linux writes about processes and memory under `/proc`, as numbers.

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Its state: R runs, S sleeps, D waits for a disk, T is stopped, Z and X have ended.
    pub state: char,
    /// The process that started it.
    pub parent: u32,
    /// Processor time, in ticks.
    pub ticks: u64,
    /// When it began, in ticks since the host did: another process with the same number has
    /// another.
    pub began: u64,
}

impl ProcessStat {
    /// Reads the line; `None` where it is not one.
    pub fn parse_line(line: &str) -> Option<Self> {
        // The second field is the name, in parentheses. It may hold spaces and parentheses, so that
        // only the last one is sure to be its end.
        let (_, rest) = line.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        // Fields 14 (user), 15 (system) and 22 (start) of proc(5), which counts from 1.
        let user: u64 = fields.nth(9)?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        let began = fields.nth(6)?.parse().ok()?;
        Some(Self { state, parent, ticks: user.saturating_add(system), began })
    }

    /// Whether it is only there for somebody to ask how it ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The bytes of a line such as `MemTotal:  24689764 kB`, as in `meminfo`, `status` and
/// `smaps_rollup`; `name` is what it begins with.
pub fn bytes_of_line(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kilobytes.checked_mul(1024)
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
            let expected = ProcessStat { state: 'S', parent: 1, ticks: 479, began: 8_675_309 };
            assert_eq!(ProcessStat::parse_line(&stat(name, "S")), Some(expected), "{name:?}");
        }
        assert!(ProcessStat::parse_line(&stat("tessera", "Z")).unwrap().has_ended());
        for line in ["", ")", "7 (a", "1 (a) S", "1 (a) S 1 1 1 0 -1 0 0 0 0 0 x 1 1 1 1 1 1 1 1"] {
            assert_eq!(ProcessStat::parse_line(line), None, "{line:?}");
        }
    }

    #[test]
    fn bytes_are_found_by_the_whole_name() {
        let text = "MemTotal:       24689764 kB\nPss:  7 kB\nPss_Anon:  5 kB\n";
        assert_eq!(bytes_of_line(text, "MemTotal"), Some(25_282_318_336));
        assert_eq!(bytes_of_line(text, "Pss"), Some(7168));
        assert_eq!(bytes_of_line(text, "Mem"), None);
    }
}
