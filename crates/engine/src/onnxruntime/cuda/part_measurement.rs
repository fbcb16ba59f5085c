//! Measures how long a run takes for each part of a block's weights: in the GPU's memory, on their way
//! there, and read from the host's memory over the bus.

use std::time::{Duration, Instant};

use tessera_core::Result;
use tessera_cuda::PacedCopies;

use crate::PartTimes;
use crate::device_weights::DeviceWeights;
use crate::run_profile::{FIRST_MEASURED_RUN, PartNeeds};
use crate::weight_image::WeightImage;

/// Copies of each part, of which the one in the middle counts.
const COPIES: usize = 5;

/// Measures all parts of the weights of a session, by so many runs each way. `run` runs it once, and
/// waits until that is done.
pub(super) fn measure_part_times(
    weights: &DeviceWeights,
    runs: usize,
    run: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<PartTimes>> {
    let Some(image) = weights.image() else { return Ok(Vec::new()) };
    let in_memory = measure_needs(weights, runs, run)?;
    let loads = measure_loads(image)?;
    image.move_to_host()?;
    let direct = measure_needs(weights, runs, run);
    image.move_to_gpu()?;
    let direct = direct?.times_by_part(loads.len());
    let in_memory = in_memory.times_by_part(loads.len());
    let parts = loads.into_iter().zip(in_memory.into_iter().zip(direct)).enumerate();
    let times = parts.map(|(part, (load, (in_memory, direct)))| PartTimes {
        first_weight: weights.first_weight_of(part).unwrap_or_default(),
        bytes: image.parts().range(part).len(),
        load,
        in_memory,
        direct,
    });
    Ok(times.collect())
}

/// When a run needs each part, as they are now.
fn measure_needs(
    weights: &DeviceWeights,
    runs: usize,
    run: &mut dyn FnMut() -> Result<()>,
) -> Result<PartNeeds> {
    weights.profile().restart(runs);
    for _ in 0..FIRST_MEASURED_RUN + runs {
        run()?;
    }
    Ok(weights.profile().part_needs().unwrap_or_default())
}

/// How long each part takes to the GPU, by itself.
fn measure_loads(image: &WeightImage) -> Result<Vec<Duration>> {
    let measure = |part: usize| {
        let mut times = Vec::with_capacity(COPIES);
        for _ in 0..COPIES {
            let begun = Instant::now();
            let mut copies = PacedCopies::new(image.range().gpu());
            image.bring_part(part, &mut copies)?;
            copies.wait_for_last()?;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        Ok(times[COPIES / 2])
    };
    (0..image.parts().count()).map(measure).collect()
}
