//! How uncertain the requests at an exit were, counted by size: how many would leave follows from
//! it, whatever the threshold.

use serde::{Deserialize, Serialize};

/// How many requests were how uncertain.
///
/// Entropies of classifiers that know what they do are small: the steps of the counts are finer
/// there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntropyCounts(pub [u64; EntropyCounts::STEPS]);

impl EntropyCounts {
    /// Steps from 0, for certain, to 1, for no idea.
    pub const STEPS: usize = 32;

    /// The step that an entropy is in.
    pub fn step_of(entropy: f64) -> usize {
        let step = entropy.clamp(0.0, 1.0).sqrt() * Self::STEPS as f64;
        (step as usize).min(Self::STEPS - 1)
    }

    /// Where a step begins; that after the last begins where the last ends.
    pub fn step_start(step: usize) -> f64 {
        let share = step as f64 / Self::STEPS as f64;
        share * share
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }

    /// Adds what somebody else has counted.
    pub fn add_counts(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }

    /// What was counted since; all of it where counting has begun anew.
    pub fn counted_since(&self, before: &Self) -> Self {
        let is_later = self.0.iter().zip(before.0).all(|(now, before)| *now >= before);
        if !is_later {
            return *self;
        }
        let mut since = *self;
        since.0.iter_mut().zip(before.0).for_each(|(count, before)| *count -= before);
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entropy_is_in_a_step_that_begins_before_it_and_ends_after_it() {
        for thousandth in 0..=1000 {
            let entropy = f64::from(thousandth) / 1000.0;
            let step = EntropyCounts::step_of(entropy);
            assert!(EntropyCounts::step_start(step) <= entropy);
            assert!(entropy <= EntropyCounts::step_start(step + 1));
        }
        assert_eq!(EntropyCounts::step_of(f64::INFINITY), EntropyCounts::STEPS - 1);
    }

    #[test]
    fn what_was_counted_since_is_the_difference_unless_counting_began_anew() {
        let mut before = EntropyCounts::default();
        before.0[3] = 5;
        let mut now = before;
        now.0[4] = 2;
        assert_eq!(now.counted_since(&before).0[3..5], [0, 2]);
        let mut anew = EntropyCounts::default();
        anew.0[3] = 1;
        assert_eq!(anew.counted_since(&before), anew);
        anew.add_counts(&now);
        assert_eq!(anew.0[3..5], [6, 2]);
        assert!(EntropyCounts::default().is_empty() && !anew.is_empty());
    }
}
