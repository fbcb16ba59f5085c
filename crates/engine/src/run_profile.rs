//! When a run on a GPU needs each part of a block's weights, as it was measured.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tessera_core::lock;
use tessera_cuda::StreamMarks;

/// Which run is measured: algorithms are chosen and memory is laid out in those before.
const MEASURED_RUN: usize = 4;

/// When a run needs each part of a block's weights.
#[derive(Default)]
pub(crate) struct RunProfile {
    runs: AtomicUsize,
    state: Mutex<ProfileState>,
}

#[derive(Default)]
enum ProfileState {
    #[default]
    Unknown,
    /// The points in the stream where the run began, needed each of these parts, and ended.
    UnderWay(StreamMarks, Vec<usize>),
    Known(PartNeeds),
}

/// How long after its begin a run needs each part, and how long it takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartNeeds {
    needed_after: Vec<(usize, Duration)>,
    pub(crate) total: Duration,
}

impl PartNeeds {
    /// After what time of a run a part is needed; none where that is not known.
    pub(crate) fn needed_after(&self, part: usize) -> Duration {
        let known = self.needed_after.iter().find(|(known, _)| *known == part);
        known.map_or(Duration::ZERO, |(_, after)| *after)
    }
}

impl RunProfile {
    /// A run of which all weights are there begins: whether it is to be measured.
    pub(crate) fn begin_run(&self) -> bool {
        self.runs.fetch_add(1, Ordering::Relaxed) + 1 == MEASURED_RUN
    }

    /// What was measured, once the GPU has passed it: the begin, these parts, and the end.
    pub(crate) fn note_marks(&self, marks: StreamMarks, parts: Vec<usize>) {
        *lock(&self.state) = ProfileState::UnderWay(marks, parts);
    }

    /// What is known.
    pub(crate) fn part_needs(&self) -> Option<PartNeeds> {
        let mut state = lock(&self.state);
        if let ProfileState::UnderWay(marks, parts) = &*state
            && let Some(times) = marks.elapsed_times()
            && let Some(total) = times.last().copied()
        {
            let inner = times.get(1..).unwrap_or_default();
            let needed_after = parts.iter().copied().zip(inner.iter().copied()).collect();
            *state = ProfileState::Known(PartNeeds { needed_after, total });
        }
        match &*state {
            ProfileState::Known(needs) => Some(needs.clone()),
            _ => None,
        }
    }
}
