//! How long a run takes at least from a block on, were each device free whenever a block wants it.

use super::graph::{Graph, Link};
use super::problem::Device;

/// Per block and device, what comes at least after it if it ends there: the longest of the paths to
/// the end, each with the best choice of devices. It holds for any plan, as it leaves out waiting alone.
pub(super) fn tails(graph: &Graph) -> Vec<[f64; 2]> {
    let mut tails = vec![[0.0f64; 2]; graph.len()];
    for &block in graph.order.iter().rev() {
        let number = block as usize;
        for device in Device::ALL {
            let after = |link: &Link| {
                let user = link.block as usize;
                let on = |to: Device| {
                    hand_over(graph, block, device, link, to)
                        + graph.times[user][to as usize]
                        + tails[user][to as usize]
                };
                on(Device::Cpu).min(on(Device::Gpu))
            };
            let longest = graph.successors(number).iter().map(after).fold(0.0, f64::max);
            tails[number][device as usize] = longest.max(graph.outputs[number][device as usize]);
        }
    }
    tails
}

/// What lies at least between a block that ends on `device`, and its user that begins on `to`.
pub(super) fn hand_over(graph: &Graph, block: u32, device: Device, link: &Link, to: Device) -> f64 {
    let is_chained = device == to && graph.chained_to[link.block as usize] == block;
    let copy = if device == to { 0.0 } else { link.copy_us[to as usize] };
    copy + if is_chained { 0.0 } else { graph.dispatch_us }
}
