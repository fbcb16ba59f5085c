//! Work that is captured once, and from then on put into the stream as a whole.
//!
//! Launching one kernel after the other takes some microseconds for each; a CUDA graph takes about
//! as long as one of them. It is for the memory that it was captured with: addresses are part of
//! it.

use std::sync::Arc;

use cudarc::driver::{result, sys};
use tessera_core::{Error, Result};

use crate::Gpu;
use crate::driver::check_cuda;

/// A stream to capture in, which does not hold up the one that all work goes into.
pub struct CaptureStream {
    gpu: Arc<Gpu>,
    stream: sys::CUstream,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for CaptureStream {}
// SAFETY: as above.
unsafe impl Sync for CaptureStream {}

impl CaptureStream {
    /// A new one.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        gpu.make_current()?;
        let made = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Self { gpu: Arc::clone(gpu), stream: check_cuda("a stream", made)? })
    }

    /// For libraries that put work into it; it must not be used when this is gone.
    pub fn stream_pointer(&self) -> *mut std::ffi::c_void {
        self.stream.cast()
    }

    /// Waits until all work that was put into it is done.
    pub fn synchronise_stream(&self) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: the stream is valid.
        check_cuda("waiting for a stream", unsafe { result::stream::synchronize(self.stream) })
    }

    /// Captures what `launch` puts into this stream; nothing of it is done.
    ///
    /// Fails where that can't be done again without the host: it waited for the GPU, or takes part.
    pub fn capture_graph(&self, launch: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
        self.gpu.make_current()?;
        // Relaxed: whoever launches may ask for memory, and other threads go on.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is valid, and nobody else uses it.
        check_cuda("a CUDA graph", unsafe {
            sys::cuStreamBeginCapture_v2(self.stream, mode).result()
        })?;
        let launched = launch();
        let mut graph = std::ptr::null_mut();
        // SAFETY: begun above; the graph is written.
        let ended = unsafe { sys::cuStreamEndCapture(self.stream, &raw mut graph).result() };
        let graph = CapturedGraph(graph);
        launched?;
        check_cuda("a CUDA graph", ended)?;
        graph.check_nodes()?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph is valid; what is made of it is written.
        check_cuda("a CUDA graph", unsafe {
            sys::cuGraphInstantiateWithFlags(&raw mut executable, graph.0, 0).result()
        })?;
        Ok(CudaGraph { gpu: Arc::clone(&self.gpu), executable })
    }
}

impl Drop for CaptureStream {
    fn drop(&mut self) {
        if self.gpu.make_current().is_ok() {
            // SAFETY: made by `new`, and destroyed once. What goes wrong here can't be mended.
            unsafe { result::stream::destroy(self.stream) }.ok();
        }
    }
}

/// What was captured, before anything is made of it.
struct CapturedGraph(sys::CUgraph);

impl CapturedGraph {
    /// Whether the GPU does all of it alone, on its own memory.
    fn check_nodes(&self) -> Result<()> {
        let mut count = 0;
        // SAFETY: without room for nodes, their number is written.
        check_cuda("a CUDA graph", unsafe {
            sys::cuGraphGetNodes(self.0, std::ptr::null_mut(), &raw mut count).result()
        })?;
        let mut nodes = vec![std::ptr::null_mut(); count];
        // SAFETY: there is room for so many.
        check_cuda("a CUDA graph", unsafe {
            sys::cuGraphGetNodes(self.0, nodes.as_mut_ptr(), &raw mut count).result()
        })?;
        for node in nodes {
            use sys::CUgraphNodeType as Kind;
            // As a number: the driver may know kinds that we don't.
            let mut kind = 0u32;
            // SAFETY: the node is the graph's; its kind is written.
            check_cuda("a CUDA graph", unsafe {
                sys::cuGraphNodeGetType(node, (&raw mut kind).cast()).result()
            })?;
            let is_one = |of: Kind| kind == of as u32;
            let is_fine = is_one(Kind::CU_GRAPH_NODE_TYPE_KERNEL)
                || is_one(Kind::CU_GRAPH_NODE_TYPE_MEMSET)
                || is_one(Kind::CU_GRAPH_NODE_TYPE_EMPTY)
                // Weights that are on their way (`PartArrivals`).
                || is_one(Kind::CU_GRAPH_NODE_TYPE_WAIT_EVENT)
                // Memory for a library's own use, which comes and goes with each run.
                || is_one(Kind::CU_GRAPH_NODE_TYPE_MEM_ALLOC)
                || is_one(Kind::CU_GRAPH_NODE_TYPE_MEM_FREE)
                || is_one(Kind::CU_GRAPH_NODE_TYPE_MEMCPY) && is_device_copy(node)?;
            if !is_fine {
                let what =
                    format!("a CUDA graph with work that is not the GPU's alone (kind {kind})");
                return Err(Error::unsupported(what));
            }
        }
        Ok(())
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by the end of a capture, and destroyed once.
            unsafe { sys::cuGraphDestroy(self.0).result() }.ok();
        }
    }
}

/// Whether a copy stays on the GPU.
fn is_device_copy(node: sys::CUgraphNode) -> Result<bool> {
    let mut copy = std::mem::MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
    // SAFETY: the node is a copy; what it copies is written.
    let copy = unsafe {
        let done = sys::cuGraphMemcpyNodeGetParams(node, copy.as_mut_ptr()).result();
        check_cuda("a CUDA graph", done)?;
        copy.assume_init()
    };
    let is_device = |kind: sys::CUmemorytype, address: sys::CUdeviceptr| match kind {
        sys::CUmemorytype::CU_MEMORYTYPE_DEVICE => true,
        sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED => is_on_gpu(address),
        _ => false,
    };
    Ok(is_device(copy.srcMemoryType, copy.srcDevice)
        && is_device(copy.dstMemoryType, copy.dstDevice))
}

/// Whether memory is a GPU's.
fn is_on_gpu(address: sys::CUdeviceptr) -> bool {
    let mut kind = 0u32;
    // SAFETY: the kind is written; the driver says so where it does not know the address.
    let asked = unsafe {
        let what = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        sys::cuPointerGetAttribute((&raw mut kind).cast(), what, address).result()
    };
    asked.is_ok() && kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32
}

/// Work that was captured.
pub struct CudaGraph {
    gpu: Arc<Gpu>,
    executable: sys::CUgraphExec,
}

// SAFETY: the driver's handles may be used from any thread; the stream has one run of it after the
// other.
unsafe impl Send for CudaGraph {}
// SAFETY: as above.
unsafe impl Sync for CudaGraph {}

impl CudaGraph {
    /// Puts it into the stream that all work goes into.
    ///
    /// # Safety
    /// What it reads and writes must be there until it is done: the memory that it was captured
    /// with.
    pub unsafe fn replay_in_main_stream(&self) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: both are valid, and the caller sees to the memory.
        check_cuda("a CUDA graph", unsafe {
            sys::cuGraphLaunch(self.executable, self.gpu.raw_stream()).result()
        })
    }
}

impl CudaGraph {
    /// Does it in the stream that it was captured in, where nothing of it was done.
    ///
    /// # Safety
    /// As of [`Self::replay_in_main_stream`]; and nobody else must use that memory meanwhile, in
    /// any stream.
    pub unsafe fn replay_in_capture_stream(&self, stream: &CaptureStream) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: both are valid, and the caller sees to the memory.
        check_cuda("a CUDA graph", unsafe {
            sys::cuGraphLaunch(self.executable, stream.stream).result()
        })
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.gpu.make_current().is_ok() {
            // SAFETY: made by `capture_graph`, and destroyed once; one that is under way is
            // destroyed when it is done.
            unsafe { sys::cuGraphExecDestroy(self.executable).result() }.ok();
        }
    }
}
