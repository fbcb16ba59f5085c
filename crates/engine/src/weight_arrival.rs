//! Brings the weights of several blocks to a GPU, so that their run may begin before all of them
//! are there.
//!
//! The run waits for each part in its stream, where it needs it first. That stream is one for all
//! units: a run that is launched too early keeps the runs of others waiting with it. So parts are
//! brought one by one until those that are left come in time for a run that is launched then. They
//! are put into the copy stream when it is, behind the inputs that it needs.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tessera_core::Result;
use tessera_cuda::PacedCopies;

use crate::device_weights::{DeviceWeights, WeightStay};
use crate::run_profile::PartNeeds;
use crate::weight_image::WeightImage;

/// How long it takes at least until a run begins that is to be launched: to the end of its inputs'
/// copies, and of the launch.
const LAUNCH_TIME: Duration = Duration::from_micros(50);

/// A part that is not there.
struct MissingPart<'a> {
    image: &'a WeightImage,
    part: usize,
    bytes: usize,
    /// After what time of a run it is needed; `None` where that is not known.
    needed_after: Option<Duration>,
}

/// Brings weights to the GPU, where they are not, and keeps them there for as long as somebody
/// stays. Runs of blocks in this order take `run_time` in all; they can be launched when this
/// returns, and wait for what is still on its way.
pub fn begin_stays(
    weights: &[Arc<DeviceWeights>],
    run_time: Option<Duration>,
) -> Result<Vec<WeightStay>> {
    let mut distinct: Vec<&Arc<DeviceWeights>> = Vec::new();
    for one in weights {
        if !distinct.iter().any(|known| Arc::ptr_eq(known, one)) {
            distinct.push(one);
        }
    }
    // Whoever loads blocks has one of these at a time, and one at a time loads for a GPU.
    let mut stays: Vec<MutexGuard<'_, usize>> =
        distinct.iter().map(|weights| weights.lock_stays()).collect();
    let absent: Vec<(&Arc<DeviceWeights>, &WeightImage)> = distinct
        .iter()
        .zip(&stays)
        .filter(|(_, stays)| ***stays == 0)
        .filter_map(|(weights, _)| Some((*weights, weights.image()?)))
        .collect();
    let brought = bring_images(&absent, &distinct, run_time);
    if let Err(error) = brought {
        for (_, image) in absent {
            // What is there is of no use.
            image.leave_gpu(None).ok();
        }
        return Err(error);
    }
    stays.iter_mut().for_each(|stays| **stays += 1);
    drop(stays);
    Ok(distinct.into_iter().map(DeviceWeights::counted_stay).collect())
}

fn bring_images(
    absent: &[(&Arc<DeviceWeights>, &WeightImage)],
    path: &[&Arc<DeviceWeights>],
    run_time: Option<Duration>,
) -> Result<()> {
    let Some((_, first)) = absent.first() else { return Ok(()) };
    let mut copies = PacedCopies::new(first.range().gpu());
    absent.iter().try_for_each(|(_, image)| image.prepare_memory())?;
    let missing = missing_parts(absent, path, run_time);
    for (place, part) in missing.iter().enumerate() {
        if comes_in_time(&missing[place..], &copies) {
            return absent.iter().try_for_each(|(_, image)| image.check_intact());
        }
        part.image.bring_part(part.part, &mut copies)?;
    }
    copies.wait_for_last()?;
    absent.iter().try_for_each(|(_, image)| image.check_intact())
}

/// The parts of those that are absent, and when a run over all of the path needs them.
fn missing_parts<'a>(
    absent: &[(&Arc<DeviceWeights>, &'a WeightImage)],
    path: &[&Arc<DeviceWeights>],
    run_time: Option<Duration>,
) -> Vec<MissingPart<'a>> {
    let needs: Option<Vec<PartNeeds>> =
        path.iter().map(|weights| weights.profile().part_needs()).collect();
    let measured: Duration = needs.iter().flatten().map(|needs| needs.total).sum();
    // A run that is replayed is quicker than the one that was measured.
    let scale = run_time.map(|run| run.as_secs_f64() / measured.as_secs_f64().max(f64::EPSILON));
    let scale = scale.unwrap_or(1.0).min(1.0);
    let mut missing = Vec::new();
    let mut before = Duration::ZERO;
    for (number, weights) in path.iter().enumerate() {
        let needs = needs.as_ref().and_then(|needs| needs.get(number));
        if let Some((_, image)) = absent.iter().find(|(absent, _)| Arc::ptr_eq(absent, weights)) {
            let parts = 0..image.parts().count();
            missing.extend(parts.map(|part| MissingPart {
                image,
                part,
                bytes: image.parts().range(part).len(),
                needed_after: needs.map(|needs| (before + needs.needed_after(part)).mul_f64(scale)),
            }));
        }
        before += needs.map_or(Duration::ZERO, |needs| needs.total);
    }
    missing
}

/// Whether each of these parts is there when a run needs it that is launched now, with which they
/// are put into the copy stream.
fn comes_in_time(left: &[MissingPart<'_>], copies: &PacedCopies) -> bool {
    let (mut bytes, rate) = (copies.bytes_under_way(), copies.rate());
    left.iter().all(|part| {
        bytes += part.bytes;
        let Some(needed_after) = part.needed_after else { return false };
        bytes as f64 / rate <= (needed_after + LAUNCH_TIME).as_secs_f64()
    })
}
