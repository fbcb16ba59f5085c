//! What keeps the process of an instance from taking the host down with it.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tessera_core::bytes_of_line;

/// How much sooner than others the kernel ends the process where memory runs out: a block can be
/// started again, the server has everybody's requests.
const OOM_SCORE: &str = "500";

/// Beside what its runs take: threads, messages, what an engine keeps for itself.
const SLACK_BYTES: u64 = 512 << 20;

/// Has the kernel end this process before others where memory runs out.
pub(crate) fn volunteer_for_oom() {
    // Where it can't be said, nothing changes.
    std::fs::write("/proc/self/oom_score_adj", OOM_SCORE).ok();
}

/// Has this process be in a control group, whose processes are in this file.
pub(crate) fn join_group(processes: &Path) {
    if let Err(error) = std::fs::write(processes, std::process::id().to_string()) {
        tracing::debug!(%error, "this process is in no control group of instances");
    }
}

/// Limits the memory that is this process' own to what it has now and what runs may take. What is
/// mapped from files or shared with others does not count.
pub(crate) fn limit_process_memory(run_bytes: u64) {
    let Some(now) = data_bytes() else { return };
    let wanted = now.saturating_add(run_bytes).saturating_add(SLACK_BYTES);
    let limit = getrlimit(Resource::Data);
    let current = limit.maximum.map_or(wanted, |most| wanted.min(most));
    let limit = Rlimit { current: Some(current), maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Data, limit) {
        tracing::debug!(%error, "this process has no limit of its own on memory");
    }
}

/// Bytes of private memory that can be written to, touched or not.
fn data_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    bytes_of_line(&status, "VmData")
}
