//! Memory and events of a GPU that other processes open (CUDA IPC).

use std::sync::Arc;

use cudarc::driver::{result, sys};
use tessera_core::Result;

use crate::Gpu;
use crate::driver::check;

/// What another process needs to open memory or an event: bytes to hand over.
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

/// An event that several processes have.
pub struct SharedEvent {
    gpu: Arc<Gpu>,
    event: sys::CUevent,
}

// SAFETY: an event may be recorded and waited for from any thread.
unsafe impl Send for SharedEvent {}
// SAFETY: as above.
unsafe impl Sync for SharedEvent {}

impl SharedEvent {
    /// An event, and what others need to open it.
    pub fn create(gpu: &Arc<Gpu>) -> Result<(Self, [u8; HANDLE])> {
        gpu.enter()?;
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags::CU_EVENT_INTERPROCESS as u32;
        // SAFETY: the context is current; the event is written.
        check("an event to share", unsafe { sys::cuEventCreate(&raw mut event, flags).result() })?;
        let made = Self { gpu: Arc::clone(gpu), event };
        let mut handle = sys::CUipcEventHandle { reserved: [0; HANDLE] };
        // SAFETY: the event was made for this.
        check("sharing an event with other processes (CUDA IPC)", unsafe {
            sys::cuIpcGetEventHandle(&raw mut handle, event).result()
        })?;
        Ok((made, bytes_of(handle.reserved)))
    }

    /// The event that another process made.
    pub fn open(gpu: &Arc<Gpu>, handle: &[u8; HANDLE]) -> Result<Self> {
        gpu.enter()?;
        let mut event = std::ptr::null_mut();
        let handle = sys::CUipcEventHandle { reserved: text_of(handle) };
        // SAFETY: the driver checks the handle; the event is written.
        check("an event of another process (CUDA IPC)", unsafe {
            sys::cuIpcOpenEventHandle(&raw mut event, handle).result()
        })?;
        Ok(Self { gpu: Arc::clone(gpu), event })
    }

    /// Happens when all that was put into this process' stream so far is done.
    pub fn record(&self) -> Result<()> {
        self.gpu.enter()?;
        // SAFETY: both are valid.
        check("an event", unsafe { result::event::record(self.event, self.gpu.raw_stream()) })
    }

    /// Has this process' stream wait for it; the host doesn't.
    pub fn hold_stream(&self) -> Result<()> {
        self.gpu.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are valid.
        check("waiting for an event", unsafe {
            result::stream::wait_event(self.gpu.raw_stream(), self.event, flags)
        })
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: made or opened above, and destroyed once. What goes wrong here can't be mended.
            unsafe { result::event::destroy(self.event) }.ok();
        }
    }
}
