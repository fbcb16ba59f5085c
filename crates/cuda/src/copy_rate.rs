//! How quickly a GPU copies from the host.

use std::time::Instant;

use cudarc::driver::result;
use tessera_core::{Region, Result};

use crate::driver::check_cuda;
use crate::memory::PinnedBuffer;
use crate::{DeviceBuffer, Gpu};

/// Copies of which the middle counts.
const COPIES: usize = 5;

/// Bytes per second of one copy of so many to a GPU, from memory that is registered.
pub fn measure_copy_rate(gpu: u32, bytes: usize) -> Result<f64> {
    let gpu = Gpu::open(gpu)?;
    let source = PinnedBuffer::new(&gpu, bytes)?;
    let target = DeviceBuffer::new_unpooled(&gpu, bytes)?;
    let stream = gpu.copy_stream()?;
    let content = source.bytes().unwrap_or_default();
    let address = target.address().as_ptr().addr() as cudarc::driver::sys::CUdeviceptr;
    let mut rates = Vec::with_capacity(COPIES);
    // The first one touches memory for the first time.
    for number in 0..=COPIES {
        let start = Instant::now();
        // SAFETY: both are so large, and stay until the copy is done: it is waited for.
        check_cuda("a copy to the GPU", unsafe {
            result::memcpy_htod_async(address, content, stream)
        })?;
        // SAFETY: the stream stays until the process ends.
        check_cuda("waiting for a copy", unsafe { result::stream::synchronize(stream) })?;
        if number > 0 {
            rates.push(content.len() as f64 / start.elapsed().as_secs_f64());
        }
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates.get(COPIES / 2).copied().unwrap_or(f64::NAN))
}
