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
use tessera_cuda::{PacedCopies, unmap_lost_memory};

use crate::device_weights::{DeviceWeights, WeightStay};
use crate::run_profile::PartNeeds;
use crate::weight_image::WeightImage;

/// How long it takes at least until a run begins that is to be launched: to the end of its inputs'
/// copies, and of the launch.
const LAUNCH_TIME: Duration = Duration::from_micros(100);

/// This part of its time a run may keep others waiting in the stream: times are those of runs
/// before, and one that is launched too late is late by all of it.
const LONGEST_STALL: f64 = 1.0 / 16.0;

/// A part that is not there.
struct MissingPart<'a> {
    image: &'a WeightImage,
    part: usize,
    bytes: usize,
    /// After what time of a run it is needed; `None` where that is not known.
    needed_after: Option<Duration>,
}

/// Does what was put off while runs were waiting: others' addresses lose the memory for good that
/// these weights have got.
pub fn finish_leaving(stays: &[WeightStay]) {
    let Some(image) = stays.iter().find_map(|stay| stay.weights().image()) else { return };
    if let Err(error) = unmap_lost_memory(image.range().gpu()) {
        // Whoever wants the addresses again is told.
        tracing::error!(%error, "memory is not taken away from addresses");
    }
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

/// Has what is still missing of these come, in this order: a run that waits for it is about to be
/// launched, and its inputs are on the GPU or on their way.
pub fn queue_rest(stays: &[WeightStay]) -> Result<()> {
    let images = stays.iter().filter_map(|stay| stay.weights().image());
    let mut missing = images.filter(|image| !image.is_queued()).peekable();
    if let Some(first) = missing.peek() {
        first.range().gpu().order_copies_after_stream()?;
    }
    missing.try_for_each(WeightImage::queue_parts)
}

fn bring_images(
    absent: &[(&Arc<DeviceWeights>, &WeightImage)],
    path: &[&Arc<DeviceWeights>],
    run_time: Option<Duration>,
) -> Result<()> {
    let Some((_, first)) = absent.first() else { return Ok(()) };
    absent.iter().try_for_each(|(_, image)| image.prepare_memory())?;
    let missing = missing_parts(absent, path, run_time);
    let patience = LAUNCH_TIME + run_time.unwrap_or_default().mul_f64(LONGEST_STALL);
    let mut copies = PacedCopies::new(first.range().gpu());
    for (place, part) in missing.iter().enumerate() {
        let rate = copies.rate().or_else(|| known_rate(absent));
        if rate.is_some_and(|rate| come_in_time(&missing[place..], &copies, rate, patience)) {
            tracing::debug!(
                parts = place,
                of = missing.len(),
                rate,
                ?run_time,
                last = ?missing.last().and_then(|part| part.needed_after),
                "a run begins before its weights are there"
            );
            break;
        }
        part.image.bring_part(part.part, &mut copies)?;
        if place == 0 {
            // While that is copied there is time.
            unmap_lost_memory(part.image.range().gpu())?;
        }
        if place + 1 == missing.len() {
            copies.wait_for_last()?;
        }
    }
    for (_, image) in absent {
        if let Some(rate) = copies.rate() {
            image.note_copy_rate(rate);
        }
        image.check_intact()?;
    }
    Ok(())
}

/// At how many bytes per second these came last time; `None` where one never did.
fn known_rate(absent: &[(&Arc<DeviceWeights>, &WeightImage)]) -> Option<f64> {
    let rates = absent.iter().map(|(_, image)| image.last_copy_rate());
    rates.reduce(|least, rate| Some(least?.min(rate?))).flatten()
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

/// Whether each of these parts is there at most so long after a run needs it that is launched now,
/// with which they are put into the copy stream.
fn come_in_time(
    left: &[MissingPart<'_>],
    copies: &PacedCopies,
    rate: f64,
    patience: Duration,
) -> bool {
    let mut bytes = copies.bytes_under_way();
    left.iter().all(|part| {
        bytes += part.bytes;
        let Some(needed_after) = part.needed_after else { return false };
        bytes as f64 / rate <= (needed_after + patience).as_secs_f64()
    })
}
