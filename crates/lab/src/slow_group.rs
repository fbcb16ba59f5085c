//! A group of processes that get a part of a core: a slow device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use tessera_core::{Error, Result};

/// Counts groups of this process.
static GROUPS: AtomicU32 = AtomicU32::new(0);
/// Microseconds in which the part is counted.
const PERIOD: u64 = 20_000;

/// A group of processes that get so much of the cores, by control groups of either version.
pub struct SlowGroup {
    folder: PathBuf,
}

impl SlowGroup {
    /// A group that gets this many cores; `Unsupported` where control groups can't be used.
    pub fn new(cores: f64) -> Result<Self> {
        let name =
            format!("tessera-{}-{}", std::process::id(), GROUPS.fetch_add(1, Ordering::Relaxed));
        let quota = (cores * PERIOD as f64).max(1000.0) as u64;
        let first = Path::new("/sys/fs/cgroup/cpu");
        let (folder, settings) = if first.join("cpu.cfs_quota_us").exists() || first.exists() {
            let settings = [
                ("cpu.cfs_period_us", PERIOD.to_string()),
                ("cpu.cfs_quota_us", quota.to_string()),
            ];
            (first.join(name), settings.to_vec())
        } else {
            let folder = Path::new("/sys/fs/cgroup").join(name);
            (folder, vec![("cpu.max", format!("{quota} {PERIOD}"))])
        };
        fs::create_dir(&folder).map_err(|error| unusable(&folder, &error))?;
        let group = Self { folder };
        for (file, value) in settings {
            let path = group.folder.join(file);
            fs::write(&path, value).map_err(|error| unusable(&path, &error))?;
        }
        Ok(group)
    }

    /// The same command, run within the group.
    pub fn limit_command(&self, command: &Command) -> Command {
        let mut limited = Command::new("sh");
        let join = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
        limited.args(["-c", join]).arg(&self.folder).arg(command.get_program());
        limited.args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => limited.env(key, value),
                None => limited.env_remove(key),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            limited.current_dir(folder);
        }
        limited
    }
}

fn unusable(path: &Path, error: &std::io::Error) -> Error {
    Error::unsupported(format!("control groups can't be used: {}: {error}", path.display()))
}

impl Drop for SlowGroup {
    fn drop(&mut self) {
        // A group that something runs in stays until that has ended.
        fs::remove_dir(&self.folder).ok();
    }
}
