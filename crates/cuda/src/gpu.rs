//! A GPU that this process uses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cudarc::driver::{result, sys};
use tessera_core::{Error, Result, lock};

use crate::driver::{check_cuda, open_driver};
use crate::event_pool::CudaEventPool;
use crate::free_memory::FreeMemory;

/// A GPU, with its context and the stream that all work goes into.
///
/// A process has one of each GPU, which stays until it ends: the engine's library uses the same
/// context.
pub struct Gpu {
    number: u32,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// A second stream, once somebody asked for it.
    copy_stream: Mutex<Option<sys::CUstream>>,
    /// Whether processes run on it at the same time.
    is_mps_enabled: bool,
    /// All memory that it has.
    total_bytes: usize,
    /// Events that are free to be used again.
    pub(crate) free_events: CudaEventPool,
    /// Memory that is free to be used again.
    pub(crate) free_memory: Mutex<FreeMemory>,
    /// Memory that was taken away from weights last, and its size.
    pub(crate) spare_memory: Mutex<Option<(usize, sys::CUmemGenericAllocationHandle)>>,
    /// Addresses that have lost their memory, and are mapped to it still; and how many bytes.
    pub(crate) lost_mappings: Mutex<Vec<(sys::CUdeviceptr, usize)>>,
}

// SAFETY: the driver's handles may be used from any thread; what is changed later is behind locks.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuda:{}", self.number)
    }
}

impl Gpu {
    /// The GPU of this number; the same one for everyone who asks.
    pub fn open(number: u32) -> Result<Arc<Self>> {
        static OPENED: Mutex<BTreeMap<u32, Arc<Gpu>>> = Mutex::new(BTreeMap::new());
        let what = |error: Error| error.with_context(format!("cuda:{number}"));
        open_driver().map_err(what)?;
        let mut opened = lock(&OPENED);
        if let Some(gpu) = opened.get(&number) {
            return Ok(Arc::clone(gpu));
        }
        let count = check_cuda("the number of GPUs", result::device::get_count()).map_err(what)?;
        if i64::from(number) >= i64::from(count) {
            let there = match count {
                1 => "there is cuda:0 alone".to_owned(),
                count => format!("there are cuda:0 to cuda:{}", count - 1),
            };
            return Err(Error::not_found(format!("cuda:{number}: {there}")));
        }
        let gpu = Arc::new(Self::new(number).map_err(what)?);
        opened.insert(number, Arc::clone(&gpu));
        Ok(gpu)
    }

    fn new(number: u32) -> Result<Self> {
        let device = check_cuda("the GPU", result::device::get(number as i32))?;
        // SAFETY: the device was just found. The context is released by the end of the process.
        let context = check_cuda("its context", unsafe { result::primary_ctx::retain(device) })?;
        // SAFETY: the context is valid.
        check_cuda("its context", unsafe { result::ctx::set_current(context) })?;
        let stream = check_cuda(
            "a stream",
            result::stream::create(result::stream::StreamKind::NonBlocking),
        )?;
        let has = |what| {
            // SAFETY: the device was just found. What it can't tell it does not have.
            unsafe { result::device::get_attribute(device, what) }.unwrap_or(0) != 0
        };
        let is_mps_enabled = has(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
        let (_, total_bytes) = check_cuda("its memory", result::mem_get_info())?;
        Ok(Self {
            total_bytes,
            number,
            context,
            stream,
            is_mps_enabled,
            free_events: CudaEventPool::default(),
            copy_stream: Mutex::default(),
            free_memory: Mutex::default(),
            spare_memory: Mutex::default(),
            lost_mappings: Mutex::default(),
        })
    }

    /// Whether several processes run on it at the same time (NVIDIA's MPS). Without that they take
    /// turns, and whoever waits on the GPU for another takes turns all the same.
    pub fn is_mps_enabled(&self) -> bool {
        self.is_mps_enabled
    }

    /// All memory that it has.
    pub fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The stream that all work goes into, for libraries that put work into it.
    pub fn stream_pointer(&self) -> *mut std::ffi::c_void {
        self.stream.cast()
    }

    pub(crate) fn raw_context(&self) -> sys::CUcontext {
        self.context
    }

    pub(crate) fn raw_stream(&self) -> sys::CUstream {
        self.stream
    }

    /// A stream beside the one that all work goes into, for copies between memory that no other
    /// work uses: they need not wait for what units compute.
    pub(crate) fn copy_stream(&self) -> Result<sys::CUstream> {
        self.make_current()?;
        let mut copy_stream = lock(&self.copy_stream);
        if let Some(stream) = *copy_stream {
            return Ok(stream);
        }
        let made = result::stream::create(result::stream::StreamKind::NonBlocking);
        let stream = check_cuda("a stream", made)?;
        *copy_stream = Some(stream);
        Ok(stream)
    }

    /// Makes it the one that this thread's calls are for.
    pub(crate) fn make_current(&self) -> Result<()> {
        // SAFETY: the context stays until the process ends.
        check_cuda("its context", unsafe { result::ctx::set_current(self.context) })
    }

    /// Waits until all work that was put into the stream is done.
    pub fn synchronise_stream(&self) -> Result<()> {
        self.make_current()?;
        // SAFETY: the stream stays until the process ends.
        check_cuda("waiting for the stream", unsafe { result::stream::synchronize(self.stream) })
    }

    /// Memory that is free, and all that there is.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        self.make_current()?;
        check_cuda("its memory", result::mem_get_info())
    }
}
