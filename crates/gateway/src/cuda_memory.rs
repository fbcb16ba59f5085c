//! A region of a GPU's memory that a client has registered (CUDA IPC). Inputs are read where they
//! are, outputs are copied to it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use serde::Serialize;
use tessera_core::{DType, Error, Location, Region, Result, Tensor};
use tessera_cuda::{Gpu, HANDLE, SharedMemory, join};

use crate::shared_regions::Place;

/// Kernels read several elements at once and take memory to start where the driver's starts. One that
/// reads past its alignment fails, and all of the process' work on the GPU with it.
const ALIGNMENT: usize = 256;

/// A region, as its client registered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CudaStatus {
    /// The client's name for it.
    pub(crate) name: String,
    /// The GPU that it is on.
    pub(crate) device_id: u32,
    /// How long it is.
    pub(crate) byte_size: u64,
}

/// What a client says of a region.
#[derive(Clone, Debug)]
pub(crate) struct CudaOffer {
    /// The client's name for it.
    pub(crate) name: String,
    /// What opens it: the bytes of a `cudaIpcMemHandle_t`.
    pub(crate) handle: Vec<u8>,
    /// The GPU that it is on.
    pub(crate) device_id: i64,
    /// How long it is.
    pub(crate) byte_size: u64,
}

/// A region of a GPU's memory.
pub(crate) struct CudaRegion {
    status: CudaStatus,
    /// Tensors over it hold it too.
    memory: Arc<Opened>,
}

impl fmt::Debug for CudaRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.fmt(f)
    }
}

impl CudaRegion {
    pub(crate) fn open(offer: CudaOffer) -> Result<Self> {
        let name = offer.name.clone();
        // Whatever is wrong with it, the client has to change something: no GPU here included.
        Self::try_open(offer)
            .map_err(|error| Error::invalid(format!("shared memory region '{name}': {error}")))
    }

    fn try_open(offer: CudaOffer) -> Result<Self> {
        let CudaOffer { name, handle, device_id, byte_size } = offer;
        if byte_size == 0 {
            return Err(Error::invalid("byte_size is 0, expected 1 or more"));
        }
        let handle: &[u8; HANDLE] = handle.as_slice().try_into().map_err(|_| {
            let len = handle.len();
            Error::invalid(format!("raw_handle has {len} bytes, expected {HANDLE}"))
        })?;
        let device_id = u32::try_from(device_id).map_err(|_| {
            Error::invalid(format!("device_id is {device_id}, expected the number of a GPU"))
        })?;
        let memory = SharedMemory::open(&Gpu::open(device_id)?, handle)?;
        let room = memory.size()?;
        let len = usize::try_from(byte_size).ok().filter(|len| *len <= room).ok_or_else(|| {
            Error::invalid(format!("byte_size is {byte_size}, the memory has {room} bytes"))
        })?;
        let status = CudaStatus { name, device_id, byte_size };
        Ok(Self { status, memory: Arc::new(Opened { memory, len }) })
    }

    pub(crate) fn status(&self) -> &CudaStatus {
        &self.status
    }

    /// The tensor at a place, which must be as long: in place wherever blocks can read it there.
    pub(crate) fn tensor(&self, dtype: DType, shape: &[usize], place: &Place) -> Result<Tensor> {
        let offset = offset(dtype, place, self.status.byte_size)?;
        let region: Arc<dyn Region> = Arc::<Opened>::clone(&self.memory);
        let tensor = Tensor::from_region_at(dtype, shape, region, offset)?;
        let is_aligned = tensor.address().is_some_and(|at| at.is_multiple_of(ALIGNMENT));
        if is_aligned || tensor.byte_len() == 0 {
            return Ok(tensor);
        }
        // A copy on the GPU, which nobody waits for.
        join(self.memory.memory.gpu().number(), &[&tensor], shape)
    }

    /// Copies a tensor to a place, and waits until it is there.
    pub(crate) fn write(&self, place: &Place, tensor: &Tensor) -> Result<()> {
        if tensor.dtype() == DType::String {
            return Err(no_strings());
        }
        place.check_room(tensor.byte_len())?;
        place.check_inside(self.status.byte_size)?;
        let start = usize::try_from(place.offset).unwrap_or(usize::MAX);
        self.memory.memory.write(start, tensor)
    }
}

/// Where in its region the tensor of a place starts.
fn offset(dtype: DType, place: &Place, byte_size: u64) -> Result<usize> {
    if dtype == DType::String {
        return Err(no_strings());
    }
    place.check_inside(byte_size)?;
    let offset = usize::try_from(place.offset).unwrap_or(usize::MAX);
    let element = dtype.bytes(1).unwrap_or(1);
    if !offset.is_multiple_of(element) {
        return Err(Error::invalid(format!(
            "shared memory region '{}': offset {offset}, expected a multiple of {element}, the \
             bytes of one {dtype}",
            place.region
        )));
    }
    Ok(offset)
}

fn no_strings() -> Error {
    Error::invalid("strings can't be in the memory of a GPU, use system shared memory")
}

/// Memory of a client that is open here.
struct Opened {
    memory: SharedMemory,
    len: usize,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The stream may still read it, though nobody on the host has it any more. What goes wrong here
        // is told to who waits for the result.
        self.memory.gpu().synchronise().ok();
    }
}

impl Region for Opened {
    fn location(&self) -> Location {
        Location::Cuda(self.memory.gpu().number())
    }
    fn address(&self) -> NonNull<u8> {
        NonNull::new(self.memory.address() as *mut u8).unwrap_or(NonNull::dangling())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut CudaOffer)) -> String {
        let mut offer =
            CudaOffer { name: "r".into(), handle: vec![0; HANDLE], device_id: 0, byte_size: 4 };
        change(&mut offer);
        let error = CudaRegion::open(offer).unwrap_err();
        assert_eq!(error.kind(), tessera_core::ErrorKind::Invalid);
        error.to_string()
    }

    #[test]
    fn what_is_wrong_with_a_region_is_named() {
        assert_eq!(
            refusal(|offer| offer.byte_size = 0),
            "shared memory region 'r': byte_size is 0, expected 1 or more"
        );
        for len in [0, 63, 65] {
            let error = refusal(|offer| offer.handle = vec![0; len]);
            let expected = format!("raw_handle has {len} bytes, expected 64");
            assert!(error.ends_with(&expected), "{error}");
        }
        for device in [-1, 1 << 40] {
            let error = refusal(|offer| offer.device_id = device);
            assert!(error.contains(&format!("device_id is {device}, expected")), "{error}");
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_is_refused_with_the_reason() {
        // No machine has so many: with a driver it says which there are.
        let reason = Gpu::open(1000).unwrap_err().to_string();
        let error = refusal(|offer| offer.device_id = 1000);
        assert_eq!(error, format!("shared memory region 'r': {reason}"));
        assert!(error.contains("cuda:1000"), "{error}");
    }

    #[test]
    fn a_tensor_starts_at_a_multiple_of_its_elements() {
        let place = |offset, byte_size| Place { region: "r".into(), offset, byte_size };
        assert_eq!(offset(DType::F32, &place(8, 4), 12).unwrap(), 8);
        assert_eq!(offset(DType::U8, &place(3, 1), 12).unwrap(), 3);
        let error = offset(DType::I64, &place(4, 8), 12).unwrap_err().to_string();
        assert!(error.contains("offset 4, expected a multiple of 8"), "{error}");
        let error = offset(DType::F32, &place(12, 4), 12).unwrap_err().to_string();
        assert!(error.contains("has 12 bytes, asked for 4 at offset 12"), "{error}");
        let error = offset(DType::String, &place(0, 4), 12).unwrap_err().to_string();
        assert!(error.starts_with("strings can't be in the memory of a GPU"), "{error}");
    }
}
