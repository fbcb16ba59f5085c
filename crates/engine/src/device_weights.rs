//! Weights of a block on a device: an object with a place, a size and a life.
//!
//! They have addresses on the GPU for life, which sessions and CUDA graphs know; memory backs these
//! for as long as somebody stays ([`WeightStay`]), and goes with the last who does. They come back
//! from the file that they were prepared in, which is registered with the driver: it is the image
//! of them, and there is no second copy in the host's memory.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tessera_core::{ContentHash, Fence, MemoryLocation, Result, Tensor, TensorMut, lock};
use tessera_cuda::{CudaEvent, Gpu, RegisteredMemory, VirtualRange, VirtualSlice};

use crate::FileMapping;

/// Memory is mapped in pieces of this size, or of a multiple of it.
const PAGE_BYTES: usize = 4096;

/// The weights of a block on a device.
pub struct DeviceWeights {
    program: ContentHash,
    gpu: u32,
    byte_len: usize,
    tensors: Vec<(CString, Tensor)>,
    /// Where they are on the GPU, and what they are copied from; `None` where there are none.
    image: Option<WeightImage>,
    /// How many want them there.
    stays: Mutex<usize>,
    /// Told when one of those goes who hold them beside the stream.
    left: Condvar,
    holds: Mutex<usize>,
    /// After all that uses them in the stream.
    last_use: Mutex<Option<CudaEvent>>,
}

/// A file with weights, as it is on the GPU.
struct WeightImage {
    // Before the mapping whose memory it is.
    registered: Mutex<Option<RegisteredMemory>>,
    mapping: Arc<FileMapping>,
    range: Arc<VirtualRange>,
    /// Whether it is needed again.
    comes_back: bool,
}

impl DeviceWeights {
    /// Weights in a mapped file, which are not on the GPU yet. On the GPU each is as far from the
    /// start as in the file. Where they come back the host's memory keeps the file.
    pub(crate) fn new(
        program: ContentHash,
        gpu: &Arc<Gpu>,
        weights: &[(CString, Tensor)],
        file: Option<(&Arc<FileMapping>, bool)>,
    ) -> Result<Arc<Self>> {
        let (image, tensors) = match file {
            None => (None, Vec::new()),
            Some((mapping, comes_back)) => {
                let file = mapping.as_ref().as_ref();
                let range = Arc::new(VirtualRange::reserve(gpu, file.len())?);
                let place = |(name, tensor): &(CString, Tensor)| {
                    let bytes = tensor.bytes().unwrap_or_default();
                    let offset = (bytes.as_ptr().addr()).wrapping_sub(file.as_ptr().addr());
                    let slice = VirtualSlice::new(&range, offset, bytes.len())?;
                    let (dtype, shape) = (tensor.dtype(), tensor.shape());
                    let placed = TensorMut::from_buffer(dtype, shape, Box::new(slice))?;
                    Ok((name.clone(), placed.freeze()))
                };
                let tensors = weights.iter().map(place).collect::<Result<Vec<_>>>()?;
                let mapping = Arc::clone(mapping);
                (
                    Some(WeightImage { registered: Mutex::default(), mapping, range, comes_back }),
                    tensors,
                )
            }
        };
        let byte_len = tensors.iter().map(|(_, tensor)| tensor.byte_len()).sum();
        Ok(Arc::new(Self {
            program,
            gpu: gpu.number(),
            byte_len,
            tensors,
            image,
            stays: Mutex::default(),
            left: Condvar::new(),
            holds: Mutex::default(),
            last_use: Mutex::default(),
        }))
    }

    /// The weights by name, where they are when they are there.
    pub(crate) fn tensors(&self) -> &[(CString, Tensor)] {
        &self.tensors
    }

    /// The program that they belong to.
    pub fn program(&self) -> ContentHash {
        self.program
    }

    /// Bytes of memory that they take where they are there.
    pub fn memory_bytes(&self) -> usize {
        self.image.as_ref().map_or(0, |image| image.range.byte_len())
    }

    /// What is where.
    pub(crate) fn status(&self) -> DeviceWeightsStatus {
        let is_there = *lock(&self.stays) > 0;
        let location = if is_there { MemoryLocation::Cuda(self.gpu) } else { MemoryLocation::Host };
        DeviceWeightsStatus { program: self.program, location, byte_len: self.byte_len }
    }

    /// Brings them to the GPU, where they are not, and keeps them there for as long as somebody
    /// stays. Waits until they are there; work on the GPU does not.
    pub fn begin_stay(self: &Arc<Self>) -> Result<WeightStay> {
        let mut stays = lock(&self.stays);
        if *stays == 0
            && let Some(image) = &self.image
        {
            image.bring_to_gpu()?;
        }
        *stays += 1;
        Ok(WeightStay(Arc::clone(self)))
    }

    /// Has them not leave before the hold is dropped, for work in other streams than the one that
    /// all work goes into. Somebody must stay.
    pub(crate) fn begin_hold(self: &Arc<Self>) -> WeightHold {
        *lock(&self.holds) += 1;
        WeightHold(Arc::clone(self))
    }

    /// What uses them was put into the stream: they leave when that is done, whatever comes later.
    pub fn note_use(&self) {
        let Some(image) = &self.image else { return };
        // Where there is no event, all that is in the stream is waited for.
        *lock(&self.last_use) = CudaEvent::record_for_spin_wait(image.range.gpu()).ok();
    }

    fn end_stay(&self) {
        let mut stays = lock(&self.stays);
        *stays -= 1;
        if *stays > 0 {
            return;
        }
        let mut holds = lock(&self.holds);
        while *holds > 0 {
            holds = self.left.wait(holds).unwrap_or_else(PoisonError::into_inner);
        }
        drop(holds);
        let last_use = lock(&self.last_use).take();
        if let Some(image) = &self.image
            && let Err(error) = image.leave_gpu(last_use)
        {
            // They are there still, which costs memory and nothing else.
            tracing::error!(program = %self.program, %error, "weights do not leave a GPU");
        }
    }
}

impl WeightImage {
    fn bring_to_gpu(&self) -> Result<()> {
        self.register_file();
        self.range.back_with_memory()?;
        let copied = self.range.copy_from_host(self.mapping.as_ref().as_ref());
        if !self.comes_back {
            drop(lock(&self.registered).take());
            self.mapping.release_pages();
        }
        copied.and_then(|()| self.mapping.check_intact()).inspect_err(|_| {
            // What is there is of no use.
            self.leave_gpu(None).ok();
        })
    }

    /// Takes their memory away once they are not used any more: after this event, or, where there
    /// is none, after all that is in the stream.
    fn leave_gpu(&self, last_use: Option<CudaEvent>) -> Result<()> {
        match last_use {
            Some(event) => event.wait_on_host()?,
            None => self.range.gpu().synchronise_stream()?,
        }
        // SAFETY: what used it in the stream is done, as was said; who uses it beside has a hold.
        unsafe { self.range.take_memory_away() }
    }

    /// Lets the GPU copy from the file quickly, where that can be.
    fn register_file(&self) {
        let mut registered = lock(&self.registered);
        if registered.is_some() {
            return;
        }
        let file = self.mapping.as_ref().as_ref();
        let Some(address) = NonNull::new(file.as_ptr().cast_mut()) else { return };
        // SAFETY: the mapping has whole pages, and goes after the registration.
        let made = unsafe {
            let pages = file.len().next_multiple_of(PAGE_BYTES);
            RegisteredMemory::register_read_only(self.range.gpu(), address, pages)
        };
        match made {
            Ok(made) => *registered = Some(made),
            Err(error) => {
                tracing::debug!(%error, "weights are copied from memory that is not registered");
            }
        }
    }
}

/// Keeps weights on a GPU.
pub struct WeightStay(Arc<DeviceWeights>);

impl WeightStay {
    /// The weights.
    pub fn weights(&self) -> &Arc<DeviceWeights> {
        &self.0
    }
}

impl Drop for WeightStay {
    fn drop(&mut self) {
        self.0.end_stay();
    }
}

/// Has weights not leave while they are used beside the stream.
pub(crate) struct WeightHold(Arc<DeviceWeights>);

impl Drop for WeightHold {
    fn drop(&mut self) {
        *lock(&self.0.holds) -= 1;
        self.0.left.notify_all();
    }
}

/// Which weights are where, and how large they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceWeightsStatus {
    /// The program that they belong to.
    pub program: ContentHash,
    /// Where they are.
    pub location: MemoryLocation,
    /// How many bytes they take there.
    pub byte_len: usize,
}
