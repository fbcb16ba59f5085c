//! The role of a process that its node started: one instance of a unit.

use std::io::Write;

use tessera_core::Result;

/// Runs an instance for the node at the other end of `input` and `output`, until that ends it.
pub fn run_instance(
    input: &mut impl std::io::BufRead,
    output: impl Write + Send + 'static,
) -> Result<()> {
    tessera_engine::give_large_memory_back();
    tessera_node::run_unit_process(input, output)
}
