//! Ctrl-C: what this process was writing is removed before it goes.
//!
//! Every unfinished file or folder has `tessera-PID-` in its name (see [`mark`]); the folders in
//! which there may be some are noted here, and so are processes that must not outlive this one.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static PROCESSES: Mutex<Vec<rustix::process::Pid>> = Mutex::new(Vec::new());
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static INSTEAD: Mutex<Option<Box<dyn Fn() + Send>>> = Mutex::new(None);

/// Has the first interrupt do this instead of ending the process; the second one ends it.
pub(crate) fn instead(what: impl Fn() + Send + 'static) {
    *INSTEAD.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Box::new(what));
}

/// What the names of this process' unfinished files begin with.
pub(crate) fn mark() -> String {
    format!("tessera-{}-", std::process::id())
}

/// Notes a folder in which this process has unfinished files.
pub(crate) fn watch(folder: &Path) {
    let mut folders = FOLDERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !folders.iter().any(|known| known == folder) {
        folders.push(folder.to_path_buf());
    }
}

/// Notes a process that is ended when this one is interrupted.
pub(crate) fn end_too(process: rustix::process::Pid) {
    PROCESSES.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(process);
}

/// Forgets a process that has ended: its number may be another's soon.
pub(crate) fn has_ended(process: rustix::process::Pid) {
    let mut processes = PROCESSES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    processes.retain(|&known| known != process);
}

/// Whether this process is about to end because the user wants it to.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Waits for the end where one is under way: what went wrong meanwhile is no news.
pub(crate) fn wait_if_interrupted() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Removes what is unfinished when the user interrupts, and ends with the usual code.
pub(crate) fn clean_up_on_interrupt() {
    watch(&std::env::temp_dir());
    let mut signals = match signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("tessera: Ctrl-C will not clean up: {error}");
            return;
        }
    };
    std::thread::spawn(move || {
        let mut signals = signals.forever();
        let Some(mut signal) = signals.next() else { return };
        let instead = INSTEAD.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(instead) = instead {
            instead();
            match signals.next() {
                Some(second) => signal = second,
                None => return,
            }
        }
        INTERRUPTED.store(true, Ordering::SeqCst);
        let processes = PROCESSES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for &process in processes.iter() {
            // One that is gone already is what we want.
            rustix::process::kill_process(process, rustix::process::Signal::TERM).ok();
        }
        // Held until the end: nobody ends one of them a second time.
        // The rest of the process is still at work and may write on for a moment: it is clean once
        // it stays clean.
        let mut clean = 0;
        for _ in 0..50 {
            clean = if remove_unfinished() { clean + 1 } else { 0 };
            if clean == 3 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("tessera: interrupted");
        // Without the usual goodbyes: libraries would tear down what other threads still use.
        signal_hook::low_level::exit(128 + signal);
    });
}

/// Removes this process' unfinished files; tells whether there was none to remove.
fn remove_unfinished() -> bool {
    let folders = FOLDERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut clean = true;
    for entry in folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten() {
        let Ok(path) = entry.map(|entry| entry.path()) else { continue };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(&mark()) {
            clean = false;
            // What can't be removed now is tried again.
            drop(match path.is_dir() {
                true => std::fs::remove_dir_all(&path),
                false => std::fs::remove_file(&path),
            });
        }
    }
    clean
}
