//! The role of a process that its node started: one instance of a unit.

use std::io::Write;

use tessera_core::Result;

/// Runs an instance for the node at the other end of `input` and `output`, until that ends it;
/// calls `end_process` where the node is gone before the instance runs.
pub fn run_instance(
    input: impl std::io::BufRead + Send + 'static,
    output: impl Write + Send + 'static,
    end_process: impl FnOnce() + Send + 'static,
) -> Result<()> {
    tessera_engine::give_large_memory_back();
    tessera_node::run_unit_process(input, output, end_process)
}
