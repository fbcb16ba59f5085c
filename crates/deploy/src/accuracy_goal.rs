//! The accuracy that a task must have, and the thresholds of its exits that can be chosen for it.

use std::collections::BTreeMap;

use serde::Serialize;

/// The accuracy that a task must have: thresholds are chosen for the least latency.
#[derive(Clone, Debug, PartialEq)]
pub struct AccuracyGoal {
    /// Share of right answers where no exit is taken.
    pub accuracy: f64,
    /// Share of right answers that it must have.
    pub least_accuracy: f64,
    /// What can be chosen for each exit.
    pub exits: BTreeMap<String, ThresholdChoice>,
}

/// What can be chosen for an exit.
#[derive(Clone, Debug, PartialEq)]
pub struct ThresholdChoice {
    /// The thresholds; the first is used until more is known.
    pub settings: Vec<ThresholdSetting>,
    /// Whether somebody has set a threshold, which stays.
    pub is_pinned: bool,
}

/// A threshold of an exit, and what it brings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ThresholdSetting {
    /// Requests leave where the normalised entropy is at most this.
    pub threshold: f32,
    /// Share of right answers among those that leave.
    pub accuracy: f64,
}

impl ThresholdChoice {
    /// Share of right answers among those that leave at a threshold. For one that is not listed it
    /// is that of the next higher one, as the least certain answers are wrong most often.
    pub fn accuracy_at(&self, threshold: f32) -> Option<f64> {
        let higher = self.settings.iter().filter(|setting| setting.threshold >= threshold);
        let next = higher.min_by(|a, b| a.threshold.total_cmp(&b.threshold));
        next.map(|setting| setting.accuracy)
    }
}
