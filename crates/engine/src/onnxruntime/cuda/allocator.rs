//! Who gives sessions on a GPU their memory.
//!
//! A process has one for each GPU, which all its sessions ask. What runs has its memory from one
//! arena, ONNX Runtime's own: all work goes into one stream, so that what one is done with the next
//! can use at once. What is captured has its memory from scratch ([`CaptureScratch`]), at addresses
//! that stay its own. A session that is made has its from the driver: it is filled in another
//! stream, in which what others gave back may still be in use. Who asks is known by the thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use ort::AsPointer;
use ort::session::Session as OrtSession;
use ort_sys::OrtAllocator;
use prost::Message;
use tessera_core::{DType, Error, Region, Result};
use tessera_cuda::{DeviceBuffer, Gpu};
use tessera_graph::builder::GraphBuilder;

use super::capture_scratch::{CaptureScratch, ScratchRange};
use crate::onnxruntime::ort_value::{MemoryInfo, check_status};
use tessera_core::lock;

/// More than any GPU has.
const IMPOSSIBLE_BYTES: usize = 1 << 60;

/// Where a thread's memory comes from, where it is not the arena.
#[derive(Clone)]
pub(super) enum AllocationSource {
    /// The driver: for as long as the session is there.
    Driver(Arc<Gpu>),
    /// For a run.
    Scratch(Arc<Mutex<CaptureScratch>>),
}

thread_local! {
    /// Where the memory of this thread comes from; `None` for the arena.
    static SOURCE: RefCell<Option<AllocationSource>> = const { RefCell::new(None) };
}

/// Does something whose memory comes from here.
pub(super) fn with_source<T>(source: AllocationSource, work: impl FnOnce() -> T) -> T {
    struct RestoreSource(Option<AllocationSource>);
    impl Drop for RestoreSource {
        fn drop(&mut self) {
            let before = self.0.take();
            SOURCE.with_borrow_mut(|source| *source = before);
        }
    }
    let _restore = RestoreSource(SOURCE.with_borrow_mut(|here| here.replace(source)));
    work()
}

/// Memory that did not come from the arena.
enum TrackedAllocation {
    Driver(DeviceBuffer),
    Scratch(Arc<Mutex<CaptureScratch>>, ScratchRange),
}

/// What ONNX Runtime asks.
#[repr(C)]
struct SessionAllocator {
    // First: ONNX Runtime has the address of this one.
    functions: OrtAllocator,
    info: MemoryInfo,
    arena: NonNull<OrtAllocator>,
    /// What did not come from the arena, by its address.
    tracked: Mutex<HashMap<usize, TrackedAllocation>>,
}

/// Gives memory out. May be left by an exception of ONNX Runtime's, on its way to where it is made
/// an error.
type AllocateFunction = unsafe extern "C-unwind" fn(*mut OrtAllocator, usize) -> *mut c_void;
/// The same as it is declared, which does not know of exceptions.
type DeclaredAllocateFunction = unsafe extern "system" fn(*mut OrtAllocator, usize) -> *mut c_void;

/// Has sessions that use the environment's allocators ask us, from now on and until the process
/// ends.
///
/// `session` is one on that GPU that uses none of the environment's: its arena becomes that of all.
pub(super) fn register_allocator(
    environment: &ort::environment::Environment,
    session: &OrtSession,
    gpu: u32,
) -> ort::Result<()> {
    let info = MemoryInfo::on_gpu(gpu)?;
    let mut arena = ptr::null_mut();
    // SAFETY: session and description are valid. What is made shares the arena with the session,
    // and stays.
    check_status(unsafe {
        (ort::api().CreateAllocator)(session.ptr(), info.as_ptr(), &raw mut arena)
    })?;
    let arena = NonNull::new(arena).ok_or_else(|| ort::Error::new("no arena"))?;
    // SAFETY: the two differ in exceptions alone, which whoever calls it, in C++, expects.
    let allocate = unsafe {
        std::mem::transmute::<AllocateFunction, DeclaredAllocateFunction>(allocate_memory)
    };
    // SAFETY: all that must be there is given.
    let nothing = unsafe { OrtAllocator::default() };
    let functions = OrtAllocator {
        Alloc: Some(allocate),
        Free: Some(free_memory),
        Info: Some(describe_memory),
        ..nothing
    };
    let made = Box::new(SessionAllocator { functions, info, arena, tracked: Mutex::default() });
    // Sessions may ask until the process ends.
    let made = Box::leak(made);
    // SAFETY: the environment is valid, and what is registered stays.
    check_status(unsafe {
        (ort::api().RegisterAllocator)(environment.ptr().cast_mut(), (&raw mut *made).cast())
    })
}

/// The smallest of models, as a file: something to make a session of.
pub(super) fn smallest_model() -> Vec<u8> {
    let mut graph = GraphBuilder::new("smallest");
    let input = graph.add_input("x", DType::F32, [1]);
    let output = graph.add_node("Relu", &[&input], []);
    graph.add_typed_output(&output, DType::F32, [1]);
    graph.build_model().encode_to_vec()
}

unsafe extern "C-unwind" fn allocate_memory(this: *mut OrtAllocator, len: usize) -> *mut c_void {
    // SAFETY: ONNX Runtime calls with what was registered, which is never changed.
    let this = unsafe { &*this.cast_const().cast::<SessionAllocator>() };
    let Some(source) = SOURCE.with_borrow(Clone::clone) else { return this.allocate_in_arena(len) };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        this.allocate_from_source(source, len)
    })) {
        Ok(Ok(address)) => ptr::with_exposed_provenance_mut(address),
        Ok(Err(error)) => {
            tracing::debug!(%error, len, "no memory to capture a CUDA graph with");
            this.refuse_allocation()
        }
        Err(_) => this.refuse_allocation(),
    }
}

unsafe extern "system" fn free_memory(this: *mut OrtAllocator, pointer: *mut c_void) {
    // SAFETY: as above.
    let this = unsafe { &*this.cast_const().cast::<SessionAllocator>() };
    // First out of the table, which nobody may have to wait for.
    let given = lock(&this.tracked).remove(&pointer.addr());
    match given {
        Some(TrackedAllocation::Scratch(from, part)) => lock(&from).give_back_range(part),
        // To the driver, which waits for work that uses it: it may be another stream's.
        Some(TrackedAllocation::Driver(buffer)) => drop(buffer),
        None => this.return_to_arena(pointer),
    }
}

unsafe extern "system" fn describe_memory(
    this: *const OrtAllocator,
) -> *const ort_sys::OrtMemoryInfo {
    // SAFETY: as above.
    unsafe { &*this.cast::<SessionAllocator>() }.info.as_ptr()
}

impl SessionAllocator {
    fn allocate_from_source(&self, source: AllocationSource, len: usize) -> Result<usize> {
        let (address, given) = match source {
            AllocationSource::Driver(gpu) => {
                let buffer = DeviceBuffer::new_unpooled(&gpu, len)?;
                (buffer.address().as_ptr().expose_provenance(), TrackedAllocation::Driver(buffer))
            }
            AllocationSource::Scratch(from) => {
                let part = lock(&from).take_range(len)?;
                (part.address, TrackedAllocation::Scratch(from, part))
            }
        };
        let before = lock(&self.tracked).insert(address, given);
        match before {
            None => Ok(address),
            Some(_) => Err(Error::engine("memory that was given out twice")),
        }
    }

    fn allocate_in_arena(&self, len: usize) -> *mut c_void {
        let arena = self.arena.as_ptr();
        // SAFETY: the arena stays until the process ends. The function is C++, and may throw.
        unsafe {
            match (*arena).Alloc {
                Some(function) => {
                    std::mem::transmute::<DeclaredAllocateFunction, AllocateFunction>(function)(
                        arena, len,
                    )
                }
                None => ptr::null_mut(),
            }
        }
    }

    fn return_to_arena(&self, pointer: *mut c_void) {
        let arena = self.arena.as_ptr();
        // SAFETY: the arena stays until the process ends, and what is freed came from it.
        unsafe {
            if let Some(function) = (*arena).Free {
                function(arena, pointer);
            }
        }
    }

    /// Has the run fail. ONNX Runtime does not look at whether it got memory: whoever has none
    /// throws. So its own arena is asked for more than there can be.
    fn refuse_allocation(&self) -> *mut c_void {
        let found = self.allocate_in_arena(IMPOSSIBLE_BYTES);
        if !found.is_null() {
            self.return_to_arena(found);
        }
        ptr::null_mut()
    }
}
