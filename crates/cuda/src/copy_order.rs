//! The order between a GPU's two streams: that of all work, and that of copies.

use std::sync::Arc;

use tessera_core::Result;

use crate::{CudaEvent, Gpu};

impl Gpu {
    /// Has copies that are put into the copy stream from now on wait for all that is in the stream.
    ///
    /// A GPU does the copies of one stream for as long as there are any: those of inputs, which
    /// were put into the other stream before, would come after all of them.
    pub fn order_copies_after_stream(self: &Arc<Self>) -> Result<()> {
        CudaEvent::record_for_spin_wait(self)?.wait_in_copy_stream()
    }
}
