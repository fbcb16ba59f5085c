//! Room for rten's recursion.
//!
//! rten finds the order of a model's nodes by a function that calls itself once for each node of the
//! longest path. A path of thousands overflows the stack of a thread, which ends the process.

use tessera_core::{Error, Result};

/// What a node may take of a stack: three times what it does without optimisation.
const NODE_BYTES: usize = 2 << 10;

/// Up to this many nodes any thread has room enough.
const FEW_NODES: usize = 256;

/// Calls rten where there is room for a recursion over this many nodes.
pub(super) fn with_stack_for<T: Send>(
    nodes: usize,
    label: &str,
    call: impl FnOnce() -> T + Send,
) -> Result<T> {
    if nodes <= FEW_NODES {
        return Ok(call());
    }
    let failed = |what: String| Error::engine(format!("{label}: rten: {what}"));
    let stack = (2 << 20) + nodes.saturating_mul(NODE_BYTES);
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("rten-plan".to_owned()).stack_size(stack);
        let running = builder.spawn_scoped(scope, call);
        let running = running.map_err(|error| failed(format!("no thread to plan on: {error}")))?;
        running.join().map_err(|_| failed("the run panicked".to_owned()))
    })
}
