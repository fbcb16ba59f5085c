//! Tensors that are copied: to a GPU, from it, on it, and to another one. Each copy is in the stream, and counted.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{result, sys};
use tessera_core::{
    DType, Error, Event, Location, Region, Result, Tensor, TensorMut, element_count,
};

use crate::copies::{ON_DEVICE, TO_DEVICE, TO_HOST};
use crate::driver::check;
use crate::memory::{DeviceBuffer, Guarded, PinnedBuffer};
use crate::{CudaEvent, Gpu};

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
    let mut at = buffer.address().as_ptr().addr() as sys::CUdeviceptr;
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
