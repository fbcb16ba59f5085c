//! The processes of a server's units, to be killed.

use serde_json::Value;
use tessera_core::Result;

use super::test_server::TestServer;

/// The units of a server, each with its process where it is up, and whether that has run anything
/// yet.
pub(crate) fn instance_processes(server: &TestServer) -> Result<Vec<(String, Option<u32>, bool)>> {
    let found = server.call_control("GET", "/v1/units", None)?;
    let units = found.get("units").and_then(Value::as_array).cloned().unwrap_or_default();
    Ok(units
        .iter()
        .map(|unit| {
            let name = unit["name"].as_str().unwrap_or_default().to_owned();
            let instance = &unit["instances"][0];
            let process = instance["process"].as_u64().and_then(|id| u32::try_from(id).ok());
            let is_up = instance["state"] == "up";
            // One that has not been of any use yet counts as one that can't start, and comes back
            // later and later.
            let is_useful = instance["requests"].as_u64().is_some_and(|count| count > 0);
            (name, process.filter(|_| is_up), is_useful)
        })
        .collect())
}

/// Kills a process; one that is gone already is what is wanted.
pub(crate) fn kill_process(process: u32) {
    if let Some(pid) = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw) {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
    }
}
