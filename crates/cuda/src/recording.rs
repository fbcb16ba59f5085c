//! Work that is recorded once, and from then on put into the stream as a whole.
//!
//! Telling a GPU one kernel after the other takes some microseconds for each; a recording (CUDA calls it a graph) takes
//! about as long as one of them. It is for the memory that it was recorded with: addresses are part of it.

use std::sync::Arc;

use cudarc::driver::{result, sys};
use tessera_core::{Error, Result};

use crate::Gpu;
use crate::driver::check;

/// A stream to record in, which does not hold up the one that all work goes into.
pub struct SideStream {
    gpu: Arc<Gpu>,
    stream: sys::CUstream,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for SideStream {}
// SAFETY: as above.
unsafe impl Sync for SideStream {}

impl SideStream {
    /// A new one.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        gpu.enter()?;
        let made = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Self { gpu: Arc::clone(gpu), stream: check("a stream", made)? })
    }

    /// For libraries that put work into it; it must not be used when this is gone.
    pub fn pointer(&self) -> *mut std::ffi::c_void {
        self.stream.cast()
    }

    /// Waits until all work that was put into it is done.
    pub fn synchronise(&self) -> Result<()> {
        self.gpu.enter()?;
        // SAFETY: the stream is valid.
        check("waiting for a stream", unsafe { result::stream::synchronize(self.stream) })
    }

    /// Records what `tell` puts into this stream; nothing of it is done.
    ///
    /// Fails where that can't be done again without the host: it waited for the GPU, or takes part.
    pub fn record(&self, tell: impl FnOnce() -> Result<()>) -> Result<Recording> {
        self.gpu.enter()?;
        // Relaxed: whoever tells may ask for memory, and other threads go on.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is valid, and nobody else uses it.
        check("a recording", unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode).result() })?;
        let told = tell();
        let mut graph = std::ptr::null_mut();
        // SAFETY: begun above; the graph is written.
        let ended = unsafe { sys::cuStreamEndCapture(self.stream, &raw mut graph).result() };
        let graph = Graph(graph);
        told?;
        check("a recording", ended)?;
        graph.check_nodes()?;
        let mut made = std::ptr::null_mut();
        // SAFETY: the graph is valid; what is made of it is written.
        check("a recording", unsafe {
            sys::cuGraphInstantiateWithFlags(&raw mut made, graph.0, 0).result()
        })?;
        Ok(Recording { gpu: Arc::clone(&self.gpu), made })
    }
}

impl Drop for SideStream {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: made by `new`, and destroyed once. What goes wrong here can't be mended.
            unsafe { result::stream::destroy(self.stream) }.ok();
        }
    }
}

/// What was told, before anything is made of it.
struct Graph(sys::CUgraph);

impl Graph {
    /// Whether the GPU does all of it alone, on its own memory.
    fn check_nodes(&self) -> Result<()> {
        let mut count = 0;
        // SAFETY: without room for nodes, their number is written.
        check("a recording", unsafe {
            sys::cuGraphGetNodes(self.0, std::ptr::null_mut(), &raw mut count).result()
        })?;
        let mut nodes = vec![std::ptr::null_mut(); count];
        // SAFETY: there is room for so many.
        check("a recording", unsafe {
            sys::cuGraphGetNodes(self.0, nodes.as_mut_ptr(), &raw mut count).result()
        })?;
        for node in nodes {
            use sys::CUgraphNodeType as Kind;
            // As a number: the driver may know kinds that we don't.
            let mut kind = 0u32;
            // SAFETY: the node is the graph's; its kind is written.
            check("a recording", unsafe {
                sys::cuGraphNodeGetType(node, (&raw mut kind).cast()).result()
            })?;
            let is_one = |of: Kind| kind == of as u32;
            let is_fine = is_one(Kind::CU_GRAPH_NODE_TYPE_KERNEL)
                || is_one(Kind::CU_GRAPH_NODE_TYPE_MEMSET)
                || is_one(Kind::CU_GRAPH_NODE_TYPE_EMPTY)
                // Memory for a library's own use, which comes and goes with each run.
                || is_one(Kind::CU_GRAPH_NODE_TYPE_MEM_ALLOC)
                || is_one(Kind::CU_GRAPH_NODE_TYPE_MEM_FREE)
                || is_one(Kind::CU_GRAPH_NODE_TYPE_MEMCPY) && copies_on_gpu(node)?;
            if !is_fine {
                let what = format!("a recording of what is not the GPU's alone (kind {kind})");
                return Err(Error::unsupported(what));
            }
        }
        Ok(())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by the end of a recording, and destroyed once.
            unsafe { sys::cuGraphDestroy(self.0).result() }.ok();
        }
    }
}

/// Whether a copy stays on the GPU.
fn copies_on_gpu(node: sys::CUgraphNode) -> Result<bool> {
    let mut copy = std::mem::MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
    // SAFETY: the node is a copy; what it copies is written.
    let copy = unsafe {
        let done = sys::cuGraphMemcpyNodeGetParams(node, copy.as_mut_ptr()).result();
        check("a recording", done)?;
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

/// Work that was recorded.
pub struct Recording {
    gpu: Arc<Gpu>,
    made: sys::CUgraphExec,
}

// SAFETY: the driver's handles may be used from any thread; the stream has one run of it after the other.
unsafe impl Send for Recording {}
// SAFETY: as above.
unsafe impl Sync for Recording {}

impl Recording {
    /// Puts it into the stream that all work goes into.
    ///
    /// # Safety
    /// What it reads and writes must be there until it is done: the memory that it was recorded with.
    pub unsafe fn play(&self) -> Result<()> {
        self.gpu.enter()?;
        // SAFETY: both are valid, and the caller sees to the memory.
        check("a recording", unsafe {
            sys::cuGraphLaunch(self.made, self.gpu.raw_stream()).result()
        })
    }
}

impl Recording {
    /// Does it in the stream that it was recorded in, where nothing of it was done.
    ///
    /// # Safety
    /// As of [`Self::play`]; and nobody else must use that memory meanwhile, in any stream.
    pub unsafe fn play_in(&self, stream: &SideStream) -> Result<()> {
        self.gpu.enter()?;
        // SAFETY: both are valid, and the caller sees to the memory.
        check("a recording", unsafe { sys::cuGraphLaunch(self.made, stream.stream).result() })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: made by `record`, and destroyed once; one that is under way is destroyed when it is done.
            unsafe { sys::cuGraphExecDestroy(self.made).result() }.ok();
        }
    }
}
