//! Ctrl-C: what this process was writing is removed before it goes.
//!
//! Unfinished files are the repository's to find (see [`tessera_repository::unfinished_files`]);
//! processes that must not outlive this one are noted here.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use tessera_core::lock;
use tessera_report::output;
use tessera_repository::unfinished_files::{remove_unfinished, watch_folder};

static PROCESSES: Mutex<Vec<rustix::process::Pid>> = Mutex::new(Vec::new());
static LAST_THINGS: Mutex<Vec<fn()>> = Mutex::new(Vec::new());
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static ON_FIRST_INTERRUPT: Mutex<Option<Box<dyn Fn() + Send>>> = Mutex::new(None);

/// Has the first interrupt do this instead of ending the process; the second one ends it.
pub fn on_first_interrupt(what: impl Fn() + Send + 'static) {
    *lock(&ON_FIRST_INTERRUPT) = Some(Box::new(what));
}

/// Has this done, too, before an interrupt ends the process.
pub fn do_before_end(what: fn()) {
    let mut things = lock(&LAST_THINGS);
    if !things.contains(&what) {
        things.push(what);
    }
}

/// Notes a process that is ended when this one is interrupted.
pub fn end_process_too(process: rustix::process::Pid) {
    lock(&PROCESSES).push(process);
}

/// Forgets a process that has ended: its number may be another's soon.
pub fn forget_process(process: rustix::process::Pid) {
    let mut processes = lock(&PROCESSES);
    processes.retain(|&known| known != process);
}

/// Whether this process is about to end because the user wants it to.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Waits for the end where one is under way: what went wrong meanwhile is no news.
pub fn wait_if_interrupted() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Removes what is unfinished when the user interrupts, and ends with the usual code.
pub fn clean_up_on_interrupt() {
    watch_folder(&std::env::temp_dir());
    let mut signals = match signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) {
        Ok(signals) => signals,
        Err(error) => {
            output::print_notice(&format!("Ctrl-C will not clean up: {error}"));
            return;
        }
    };
    std::thread::spawn(move || {
        let mut signals = signals.forever();
        let Some(mut signal) = signals.next() else { return };
        let instead = lock(&ON_FIRST_INTERRUPT).take();
        if let Some(instead) = instead {
            instead();
            match signals.next() {
                Some(second) => signal = second,
                None => return,
            }
        }
        INTERRUPTED.store(true, Ordering::SeqCst);
        let processes = lock(&PROCESSES);
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
        for what in lock(&LAST_THINGS).iter() {
            what();
        }
        // Nothing on the way to the end may panic: the rest of the process waits for it.
        output::print_notice("interrupted");
        // Without the usual goodbyes: libraries would tear down what other threads still use.
        signal_hook::low_level::exit(128 + signal);
    });
}
