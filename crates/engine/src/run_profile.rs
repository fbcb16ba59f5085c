//! When a run on a GPU needs each part of a block's weights, as it was measured.

use std::sync::Mutex;
use std::time::Duration;

use tessera_core::lock;
use tessera_cuda::StreamMarks;

/// Which runs are measured: algorithms are chosen and memory is laid out in those before. The
/// shortest of them is what a run takes that nothing else delays.
const MEASURED_RUNS: usize = 8;
/// The first of them.
pub(crate) const FIRST_MEASURED_RUN: usize = 4;

/// When a run needs each part of a block's weights.
#[derive(Default)]
pub(crate) struct RunProfile(Mutex<ProfileState>);

struct ProfileState {
    /// Runs so far, and which is the last that is measured.
    runs: usize,
    last_measured: usize,
    /// The points in the stream where a run began, needed each of these parts, and ended.
    under_way: Vec<(StreamMarks, Vec<usize>)>,
    /// Of the shortest run so far.
    shortest: Option<PartNeeds>,
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

    /// How long a run takes from where it needs each of so many parts first to where it needs the
    /// next one. What it does before it needs any is the first's.
    pub(crate) fn times_by_part(&self, parts: usize) -> Vec<Duration> {
        let mut in_order = self.needed_after.clone();
        in_order.sort_by_key(|(_, after)| *after);
        let mut times = vec![Duration::ZERO; parts];
        let begin = in_order.first().map_or(self.total, |(_, after)| *after);
        if let Some(first) = times.first_mut() {
            *first += begin;
        }
        for (place, (part, after)) in in_order.iter().enumerate() {
            let next = in_order.get(place + 1).map_or(self.total, |(_, next)| *next);
            if let Some(time) = times.get_mut(*part) {
                *time += next.saturating_sub(*after);
            }
        }
        times
    }
}

impl Default for ProfileState {
    fn default() -> Self {
        let last_measured = FIRST_MEASURED_RUN + MEASURED_RUNS - 1;
        Self { runs: 0, last_measured, under_way: Vec::new(), shortest: None }
    }
}

impl RunProfile {
    /// A run of which all weights are there begins: whether it is to be measured.
    pub(crate) fn begin_run(&self) -> bool {
        let mut state = lock(&self.0);
        state.runs += 1;
        (FIRST_MEASURED_RUN..=state.last_measured).contains(&state.runs)
    }

    /// What was measured, once the GPU has passed it: the begin, these parts, and the end.
    pub(crate) fn note_marks(&self, marks: StreamMarks, parts: Vec<usize>) {
        lock(&self.0).under_way.push((marks, parts));
    }

    /// Forgets what is known, and measures so many of the next runs.
    pub(crate) fn restart(&self, runs: usize) {
        let last_measured = FIRST_MEASURED_RUN + runs;
        *lock(&self.0) = ProfileState { last_measured, ..ProfileState::default() };
    }

    /// What is known.
    pub(crate) fn part_needs(&self) -> Option<PartNeeds> {
        let mut state = lock(&self.0);
        let ProfileState { under_way, shortest, .. } = &mut *state;
        under_way.retain(|(marks, parts)| {
            let Some(times) = marks.elapsed_times() else { return true };
            let Some(total) = times.last().copied() else { return false };
            if shortest.as_ref().is_none_or(|shortest| total < shortest.total) {
                let inner = times.get(1..).unwrap_or_default();
                let needed_after = parts.iter().copied().zip(inner.iter().copied()).collect();
                *shortest = Some(PartNeeds { needed_after, total });
            }
            false
        });
        shortest.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_what_runs_until_the_next_one_is_needed() {
        let milliseconds = Duration::from_millis;
        let needed_after = vec![(1, milliseconds(2)), (3, milliseconds(9)), (2, milliseconds(4))];
        let needs = PartNeeds { needed_after, total: milliseconds(10) };
        assert_eq!(needs.times_by_part(4), [2, 2, 5, 1].map(milliseconds));
        let whole = PartNeeds { total: milliseconds(3), ..PartNeeds::default() };
        assert_eq!(whole.times_by_part(1), [milliseconds(3)]);
    }
}
