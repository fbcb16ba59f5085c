//! What became of the requests of a soak.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tessera_core::{Error, Result};

use super::soak_request::{AnswerVerdict, SoakRequest};
use crate::test_client::HttpAnswer;

/// Counts of what became of requests; each is in one of them.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SoakTally {
    pub(crate) asked: u64,
    /// Answered, and right.
    pub(crate) right: u64,
    /// Refused for now (429, 503, 504), by reason.
    pub(crate) refused: BTreeMap<String, u64>,
    /// Answered with something else, by what.
    pub(crate) wrong: BTreeMap<String, u64>,
    /// Never answered, by what happened.
    pub(crate) unanswered: BTreeMap<String, u64>,
    /// More answers than requests.
    pub(crate) answered_twice: u64,
    pub(crate) slowest_ms: f64,
}

impl SoakTally {
    /// Counts a request that took so long.
    pub(crate) fn count_request(
        &mut self,
        request: &SoakRequest,
        answer: &Result<HttpAnswer>,
        took: Duration,
    ) {
        self.asked += 1;
        self.slowest_ms = self.slowest_ms.max(took.as_secs_f64() * 1e3);
        match answer.as_ref().map(|answer| request.judge_answer(answer)) {
            Ok(AnswerVerdict::Right) => self.right += 1,
            Ok(AnswerVerdict::Refused(why)) => add_one(&mut self.refused, why),
            Ok(AnswerVerdict::Wrong(what)) => add_one(&mut self.wrong, what),
            Err(error) => add_one(&mut self.unanswered, error.to_string()),
        }
    }

    /// The sum of the one and the other.
    pub(crate) fn add_tally(&mut self, other: Self) {
        self.asked += other.asked;
        self.right += other.right;
        self.answered_twice += other.answered_twice;
        self.slowest_ms = self.slowest_ms.max(other.slowest_ms);
        merge_counts(&mut self.refused, other.refused);
        merge_counts(&mut self.wrong, other.wrong);
        merge_counts(&mut self.unanswered, other.unanswered);
    }

    /// An error unless every request was answered once, and none wrong.
    pub(crate) fn require_sound(&self) -> Result<()> {
        let (wrong, unanswered) = (sum_counts(&self.wrong), sum_counts(&self.unanswered));
        let twice = self.answered_twice;
        if wrong + unanswered + twice == 0 {
            return Ok(());
        }
        Err(Error::engine(format!(
            "{wrong} answers were wrong, {unanswered} requests never answered, {twice} answered \
             twice"
        )))
    }
}

/// Counts one more of a kind.
pub(crate) fn add_one(counts: &mut BTreeMap<String, u64>, kind: String) {
    *counts.entry(kind).or_default() += 1;
}

/// How many there are of all kinds.
pub(crate) fn sum_counts(counts: &BTreeMap<String, u64>) -> u64 {
    counts.values().sum()
}

fn merge_counts(counts: &mut BTreeMap<String, u64>, others: BTreeMap<String, u64>) {
    for (kind, count) in others {
        *counts.entry(kind).or_default() += count;
    }
}
