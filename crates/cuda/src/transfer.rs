//! Tensors that are copied: to a GPU, from it, on it, and to another one. Each copy is in the
//! stream, and counted.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{result, sys};
use tessera_core::{
    DType, Error, Fence, MemoryLocation, Region, Result, Tensor, TensorMut, element_count,
};

use crate::copy_counts::{ON_DEVICE, TO_DEVICE, TO_HOST};
use crate::driver::check_cuda;
use crate::memory::{DeviceBuffer, FencedBuffer, PinnedBuffer};
use crate::{CudaEvent, Gpu};

/// The tensor in the memory of a GPU: itself where it is there already, else a copy, also from
/// another GPU.
///
/// The copy is in the stream; the host does not wait for it.
pub fn to_device(gpu: &Arc<Gpu>, tensor: &Tensor) -> Result<Tensor> {
    match tensor.location() {
        MemoryLocation::Cuda(number) if number == gpu.number() => {
            return tensor.clone().wait_fence_in_stream();
        }
        MemoryLocation::Cuda(_) => {
            let buffer = DeviceBuffer::new(gpu, tensor.byte_len())?;
            let mut copy = tensor_over_buffer(tensor.dtype(), tensor.shape(), buffer)?;
            copy_between_gpus(tensor, &mut copy)?;
            return Ok(copy.freeze());
        }
        _ => {}
    }
    let tensor = tensor.clone().wait_fence_on_host()?;
    let Some(bytes) = tensor.bytes() else {
        return Err(Error::unsupported(format!("tensors of {} on a GPU", tensor.dtype())));
    };
    let mut buffer = DeviceBuffer::new(gpu, bytes.len())?;
    buffer.copy_from_host(bytes)?;
    Ok(tensor_over_buffer(tensor.dtype(), tensor.shape(), buffer)?.freeze())
}

/// The tensor in memory that the CPU reads: itself where it is there already, else a copy in pinned
/// memory.
///
/// The copy is in the stream; the tensor says what must have happened before it may be read.
pub fn to_host(tensor: &Tensor) -> Result<Tensor> {
    let MemoryLocation::Cuda(number) = tensor.location() else { return Ok(tensor.clone()) };
    // Not by having the stream wait: whoever writes it may wait for what comes after this there.
    let tensor = tensor.clone().wait_fence_on_host()?;
    let gpu = Gpu::open(number)?;
    let len = element_count(tensor.shape()).and_then(|count| tensor.dtype().byte_len(count));
    let mut buffer = PinnedBuffer::new(&gpu, len.unwrap_or(0))?;
    let address = tensor.address().unwrap_or(0) as sys::CUdeviceptr;
    gpu.make_current()?;
    if let Some(bytes) = buffer.bytes_mut().filter(|bytes| !bytes.is_empty()) {
        // SAFETY: the tensor has so many bytes at its address on the GPU. Both stay until the copy
        // is done: the pinned memory as it is not given back before the event below, the GPU's as
        // what reuses it comes later in the stream.
        let copied = unsafe { result::memcpy_dtoh_async(bytes, address, gpu.raw_stream()) };
        TO_HOST.count_copy(bytes.len());
        check_cuda("a copy from the GPU", copied)?;
    }
    let event = Arc::new(CudaEvent::record_for_spin_wait(&gpu)?);
    // Pinned memory is used again by whoever asks next: it must not be given back while it is
    // written.
    let fenced = FencedBuffer::new(buffer, Arc::clone(&event));
    Ok(TensorMut::from_buffer(tensor.dtype(), tensor.shape(), Box::new(fenced))?
        .freeze_with_fence(event))
}

/// The first bytes of a tensor on a GPU, as they are now: all that writes it must be done.
pub fn read_first_bytes(tensor: &Tensor, most: usize) -> Result<Vec<u8>> {
    let MemoryLocation::Cuda(number) = tensor.location() else {
        return Err(Error::usage("a look at what is on no GPU"));
    };
    let mut bytes = vec![0; tensor.byte_len().min(most)];
    if !bytes.is_empty() {
        Gpu::open(number)?.make_current()?;
        let address = tensor.address().unwrap_or(0) as sys::CUdeviceptr;
        // SAFETY: the tensor has at least as many bytes there, and the copy is done when this
        // returns.
        let copied = unsafe { result::memcpy_dtoh_sync(&mut bytes, address) };
        check_cuda("a copy from the GPU", copied)?;
    }
    Ok(bytes)
}

/// Copies tensors of GPUs to memory of the host, and waits until all of it is there.
pub fn copy_all_to_host(tensors: Vec<(Tensor, TensorMut)>) -> Result<Vec<Tensor>> {
    let (copies, all) = enqueue_host_copies(tensors, |_| Ok(()), CudaEvent::record_for_spin_wait)?;
    all.wait_on_host()?;
    Ok(copies)
}

/// The same for those who are in no hurry: the copies are in the stream, and each tensor says what
/// must have happened before it may be read. Whoever waits for that sleeps meanwhile. `then` puts
/// more into the stream that belongs to it.
///
/// The tensors must be kept until then.
pub fn copy_all_to_host_async(
    tensors: Vec<(Tensor, TensorMut)>,
    then: impl FnOnce(&[Tensor]) -> Result<()>,
) -> Result<Vec<Tensor>> {
    let (copies, all) = enqueue_host_copies(tensors, then, CudaEvent::record_for_blocking_wait)?;
    let all: Arc<dyn Fence> = Arc::new(all);
    Ok(copies.into_iter().map(|tensor| tensor.with_fence(Arc::clone(&all))).collect())
}

/// Several events.
struct CudaEventGroup(Vec<CudaEvent>);

impl Fence for CudaEventGroup {
    fn is_done(&self) -> bool {
        self.0.iter().all(Fence::is_done)
    }

    fn wait_on_host(&self) -> Result<()> {
        // For all of them, also where one has failed.
        let waited: Vec<Result<()>> = self.0.iter().map(Fence::wait_on_host).collect();
        waited.into_iter().collect()
    }
}

/// Puts copies to the host into the streams of GPUs; what is copied to, and when it is there.
fn enqueue_host_copies(
    mut tensors: Vec<(Tensor, TensorMut)>,
    then: impl FnOnce(&[Tensor]) -> Result<()>,
    record: fn(&Arc<Gpu>) -> Result<CudaEvent>,
) -> Result<(Vec<Tensor>, CudaEventGroup)> {
    let mut gpus: BTreeMap<u32, Arc<Gpu>> = BTreeMap::new();
    let mut begin = |from: &Tensor, to: &mut TensorMut| -> Result<()> {
        let MemoryLocation::Cuda(number) = from.location() else {
            return Err(Error::usage("a copy from a GPU of what is not there"));
        };
        let from = from.clone().wait_fence_on_host()?;
        let bytes = to.bytes_mut().filter(|bytes| bytes.len() == from.byte_len());
        let bytes = bytes.ok_or_else(|| Error::usage("a copy from a GPU to somewhere else"))?;
        let gpu = Gpu::open(number)?;
        gpu.make_current()?;
        gpus.insert(number, Arc::clone(&gpu));
        if bytes.is_empty() {
            return Ok(());
        }
        let address = from.address().unwrap_or(0) as sys::CUdeviceptr;
        // SAFETY: there are as many bytes at either end. Both stay until the copy is done, which is
        // waited for by whoever has the event: the GPU's as what reuses it comes later in the
        // stream.
        let copied = unsafe { result::memcpy_dtoh_async(bytes, address, gpu.raw_stream()) };
        TO_HOST.count_copy(bytes.len());
        check_cuda("a copy from the GPU", copied)
    };
    let begun = tensors.iter_mut().try_for_each(|(from, to)| begin(from, to));
    let copies: Vec<Tensor> = tensors.into_iter().map(|(_, to)| to.freeze()).collect();
    let launched = begun.and_then(|()| then(&copies));
    match launched.and_then(|()| gpus.values().map(record).collect::<Result<Vec<_>>>()) {
        Ok(events) => Ok((copies, CudaEventGroup(events))),
        Err(error) => {
            // What was begun before must be over before its memory is used for something else.
            gpus.values().for_each(|gpu| drop(gpu.synchronise_stream()));
            Err(error)
        }
    }
}

/// Copies a tensor to other memory of the same GPU, in the stream.
pub fn copy_on_device(from: &Tensor, to: &mut TensorMut) -> Result<()> {
    let MemoryLocation::Cuda(number) = from.location() else {
        return Err(Error::usage("a copy on a GPU of what is not there"));
    };
    let room = element_count(to.shape()).and_then(|count| to.dtype().byte_len(count));
    if to.location() != from.location() || room != Some(from.byte_len()) {
        return Err(Error::usage("a copy on a GPU to somewhere else"));
    }
    let gpu = Gpu::open(number)?;
    gpu.make_current()?;
    let (source, target) = (from.address().unwrap_or(0), to.address().as_ptr().addr());
    let (source, target) = (source as sys::CUdeviceptr, target as sys::CUdeviceptr);
    // SAFETY: both have so many bytes there, and whoever uses the memory again does so later in the
    // stream.
    let copied =
        unsafe { result::memcpy_dtod_async(target, source, from.byte_len(), gpu.raw_stream()) };
    ON_DEVICE.count_copy(from.byte_len());
    check_cuda("a copy on the GPU", copied)
}

/// Copies bytes from one address of a GPU to another, in a stream.
///
/// # Safety
/// There are so many bytes at both, until the copy is done, and the stream is one of that GPU, which
/// is current.
pub unsafe fn copy_in_stream(
    from: usize,
    to: usize,
    len: usize,
    stream: *mut std::ffi::c_void,
) -> Result<()> {
    let (from, to) = (from as sys::CUdeviceptr, to as sys::CUdeviceptr);
    ON_DEVICE.count_copy(len);
    // SAFETY: as the caller says.
    let copied = unsafe { result::memcpy_dtod_async(to, from, len, stream.cast()) };
    check_cuda("a copy on the GPU", copied)
}

/// Copies a tensor to memory of another GPU, in that one's stream: straight where the two can reach
/// each other, else the driver takes it through memory of the host.
pub fn copy_between_gpus(from: &Tensor, to: &mut TensorMut) -> Result<()> {
    let (MemoryLocation::Cuda(source), MemoryLocation::Cuda(target)) =
        (from.location(), to.location())
    else {
        return Err(Error::usage("a copy between GPUs of what is on none"));
    };
    let room = element_count(to.shape()).and_then(|count| to.dtype().byte_len(count));
    if room != Some(from.byte_len()) {
        return Err(Error::usage("a copy between GPUs to memory of another size"));
    }
    let from = from.clone().wait_fence_on_host()?;
    let (source, target) = (Gpu::open(source)?, Gpu::open(target)?);
    // After all that was put into the stream of the one that has it.
    let written = CudaEvent::record_for_spin_wait(&source)?;
    target.make_current()?;
    written.wait_in_stream_of(&target)?;
    let address = |at: usize| at as sys::CUdeviceptr;
    // SAFETY: both have so many bytes there. What is copied stays until that is done, as it is kept
    // below; what it is copied to, as whoever uses it again does so later in the stream.
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
    ON_DEVICE.count_copy(from.byte_len());
    check_cuda("a copy between GPUs", copied.result())?;
    keep_until(CudaEvent::record_for_blocking_wait(&target)?, from);
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
                event.wait_on_host().ok();
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
pub fn concatenate_on_device(gpu: u32, parts: &[&Tensor], shape: &[usize]) -> Result<Tensor> {
    let gpu = Gpu::open(gpu)?;
    let dtype = parts.first().map_or(DType::F32, |part| part.dtype());
    let len: usize = parts.iter().map(|part| part.byte_len()).sum();
    let expected = element_count(shape).and_then(|count| dtype.byte_len(count));
    if expected != Some(len) || parts.iter().any(|part| part.dtype() != dtype) {
        return Err(Error::invalid(format!("tensors that don't make one of {shape:?} together")));
    }
    let buffer = DeviceBuffer::new(&gpu, len)?;
    gpu.make_current()?;
    let mut at = buffer.address().as_ptr().addr() as sys::CUdeviceptr;
    for part in parts {
        let bytes = part.byte_len();
        match (part.location(), part.bytes()) {
            (MemoryLocation::Cuda(number), _) if number == gpu.number() => {
                let from = part.address().unwrap_or(0) as sys::CUdeviceptr;
                // SAFETY: the part has so many bytes there, and the buffer has room for all of
                // them. Memory that is given back before the copy is done is used again after it in
                // the stream.
                let copied =
                    unsafe { result::memcpy_dtod_async(at, from, bytes, gpu.raw_stream()) };
                ON_DEVICE.count_copy(bytes);
                check_cuda("a copy on the GPU", copied)?;
            }
            (_, Some(from)) => {
                // SAFETY: there is room for the bytes, and whoever calls keeps pinned ones until
                // they are copied.
                let copied = unsafe { result::memcpy_htod_async(at, from, gpu.raw_stream()) };
                TO_DEVICE.count_copy(bytes);
                check_cuda("a copy to the GPU", copied)?;
            }
            // One of another GPU is copied here first, and stays until all is done: it is freed in
            // the stream's order.
            (MemoryLocation::Cuda(_), _) => {
                let here = to_device(&gpu, part)?;
                let from = here.address().unwrap_or(0) as sys::CUdeviceptr;
                // SAFETY: as above.
                let copied =
                    unsafe { result::memcpy_dtod_async(at, from, bytes, gpu.raw_stream()) };
                check_cuda("a copy on the GPU", copied)?;
            }
            _ => return Err(Error::unsupported("a tensor that is in no memory to copy from")),
        }
        at += bytes as sys::CUdeviceptr;
    }
    Ok(tensor_over_buffer(dtype, shape, buffer)?.freeze())
}

fn tensor_over_buffer(dtype: DType, shape: &[usize], buffer: DeviceBuffer) -> Result<TensorMut> {
    TensorMut::from_buffer(dtype, shape, Box::new(buffer))
}
