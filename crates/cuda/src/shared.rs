//! Memory of a GPU that other processes open (CUDA IPC).

use std::sync::Arc;

use cudarc::driver::{result, sys};
use tessera_core::Result;

use crate::Gpu;
use crate::driver::check;

/// What another process needs to open memory: bytes to hand over.
pub const HANDLE: usize = 64;

fn bytes_of(text: [std::ffi::c_char; HANDLE]) -> [u8; HANDLE] {
    text.map(|byte| byte.to_ne_bytes()[0])
}

fn text_of(bytes: &[u8; HANDLE]) -> [std::ffi::c_char; HANDLE] {
    bytes.map(|byte| std::ffi::c_char::from_ne_bytes([byte]))
}

/// Memory of a GPU that several processes have.
pub struct SharedMemory {
    gpu: Arc<Gpu>,
    address: sys::CUdeviceptr,
    is_ours: bool,
}

impl SharedMemory {
    /// Memory of so many bytes, and what others need to open it.
    pub fn create(gpu: &Arc<Gpu>, len: usize) -> Result<(Self, [u8; HANDLE])> {
        gpu.enter()?;
        // SAFETY: the context is current; the memory is given back when this is dropped.
        let address = check("memory to share", unsafe { result::malloc_sync(len.max(1)) })?;
        let made = Self { gpu: Arc::clone(gpu), address, is_ours: true };
        let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE] };
        // SAFETY: the address is that of a whole allocation.
        check("sharing memory with other processes (CUDA IPC)", unsafe {
            sys::cuIpcGetMemHandle(&raw mut handle, address).result()
        })?;
        Ok((made, bytes_of(handle.reserved)))
    }

    /// The memory that another process made.
    pub fn open(gpu: &Arc<Gpu>, handle: &[u8; HANDLE]) -> Result<Self> {
        gpu.enter()?;
        let mut address = 0;
        let handle = sys::CUipcMemHandle { reserved: text_of(handle) };
        // SAFETY: the driver checks the handle; the address is written.
        check("memory of another process (CUDA IPC)", unsafe {
            sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, 1).result()
        })?;
        Ok(Self { gpu: Arc::clone(gpu), address, is_ours: false })
    }

    /// Where it is in this process.
    pub fn address(&self) -> usize {
        self.address as usize
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.gpu.enter().is_err() {
            return;
        }
        // What goes wrong here can't be mended.
        match self.is_ours {
            // SAFETY: made by `create`, and given back once.
            true => unsafe { result::free_sync(self.address) }.ok(),
            // SAFETY: opened by `open`, and closed once.
            false => unsafe { sys::cuIpcCloseMemHandle(self.address).result() }.ok(),
        };
    }
}
