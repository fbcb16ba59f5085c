//! The driver's library.

use std::sync::OnceLock;

use cudarc::driver::{DriverError, result, sys};
use tessera_core::{Error, Result};

/// Opens the driver once; the same answer for everyone.
pub(crate) fn open_driver() -> Result<()> {
    static OPENED: OnceLock<Result<(), String>> = OnceLock::new();
    let opened = OPENED.get_or_init(|| {
        // SAFETY: opening a library runs its initialisers; libcuda is made for that.
        if !unsafe { sys::is_culib_present() } {
            return Err("no NVIDIA driver: libcuda.so.1 is not on the loader's path".to_owned());
        }
        result::init().map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_NO_DEVICE => "the NVIDIA driver sees no GPU".to_owned(),
            _ => format!("the NVIDIA driver can't be used: {}", describe_error(error)),
        })
    });
    opened.clone().map_err(Error::unsupported)
}

/// Whether there is a driver, and a GPU that it can use.
pub fn is_cuda_available() -> bool {
    open_driver().is_ok()
}

/// The newest CUDA that the driver knows, as `13.0`.
pub fn supported_cuda_version() -> Result<String> {
    open_driver()?;
    let mut version = 0;
    // SAFETY: the version is written to the number that is given.
    check_cuda("its version", unsafe { sys::cuDriverGetVersion(&raw mut version).result() })?;
    Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
}

/// The result of a call, with what it was for.
pub(crate) fn check_cuda<T>(what: &str, done: Result<T, DriverError>) -> Result<T> {
    done.map_err(|error| match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            Error::full(format!("CUDA: {what}: not enough memory on the GPU"))
        }
        _ => Error::engine(format!("CUDA: {what}: {}", describe_error(error))),
    })
}

fn describe_error(error: DriverError) -> String {
    let text = error.error_string().ok().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_else(|| format!("{:?}", error.0))
}
