//! Addresses on a GPU that are there for life; what backs them comes and goes.
//!
//! Sessions and CUDA graphs know addresses. Memory that backs them can be taken away while they do
//! nothing, given to others, and put back later: they go on as if nothing had been (CUDA's virtual
//! memory management). All of a range is backed by one piece of memory: in pieces of 2 MiB the
//! driver takes milliseconds for what takes a tenth of one so.
//!
//! To take a mapping away takes as long as to make one. So it is done when somebody has time
//! ([`unmap_lost_memory`]): until then two ranges may be mapped to the same memory, of which one has
//! lost it, and nobody uses that one.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use cudarc::driver::{result, sys};
use tessera_core::{Error, MemoryLocation, Region, Result, lock};

use crate::Gpu;
use crate::copy_counts::TO_DEVICE;
use crate::driver::check_cuda;

/// Addresses on a GPU, with memory or without.
pub struct VirtualRange {
    gpu: Arc<Gpu>,
    address: sys::CUdeviceptr,
    /// A multiple of what the driver gives out.
    size: usize,
    backing: Mutex<Option<(sys::CUmemGenericAllocationHandle, BackingPlace)>>,
}

/// Where memory is that backs addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BackingPlace {
    Gpu,
    Host,
}

impl VirtualRange {
    /// Addresses for so many bytes, without memory.
    pub fn reserve(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        gpu.make_current()?;
        let size = Self::backed_bytes(gpu, len)?;
        let mut address = 0;
        // SAFETY: the context is current; the address is written.
        check_cuda("addresses", unsafe {
            sys::cuMemAddressReserve(&raw mut address, size, 0, 0, 0).result()
        })?;
        Ok(Self { gpu: Arc::clone(gpu), address, size, backing: Mutex::default() })
    }

    /// Bytes of memory that a range of so many bytes takes where it is backed.
    pub fn backed_bytes(gpu: &Arc<Gpu>, len: usize) -> Result<usize> {
        gpu.make_current()?;
        let (mut granularity, properties) = (0, allocation_properties(gpu));
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the number is written; the properties are only read.
        check_cuda("the granularity of memory", unsafe {
            let granularity = &raw mut granularity;
            sys::cuMemGetAllocationGranularity(granularity, &raw const properties, minimum).result()
        })?;
        let rounded = len.max(1).checked_next_multiple_of(granularity.max(1));
        rounded.ok_or_else(|| Error::usage(format!("no memory for {len} bytes")))
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Bytes of memory that it takes where it is backed.
    pub fn byte_len(&self) -> usize {
        self.size
    }

    /// How far from its start an address of it is.
    pub fn offset_of(&self, address: NonNull<u8>) -> Option<usize> {
        let offset = address.as_ptr().addr().checked_sub(self.address as usize)?;
        (offset < self.size).then_some(offset)
    }

    /// Backs it with memory of the GPU, where it is not; what is in it is anything.
    pub fn back_with_memory(&self) -> Result<()> {
        let mut backing = lock(&self.backing);
        if backing.is_some() {
            return Ok(());
        }
        self.gpu.make_current()?;
        unmap_lost_memory_of(&self.gpu, |address| address == self.address)?;
        let handle = self.take_or_make_memory(&allocation_properties(&self.gpu))?;
        self.map_memory(handle)?;
        *backing = Some((handle, BackingPlace::Gpu));
        Ok(())
    }

    /// Backs it with memory of the host, which the GPU reads over the bus. What is in it is anything.
    pub fn back_with_host_memory(&self) -> Result<()> {
        let mut backing = lock(&self.backing);
        if backing.is_some() {
            return Ok(());
        }
        self.gpu.make_current()?;
        unmap_lost_memory_of(&self.gpu, |address| address == self.address)?;
        let mut properties = allocation_properties(&self.gpu);
        properties.location = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA,
            id: 0,
        };
        let handle = self.make_memory(&properties)?;
        self.map_memory(handle)?;
        *backing = Some((handle, BackingPlace::Host));
        Ok(())
    }

    /// Maps memory to all of it, for the GPU to read and write; gives the memory back where that
    /// can't be.
    fn map_memory(&self, handle: sys::CUmemGenericAllocationHandle) -> Result<()> {
        // SAFETY: the range is ours and has no memory; the handle is that of as much.
        let mapped = check_cuda("memory for addresses", unsafe {
            sys::cuMemMap(self.address, self.size, 0, handle, 0).result()
        });
        let access = sys::CUmemAccessDesc {
            location: allocation_properties(&self.gpu).location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let allowed = mapped.and_then(|()| {
            // SAFETY: the range was mapped just now; the description is only read.
            check_cuda("access to memory", unsafe {
                sys::cuMemSetAccess(self.address, self.size, &raw const access, 1).result()
            })
            .inspect_err(|_| {
                // SAFETY: mapped above, and nobody has used it.
                unsafe { sys::cuMemUnmap(self.address, self.size).result() }.ok();
            })
        });
        if let Err(error) = allowed {
            // SAFETY: made above, and nothing is mapped to it.
            unsafe { sys::cuMemRelease(handle).result() }.ok();
            return Err(error);
        }
        Ok(())
    }

    /// The memory that was taken away last, where it is as large, or new one.
    fn take_or_make_memory(
        &self,
        properties: &sys::CUmemAllocationProp,
    ) -> Result<sys::CUmemGenericAllocationHandle> {
        let spare = lock(&self.gpu.spare_memory).take();
        match spare {
            Some((size, handle)) if size == self.size => return Ok(handle),
            Some((_, handle)) => release_memory(handle),
            None => {}
        }
        // What is mapped still is not free.
        unmap_lost_memory_of(&self.gpu, |_| true)?;
        self.make_memory(properties)
    }

    fn make_memory(
        &self,
        properties: &sys::CUmemAllocationProp,
    ) -> Result<sys::CUmemGenericAllocationHandle> {
        let mut handle = 0;
        // SAFETY: the handle is written; the properties are only read.
        check_cuda(&format!("{} bytes for weights", self.size), unsafe {
            sys::cuMemCreate(&raw mut handle, self.size, properties, 0).result()
        })?;
        Ok(handle)
    }

    /// Takes its memory away. It is kept for the next range of this size for a moment.
    ///
    /// # Safety
    /// Nothing on the GPU uses it any more.
    pub unsafe fn take_memory_away(&self) -> Result<()> {
        let mut backing = lock(&self.backing);
        let Some((handle, place)) = backing.take() else { return Ok(()) };
        self.gpu.make_current()?;
        lock(&self.gpu.lost_mappings).push((self.address, self.size));
        let before = match place {
            BackingPlace::Gpu => lock(&self.gpu.spare_memory).replace((self.size, handle)),
            BackingPlace::Host => Some((self.size, handle)),
        };
        match before {
            Some((_, handle)) => {
                release_memory(handle);
                unmap_lost_memory_of(&self.gpu, |_| true)
            }
            None => Ok(()),
        }
    }

    /// Copies bytes of the host to an offset, in the copy stream; they are not there yet when this
    /// returns. Quick where they are registered.
    ///
    /// # Safety
    /// The bytes and the memory of the range stay until the copy is done.
    pub unsafe fn queue_copy_from_host(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let backing = lock(&self.backing);
        let end = offset.checked_add(bytes.len());
        if backing.is_none() || end.is_none_or(|end| end > self.size) {
            return Err(Error::usage("a copy to addresses without memory"));
        }
        let stream = self.gpu.copy_stream()?;
        TO_DEVICE.count_copy(bytes.len());
        // SAFETY: there is memory for the bytes; both stay until the copy is done, as the caller
        // says.
        check_cuda("a copy to the GPU", unsafe {
            result::memcpy_htod_async(self.address + offset as sys::CUdeviceptr, bytes, stream)
        })
    }

    /// Copies bytes of the host to its start where it is backed by the host, too, and waits until
    /// they are there. They are registered.
    pub fn fill_host_memory(&self, bytes: &[u8]) -> Result<()> {
        // While it is copied to the memory stays.
        let backing = lock(&self.backing);
        let is_on_host = matches!(&*backing, Some((_, BackingPlace::Host)));
        if !is_on_host || bytes.len() > self.size {
            return Err(Error::usage("a copy to addresses without memory of the host"));
        }
        let stream = self.gpu.copy_stream()?;
        let source = bytes.as_ptr().addr() as sys::CUdeviceptr;
        // SAFETY: there is memory for the bytes; both stay until the copy is done, which is waited
        // for. The driver knows by the addresses where they are.
        let copied =
            unsafe { sys::cuMemcpyAsync(self.address, source, bytes.len(), stream).result() };
        check_cuda("a copy on the host", copied)?;
        // SAFETY: the stream stays until the process ends.
        check_cuda("waiting for a copy", unsafe { result::stream::synchronize(stream) })
    }
}

/// Gives memory back to the driver that nothing is mapped to.
fn release_memory(handle: sys::CUmemGenericAllocationHandle) {
    // SAFETY: made by `take_or_make_memory`, and nobody else has it. What goes wrong here can't be
    // mended.
    unsafe { sys::cuMemRelease(handle).result() }.ok();
}

/// Gives the memory back to the driver that was taken away from weights last, where nobody has
/// taken it meanwhile.
pub fn release_spare_memory(gpu: u32) {
    let Ok(gpu) = Gpu::open(gpu) else { return };
    let spare = lock(&gpu.spare_memory).take();
    if let Some((_, handle)) = spare.filter(|_| gpu.make_current().is_ok()) {
        release_memory(handle);
    }
    // What goes wrong here shows when the addresses are wanted again.
    unmap_lost_memory(&gpu).ok();
}

/// Takes the mappings away of all ranges that have lost their memory.
pub fn unmap_lost_memory(gpu: &Gpu) -> Result<()> {
    if lock(&gpu.lost_mappings).is_empty() {
        return Ok(());
    }
    gpu.make_current()?;
    unmap_lost_memory_of(gpu, |_| true)
}

/// The same for ranges at some addresses.
fn unmap_lost_memory_of(gpu: &Gpu, is_meant: impl Fn(sys::CUdeviceptr) -> bool) -> Result<()> {
    // Whoever wants one of them waits until it is done.
    let mut lost = lock(&gpu.lost_mappings);
    while let Some(index) = lost.iter().position(|(address, _)| is_meant(*address)) {
        let (address, size) = lost[index];
        // SAFETY: the range is mapped as a whole, and whoever used it was done when it lost its
        // memory.
        check_cuda("taking memory away", unsafe { sys::cuMemUnmap(address, size).result() })?;
        lost.swap_remove(index);
    }
    Ok(())
}

fn allocation_properties(gpu: &Gpu) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: gpu.number() as i32,
        },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

impl Drop for VirtualRange {
    fn drop(&mut self) {
        // What goes wrong here can't be mended.
        self.gpu.synchronise_stream().ok();
        // SAFETY: all work is done, and nobody has the addresses any more.
        unsafe { self.take_memory_away() }.ok();
        if self.gpu.make_current().is_ok()
            && unmap_lost_memory_of(&self.gpu, |address| address == self.address).is_ok()
        {
            // SAFETY: reserved by `reserve`, and nobody has the addresses any more.
            unsafe { sys::cuMemAddressFree(self.address, self.size).result() }.ok();
        }
    }
}

/// A part of a range, as the memory of a tensor. It may be read while the range has memory.
pub struct VirtualSlice {
    range: Arc<VirtualRange>,
    offset: usize,
    len: usize,
}

impl VirtualSlice {
    /// So many bytes from an offset.
    pub fn new(range: &Arc<VirtualRange>, offset: usize, len: usize) -> Result<Self> {
        if offset.checked_add(len).is_none_or(|end| end > range.size) {
            return Err(Error::usage(format!(
                "{len} bytes at offset {offset} of a range of {}",
                range.size
            )));
        }
        Ok(Self { range: Arc::clone(range), offset, len })
    }
}

impl Region for VirtualSlice {
    fn location(&self) -> MemoryLocation {
        MemoryLocation::Cuda(self.range.gpu.number())
    }
    fn address(&self) -> NonNull<u8> {
        let address = self.range.address as usize + self.offset;
        NonNull::new(address as *mut u8).unwrap_or(NonNull::dangling())
    }
    fn byte_len(&self) -> usize {
        self.len
    }
    fn bytes(&self) -> Option<&[u8]> {
        None
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}
