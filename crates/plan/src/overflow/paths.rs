//! How long a run takes at least from a block on, were each device free whenever a block wants it.

use super::graph::{EdgeEnd, OverflowGraph};
use super::problem::OverflowDevice;

/// Per block and device, what comes at least after it if it ends there: the longest of the paths to
/// the end, each with the best choice of devices. It holds for any plan, as it leaves out waiting
/// alone.
pub(super) fn tail_bounds(graph: &OverflowGraph) -> Vec<[f64; 2]> {
    let mut tails = vec![[0.0f64; 2]; graph.len()];
    for &block in graph.order.iter().rev() {
        let number = block as usize;
        for device in OverflowDevice::ALL {
            let after = |link: &EdgeEnd| {
                let user = link.block as usize;
                let on = |to: OverflowDevice| {
                    hand_over_time(graph, block, device, link, to)
                        + graph.times[user][to as usize]
                        + tails[user][to as usize]
                };
                on(OverflowDevice::Cpu).min(on(OverflowDevice::Gpu))
            };
            let longest = graph.successors(number).iter().map(after).fold(0.0, f64::max);
            tails[number][device as usize] = longest.max(graph.outputs[number][device as usize]);
        }
    }
    tails
}

/// What lies at least between a block that ends on `device`, and its user that begins on `to`.
pub(super) fn hand_over_time(
    graph: &OverflowGraph,
    block: u32,
    device: OverflowDevice,
    link: &EdgeEnd,
    to: OverflowDevice,
) -> f64 {
    let is_chained = device == to && graph.chained_to[link.block as usize] == block;
    let copy = if device == to { 0.0 } else { link.copy_us[to as usize] };
    copy + if is_chained { 0.0 } else { graph.dispatch_us }
}
