//! Memory of the host that others made, for GPUs to use in place: numbers that they write and wait
//! for, and tensors that they copy.
//!
//! Numbers order work between processes like events, but may be waited for before the work that
//! writes them was launched: an event that nobody has recorded yet makes nobody wait.

use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys;
use tessera_core::Result;

use crate::Gpu;
use crate::driver::check_cuda;

/// Memory of the host that stays where it is for as long as this lives, so that a GPU reads and
/// writes it in place.
pub struct RegisteredMemory {
    gpu: Arc<Gpu>,
    host: NonNull<u8>,
    device: sys::CUdeviceptr,
    len: usize,
}

// SAFETY: it is plain memory, which the GPU and others change number by number.
unsafe impl Send for RegisteredMemory {}
// SAFETY: as above.
unsafe impl Sync for RegisteredMemory {}

impl RegisteredMemory {
    /// Lets the GPU use so many bytes at an address of the host.
    ///
    /// # Safety
    /// The memory must be mapped, in whole pages, for as long as this lives.
    pub unsafe fn register_mapped(gpu: &Arc<Gpu>, host: NonNull<u8>, len: usize) -> Result<Self> {
        let how = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: as the caller says.
        let mut made = unsafe { Self::register_with_flags(gpu, host, len, how) }?;
        // SAFETY: registered above; the address is written.
        check_cuda("memory of the host for a GPU", unsafe {
            let device = &raw mut made.device;
            sys::cuMemHostGetDevicePointer_v2(device, host.as_ptr().cast(), 0).result()
        })?;
        Ok(made)
    }

    /// Lets the GPU copy from so many bytes at an address of the host, which this process can't
    /// write.
    ///
    /// # Safety
    /// The memory must be mapped, in whole pages, for as long as this lives.
    pub unsafe fn register_read_only(
        gpu: &Arc<Gpu>,
        host: NonNull<u8>,
        len: usize,
    ) -> Result<Self> {
        let how = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_READ_ONLY;
        // SAFETY: as the caller says.
        unsafe { Self::register_with_flags(gpu, host, len, how) }
    }

    /// # Safety
    /// The memory must be mapped, in whole pages, for as long as this lives.
    unsafe fn register_with_flags(
        gpu: &Arc<Gpu>,
        host: NonNull<u8>,
        len: usize,
        how: u32,
    ) -> Result<Self> {
        gpu.make_current()?;
        // SAFETY: the caller says that the memory is there.
        check_cuda("memory of the host for a GPU", unsafe {
            sys::cuMemHostRegister_v2(host.as_ptr().cast(), len, how).result()
        })?;
        Ok(Self { gpu: Arc::clone(gpu), host, device: 0, len })
    }

    /// Has the stream write a number there, once all that was put into it so far is done.
    pub fn stream_write_value(&self, offset: usize, value: u32) -> Result<()> {
        let at = self.device_address_at(offset);
        self.gpu.make_current()?;
        // SAFETY: the number is within the memory. By default all that was written before is seen
        // before it.
        check_cuda("a flag", unsafe {
            let how = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
            sys::cuStreamWriteValue32_v2(self.gpu.raw_stream(), at, value, how).result()
        })
    }

    /// Has the stream wait until the number is there; the host doesn't.
    ///
    /// The driver's means, and no kernel of ours that looks again and again: on an H200 that slowed
    /// the kernels of others down by a tenth.
    pub fn stream_wait_value(&self, offset: usize, value: u32) -> Result<()> {
        let at = self.device_address_at(offset);
        self.gpu.make_current()?;
        // SAFETY: the number is within the memory.
        check_cuda("waiting for a flag", unsafe {
            let how = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ as u32;
            sys::cuStreamWaitValue32_v2(self.gpu.raw_stream(), at, value, how).result()
        })
    }

    fn device_address_at(&self, offset: usize) -> sys::CUdeviceptr {
        // Offsets are ours: those of slots.
        self.device + offset.min(self.len.saturating_sub(4)) as sys::CUdeviceptr
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        if self.gpu.make_current().is_ok() {
            // SAFETY: registered by `register_with_flags`, and taken back once. What goes wrong
            // here can't be mended.
            unsafe { sys::cuMemHostUnregister(self.host.as_ptr().cast()).result() }.ok();
        }
    }
}
