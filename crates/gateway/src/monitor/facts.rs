//! What metrics, events and spans all tell of a request that has ended.

use crate::dispatcher::{Ended, EndedAs};

/// The block of an instance: `BLOCK.REPLICA.GENERATION`.
pub(super) fn block_of(instance: &str) -> &str {
    instance.split_once('.').map_or(instance, |(block, _)| block)
}

/// How a request ended, in a word.
pub(super) fn outcome_of(ended: &Ended<'_>) -> &'static str {
    match ended.outcome {
        EndedAs::Answered => "answered",
        EndedAs::Degraded(_) => "degraded",
        EndedAs::Failed(_) => "failed",
        EndedAs::Refused(_) => "refused",
        EndedAs::GivenUp => "given_up",
    }
}

/// Why a request did not end with a full answer, where there is something to say.
pub(super) fn why(ended: &Ended<'_>) -> Option<String> {
    match ended.outcome {
        EndedAs::Degraded(why) => Some(why.to_owned()),
        EndedAs::Failed(error) | EndedAs::Refused(error) => Some(error.to_string()),
        EndedAs::Answered | EndedAs::GivenUp => None,
    }
}

/// Where the time of a request went, in nanoseconds.
///
/// Rows of a request may travel on their own, side by side; their times are added up, so that computing
/// may be more than all of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// From its acceptance to its end.
    pub(super) all: u64,
    /// Neither of the following: at the dispatcher, on its way, in queues.
    pub(super) waited: u64,
    /// Computing.
    pub(super) computed: u64,
    /// What the rest took in blocks.
    pub(super) overhead: u64,
}

impl Times {
    pub(super) fn of(ended: &Ended<'_>) -> Self {
        let all = ended.ended.saturating_sub(ended.accepted);
        let (mut computed, mut overhead) = (0_u64, 0_u64);
        for record in ended.records {
            computed = computed.saturating_add(record.computed);
            overhead = overhead.saturating_add(record.overhead);
        }
        let waited = all.saturating_sub(computed).saturating_sub(overhead);
        Self { all, waited, computed, overhead }
    }
}
