//! Memory of a GPU, and memory of the host that GPUs copy quickly from and to.
//!
//! Asking the driver for memory stops the GPU; so what is given back is kept and used again, by size. All work of
//! a process is in one stream: whoever gets a buffer writes it after all who read it before.

use std::collections::{BTreeMap, HashMap};
use std::ptr::NonNull;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{result, sys};
use tessera_core::{DType, Error, Location, Region, Result, Tensor, TensorMut, element_count};

use crate::copies::{ON_DEVICE, TO_DEVICE, TO_HOST};
use crate::driver::check;
use crate::{CudaEvent, Gpu};
use tessera_core::Event;

/// Sizes are rounded up to a multiple of this, so that similar ones share buffers.
const GRAIN: usize = 4096;

/// Buffers of a size that are kept.
const MOST_KEPT: usize = 16;

/// Of the GPU's memory, the part that is kept, of all sizes together.
const MOST_KEPT_PART: usize = 16;

/// Bytes of pinned memory that are kept, of all sizes together.
const MOST_PINNED_BYTES: usize = 512 << 20;

/// Memory that is free to be used again, by size.
#[derive(Default)]
pub(crate) struct Free {
    device: BTreeMap<usize, Vec<sys::CUdeviceptr>>,
    device_bytes: usize,
    pinned: HashMap<usize, Vec<usize>>,
}

impl Free {
    /// A buffer that is large enough and not much larger: its address and its size.
    ///
    /// Batches come in many sizes, and those that are nearly the same share memory.
    fn take(&mut self, size: usize) -> Option<(sys::CUdeviceptr, usize)> {
        let mut fitting = self.device.range_mut(size..=size.saturating_add(size / 4));
        let (address, size) =
            fitting.find_map(|(&size, same)| same.pop().map(|address| (address, size)))?;
        self.device_bytes -= size;
        Some((address, size))
    }

    /// Keeps a buffer; false where there are enough already.
    fn keep(&mut self, address: sys::CUdeviceptr, size: usize, most_bytes: usize) -> bool {
        let same = self.device.entry(size).or_default();
        let keeps = same.len() < MOST_KEPT && self.device_bytes + size <= most_bytes;
        if keeps {
            same.push(address);
            self.device_bytes += size;
        }
        keeps
    }
}

fn rounded(len: usize) -> Result<usize> {
    len.max(1)
        .checked_next_multiple_of(GRAIN)
        .ok_or_else(|| Error::usage(format!("no memory for {len} bytes")))
}

fn lock(gpu: &Gpu) -> std::sync::MutexGuard<'_, Free> {
    gpu.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Memory of a GPU.
pub struct DeviceBuffer {
    gpu: Arc<Gpu>,
    address: sys::CUdeviceptr,
    len: usize,
    size: usize,
    /// Whether it is kept for the next who needs as much.
    is_kept: bool,
}

impl DeviceBuffer {
    /// Memory of so many bytes; what was in it before is still there.
    pub fn new(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let free = lock(gpu).take(rounded(len)?);
        match free {
            Some((address, size)) => {
                Ok(Self { gpu: Arc::clone(gpu), address, len, size, is_kept: true })
            }
            None => {
                let mut made = Self::fresh(gpu, len)?;
                made.is_kept = true;
                Ok(made)
            }
        }
    }

    /// Memory from the driver, and back to it: for those who don't use it in the stream that all work goes into. What others
    /// gave back may still be in use there.
    pub fn fresh(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let size = rounded(len)?;
        gpu.enter()?;
        let what = || format!("{len} bytes");
        // SAFETY: the context is current; the memory is given back below.
        let address = check(&what(), unsafe { result::malloc_sync(size) })?;
        Ok(Self { gpu: Arc::clone(gpu), address, len, size, is_kept: false })
    }

    /// Copies bytes of the host here, in the stream.
    ///
    /// The bytes may be changed as soon as this returns: memory that is not pinned is read before.
    fn fill(&mut self, bytes: &[u8]) -> Result<()> {
        self.gpu.enter()?;
        let bytes = bytes.get(..self.len.min(bytes.len())).unwrap_or_default();
        // SAFETY: there is room for the bytes, and whoever calls keeps pinned ones until they are copied.
        let copied =
            unsafe { result::memcpy_htod_async(self.address, bytes, self.gpu.raw_stream()) };
        TO_DEVICE.add(bytes.len());
        check("a copy to the GPU", copied)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let most_bytes = self.gpu.total_bytes() / MOST_KEPT_PART;
        if self.is_kept && lock(&self.gpu).keep(self.address, self.size, most_bytes) {
            return;
        }
        if self.gpu.enter().is_ok() {
            // SAFETY: it was allocated by `fresh`, and nobody has the address any more. The driver waits for work
            // that uses it. What goes wrong here can't be mended.
            unsafe { result::free_sync(self.address) }.ok();
        }
    }
}

impl Region for DeviceBuffer {
    fn location(&self) -> Location {
        Location::Cuda(self.gpu.number())
    }
    fn address(&self) -> NonNull<u8> {
        NonNull::new(self.address as *mut u8).unwrap_or(NonNull::dangling())
    }
    fn len(&self) -> usize {
        self.len
    }
    fn bytes(&self) -> Option<&[u8]> {
        None
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

/// Memory of the host that stays where it is, so that GPUs copy to and from it while the CPU does other things.
pub struct PinnedBuffer {
    gpu: Arc<Gpu>,
    address: NonNull<u8>,
    len: usize,
    size: usize,
}

// SAFETY: it is plain memory with one owner.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above: shared, it is only read.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Memory of so many bytes; what was in it before is still there.
    pub fn new(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let size = rounded(len)?;
        let free = lock(gpu).pinned.get_mut(&size).and_then(Vec::pop);
        let address = match free {
            Some(address) => address as *mut u8,
            None => {
                gpu.enter()?;
                // SAFETY: the context is current; the memory is given back below.
                let made = check("pinned memory", unsafe { result::malloc_host(size, 0) })?;
                // SAFETY: the memory is ours and of that size: it is never read before it was written.
                unsafe { std::ptr::write_bytes(made.cast::<u8>(), 0, size) };
                made.cast()
            }
        };
        let address = NonNull::new(address).ok_or_else(|| Error::engine("CUDA: no memory"))?;
        Ok(Self { gpu: Arc::clone(gpu), address, len, size })
    }
}

/// Makes memory of the host that a GPU copies from and to.
pub struct Pinned(Arc<Gpu>);

impl Pinned {
    /// For this GPU.
    pub fn new(gpu: u32) -> Result<Self> {
        Gpu::open(gpu).map(Self)
    }

    /// Memory of so many bytes.
    pub fn buffer(&self, len: usize) -> Result<tessera_core::Buffer> {
        Ok(Box::new(PinnedBuffer::new(&self.0, len)?))
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let mut free = lock(&self.gpu);
        let kept: usize = free.pinned.iter().map(|(size, same)| size * same.len()).sum();
        let same = free.pinned.entry(self.size).or_default();
        if same.len() < MOST_KEPT || kept + self.size <= MOST_PINNED_BYTES {
            same.push(self.address.as_ptr().expose_provenance());
            return;
        }
        drop(free);
        if self.gpu.enter().is_ok() {
            // SAFETY: it was allocated by `new`, and nobody has the address any more.
            unsafe { result::free_host(self.address.as_ptr().cast()) }.ok();
        }
    }
}

impl Region for PinnedBuffer {
    fn location(&self) -> Location {
        Location::Host
    }
    fn address(&self) -> NonNull<u8> {
        self.address
    }
    fn len(&self) -> usize {
        self.len
    }
    fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: there are so many bytes, which were written when the memory was made.
        Some(unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) })
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above, and nobody else has it.
        Some(unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) })
    }
}

/// The tensor in the memory of a GPU: itself where it is there already, else a copy, also from another GPU.
///
/// The copy is in the stream; the host does not wait for it.
pub fn to_device(gpu: &Arc<Gpu>, tensor: &Tensor) -> Result<Tensor> {
    match tensor.location() {
        Location::Cuda(number) if number == gpu.number() => return tensor.clone().held(),
        Location::Cuda(_) => {
            let buffer = DeviceBuffer::new(gpu, tensor.byte_len())?;
            let mut copy = over(tensor.dtype(), tensor.shape(), buffer)?;
            copy_across(tensor, &mut copy)?;
            return Ok(copy.freeze());
        }
        _ => {}
    }
    let tensor = tensor.clone().settled()?;
    let Some(bytes) = tensor.bytes() else {
        return Err(Error::unsupported(format!("tensors of {} on a GPU", tensor.dtype())));
    };
    let mut buffer = DeviceBuffer::new(gpu, bytes.len())?;
    buffer.fill(bytes)?;
    Ok(over(tensor.dtype(), tensor.shape(), buffer)?.freeze())
}

/// The tensor in memory that the CPU reads: itself where it is there already, else a copy in pinned memory.
///
/// The copy is in the stream; the tensor says what must have happened before it may be read.
pub fn to_host(tensor: &Tensor) -> Result<Tensor> {
    let Location::Cuda(number) = tensor.location() else { return Ok(tensor.clone()) };
    // Not by holding the stream: whoever writes it may wait for what comes after this there.
    let tensor = tensor.clone().settled()?;
    let gpu = Gpu::open(number)?;
    let len = element_count(tensor.shape()).and_then(|count| tensor.dtype().bytes(count));
    let mut buffer = PinnedBuffer::new(&gpu, len.unwrap_or(0))?;
    let address = tensor.address().unwrap_or(0) as sys::CUdeviceptr;
    gpu.enter()?;
    if let Some(bytes) = buffer.bytes_mut().filter(|bytes| !bytes.is_empty()) {
        // SAFETY: the tensor has so many bytes at its address on the GPU. Both stay until the copy is done: the
        // pinned memory as it is not given back before the event below, the GPU's as what reuses it comes later
        // in the stream.
        let copied = unsafe { result::memcpy_dtoh_async(bytes, address, gpu.raw_stream()) };
        TO_HOST.add(bytes.len());
        check("a copy from the GPU", copied)?;
    }
    let event = Arc::new(CudaEvent::record(&gpu)?);
    // Pinned memory is used again by whoever asks next: it must not be given back while it is written.
    let guarded = Guarded::new(buffer, Arc::clone(&event));
    Ok(TensorMut::over(tensor.dtype(), tensor.shape(), Box::new(guarded))?.freeze_after(event))
}

/// The first bytes of a tensor on a GPU, as they are now: all that writes it must be done.
pub fn peek(tensor: &Tensor, most: usize) -> Result<Vec<u8>> {
    let Location::Cuda(number) = tensor.location() else {
        return Err(Error::usage("a look at what is on no GPU"));
    };
    let mut bytes = vec![0; tensor.byte_len().min(most)];
    if !bytes.is_empty() {
        Gpu::open(number)?.enter()?;
        let address = tensor.address().unwrap_or(0) as sys::CUdeviceptr;
        // SAFETY: the tensor has at least as many bytes there, and the copy is done when this returns.
        let copied = unsafe { result::memcpy_dtoh_sync(&mut bytes, address) };
        check("a copy from the GPU", copied)?;
    }
    Ok(bytes)
}

/// Copies tensors of GPUs to memory of the host, and waits until all of it is there.
pub fn bring(tensors: Vec<(Tensor, TensorMut)>) -> Result<Vec<Tensor>> {
    let (brought, all) = begin_bringing(tensors, |_| Ok(()), CudaEvent::record)?;
    all.wait()?;
    Ok(brought)
}

/// The same for those who are in no hurry: the copies are in the stream, and each tensor says what must have happened before it may
/// be read. Whoever waits for that sleeps meanwhile. `then` puts more into the stream that belongs to it.
///
/// The tensors must be kept until then.
pub fn bring_later(
    tensors: Vec<(Tensor, TensorMut)>,
    then: impl FnOnce(&[Tensor]) -> Result<()>,
) -> Result<Vec<Tensor>> {
    let (brought, all) = begin_bringing(tensors, then, CudaEvent::record_for_later)?;
    let all: Arc<dyn Event> = Arc::new(all);
    Ok(brought.into_iter().map(|tensor| tensor.awaiting(Arc::clone(&all))).collect())
}

/// Several events.
struct All(Vec<CudaEvent>);

impl Event for All {
    fn is_done(&self) -> bool {
        self.0.iter().all(Event::is_done)
    }

    fn wait(&self) -> Result<()> {
        // For all of them, also where one has failed.
        let waited: Vec<Result<()>> = self.0.iter().map(Event::wait).collect();
        waited.into_iter().collect()
    }
}

/// Puts copies to the host into the streams of GPUs; what is copied to, and when it is there.
fn begin_bringing(
    mut tensors: Vec<(Tensor, TensorMut)>,
    then: impl FnOnce(&[Tensor]) -> Result<()>,
    record: fn(&Arc<Gpu>) -> Result<CudaEvent>,
) -> Result<(Vec<Tensor>, All)> {
    let mut gpus: BTreeMap<u32, Arc<Gpu>> = BTreeMap::new();
    let mut begin = |from: &Tensor, to: &mut TensorMut| -> Result<()> {
        let Location::Cuda(number) = from.location() else {
            return Err(Error::usage("a copy from a GPU of what is not there"));
        };
        let from = from.clone().settled()?;
        let bytes = to.bytes_mut().filter(|bytes| bytes.len() == from.byte_len());
        let bytes = bytes.ok_or_else(|| Error::usage("a copy from a GPU to somewhere else"))?;
        let gpu = Gpu::open(number)?;
        gpu.enter()?;
        gpus.insert(number, Arc::clone(&gpu));
        if bytes.is_empty() {
            return Ok(());
        }
        let address = from.address().unwrap_or(0) as sys::CUdeviceptr;
        // SAFETY: there are as many bytes at either end. Both stay until the copy is done, which is waited for by whoever has the
        // event: the GPU's as what reuses it comes later in the stream.
        let copied = unsafe { result::memcpy_dtoh_async(bytes, address, gpu.raw_stream()) };
        TO_HOST.add(bytes.len());
        check("a copy from the GPU", copied)
    };
    let begun = tensors.iter_mut().try_for_each(|(from, to)| begin(from, to));
    let brought: Vec<Tensor> = tensors.into_iter().map(|(_, to)| to.freeze()).collect();
    let told = begun.and_then(|()| then(&brought));
    match told.and_then(|()| gpus.values().map(record).collect::<Result<Vec<_>>>()) {
        Ok(events) => Ok((brought, All(events))),
        Err(error) => {
            // What was begun before must be over before its memory is used for something else.
            gpus.values().for_each(|gpu| drop(gpu.synchronise()));
            Err(error)
        }
    }
}

/// Copies a tensor to other memory of the same GPU, in the stream.
pub fn copy(from: &Tensor, to: &mut TensorMut) -> Result<()> {
    let Location::Cuda(number) = from.location() else {
        return Err(Error::usage("a copy on a GPU of what is not there"));
    };
    let room = element_count(to.shape()).and_then(|count| to.dtype().bytes(count));
    if to.location() != from.location() || room != Some(from.byte_len()) {
        return Err(Error::usage("a copy on a GPU to somewhere else"));
    }
    let gpu = Gpu::open(number)?;
    gpu.enter()?;
    let (source, target) = (from.address().unwrap_or(0), to.address().as_ptr().addr());
    let (source, target) = (source as sys::CUdeviceptr, target as sys::CUdeviceptr);
    // SAFETY: both have so many bytes there, and whoever uses the memory again does so later in the stream.
    let copied =
        unsafe { result::memcpy_dtod_async(target, source, from.byte_len(), gpu.raw_stream()) };
    ON_DEVICE.add(from.byte_len());
    check("a copy on the GPU", copied)
}

/// Copies a tensor to memory of another GPU, in that one's stream: straight where the two can reach each other, else the
/// driver takes it through memory of the host.
pub fn copy_across(from: &Tensor, to: &mut TensorMut) -> Result<()> {
    let (Location::Cuda(source), Location::Cuda(target)) = (from.location(), to.location()) else {
        return Err(Error::usage("a copy between GPUs of what is on none"));
    };
    let room = element_count(to.shape()).and_then(|count| to.dtype().bytes(count));
    if room != Some(from.byte_len()) {
        return Err(Error::usage("a copy between GPUs to memory of another size"));
    }
    let from = from.clone().settled()?;
    let (source, target) = (Gpu::open(source)?, Gpu::open(target)?);
    // After all that was put into the stream of the one that has it.
    let written = CudaEvent::record(&source)?;
    target.enter()?;
    written.hold(&target)?;
    let address = |at: usize| at as sys::CUdeviceptr;
    // SAFETY: both have so many bytes there. What is copied stays until that is done, as it is kept below; what it is
    // copied to, as whoever uses it again does so later in the stream.
    let copied = unsafe {
        sys::cuMemcpyPeerAsync(
            address(to.address().as_ptr().addr()),
            target.raw_context(),
            address(from.address().unwrap_or(0)),
            source.raw_context(),
            from.byte_len(),
            target.raw_stream(),
        )
    };
    ON_DEVICE.add(from.byte_len());
    check("a copy between GPUs", copied.result())?;
    keep_until(CudaEvent::record_for_later(&target)?, from);
    Ok(())
}

/// Keeps a tensor until something has happened, on a thread of its own.
fn keep_until(event: CudaEvent, tensor: Tensor) {
    static KEPT: OnceLock<Sender<(CudaEvent, Tensor)>> = OnceLock::new();
    let kept = KEPT.get_or_init(|| {
        let (sender, receiver) = channel::<(CudaEvent, Tensor)>();
        std::thread::spawn(move || {
            for (event, tensor) in receiver {
                // A GPU that failed reads nothing any more.
                event.wait().ok();
                drop(tensor);
            }
        });
        sender
    });
    // Its thread ends with the process.
    kept.send((event, tensor)).ok();
}

/// Tensors one after the other, as one of this shape on a GPU. Each is on that GPU or on the host.
///
/// The copies are in the stream: those on the host must stay until they are done.
pub fn join(gpu: u32, parts: &[&Tensor], shape: &[usize]) -> Result<Tensor> {
    let gpu = Gpu::open(gpu)?;
    let dtype = parts.first().map_or(DType::F32, |part| part.dtype());
    let len: usize = parts.iter().map(|part| part.byte_len()).sum();
    let expected = element_count(shape).and_then(|count| dtype.bytes(count));
    if expected != Some(len) || parts.iter().any(|part| part.dtype() != dtype) {
        return Err(Error::invalid(format!("tensors that don't make one of {shape:?} together")));
    }
    let buffer = DeviceBuffer::new(&gpu, len)?;
    gpu.enter()?;
    let mut at = buffer.address;
    for part in parts {
        let bytes = part.byte_len();
        match (part.location(), part.bytes()) {
            (Location::Cuda(number), _) if number == gpu.number() => {
                let from = part.address().unwrap_or(0) as sys::CUdeviceptr;
                // SAFETY: the part has so many bytes there, and the buffer has room for all of them. Memory that is
                // given back before the copy is done is used again after it in the stream.
                let copied =
                    unsafe { result::memcpy_dtod_async(at, from, bytes, gpu.raw_stream()) };
                ON_DEVICE.add(bytes);
                check("a copy on the GPU", copied)?;
            }
            (_, Some(from)) => {
                // SAFETY: there is room for the bytes, and whoever calls keeps pinned ones until they are copied.
                let copied = unsafe { result::memcpy_htod_async(at, from, gpu.raw_stream()) };
                TO_DEVICE.add(bytes);
                check("a copy to the GPU", copied)?;
            }
            // One of another GPU is brought here first, and stays until all is done: it is freed in the stream's order.
            (Location::Cuda(_), _) => {
                let here = to_device(&gpu, part)?;
                let from = here.address().unwrap_or(0) as sys::CUdeviceptr;
                // SAFETY: as above.
                let copied =
                    unsafe { result::memcpy_dtod_async(at, from, bytes, gpu.raw_stream()) };
                check("a copy on the GPU", copied)?;
            }
            _ => return Err(Error::unsupported("a tensor that is in no memory to copy from")),
        }
        at += bytes as sys::CUdeviceptr;
    }
    Ok(over(dtype, shape, buffer)?.freeze())
}

fn over(dtype: DType, shape: &[usize], buffer: DeviceBuffer) -> Result<TensorMut> {
    TensorMut::over(dtype, shape, Box::new(buffer))
}

/// Pinned memory that a copy is on its way to.
pub(crate) struct Guarded {
    buffer: PinnedBuffer,
    event: Arc<CudaEvent>,
}

impl Guarded {
    /// Written when the event has happened.
    pub(crate) fn new(buffer: PinnedBuffer, event: Arc<CudaEvent>) -> Self {
        Self { buffer, event }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Mostly it is done, as somebody has read it. What goes wrong here is told to who waits for it.
        drop(self.event.wait());
    }
}

impl Region for Guarded {
    fn location(&self) -> Location {
        Location::Host
    }
    fn address(&self) -> NonNull<u8> {
        self.buffer.address()
    }
    fn len(&self) -> usize {
        self.buffer.len()
    }
    fn bytes(&self) -> Option<&[u8]> {
        self.buffer.bytes()
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Free;

    #[test]
    fn buffers_of_nearly_the_same_size_are_shared() {
        let mut free = Free::default();
        assert!(free.keep(1, 8 << 20, 100 << 20) && free.keep(2, 10 << 20, 100 << 20));
        assert_eq!(free.take(9 << 20), Some((2, 10 << 20)));
        assert_eq!(free.take(9 << 20), None);
        assert_eq!(free.take(4 << 20), None);
        assert_eq!(free.take(8 << 20), Some((1, 8 << 20)));
        assert_eq!(free.take(4096), None);
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let mut free = Free::default();
        assert!(free.keep(1, 6 << 20, 16 << 20) && free.keep(2, 10 << 20, 16 << 20));
        assert!(!free.keep(3, 4096, 16 << 20));
        assert!(free.take(6 << 20).is_some());
        assert!(free.keep(3, 4096, 16 << 20));
    }
}
