//! A thread that has launched the run of one unit goes on with the next, where that is a unit of
//! the same process on the same GPU.
//!
//! Handing over to a thread of the next worker takes as long as waking it up, which is longer than
//! launching half a unit's run; and what was one batch stays one.

use std::sync::Arc;

use tessera_core::Device;

use super::CudaExecutor;
use crate::worker::batch_item::ExecutedRequest;
use crate::worker::context::WorkerContext;
use crate::worker::local_workers::LocalWorker;

/// Requests that go to one worker.
type ForwardGroup = (Arc<dyn LocalWorker>, Vec<ExecutedRequest>);

/// Sends requests on that were in one batch. Those that go to one worker of this process are run
/// here and now.
pub(super) fn run_next_or_forward(
    executor: &CudaExecutor,
    context: &WorkerContext,
    executed: Vec<ExecutedRequest>,
) {
    let forward = |request: ExecutedRequest| context.forward_request(request, executor);
    let mut groups: Vec<ForwardGroup> = Vec::new();
    for request in executed {
        let device = Device::Cuda(executor.gpu);
        let next = request.item.next_instance();
        let worker = next.and_then(|next| context.local_workers.find_on_device(device, next));
        let Some(worker) = worker else {
            forward(request);
            continue;
        };
        match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &worker)) {
            Some((_, group)) => group.push(request),
            None => groups.push((worker, vec![request])),
        }
    }
    let last = groups.pop();
    // The others must not wait until the last has its answer.
    groups.into_iter().flat_map(|(_, group)| group).for_each(forward);
    let Some((worker, group)) = last else { return };
    let rows: usize = group.iter().map(|request| request.timing.rows).sum();
    if (group.len() > 1 && rows > worker.most_batch_rows()) || !worker.is_free() {
        return group.into_iter().for_each(forward);
    }
    let packed = group.into_iter().filter_map(|request| {
        context.pack_forwarded(request, executor).map(|packed| packed.message)
    });
    worker.run_on_this_thread(packed.collect());
}
