//! Memory of a GPU, and pinned memory of the host, that is free to be used again: asking the driver
//! for more stops the GPU.

use std::collections::{BTreeMap, HashMap};

use cudarc::driver::sys;

/// Buffers of a size that are kept.
pub(crate) const MAX_FREE_BUFFERS_PER_SIZE: usize = 16;

/// Memory that is free to be used again, by size.
#[derive(Default)]
pub(crate) struct FreeMemory {
    device: BTreeMap<usize, Vec<sys::CUdeviceptr>>,
    device_bytes: usize,
    pub(crate) pinned: HashMap<usize, Vec<usize>>,
}

impl FreeMemory {
    /// A buffer that is large enough and not much larger: its address and its size.
    ///
    /// Batches come in many sizes, and those that are nearly the same share memory.
    pub(crate) fn take_fitting(&mut self, size: usize) -> Option<(sys::CUdeviceptr, usize)> {
        let mut fitting = self.device.range_mut(size..=size.saturating_add(size / 4));
        let (address, size) =
            fitting.find_map(|(&size, same)| same.pop().map(|address| (address, size)))?;
        self.device_bytes -= size;
        Some((address, size))
    }

    /// Keeps a buffer; false where there are enough already.
    pub(crate) fn try_keep(
        &mut self,
        address: sys::CUdeviceptr,
        size: usize,
        most_bytes: usize,
    ) -> bool {
        let same = self.device.entry(size).or_default();
        let keeps =
            same.len() < MAX_FREE_BUFFERS_PER_SIZE && self.device_bytes + size <= most_bytes;
        if keeps {
            same.push(address);
            self.device_bytes += size;
        }
        keeps
    }
}

#[cfg(test)]
mod tests {
    use super::FreeMemory;

    #[test]
    fn buffers_of_nearly_the_same_size_are_shared() {
        let mut free = FreeMemory::default();
        assert!(free.try_keep(1, 8 << 20, 100 << 20) && free.try_keep(2, 10 << 20, 100 << 20));
        assert_eq!(free.take_fitting(9 << 20), Some((2, 10 << 20)));
        assert_eq!(free.take_fitting(9 << 20), None);
        assert_eq!(free.take_fitting(4 << 20), None);
        assert_eq!(free.take_fitting(8 << 20), Some((1, 8 << 20)));
        assert_eq!(free.take_fitting(4096), None);
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let mut free = FreeMemory::default();
        assert!(free.try_keep(1, 6 << 20, 16 << 20) && free.try_keep(2, 10 << 20, 16 << 20));
        assert!(!free.try_keep(3, 4096, 16 << 20));
        assert!(free.take_fitting(6 << 20).is_some());
        assert!(free.try_keep(3, 4096, 16 << 20));
    }
}
