//! The memory of processes, as Linux counts it.

use tessera_core::{Error, Result, bytes_of_line};

/// What of a process' memory is resident; `self` or a number.
pub(crate) fn resident_bytes(process: &str) -> Result<u64> {
    status_bytes(process, "VmRSS")
}

/// A line of a process' status that is a number of bytes.
pub(crate) fn status_bytes(process: &str, key: &str) -> Result<u64> {
    kilobytes_line(&format!("/proc/{process}/status"), key)
}

/// The line of a file that begins with `key` and has a number of kilobytes.
fn kilobytes_line(path: &str, key: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::from_io(path, &error))?;
    bytes_of_line(&text, key).ok_or_else(|| Error::unsupported(format!("{path} has no line {key}")))
}

/// The memory of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessMemory {
    /// Its own, and its part of what it shares with others.
    pub(crate) own_bytes: u64,
    /// Of files what it has touched, whole: how many others have the same program or library in
    /// memory must not count.
    pub(crate) file_bytes: u64,
}

impl ProcessMemory {
    pub(crate) fn measure(process: u32) -> Result<Self> {
        let rollup = format!("/proc/{process}/smaps_rollup");
        let file_bytes = status_bytes(&process.to_string(), "RssFile")?;
        let (own, shared) =
            (kilobytes_line(&rollup, "Pss_Anon")?, kilobytes_line(&rollup, "Pss_Shmem")?);
        Ok(Self { own_bytes: own + shared, file_bytes })
    }
}
