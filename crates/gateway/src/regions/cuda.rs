//! A region of a GPU's memory that a client has registered (CUDA IPC). Inputs are read where they
//! are, outputs are copied to it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use serde::Serialize;
use tessera_core::{DType, Error, MemoryLocation, Region, Result, Tensor};
use tessera_cuda::{Gpu, IPC_HANDLE_BYTES, IpcMemory, concatenate_on_device};

use crate::protocol::{InputHeader, RegionRange};

/// Kernels read several elements at once and take memory to start where the driver's starts. One
/// that reads past its alignment fails, and all of the process' work on the GPU with it.
const KERNEL_ALIGNMENT: usize = 256;

/// A region, as its client registered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CudaRegionStatus {
    /// The client's name for it.
    pub(crate) name: String,
    /// The GPU that it is on.
    pub(crate) device_id: u32,
    /// How long it is.
    pub(crate) byte_size: u64,
}

/// What a client says of a region.
#[derive(Clone, Debug)]
pub(crate) struct CudaRegistration {
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
    status: CudaRegionStatus,
    /// Tensors over it hold it too.
    memory: Arc<OpenedCudaMemory>,
}

impl fmt::Debug for CudaRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.fmt(f)
    }
}

impl CudaRegion {
    pub(crate) fn open(registration: CudaRegistration) -> Result<Self> {
        let name = registration.name.clone();
        // Whatever is wrong with it, the client has to change something: no GPU here included.
        Self::try_open(registration)
            .map_err(|error| Error::invalid(format!("shared memory region '{name}': {error}")))
    }

    fn try_open(registration: CudaRegistration) -> Result<Self> {
        let CudaRegistration { name, handle, device_id, byte_size } = registration;
        if byte_size == 0 {
            return Err(Error::invalid("byte_size is 0, expected 1 or more"));
        }
        let handle: &[u8; IPC_HANDLE_BYTES] = handle.as_slice().try_into().map_err(|_| {
            let len = handle.len();
            Error::invalid(format!("raw_handle has {len} bytes, expected {IPC_HANDLE_BYTES}"))
        })?;
        let device_id = u32::try_from(device_id).map_err(|_| {
            Error::invalid(format!("device_id is {device_id}, expected the number of a GPU"))
        })?;
        let memory = IpcMemory::open_handle(&Gpu::open(device_id)?, handle)?;
        let room = memory.byte_len()?;
        let len = usize::try_from(byte_size).ok().filter(|len| *len <= room).ok_or_else(|| {
            Error::invalid(format!("byte_size is {byte_size}, the memory has {room} bytes"))
        })?;
        let status = CudaRegionStatus { name, device_id, byte_size };
        Ok(Self { status, memory: Arc::new(OpenedCudaMemory { memory, len }) })
    }

    pub(crate) fn status(&self) -> &CudaRegionStatus {
        &self.status
    }

    /// The tensor at a range, which must be as long: in place wherever units can read it there.
    pub(crate) fn read_tensor(&self, header: &InputHeader, range: &RegionRange) -> Result<Tensor> {
        header.check_bytes(usize::try_from(range.byte_size).unwrap_or(usize::MAX))?;
        let (dtype, shape) = (header.dtype, header.shape.as_slice());
        let offset = tensor_offset(dtype, range, self.status.byte_size)?;
        let region: Arc<dyn Region> = Arc::<OpenedCudaMemory>::clone(&self.memory);
        let tensor = Tensor::from_region_at(dtype, shape, region, offset)?;
        let is_aligned = tensor.address().is_some_and(|at| at.is_multiple_of(KERNEL_ALIGNMENT));
        if is_aligned || tensor.byte_len() == 0 {
            return Ok(tensor);
        }
        // A copy on the GPU, which nobody waits for.
        concatenate_on_device(self.memory.memory.gpu().number(), &[&tensor], shape)
    }

    /// Copies a tensor to a range, waits until it is there, and returns how many bytes it has.
    pub(crate) fn write_tensor(&self, range: &RegionRange, tensor: &Tensor) -> Result<usize> {
        if tensor.dtype() == DType::String {
            return Err(no_strings());
        }
        range.check_room(tensor.byte_len())?;
        range.check_inside(self.status.byte_size)?;
        let start = usize::try_from(range.offset).unwrap_or(usize::MAX);
        self.memory.memory.write_tensor(start, tensor)?;
        Ok(tensor.byte_len())
    }
}

/// Where in its region the tensor of a range starts.
fn tensor_offset(dtype: DType, range: &RegionRange, byte_size: u64) -> Result<usize> {
    if dtype == DType::String {
        return Err(no_strings());
    }
    range.check_inside(byte_size)?;
    let offset = usize::try_from(range.offset).unwrap_or(usize::MAX);
    let element = dtype.byte_len(1).unwrap_or(1);
    if !offset.is_multiple_of(element) {
        return Err(Error::invalid(format!(
            "shared memory region '{}': offset {offset}, expected a multiple of {element}, the \
             bytes of one {dtype}",
            range.region
        )));
    }
    Ok(offset)
}

fn no_strings() -> Error {
    Error::invalid("strings can't be in the memory of a GPU, use system shared memory")
}

/// Memory of a client that is open here.
struct OpenedCudaMemory {
    memory: IpcMemory,
    len: usize,
}

impl Drop for OpenedCudaMemory {
    fn drop(&mut self) {
        // The stream may still read it, though nobody on the host has it any more. What goes wrong
        // here is told to who waits for the result.
        self.memory.gpu().synchronise_stream().ok();
    }
}

impl Region for OpenedCudaMemory {
    fn location(&self) -> MemoryLocation {
        MemoryLocation::Cuda(self.memory.gpu().number())
    }
    fn address(&self) -> NonNull<u8> {
        NonNull::new(self.memory.address() as *mut u8).unwrap_or(NonNull::dangling())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut CudaRegistration)) -> String {
        let mut registration = CudaRegistration {
            name: "r".into(),
            handle: vec![0; IPC_HANDLE_BYTES],
            device_id: 0,
            byte_size: 4,
        };
        change(&mut registration);
        let error = CudaRegion::open(registration).unwrap_err();
        assert_eq!(error.kind(), tessera_core::ErrorKind::Invalid);
        error.to_string()
    }

    #[test]
    fn what_is_wrong_with_a_region_is_named() {
        assert_eq!(
            refusal(|registration| registration.byte_size = 0),
            "shared memory region 'r': byte_size is 0, expected 1 or more"
        );
        for len in [0, 63, 65] {
            let error = refusal(|registration| registration.handle = vec![0; len]);
            let expected = format!("raw_handle has {len} bytes, expected 64");
            assert!(error.ends_with(&expected), "{error}");
        }
        for device in [-1, 1 << 40] {
            let error = refusal(|registration| registration.device_id = device);
            assert!(error.contains(&format!("device_id is {device}, expected")), "{error}");
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_is_refused_with_the_reason() {
        // No machine has so many: with a driver it says which there are.
        let reason = Gpu::open(1000).unwrap_err().to_string();
        let error = refusal(|registration| registration.device_id = 1000);
        assert_eq!(error, format!("shared memory region 'r': {reason}"));
        assert!(error.contains("cuda:1000"), "{error}");
    }

    #[test]
    fn a_tensor_starts_at_a_multiple_of_its_elements() {
        let range = |offset, byte_size| RegionRange { region: "r".into(), offset, byte_size };
        assert_eq!(tensor_offset(DType::F32, &range(8, 4), 12).unwrap(), 8);
        assert_eq!(tensor_offset(DType::U8, &range(3, 1), 12).unwrap(), 3);
        let error = tensor_offset(DType::I64, &range(4, 8), 12).unwrap_err().to_string();
        assert!(error.contains("offset 4, expected a multiple of 8"), "{error}");
        let error = tensor_offset(DType::F32, &range(12, 4), 12).unwrap_err().to_string();
        assert!(error.contains("has 12 bytes, asked for 4 at offset 12"), "{error}");
        let error = tensor_offset(DType::String, &range(0, 4), 12).unwrap_err().to_string();
        assert!(error.starts_with("strings can't be in the memory of a GPU"), "{error}");
    }
}
