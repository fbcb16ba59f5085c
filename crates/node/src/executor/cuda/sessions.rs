//! Sessions of a unit on a GPU, and when their runs are captured as CUDA graphs.
//!
//! A session that gets other shapes than last time chooses its algorithms anew, which takes as long
//! as many runs (ResNet-50 on an H200: 100 ms). So there is one for each shape; the weights are
//! there once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tessera_core::{Result, lock};
use tessera_engine::{CudaEngineSession, WeightStay};

use crate::latency_summary::LatencySummary;
use crate::unit_blocks::{TensorShapes, UnitBlocks};

/// Shapes of inputs that have sessions of their own.
const MOST_SHAPES: usize = 16;

/// Runs after which it is decided whether to capture the next ones as CUDA graphs.
const RUNS_BEFORE_CAPTURE: usize = 32;

/// Runs are captured where the GPU takes less than so many times as long as their launch. With
/// more, a CUDA graph has little to win for the memory that it needs. Well before the launch takes
/// as long as the GPU works: processes that launch at the same time slow each other down (ResNet-50
/// in four, 32 rows, where the first takes a ninth: by 0.1 ms).
const MOST_GPU_TO_LAUNCH_RATIO: f64 = 16.0;

/// Sessions by the shapes of inputs.
pub(super) struct SessionsByShape {
    blocks: Arc<UnitBlocks>,
    known: Mutex<HashMap<TensorShapes, Arc<Mutex<ShapeSessions>>>>,
    /// Loaded when the unit was, and taken by the first shape that comes.
    first: Mutex<Option<Vec<Box<dyn CudaEngineSession>>>>,
    /// Whether weights come and go: then whoever runs sessions sees to it that they are there.
    weights_leave: bool,
}

impl SessionsByShape {
    /// Without sessions so far.
    pub(super) fn new(blocks: Arc<UnitBlocks>, weights_leave: bool) -> Self {
        Self { blocks, known: Mutex::default(), first: Mutex::default(), weights_leave }
    }

    /// Loads the sessions for the shape that comes first. Returns what has their weights be on the
    /// GPU, where these come and go.
    pub(super) fn load_first(&self) -> Result<Vec<WeightStay>> {
        let mut sessions = self.blocks.load_gpu_sessions()?;
        let stays = if self.weights_leave { take_weight_stays(&mut sessions) } else { Vec::new() };
        *lock(&self.first) = Some(sessions);
        Ok(stays)
    }

    /// The sessions for inputs of these shapes. What comes in many shapes takes turns at one.
    pub(super) fn sessions_for(&self, shapes: &TensorShapes) -> Result<Arc<Mutex<ShapeSessions>>> {
        let mut known = lock(&self.known);
        let has_place = known.contains_key(shapes) || known.len() < MOST_SHAPES;
        let place = if has_place { shapes.clone() } else { TensorShapes::new() };
        if let Some(sessions) = known.get(&place) {
            return Ok(Arc::clone(sessions));
        }
        let first = lock(&self.first).take();
        let load_more = || -> Result<Vec<Box<dyn CudaEngineSession>>> {
            let mut sessions = self.blocks.load_gpu_sessions()?;
            if self.weights_leave {
                drop(take_weight_stays(&mut sessions));
            }
            Ok(sessions)
        };
        let sessions = first.map_or_else(load_more, Ok)?;
        let sessions = Arc::new(Mutex::new(ShapeSessions::new(sessions)));
        known.insert(place, Arc::clone(&sessions));
        Ok(sessions)
    }
}

fn take_weight_stays(sessions: &mut [Box<dyn CudaEngineSession>]) -> Vec<WeightStay> {
    sessions.iter_mut().filter_map(|session| session.take_weight_stay()).collect()
}

/// A session for each block, for inputs of one shape.
pub(super) struct ShapeSessions {
    pub(super) sessions: Vec<Box<dyn CudaEngineSession>>,
    /// How long the launch of each run took, since it was last decided on capturing them.
    launch_times: Vec<Duration>,
    /// Whether the last run was replayed from a CUDA graph: the launch takes no time then.
    pub(super) was_replayed: bool,
}

impl ShapeSessions {
    fn new(sessions: Vec<Box<dyn CudaEngineSession>>) -> Self {
        Self { sessions, launch_times: Vec::new(), was_replayed: false }
    }

    pub(super) fn replayed_runs(&self) -> u64 {
        self.sessions.iter().map(|session| session.replayed_runs()).sum()
    }

    /// Has runs be captured where the launch takes long, beside what the GPU does for so many rows.
    pub(super) fn note_launch_time(&mut self, launch_time: Duration, gpu_nanoseconds: u64) {
        self.launch_times.push(launch_time);
        if self.launch_times.len() < RUNS_BEFORE_CAPTURE {
            return;
        }
        if is_launch_bound(&std::mem::take(&mut self.launch_times), gpu_nanoseconds) {
            self.sessions.iter_mut().for_each(|session| session.capture_cuda_graphs());
        }
    }
}

/// Whether launches take long, beside what the GPU does: by the middle of some runs, as single ones
/// take longer now and then, and the first always does.
fn is_launch_bound(launch_times: &[Duration], gpu_nanoseconds: u64) -> bool {
    LatencySummary::from_times(launch_times).is_some_and(|launch| {
        launch.median_ms * MOST_GPU_TO_LAUNCH_RATIO * 1e6 > gpu_nanoseconds as f64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_captured_where_launches_take_long_most_of_the_time() {
        let launch_times = |now_and_then: u64, mostly: u64| -> Vec<Duration> {
            let each = |run| if run % 8 == 0 { now_and_then } else { mostly };
            (0..RUNS_BEFORE_CAPTURE).map(|run| Duration::from_nanos(each(run))).collect()
        };
        // One that takes long, as the first does, decides nothing.
        assert!(!is_launch_bound(&launch_times(1_000_000, 10), 1000));
        assert!(is_launch_bound(&launch_times(1, 100), 1000));
        // Where what the GPU takes is not known yet.
        assert!(is_launch_bound(&launch_times(1, 1), 0));
        // And it is decided after so many runs, again and again.
        let mut sessions = ShapeSessions::new(Vec::new());
        for run in 1..=4 * RUNS_BEFORE_CAPTURE {
            sessions.note_launch_time(Duration::from_nanos(1), 0);
            assert_eq!(sessions.launch_times.len(), run % RUNS_BEFORE_CAPTURE);
        }
    }
}
