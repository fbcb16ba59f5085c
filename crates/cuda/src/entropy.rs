//! How uncertain scores are, found where they are: a number for each row comes to the host, and not
//! the scores.
//!
//! ONNX nodes at the end of an exit's head would do too, and take half as long again; see
//! `docs/gpu.md`.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex};

use cudarc::driver::{result, sys};
use tessera_core::{DType, Error, MemoryLocation, Region, Result, Tensor, TensorMut, lock};

use crate::copy_counts::TO_HOST;
use crate::driver::check_cuda;
use crate::memory::FencedBuffer;
use crate::{CudaEvent, Gpu, PinnedBuffer};

/// The kernel, in the driver's own language: nothing of CUDA is needed to build this.
const ENTROPY_PTX: &str = include_str!("entropy.ptx");

/// The normalised entropy of each row of scores, the last dimension being classes: 0 for certain, 1
/// for no idea.
///
/// The tensor is on the host; it says what must have happened before it may be read. `None` where
/// the kernel is not for such scores.
pub fn entropy_on_device(scores: &Tensor, are_probabilities: bool) -> Result<Option<Tensor>> {
    let MemoryLocation::Cuda(number) = scores.location() else { return Ok(None) };
    let classes = scores.shape().last().copied().unwrap_or(1);
    let rows = scores.shape().iter().rev().skip(1).product::<usize>();
    let (Ok(width), Ok(height)) = (u32::try_from(classes), u32::try_from(rows)) else {
        return Ok(None);
    };
    // The driver starts no more rows at once than that.
    if scores.dtype() != DType::F32 || classes < 2 || rows == 0 || height > i32::MAX as u32 {
        return Ok(None);
    }
    let gpu = Gpu::open(number)?;
    // As in `to_host`, and not by having the stream wait.
    let scores = scores.clone().wait_fence_on_host()?;
    let function = entropy_kernel(&gpu)?;
    let buffer = PinnedBuffer::new(&gpu, rows * size_of::<f32>())?;
    let mut from = scores.address().unwrap_or(0) as sys::CUdeviceptr;
    // Pinned memory has the same address for both.
    let mut to = buffer.address().as_ptr().addr() as sys::CUdeviceptr;
    let (mut width, mut kind) = (width, u32::from(are_probabilities));
    let mut scale = 1.0 / (classes as f32).ln();
    let mut arguments: [*mut c_void; 5] = [
        (&raw mut from).cast(),
        (&raw mut to).cast(),
        (&raw mut width).cast(),
        (&raw mut kind).cast(),
        (&raw mut scale).cast(),
    ];
    // SAFETY: the arguments are those of the kernel, and are read before this returns. There are as
    // many scores as it reads, and there is room for what it writes. Both stay: the scores as
    // whoever uses their memory again does so later in the stream, what is written as below.
    let launched = unsafe {
        let (grid, block) = ((height, 1, 1), (32, 1, 1));
        result::launch_kernel(function, grid, block, 0, gpu.raw_stream(), &mut arguments)
    };
    check_cuda("finding how uncertain scores are", launched)?;
    TO_HOST.count_copy(rows * size_of::<f32>());
    // The memory must not be given back while it is written.
    let event =
        CudaEvent::record_for_spin_wait(&gpu).inspect_err(|_| drop(gpu.synchronise_stream()))?;
    let event = Arc::new(event);
    let fenced = FencedBuffer::new(buffer, Arc::clone(&event));
    Ok(Some(
        TensorMut::from_buffer(DType::F32, &[rows], Box::new(fenced))?.freeze_with_fence(event),
    ))
}

/// The kernel on a GPU, made into its own code once.
fn entropy_kernel(gpu: &Gpu) -> Result<sys::CUfunction> {
    /// As numbers, which stay valid until the process ends.
    static MADE: Mutex<BTreeMap<u32, Result<usize, String>>> = Mutex::new(BTreeMap::new());
    gpu.make_current()?;
    let mut made = lock(&MADE);
    let found = made.entry(gpu.number()).or_insert_with(|| {
        let make = || -> Result<usize> {
            let text = CString::new(ENTROPY_PTX).map_err(|_| Error::engine("a kernel's text"))?;
            let name = c"entropy".to_owned();
            // SAFETY: the text ends in a zero byte. The module is never unloaded.
            let module = unsafe { result::module::load_data(text.as_ptr().cast()) };
            let module = check_cuda("a kernel", module)?;
            // SAFETY: the module was just loaded.
            let function = unsafe { result::module::get_function(module, name) };
            Ok(check_cuda("a kernel", function)?.expose_provenance())
        };
        make().map_err(|error| error.to_string())
    });
    match found {
        Ok(address) => Ok(std::ptr::with_exposed_provenance_mut(*address)),
        Err(error) => Err(Error::unsupported(error.clone())),
    }
}
