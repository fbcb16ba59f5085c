//! What metrics, events and spans all tell of a request that has ended.

use tessera_deploy::HopTiming;

use crate::ended_request::{EndedRequest, RequestOutcome};

/// The unit of an instance: `UNIT.REPLICA.GENERATION`.
pub(crate) fn unit_of(instance: &str) -> &str {
    instance.split_once('.').map_or(instance, |(unit, _)| unit)
}

/// How a request ended, in a word.
pub(crate) fn outcome_name(ended: &EndedRequest<'_>) -> &'static str {
    match ended.outcome {
        RequestOutcome::Answered => "answered",
        RequestOutcome::Degraded(_) => "degraded",
        RequestOutcome::Failed(_) => "failed",
        RequestOutcome::Refused(_) => "refused",
        RequestOutcome::Cancelled => "cancelled",
    }
}

/// Why a request did not end with a full answer, where there is something to say.
pub(crate) fn outcome_reason(ended: &EndedRequest<'_>) -> Option<String> {
    match ended.outcome {
        RequestOutcome::Degraded(reason) => Some(reason.to_owned()),
        RequestOutcome::Failed(error) | RequestOutcome::Refused(error) => Some(error.to_string()),
        RequestOutcome::Answered | RequestOutcome::Cancelled => None,
    }
}

/// Where the time of a request went, in nanoseconds.
///
/// Rows of a request may travel on their own, side by side; their times are added up, so that
/// computing may be more than all of it.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimes {
    /// From its acceptance to its end.
    pub all: u64,
    /// Neither of the following: at the dispatcher, on its way, in queues.
    pub waited: u64,
    /// What of that was for weights that were not in memory.
    pub loading: u64,
    /// Computing.
    pub computed: u64,
    /// What the rest took in units.
    pub overhead: u64,
}

impl RequestTimes {
    /// Adds up what a request says of itself.
    pub fn from_ended(ended: &EndedRequest<'_>) -> Self {
        let all = ended.ended.saturating_sub(ended.accepted);
        let (mut loading, mut computed, mut overhead) = (0_u64, 0_u64, 0_u64);
        for hop in ended.hop_timings {
            loading = loading.saturating_add(hop.loading);
            computed = computed.saturating_add(hop.computed);
            overhead = overhead.saturating_add(hop.overhead);
        }
        let waited = all.saturating_sub(computed).saturating_sub(overhead);
        Self { all, waited, loading, computed, overhead }
    }
}

/// How many runs of the unit that it came to first a request made; a part of one where others were
/// in its batch.
pub fn first_unit_runs(ended: &EndedRequest<'_>) -> f64 {
    let first = ended.hop_timings.first().map(|hop| unit_of(&hop.instance));
    let of_first = ended.hop_timings.iter().filter(|hop| Some(unit_of(&hop.instance)) == first);
    of_first.map(run_fraction).sum()
}

/// A request's share of a run. Every request of a batch has a timing of the same run: with its
/// share of the rows, the run is counted once in the end, whoever it was for.
pub(crate) fn run_fraction(hop: &HopTiming) -> f64 {
    let batch = hop.batch.max(1);
    hop.rows.clamp(1, batch) as f64 / batch as f64
}
