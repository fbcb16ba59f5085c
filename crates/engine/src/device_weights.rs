//! Weights of a block on a device: an object with a place, a size and a life.
//!
//! They have addresses on the GPU for life, which sessions and CUDA graphs know; memory backs these
//! for as long as somebody stays ([`WeightStay`]), and goes with the last who does. They come back
//! from the file that they were prepared in, which is registered with the driver: it is the image
//! of them ([`WeightImage`]), and there is no second copy in the host's memory.

use std::ffi::CString;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tessera_core::{ContentHash, MemoryLocation, Result, Tensor, TensorMut, lock};
use tessera_cuda::{CudaEvent, Gpu};

use crate::FileMapping;
use crate::run_profile::RunProfile;
use crate::weight_image::WeightImage;
use crate::weight_parts::WeightParts;

/// The weights of a block on a device.
pub struct DeviceWeights {
    program: ContentHash,
    gpu: u32,
    byte_len: usize,
    tensors: Vec<(CString, Tensor)>,
    /// Where they are on the GPU, and what they are copied from; `None` where there are none.
    image: Option<WeightImage>,
    /// When a run needs each part of them.
    profile: RunProfile,
    /// How many want them there.
    stays: Mutex<usize>,
    /// Told when one of those goes who hold them beside the stream.
    left: Condvar,
    holds: Mutex<usize>,
    /// After all that uses them in the stream.
    last_use: Mutex<Option<CudaEvent>>,
}

/// The file that weights come from.
pub(crate) struct AwaitedFile<'a> {
    pub(crate) mapping: &'a Arc<FileMapping>,
    /// What comes as one.
    pub(crate) parts: WeightParts,
    /// Whether they come back: then the host's memory keeps the file.
    pub(crate) comes_back: bool,
}

impl DeviceWeights {
    /// Weights in a mapped file, which are not on the GPU yet.
    pub(crate) fn new(
        program: ContentHash,
        gpu: &Arc<Gpu>,
        weights: &[(CString, Tensor)],
        file: Option<AwaitedFile<'_>>,
    ) -> Result<Arc<Self>> {
        let image = file.map(|file| {
            let AwaitedFile { mapping, parts, comes_back } = file;
            WeightImage::new(gpu, mapping, parts, comes_back)
        });
        let image = image.transpose()?;
        let place = |image: &WeightImage| {
            let place = |(name, tensor): &(CString, Tensor)| {
                let bytes = tensor.bytes().unwrap_or_default();
                let offset = (bytes.as_ptr().addr()).wrapping_sub(image.file().as_ptr().addr());
                let slice = image.slice_at(offset, bytes.len())?;
                let (dtype, shape) = (tensor.dtype(), tensor.shape());
                let placed = TensorMut::from_buffer(dtype, shape, Box::new(slice))?;
                Ok((name.clone(), placed.freeze()))
            };
            weights.iter().map(place).collect::<Result<Vec<_>>>()
        };
        let tensors = image.as_ref().map(place).transpose()?.unwrap_or_default();
        let byte_len = tensors.iter().map(|(_, tensor)| tensor.byte_len()).sum();
        Ok(Arc::new(Self {
            program,
            gpu: gpu.number(),
            byte_len,
            tensors,
            image,
            profile: RunProfile::default(),
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
        self.image.as_ref().map_or(0, |image| image.range().byte_len())
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
            image.bring_whole()?;
        }
        *stays += 1;
        Ok(WeightStay(Arc::clone(self)))
    }

    /// What they come from, where there are any.
    pub(crate) fn image(&self) -> Option<&WeightImage> {
        self.image.as_ref()
    }

    /// The weight that a part begins with.
    pub(crate) fn first_weight_of(&self, part: usize) -> Option<String> {
        let image = self.image.as_ref()?;
        let begin = image.parts().range(part).start;
        let at_begin = |(_, tensor): &&(CString, Tensor)| {
            let address = tensor.region().map(|(region, _)| region.address());
            address.and_then(|address| image.range().offset_of(address)) == Some(begin)
        };
        let (name, _) = self.tensors.iter().find(at_begin)?;
        Some(name.to_string_lossy().into_owned())
    }

    /// When a run needs each part of them.
    pub(crate) fn profile(&self) -> &RunProfile {
        &self.profile
    }

    /// Who wants them there; nobody comes or goes meanwhile.
    pub(crate) fn lock_stays(&self) -> MutexGuard<'_, usize> {
        lock(&self.stays)
    }

    /// One of those who were counted.
    pub(crate) fn counted_stay(self: &Arc<Self>) -> WeightStay {
        WeightStay(Arc::clone(self))
    }

    /// Has what is still missing of them come: a run that waits for it is about to be launched.
    pub(crate) fn queue_rest(&self) -> Result<()> {
        self.image.as_ref().map_or(Ok(()), WeightImage::queue_rest)
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
        *lock(&self.last_use) = CudaEvent::record_for_spin_wait(image.range().gpu()).ok();
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
