//! The runtime that a role runs on.

use tessera_core::{Error, Result};

/// Runs a role to its end. Threads that still compute for nobody then are not waited for.
pub fn run_role<T>(role: impl Future<Output = Result<T>>) -> Result<T> {
    tessera_engine::give_large_memory_back();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::from_io("the runtime of the server", &error))?;
    let ended = runtime.block_on(role)?;
    runtime.shutdown_background();
    Ok(ended)
}
