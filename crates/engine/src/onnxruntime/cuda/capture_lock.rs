//! Keeps the making of sessions and the capture of CUDA graphs apart.
//!
//! ONNX Runtime synchronises the whole device while it makes a session. CUDA refuses that as long as
//! any stream of the process is capturing, whichever thread asks: so one waits for the other. A
//! capture takes milliseconds, and whoever captures is a thread that nobody waits for.

use std::sync::{Mutex, MutexGuard};

use tessera_core::lock;

/// Waits until nobody captures and nobody makes a session, and keeps it so while it is held.
pub(super) fn lock_device_for_setup() -> MutexGuard<'static, ()> {
    static SETUP: Mutex<()> = Mutex::new(());
    lock(&SETUP)
}
