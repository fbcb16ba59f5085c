//! Copies that this process made, counted: tensors are meant to stay where they are.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Copies between memory of the host and of GPUs since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyCounts {
    /// From the host to a GPU.
    pub to_device: u64,
    /// Their bytes.
    pub to_device_bytes: u64,
    /// From a GPU to the host.
    pub to_host: u64,
    /// Their bytes.
    pub to_host_bytes: u64,
    /// Within a GPU.
    pub on_device: u64,
    /// Their bytes.
    pub on_device_bytes: u64,
}

/// Number and bytes of one kind of copy.
pub(crate) struct CopyCounter(AtomicU64, AtomicU64);

pub(crate) static TO_DEVICE: CopyCounter = CopyCounter::new();
pub(crate) static TO_HOST: CopyCounter = CopyCounter::new();
pub(crate) static ON_DEVICE: CopyCounter = CopyCounter::new();

impl CopyCounter {
    const fn new() -> Self {
        Self(AtomicU64::new(0), AtomicU64::new(0))
    }

    pub(crate) fn count_copy(&self, bytes: usize) {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.1.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn read_counts(&self) -> (u64, u64) {
        (self.0.load(Ordering::Relaxed), self.1.load(Ordering::Relaxed))
    }
}

/// The copies of this process so far.
pub fn copy_counts() -> CopyCounts {
    let ((to_device, to_device_bytes), (to_host, to_host_bytes)) =
        (TO_DEVICE.read_counts(), TO_HOST.read_counts());
    let (on_device, on_device_bytes) = ON_DEVICE.read_counts();
    CopyCounts { to_device, to_device_bytes, to_host, to_host_bytes, on_device, on_device_bytes }
}
