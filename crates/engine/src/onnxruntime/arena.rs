//! The arena that the activations of all sessions are in: how large it may get, and how it gives
//! back what nobody uses.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ort::AsPointer;
use ort::environment::Environment;
use prost::Message;
use tessera_core::{DType, Error, Result, Tensor, lock};
use tessera_graph::builder::GraphBuilder;

use super::cpu_session::{OrtCpuSession, SharedSession};
use super::ort_value::{MemoryInfo, check_status};
use super::session_builder::SessionBuilders;
use super::session_run_options::SessionRunOptions;
use crate::{EngineSession, LoadOptions};

/// The most that the arena may hold; 0: as much as there is.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Limits what runs may take for themselves, all of this process together. To be called before the
/// first engine is made; later it has no effect.
pub fn limit_run_memory(bytes: usize) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// Makes one arena for the activations of all sessions.
///
/// Blocks of a chain run one after another and can use the same memory, as the layers of a whole
/// model do; with an arena each, every block would find the caches cold.
pub(super) fn share_arena(environment: &Environment) -> ort::Result<()> {
    let info = MemoryInfo::on_host_in(ort_sys::OrtAllocatorType::OrtArenaAllocator)?;
    // Grows by what is asked for: by default it doubles each time, and the half is never used.
    let keys = [c"arena_extend_strategy".as_ptr(), c"max_mem".as_ptr()];
    let values = [1usize, LIMIT.load(Ordering::Relaxed)];
    let mut configuration = ptr::null_mut();
    // SAFETY: there is one value for each key, and all live until the call returns.
    check_status(unsafe {
        (ort::api().CreateArenaCfgV2)(
            keys.as_ptr(),
            values.as_ptr(),
            keys.len(),
            &mut configuration,
        )
    })?;
    // SAFETY: environment, description and configuration are valid; the configuration is copied.
    let registered = check_status(unsafe {
        (ort::api().CreateAndRegisterAllocator)(
            environment.ptr().cast_mut(),
            info.as_ptr(),
            configuration,
        )
    });
    // SAFETY: made above, and nobody else has it.
    unsafe { (ort::api().ReleaseArenaCfg)(configuration) };
    registered
}

/// Has the arena give back what no run uses. It does so at the end of a run that asks for it, so
/// there is one that does nothing else.
#[derive(Default)]
pub(super) struct ArenaShrinker(Mutex<Option<OrtCpuSession>>);

impl ArenaShrinker {
    /// Has the arena give back what no run uses at the moment.
    pub(super) fn shrink_arena(&self, builders: &SessionBuilders) -> Result<()> {
        let mut session = lock(&self.0);
        let session = match &mut *session {
            Some(session) => session,
            none => none.insert(idle_session(builders)?),
        };
        let input = Tensor::from_f32(&[1], &[0.0])?;
        session.run_inference(&[input], vec![None]).map(drop)
    }
}

/// A session that uses the arena, does nothing, and has the arena shrink.
fn idle_session(builders: &SessionBuilders) -> Result<OrtCpuSession> {
    let mut builder = GraphBuilder::new("idle");
    let x = builder.add_input("x", DType::F32, [1]);
    let y = builder.add_node("Abs", &[&x], []);
    builder.add_typed_output(&y, DType::F32, [1]);
    let model = builder.build_model().encode_to_vec();
    let fail = |error: &dyn std::fmt::Display| Error::engine(format!("ONNX Runtime: {error}"));
    let session = builders.session_builder(&LoadOptions::default())?;
    let session = session.with_env_allocators().map_err(|error| fail(&error))?;
    let session = { session }.commit_from_memory(&model).map_err(|error| fail(&error))?;
    let session = Arc::new(SharedSession::of_file(session));
    let ports = |name: String| vec![(name, DType::F32)];
    let options = SessionRunOptions::shrinking_arena().map_err(|error| fail(&error))?;
    let label = "giving memory back".to_owned();
    Ok(OrtCpuSession::new(session, label, ports(x), ports(y))?.with_options(options))
}
