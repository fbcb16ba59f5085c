//! Random problems, for tests and figures.

use tessera_core::Random;

use super::problem::{CopyRates, OverflowBlock, OverflowEdge, OverflowProblem};

/// A random graph of so many blocks (at least one), the same for the same seed.
///
/// Blocks lie in layers of one to three, and every sixth or so of four to twelve, like the heads of
/// a detector. Each takes what one to three blocks of the two layers before make; every tenth
/// closes a layer, and takes what all of the layer before make. As in the paper, most blocks (85%)
/// are light, of 3 to 40 µs on the GPU and about the same on the CPU, with little to hand over; the
/// others are heavy, of 50 to 2,000 µs on the GPU and 5 to 50 times that on the CPU, with up to 10
/// MB. One in twenty runs on the CPU alone, one in twenty on the GPU alone. Copies take 10 µs and
/// go at 12 GB/s, and a queue costs 1 µs.
pub fn random_overflow_problem(blocks: usize, seed: u64) -> OverflowProblem {
    let mut random = Random::new(seed);
    let count = blocks.max(1);
    let mut made = Vec::with_capacity(count);
    let mut sizes = Vec::with_capacity(count);
    let mut edges: Vec<OverflowEdge> = Vec::new();
    let mut has_user = vec![false; count];
    // The two layers before, as ranges of blocks.
    let (mut first, mut second) = (0..0, 0..0);
    while made.len() < count {
        let width = match random.next_below(6) {
            0 => 4 + random.next_below(9),
            _ => 1 + random.next_below(3),
        };
        let layer = made.len()..count.min(made.len() + width as usize);
        for number in layer.clone() {
            let mut inputs: Vec<usize> = match (second.len(), random.next_below(10)) {
                (0, _) => Vec::new(),
                (_, 0) => second.clone().collect(),
                _ => {
                    let near = first.start..second.end;
                    let picks = 1 + random.next_below(3);
                    let pick = |_| near.start + random.next_below(near.len() as u64) as usize;
                    (0..picks).map(pick).collect()
                }
            };
            inputs.sort_unstable();
            inputs.dedup();
            let (mut block, bytes) = random_block(&mut random, number);
            block.input_bytes = if inputs.is_empty() { 600e3 } else { 0.0 };
            for input in inputs {
                let name = |number: usize| format!("b{number}");
                has_user[input] = true;
                edges.push(OverflowEdge {
                    from: name(input),
                    to: name(number),
                    bytes: sizes[input],
                });
            }
            made.push(block);
            sizes.push(bytes);
        }
        (first, second) = (second, layer);
    }
    for (number, block) in made.iter_mut().enumerate().filter(|(number, _)| !has_user[*number]) {
        block.output_bytes = sizes[number];
    }
    let rates = CopyRates {
        cpu_to_gpu_bytes_per_second: 12e9,
        gpu_to_cpu_bytes_per_second: 12e9,
        latency_us: 10.0,
    };
    OverflowProblem { blocks: made, edges, rates, threshold_us: 100.0, dispatch_us: 1.0 }
}

/// A block, and the size of what it makes.
fn random_block(random: &mut Random, number: usize) -> (OverflowBlock, f64) {
    let is_light = random.next_below(100) < 85;
    let mut between = |low: f64, high: f64| low * (high / low).powf(random.next_fraction());
    let (gpu, slower, bytes) = if is_light {
        (between(3.0, 40.0), between(0.4, 2.5), between(1e2, 1e5))
    } else {
        (between(50.0, 2e3), between(5.0, 50.0), between(1e5, 1e7))
    };
    let [cpu_us, gpu_us] = match random.next_below(20) {
        0 => [Some(gpu), None],
        1 => [None, Some(gpu)],
        _ => [Some(gpu * slower), Some(gpu)],
    };
    let block = OverflowBlock {
        name: format!("b{number}"),
        cpu_us,
        gpu_us,
        input_bytes: 0.0,
        output_bytes: 0.0,
    };
    (block, bytes)
}
