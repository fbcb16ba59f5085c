//! Options of runs.

use std::ffi::CStr;
use std::ptr;

use super::ort_value::check_status;
use crate::RunTerminator;

/// Options of one run, or of many.
pub(super) struct SessionRunOptions(*mut ort_sys::OrtRunOptions);

// SAFETY: a plain value that runs only read.
unsafe impl Send for SessionRunOptions {}
// SAFETY: whether a run is to end may be set from any thread, and nothing else is after it is made.
unsafe impl Sync for SessionRunOptions {}

impl RunTerminator for SessionRunOptions {
    fn terminate_run(&self) {
        // SAFETY: the options are valid for as long as this lives. It fails for none.
        check_status(unsafe { (ort::api().RunOptionsSetTerminate)(self.0) }).ok();
    }
}

impl SessionRunOptions {
    /// Options that say nothing yet.
    pub(super) fn new() -> ort::Result<Self> {
        let mut options = ptr::null_mut();
        // SAFETY: the pointer is written to; a value that was made is released below.
        check_status(unsafe { (ort::api().CreateRunOptions)(&raw mut options) })?;
        Ok(Self(options))
    }

    /// A run begins, which nobody has ended.
    pub(super) fn begin_run(&self) -> ort::Result<()> {
        // SAFETY: the options are valid for as long as this lives.
        check_status(unsafe { (ort::api().RunOptionsUnsetTerminate)(self.0) })
    }

    /// The arena gives back what is free at the end of the run.
    pub(super) fn shrinking_arena() -> ort::Result<Self> {
        Self::with_entry(c"memory.enable_memory_arena_shrinkage", c"cpu:0")
    }

    /// A run returns once all work is in the stream.
    pub(super) fn without_waiting() -> ort::Result<Self> {
        Self::with_entry(c"disable_synchronize_execution_providers", c"1")
    }

    fn with_entry(key: &CStr, value: &CStr) -> ort::Result<Self> {
        let made = Self::new()?;
        // SAFETY: both strings end in a zero byte and are copied.
        check_status(unsafe {
            (ort::api().AddRunConfigEntry)(made.0, key.as_ptr(), value.as_ptr())
        })?;
        Ok(made)
    }

    pub(super) fn as_ptr(&self) -> *const ort_sys::OrtRunOptions {
        self.0.cast_const()
    }
}

impl Drop for SessionRunOptions {
    fn drop(&mut self) {
        // SAFETY: made by `CreateRunOptions`, and released once.
        unsafe { (ort::api().ReleaseRunOptions)(self.0) };
    }
}
