//! One workspace of cuBLAS for all sessions whose work goes into one stream.
//!
//! Each session has a handle of cuBLAS, and each handle memory to work with: 64 of the 73 MB that a
//! session takes on an H200 beside its weights. Work in one stream is done one after the other, so
//! that one such memory is enough. ONNX Runtime has no option for that; but it tells each handle its
//! stream, by a function whose place this program takes: the loader finds what the program exports
//! before what libraries do. The handle's workspace is chosen there. What handles take when they
//! are made is made small, by an environment variable that the library reads with the first.
//!
//! CUDA graphs are captured in streams of their own and replayed in the one of all work. Capture
//! streams have a workspace in common, as one captures at a time; what is captured to be replayed
//! is given that of the stream in which it will be.

use std::ffi::{CStr, c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock};

use tessera_core::{Region, Result, lock};
use tessera_cuda::{DeviceBuffer, Gpu};

use super::run_waits::StreamPointer;

/// What cuBLAS takes by itself on GPUs since Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;

/// The variable that says what a handle takes when it is made, and so little that it is nothing
/// beside a session.
const WORKSPACE_VARIABLE: &CStr = c"CUBLAS_WORKSPACE_CONFIG";
const SMALL_WORKSPACE: &CStr = c":16:8";

/// Names that the library may be loaded under.
const LIBRARIES: [&CStr; 3] = [c"libcublas.so.13", c"libcublas.so.12", c"libcublas.so"];

/// What its functions return where all is well, and where they can't be called.
const SUCCESS: c_int = 0;
const NOT_INITIALISED: c_int = 1;

type SetStream = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type SetWorkspace = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int;

/// The library's own functions.
struct CublasFunctions {
    set_stream: SetStream,
    set_workspace: SetWorkspace,
}

/// The streams of sessions.
static STREAMS: Mutex<Vec<SessionStream>> = Mutex::new(Vec::new());
/// The workspaces of each GPU: that of all work, and that of captures.
static WORKSPACES: Mutex<Vec<(u32, [Arc<DeviceBuffer>; 2])>> = Mutex::new(Vec::new());

/// A stream, and who puts work into it.
struct SessionStream {
    stream: StreamPointer,
    workspace: Arc<DeviceBuffer>,
    /// Those whose workspace may change: of streams for captures.
    handles: Vec<CublasHandle>,
    is_main: bool,
}

/// A handle of cuBLAS, for as long as its session is there.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CublasHandle(*mut c_void);

// SAFETY: a handle is only given to the library, by the thread that its session works on.
unsafe impl Send for CublasHandle {}

/// Has a session that is about to be made share the workspace of its stream. A stream for captures
/// has one session.
pub(super) fn share_workspace(gpu: &Arc<Gpu>, stream: StreamPointer) -> Result<()> {
    let is_main = stream.0 == gpu.stream_pointer();
    let [of_all_work, of_captures] = workspaces(gpu)?;
    let mut streams = lock(&STREAMS);
    match streams.iter_mut().find(|known| known.stream == stream) {
        Some(known) if !is_main => known.handles.clear(),
        Some(_) => {}
        None => {
            let workspace = if is_main { of_all_work } else { of_captures };
            streams.push(SessionStream { stream, workspace, handles: Vec::new(), is_main });
        }
    }
    Ok(())
}

/// No session works in this stream any more, which is about to go.
pub(super) fn forget_stream(stream: StreamPointer) {
    lock(&STREAMS).retain(|known| known.stream != stream);
}

/// Does something in a stream for captures with the workspace of all work, for a CUDA graph that
/// will be replayed there.
pub(super) fn with_main_workspace<T>(
    gpu: &Arc<Gpu>,
    stream: StreamPointer,
    work: impl FnOnce() -> T,
) -> Result<T> {
    let [of_all_work, of_captures] = workspaces(gpu)?;
    change_workspace(stream, &of_all_work);
    let done = work();
    change_workspace(stream, &of_captures);
    Ok(done)
}

fn change_workspace(stream: StreamPointer, workspace: &Arc<DeviceBuffer>) {
    let mut streams = lock(&STREAMS);
    let Some(known) = streams.iter_mut().find(|known| known.stream == stream) else { return };
    known.workspace = Arc::clone(workspace);
    for handle in &known.handles {
        give_workspace(*handle, workspace);
    }
}

fn workspaces(gpu: &Arc<Gpu>) -> Result<[Arc<DeviceBuffer>; 2]> {
    let mut all = lock(&WORKSPACES);
    if let Some((_, known)) = all.iter().find(|(number, _)| *number == gpu.number()) {
        return Ok(known.clone());
    }
    let make = || DeviceBuffer::new_unpooled(gpu, WORKSPACE_BYTES).map(Arc::new);
    let made = [make()?, make()?];
    all.push((gpu.number(), made.clone()));
    Ok(made)
}

/// Where it can't be given, the handle has one of its own.
fn give_workspace(handle: CublasHandle, workspace: &DeviceBuffer) {
    let Some(functions) = cublas_functions() else { return };
    let address = workspace.address().as_ptr().cast();
    // SAFETY: the handle is one of the library's; the workspace stays until the process ends.
    let given = unsafe { (functions.set_workspace)(handle.0, address, workspace.byte_len()) };
    if given != SUCCESS {
        tracing::debug!(given, "cuBLAS has a workspace of its own for a session");
    }
}

fn cublas_functions() -> Option<&'static CublasFunctions> {
    static FUNCTIONS: OnceLock<Option<CublasFunctions>> = OnceLock::new();
    FUNCTIONS.get_or_init(find_functions).as_ref()
}

fn find_functions() -> Option<CublasFunctions> {
    LIBRARIES.iter().find_map(|name| {
        // SAFETY: the name ends with a zero; a library that is not loaded is not loaded by that.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        let symbol = |name: &CStr| {
            // SAFETY: the library is loaded, and stays; the name ends with a zero.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!library.is_null() && !found.is_null()).then_some(found)
        };
        let set_stream = symbol(c"cublasSetStream_v2")?;
        let set_workspace = symbol(c"cublasSetWorkspace_v2")?;
        // SAFETY: the functions of these names are of these types.
        unsafe {
            Some(CublasFunctions {
                set_stream: std::mem::transmute::<*mut c_void, SetStream>(set_stream),
                set_workspace: std::mem::transmute::<*mut c_void, SetWorkspace>(set_workspace),
            })
        }
    })
}

/// Has handles take little when they are made, where the user has not said how much. The loader calls
/// it before the program begins: later others might read the environment meanwhile.
#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE_SMALL_WORKSPACE: extern "C" fn() = {
    extern "C" fn choose_small_workspace() {
        // SAFETY: both end with a zero, and are copied; there is one thread.
        unsafe { libc::setenv(WORKSPACE_VARIABLE.as_ptr(), SMALL_WORKSPACE.as_ptr(), 0) };
    }
    choose_small_workspace
};

/// Takes the place of cuBLAS' function of this name, for libraries that call it: a handle's work
/// goes into this stream from now on, and its workspace is that of the stream.
///
/// # Safety
/// As of cuBLAS' own.
#[unsafe(no_mangle)]
#[allow(non_snake_case, unreachable_pub, reason = "the library's name, for the loader alone")]
pub unsafe extern "C" fn cublasSetStream_v2(handle: *mut c_void, stream: *mut c_void) -> c_int {
    let Some(functions) = cublas_functions() else { return NOT_INITIALISED };
    // SAFETY: as the caller says. It has the handle forget its workspace.
    let set = unsafe { (functions.set_stream)(handle, stream) };
    if set != SUCCESS {
        return set;
    }
    let (handle, stream) = (CublasHandle(handle), StreamPointer(stream));
    let mut streams = lock(&STREAMS);
    if let Some(known) = streams.iter_mut().find(|known| known.stream == stream) {
        if !known.is_main && !known.handles.contains(&handle) {
            known.handles.push(handle);
        }
        give_workspace(handle, &known.workspace);
    }
    set
}
