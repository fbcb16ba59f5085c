//! Calibration of a unit before it serves: how long a run takes, and whether batches pay.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tessera_core::{DType, Dim, Result, Tensor, TensorMut, TensorType};
use tessera_deploy::{Batching, BatchingChoice, Unit};
use tessera_tensormq::Wait;

use crate::compare::compare_output;
use crate::device_transfer::bring_to_host;
use crate::latency_summary::median_of_sorted;
use crate::memory::HostMemory;
use crate::unit::LoadedUnit;

/// The size of a dimension that is open and no batch, such as tokens.
const OPEN_DIMENSION_SIZE: usize = 16;
/// Elements of an image, or of what became of it, whose height and width are open. Engines may not
/// survive one of which their pooling leaves nothing.
const OPEN_IMAGE_ELEMENTS: usize = 3 * 224 * 224;
/// Rows of the batch that is tried.
const TRIAL_ROWS: usize = 4;
/// Runs of each, of which the middle counts.
const TRIAL_RUNS: usize = 3;
/// A run that takes longer is tried once.
const LONG_RUN: Duration = Duration::from_millis(200);
/// A row in a batch must take at most this much of a row alone.
const MOST_RELATIVE_ROW_TIME: f64 = 0.85;
/// How far a row in a batch may be from the same row alone, relative to the largest element.
const TOLERANCE: f64 = 1e-3;

/// What was found out about a unit when it was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// How long a run of one row takes on one core; zero where it could not be tried.
    pub time: Duration,
    /// Whether requests are put together.
    pub batching: Option<Batching>,
}

/// Calibrates a unit, and decides on batching where nobody did.
pub(crate) fn calibrate_unit(unit: &Unit, loaded: &LoadedUnit) -> Calibration {
    let batching = match unit.settings.batching {
        // Rows of what has no batch can't be told apart afterwards.
        BatchingChoice::On(batching) if unit.is_batchable => {
            warm_up_batch_sizes(unit, loaded, batching.max_rows);
            Some(batching)
        }
        _ => None,
    };
    let mut calibration = Calibration { time: Duration::ZERO, batching };
    // Made-up values may be those of which a loop makes no end.
    if loaded.executor().may_run_forever() {
        return calibration;
    }
    let Ok(alone) = time_runs(unit, loaded, 0..1) else {
        return calibration;
    };
    calibration.time = Duration::from_secs_f64(alone.0);
    if unit.settings.batching != BatchingChoice::Auto || !unit.is_batchable {
        return calibration;
    }
    let Ok(together) = time_runs(unit, loaded, 0..TRIAL_ROWS) else {
        return calibration;
    };
    let pays = together.0 / TRIAL_ROWS as f64 <= MOST_RELATIVE_ROW_TIME * alone.0;
    if pays && are_rows_alike(unit, loaded, &together.1) {
        let max_rows = loaded.executor().batch_policy().most_rows;
        calibration.batching = Some(Batching { max_rows, max_wait: Duration::ZERO });
        warm_up_batch_sizes(unit, loaded, max_rows);
    }
    calibration
}

/// Runs a unit once that is known already, where the first run takes seconds: no request should
/// wait for it.
pub(crate) fn warm_up_known_unit(unit: &Unit, loaded: &LoadedUnit) {
    if loaded.executor().batch_policy().warms_up {
        // One that can't be run now fails when it is asked for, and says why.
        time_runs(unit, loaded, 0..1).ok();
    }
}

/// Runs every size of batches once, where that takes long the first time.
fn warm_up_batch_sizes(unit: &Unit, loaded: &LoadedUnit, max_rows: usize) {
    if !loaded.executor().batch_policy().warms_up {
        return;
    }
    let sizes = (0..).map(|power| 1usize << power).take_while(|&rows| rows <= max_rows);
    for rows in sizes.filter(|&rows| rows != 1) {
        // One that can't be run now fails when it is asked for, and says why.
        time_runs(unit, loaded, 0..rows).ok();
    }
}

/// Whether every row of a batch is what it is alone.
fn are_rows_alike(unit: &Unit, loaded: &LoadedUnit, together: &[Tensor]) -> bool {
    (0..TRIAL_ROWS).all(|row| {
        let Ok((_, alone)) = time_runs(unit, loaded, row..row + 1) else {
            return false;
        };
        together.iter().zip(&alone).all(|(batch, alone)| {
            let part = batch.slice_rows(row, 1).ok();
            let difference = part.and_then(|part| compare_output("", &part, alone).ok());
            difference.is_some_and(|found| found.max_relative <= TOLERANCE)
        })
    })
}

/// The middle of several runs on one core, in seconds, and what came out.
fn time_runs(
    unit: &Unit,
    loaded: &LoadedUnit,
    rows: std::ops::Range<usize>,
) -> Result<(f64, Vec<Tensor>)> {
    let memory = HostMemory::default();
    let inputs = unit
        .graph
        .inputs
        .iter()
        .map(|port| match &port.default {
            Some(default) => default.to_tensor(port.tensor_type.dtype),
            None => synthetic_input(&port.tensor_type, unit.is_batchable, rows.clone()),
        })
        .collect::<Result<Vec<_>>>()?;
    let wait = Wait::at_most(Duration::from_secs(1));
    // A run is over when its results are here.
    let run = || loaded.run_unit(NonZeroUsize::MIN, &inputs, &memory, wait).and_then(bring_to_host);
    // The first one touches memory for the first time.
    let first = Instant::now();
    let mut outputs = run()?;
    // What takes long varies little, and somebody waits for it.
    let runs = if first.elapsed() > LONG_RUN { 1 } else { TRIAL_RUNS };
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        outputs = run()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    // Until the first request comes nothing is needed.
    loaded.release_idle_memory();
    Ok((median_of_sorted(&times).unwrap_or(0.0), outputs))
}

/// What to take for an open dimension that is no batch.
fn open_dimension_size(dtype: DType, dims: &[Dim]) -> usize {
    match dims {
        [_, channels, height, width] if dtype.is_float() => {
            let fixed = [channels, height, width].into_iter().filter_map(Dim::fixed_size);
            let rest = OPEN_IMAGE_ELEMENTS / fixed.product::<usize>().max(1);
            let is_open = |dim: &Dim| dim.fixed_size().is_none();
            let size = if is_open(height) && is_open(width) { rest.isqrt() } else { rest };
            size.clamp(OPEN_DIMENSION_SIZE, 224)
        }
        _ => OPEN_DIMENSION_SIZE,
    }
}

/// A tensor of this type; row `n` has the same elements in every batch. Integers are zero, which is
/// an index into anything.
fn synthetic_input(
    known: &TensorType,
    is_batchable: bool,
    rows: std::ops::Range<usize>,
) -> Result<Tensor> {
    let dims = known.dims.as_deref().unwrap_or_default();
    let open = open_dimension_size(known.dtype, dims);
    let size = |(index, dim): (usize, &Dim)| match dim {
        Dim::Fixed(size) => *size,
        _ if index == 0 && is_batchable => rows.len(),
        _ => open,
    };
    let shape: Vec<usize> = dims.iter().enumerate().map(size).collect();
    if known.dtype == DType::String {
        let count = shape.iter().product();
        return Tensor::from_strings(&shape, vec![Vec::new(); count]);
    }
    let mut tensor = TensorMut::new_zeroed(known.dtype, &shape)?;
    if known.dtype == DType::F32
        && let Some(bytes) = tensor.bytes_mut()
    {
        let first = if is_batchable { rows.start } else { 0 };
        let row = bytes.len() / 4 / if is_batchable { rows.len().max(1) } else { 1 };
        for (index, element) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let place = (first * row + index) as u32;
            // Well spread and the same every time.
            let spread = place.wrapping_mul(2_654_435_769) >> 8;
            *element = (spread as f32 / (1 << 24) as f32 - 0.5).to_le_bytes();
        }
    }
    Ok(tensor.freeze())
}
