//! ONNX Runtime's CUDA provider, added to a session.

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use ort::AsPointer;
use ort::session::builder::SessionBuilder;
use tessera_core::{Error, Result};
use tessera_cuda::Gpu;

use crate::onnxruntime::ort_value::check_status;
use crate::{ConvolutionSearch, CudaOptions};

/// Adds the CUDA provider to a session, on a stream of the GPU, which must stay for as long as the
/// session does.
pub(super) fn add_cuda_provider(
    builder: &mut SessionBuilder,
    gpu: &Gpu,
    stream: *mut c_void,
    options: &CudaOptions,
) -> ort::Result<()> {
    let settings = [
        (c"device_id", gpu.number().to_string()),
        (c"cudnn_conv_algo_search", cudnn_search_name(options.convolution).to_owned()),
        (c"use_tf32", u8::from(options.tf32).to_string()),
        (c"do_copy_in_default_stream", "1".to_owned()),
        (c"arena_extend_strategy", "kSameAsRequested".to_owned()),
    ];
    let values = settings.iter().map(|(_, value)| CString::new(value.as_str()));
    let values =
        values.collect::<Result<Vec<_>, _>>().map_err(|_| ort::Error::new("a zero byte"))?;
    let keys: Vec<*const c_char> = settings.iter().map(|(key, _)| key.as_ptr()).collect();
    let values: Vec<*const c_char> = values.iter().map(|value| value.as_ptr()).collect();
    let mut made = ptr::null_mut();
    // SAFETY: the options are written to the pointer, and released below.
    check_status(unsafe { (ort::api().CreateCUDAProviderOptions)(&raw mut made) })?;
    let mut fill = || {
        // SAFETY: there is a value for each key; both are copied.
        check_status(unsafe {
            (ort::api().UpdateCUDAProviderOptions)(made, keys.as_ptr(), values.as_ptr(), keys.len())
        })?;
        // SAFETY: the stream stays for as long as the session, as the caller says.
        check_status(unsafe {
            let key = c"user_compute_stream".as_ptr();
            (ort::api().UpdateCUDAProviderOptionsWithValue)(made, key, stream)
        })?;
        // SAFETY: both are valid; the options are copied.
        check_status(unsafe {
            (ort::api().SessionOptionsAppendExecutionProvider_CUDA_V2)(builder.ptr_mut(), made)
        })
    };
    let filled = fill();
    // SAFETY: made above, and released once.
    unsafe { (ort::api().ReleaseCUDAProviderOptions)(made) };
    filled
}

fn cudnn_search_name(search: ConvolutionSearch) -> &'static str {
    match search {
        ConvolutionSearch::Exhaustive => "EXHAUSTIVE",
        ConvolutionSearch::Heuristic => "HEURISTIC",
        ConvolutionSearch::Default => "DEFAULT",
    }
}

/// Why there is no CUDA provider: the library is one without, or lacks what it needs.
pub(super) fn no_cuda_provider(error: &ort::Error) -> Error {
    Error::unsupported(format!(
        "ONNX Runtime's CUDA provider can't be used (libonnxruntime_providers_cuda.so beside the library, CUDA and cuDNN \
         on the loader's path): {error}"
    ))
}
