//! Memory of a GPU that grows and stays where it is.
//!
//! Addresses are reserved first, which costs nothing; memory is put behind them as it is needed. So
//! what was handed out before keeps its place, and nothing lies between two pieces.

use std::sync::Arc;

use cudarc::driver::sys;
use tessera_core::{Error, Result};

use crate::Gpu;
use crate::driver::check_cuda;

/// Memory that grows at its end.
pub struct GrowingBuffer {
    gpu: Arc<Gpu>,
    address: sys::CUdeviceptr,
    /// Bytes of addresses.
    reserved: usize,
    /// Bytes that have memory behind them.
    len: usize,
    /// What the driver gives is a multiple of this.
    granularity: usize,
    /// What is behind the addresses, one piece after the other: how many bytes, and the driver's
    /// handle.
    pieces: Vec<(usize, sys::CUmemGenericAllocationHandle)>,
}

impl GrowingBuffer {
    /// With no memory yet, and addresses for so many bytes.
    pub fn new(gpu: &Arc<Gpu>, most: usize) -> Result<Self> {
        gpu.make_current()?;
        let mut granularity = 0;
        let kind = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: what memory is asked for is described below; the number is written.
        let asked = unsafe {
            sys::cuMemGetAllocationGranularity(
                &raw mut granularity,
                &allocation_properties(gpu),
                kind,
            )
            .result()
        };
        check_cuda("memory that grows", asked)?;
        let reserved = most.max(1).checked_next_multiple_of(granularity.max(1));
        let reserved =
            reserved.ok_or_else(|| Error::usage(format!("no memory for {most} bytes")))?;
        let mut address = 0;
        // SAFETY: the address is written; it is given back below.
        check_cuda("addresses for memory", unsafe {
            sys::cuMemAddressReserve(&raw mut address, reserved, 0, 0, 0).result()
        })?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            address,
            reserved,
            len: 0,
            granularity,
            pieces: Vec::new(),
        })
    }

    /// Where it begins, also while there is nothing yet.
    pub fn address(&self) -> usize {
        self.address as usize
    }

    /// Bytes that there are.
    pub fn byte_len(&self) -> usize {
        self.len
    }

    /// Has it be so many bytes at least.
    pub fn grow_to(&mut self, len: usize) -> Result<()> {
        let Some(missing) = len.checked_sub(self.len).filter(|&missing| missing > 0) else {
            return Ok(());
        };
        let missing = missing.checked_next_multiple_of(self.granularity);
        let Some(missing) = missing.filter(|missing| self.reserved - self.len >= *missing) else {
            let most = self.reserved;
            return Err(Error::full(format!("CUDA: {len} bytes, where {most} may be used")));
        };
        self.gpu.make_current()?;
        let mut handle = 0;
        // SAFETY: what memory is asked for is described below; the handle is written.
        check_cuda("memory that grows", unsafe {
            sys::cuMemCreate(&raw mut handle, missing, &allocation_properties(&self.gpu), 0)
                .result()
        })?;
        let end = self.address + self.len as sys::CUdeviceptr;
        // SAFETY: the addresses are reserved, and nothing is behind them yet.
        let mapped = unsafe { sys::cuMemMap(end, missing, 0, handle, 0).result() };
        if let Err(error) = check_cuda("memory that grows", mapped) {
            // SAFETY: made above, and released once.
            unsafe { sys::cuMemRelease(handle).result() }.ok();
            return Err(error);
        }
        self.pieces.push((missing, handle));
        self.len += missing;
        let access = sys::CUmemAccessDesc {
            location: device_location(&self.gpu),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: memory was just put there.
        let opened = unsafe { sys::cuMemSetAccess(end, missing, &raw const access, 1).result() };
        check_cuda("memory that grows", opened).inspect_err(|_| self.unmap_last_piece())
    }

    /// Takes the last piece away.
    fn unmap_last_piece(&mut self) {
        let Some((size, handle)) = self.pieces.pop() else { return };
        self.len -= size;
        let end = self.address + self.len as sys::CUdeviceptr;
        // SAFETY: put there by `grow_to`, and nobody uses it. What goes wrong here can't be mended.
        unsafe {
            sys::cuMemUnmap(end, size).result().ok();
            sys::cuMemRelease(handle).result().ok();
        }
    }
}

impl Drop for GrowingBuffer {
    fn drop(&mut self) {
        // Unlike other memory, it is taken away at once: all that was put into the stream may use
        // it.
        self.gpu.synchronise_stream().ok();
        while !self.pieces.is_empty() {
            self.unmap_last_piece();
        }
        // SAFETY: reserved by `new`, with nothing behind it any more.
        unsafe { sys::cuMemAddressFree(self.address, self.reserved).result() }.ok();
    }
}

fn device_location(gpu: &Gpu) -> sys::CUmemLocation {
    let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    sys::CUmemLocation { type_, id: gpu.number() as i32 }
}

/// Plain memory of a GPU.
fn allocation_properties(gpu: &Gpu) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: device_location(gpu),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
