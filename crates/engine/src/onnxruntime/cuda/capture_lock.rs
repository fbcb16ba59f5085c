//! Keeps the making and dropping of sessions and the capture of CUDA graphs apart.
//!
//! ONNX Runtime and its libraries synchronise the whole device while they make a session or drop
//! one. CUDA refuses that as long as any stream of the process is capturing, whichever thread asks,
//! and spoils what is captured: so one waits for the other. A capture takes milliseconds, and
//! whoever captures is a thread that nobody waits for.

use std::sync::{Mutex, MutexGuard};

use tessera_core::lock;

/// Waits until nobody captures, nor makes or drops a session, and keeps it so while it is held.
pub(super) fn lock_device_for_setup() -> MutexGuard<'static, ()> {
    static SETUP: Mutex<()> = Mutex::new(());
    lock(&SETUP)
}
