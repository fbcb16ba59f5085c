//! What units on a GPU need of it beside sessions.

use tessera_core::{DType, Device, Result, Tensor};
use tessera_cuda::{GpuSpan, OpenGpuSpan};

/// Whether several processes run on a device at the same time; on a GPU without MPS they take
/// turns.
pub fn is_device_shared(device: Device) -> bool {
    match device {
        Device::Cpu => true,
        Device::Cuda(number) => {
            tessera_cuda::Gpu::open(number).is_ok_and(|gpu| gpu.is_mps_enabled())
        }
    }
}

/// Bytes of a GPU's memory that are free, and all that there are.
pub fn gpu_memory(number: u32) -> Result<(u64, u64)> {
    let (free, all) = tessera_cuda::Gpu::open(number)?.memory_info()?;
    Ok((free as u64, all as u64))
}

/// The tensor in the memory of a GPU: itself where it is there, or where it is of strings, which
/// are nowhere but on the host; else a copy.
pub fn to_gpu(number: u32, tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::String => Ok(tensor.clone()),
        _ => tessera_cuda::to_device(&tessera_cuda::Gpu::open(number)?, tensor),
    }
}

/// Begins to time what is launched on a device from now on; `None` for the CPU, which does it at
/// once.
pub fn begin_gpu_span(device: Device) -> Result<Option<OpenGpuSpan>> {
    let Device::Cuda(number) = device else { return Ok(None) };
    GpuSpan::begin_in_stream(&tessera_cuda::Gpu::open(number)?).map(Some)
}
