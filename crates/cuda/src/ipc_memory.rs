//! CUDA IPC: handles of a GPU's memory, which other processes open.

use std::sync::Arc;

use cudarc::driver::{result, sys};
use tessera_core::{Error, Fence, MemoryLocation, Result, Tensor};

use crate::driver::check_cuda;
use crate::{CudaEvent, Gpu, to_host};

/// What another process needs to open memory: bytes to hand over.
pub const IPC_HANDLE_BYTES: usize = 64;

fn bytes_of(text: [std::ffi::c_char; IPC_HANDLE_BYTES]) -> [u8; IPC_HANDLE_BYTES] {
    text.map(|byte| byte.to_ne_bytes()[0])
}

fn text_of(bytes: &[u8; IPC_HANDLE_BYTES]) -> [std::ffi::c_char; IPC_HANDLE_BYTES] {
    bytes.map(|byte| std::ffi::c_char::from_ne_bytes([byte]))
}

/// Memory of a GPU that several processes have.
pub struct IpcMemory {
    gpu: Arc<Gpu>,
    address: sys::CUdeviceptr,
    is_ours: bool,
}

impl IpcMemory {
    /// Memory of so many bytes, and what others need to open it.
    pub fn create_with_handle(
        gpu: &Arc<Gpu>,
        len: usize,
    ) -> Result<(Self, [u8; IPC_HANDLE_BYTES])> {
        gpu.make_current()?;
        // SAFETY: the context is current; the memory is given back when this is dropped.
        let address = check_cuda("memory to share", unsafe { result::malloc_sync(len.max(1)) })?;
        let made = Self { gpu: Arc::clone(gpu), address, is_ours: true };
        let mut handle = sys::CUipcMemHandle { reserved: [0; IPC_HANDLE_BYTES] };
        // SAFETY: the address is that of a whole allocation.
        check_cuda("sharing memory with other processes (CUDA IPC)", unsafe {
            sys::cuIpcGetMemHandle(&raw mut handle, address).result()
        })?;
        Ok((made, bytes_of(handle.reserved)))
    }

    /// The memory that another process made.
    pub fn open_handle(gpu: &Arc<Gpu>, handle: &[u8; IPC_HANDLE_BYTES]) -> Result<Self> {
        gpu.make_current()?;
        let mut address = 0;
        let handle = sys::CUipcMemHandle { reserved: text_of(handle) };
        // SAFETY: the driver checks the handle; the address is written.
        check_cuda("memory of another process (CUDA IPC)", unsafe {
            sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, 1).result()
        })?;
        Ok(Self { gpu: Arc::clone(gpu), address, is_ours: false })
    }

    /// Where it is in this process.
    pub fn address(&self) -> usize {
        self.address as usize
    }

    /// The GPU that it is on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Bytes from its address to the end of the allocation, as the driver knows it.
    pub fn byte_len(&self) -> Result<usize> {
        self.gpu.make_current()?;
        let (mut start, mut size) = (0, 0);
        // SAFETY: the address is that of memory that was made or opened; both numbers are written.
        check_cuda("the size of shared memory", unsafe {
            sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut size, self.address).result()
        })?;
        // A small allocation is part of a larger one, which may start before it.
        let before = self.address.saturating_sub(start) as usize;
        Ok(size.saturating_sub(before))
    }

    /// Copies a tensor to `offset` bytes into it, and waits until it is there.
    ///
    /// What comes from the host does not wait for other work on the GPU: nobody else may use these
    /// bytes now.
    pub fn write_tensor(&self, offset: usize, tensor: &Tensor) -> Result<()> {
        if tensor.strings().is_some() {
            return Err(Error::unsupported("strings on a GPU"));
        }
        let (len, room) = (tensor.byte_len(), self.byte_len()?);
        if offset.checked_add(len).is_none_or(|end| end > room) {
            return Err(Error::invalid(format!(
                "{len} bytes at offset {offset} of shared memory, which has {room}"
            )));
        }
        if len == 0 {
            return Ok(());
        }
        let target = self.address + offset as sys::CUdeviceptr;
        match tensor.location() {
            MemoryLocation::Cuda(number) if number == self.gpu.number() => {
                self.copy_from_device(target, tensor)
            }
            _ => self.copy_from_host(target, &to_host(tensor)?.wait_fence_on_host()?),
        }
    }

    /// In the stream: what computes the tensor is in it too.
    fn copy_from_device(&self, target: sys::CUdeviceptr, tensor: &Tensor) -> Result<()> {
        self.gpu.make_current()?;
        let source = tensor.address().unwrap_or(0) as sys::CUdeviceptr;
        // SAFETY: the tensor has so many bytes there, `write_tensor` has seen to the room for them,
        // and both stay until the copy is done, which is waited for.
        let copied = unsafe {
            result::memcpy_dtod_async(target, source, tensor.byte_len(), self.gpu.raw_stream())
        };
        check_cuda("a copy on the GPU", copied)?;
        CudaEvent::record_for_spin_wait(&self.gpu)?.wait_on_host()
    }

    fn copy_from_host(&self, target: sys::CUdeviceptr, tensor: &Tensor) -> Result<()> {
        let unreadable = || Error::unsupported("a copy to the GPU of what the CPU can't read");
        let bytes = tensor.bytes().ok_or_else(unreadable)?;
        let stream = self.gpu.copy_stream()?;
        // SAFETY: `write_tensor` has seen to the room for the bytes, which stay until the copy is
        // done: it is waited for.
        check_cuda("a copy to the GPU", unsafe {
            result::memcpy_htod_async(target, bytes, stream)
        })?;
        // SAFETY: the stream stays until the process ends.
        check_cuda("waiting for a copy", unsafe { result::stream::synchronize(stream) })
    }
}

impl Drop for IpcMemory {
    fn drop(&mut self) {
        if self.gpu.make_current().is_err() {
            return;
        }
        // What goes wrong here can't be mended.
        if self.is_ours {
            // SAFETY: made by `create_with_handle`, and given back once.
            unsafe { result::free_sync(self.address) }.ok();
        } else {
            // SAFETY: opened by `open_handle`, and closed once.
            unsafe { sys::cuIpcCloseMemHandle(self.address).result() }.ok();
        }
    }
}
