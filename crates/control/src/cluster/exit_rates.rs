//! How many requests leave at exits, at whatever threshold: learnt from how uncertain they were.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tessera_core::ContentHash;
use tessera_deploy::{EntropyCounts, PlannedTask, TaskRoute, UnitId};

use super::node_table::KnownNode;

/// After so many others a request counts half.
const HALF_LIFE: f64 = 500.0;
/// Requests from which on something is said.
const FEWEST_REQUESTS: f64 = 20.0;

/// An exit of a task. Of another model under the same names nothing is known.
type ExitKey = (String, String, ContentHash);

/// How uncertain requests were at exits lately. Units that several tasks share count for each.
#[derive(Default)]
pub(super) struct LearnedExits {
    /// What units had counted when they were last looked at, by node.
    counted: HashMap<(String, UnitId), EntropyCounts>,
    exits: HashMap<ExitKey, RecentEntropies>,
}

/// How many were how uncertain; earlier ones count less and less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RecentEntropies([f64; EntropyCounts::STEPS]);

impl RecentEntropies {
    fn add_counts(&mut self, more: &EntropyCounts) {
        let total: u64 = more.0.iter().sum();
        let fades = 0.5f64.powf(total as f64 / HALF_LIFE);
        for (known, more) in self.0.iter_mut().zip(more.0) {
            *known = *known * fades + more as f64;
        }
    }

    /// Share of requests whose entropy is at most a threshold; those of a step are taken to be
    /// spread evenly.
    fn share_within(&self, threshold: f64) -> Option<f64> {
        let total: f64 = self.0.iter().sum();
        if total < FEWEST_REQUESTS {
            return None;
        }
        let last = EntropyCounts::step_of(threshold);
        let (start, end) = (EntropyCounts::step_start(last), EntropyCounts::step_start(last + 1));
        let within = ((threshold - start) / (end - start)).clamp(0.0, 1.0);
        let before: f64 = self.0[..last].iter().sum();
        Some(((before + within * self.0[last]) / total).clamp(0.0, 1.0))
    }
}

impl LearnedExits {
    /// Looks at what units have counted since the last time, for the tasks on these routes.
    pub(super) fn update(
        &mut self,
        nodes: &BTreeMap<String, KnownNode>,
        routes: &BTreeMap<String, Arc<TaskRoute>>,
        wished: &BTreeMap<String, Arc<PlannedTask>>,
    ) {
        let mut news: HashMap<&UnitId, EntropyCounts> = HashMap::new();
        let mut counted = HashMap::new();
        for (name, node) in nodes {
            for (unit, report) in node.units.iter().filter(|(_, it)| !it.entropies.is_empty()) {
                let key = (name.clone(), unit.clone());
                let before = self.counted.remove(&key).unwrap_or_default();
                let since = report.entropies.counted_since(&before);
                news.entry(unit).or_default().add_counts(&since);
                counted.insert(key, report.entropies);
            }
        }
        self.counted = counted;
        self.exits.retain(|(task, ..), _| wished.contains_key(task));
        for route in routes.values() {
            let heads = route.steps.iter().filter_map(|step| Some((step, step.exit?)));
            for (step, exit) in heads {
                let more = news.get(&step.unit).filter(|more| !more.is_empty());
                let key = wished.get(&route.task).zip(route.exits.get(exit));
                let key = key.and_then(|(task, exit)| exit_key(task, &exit.name));
                if let Some((key, more)) = key.zip(more) {
                    self.exits.entry(key).or_default().add_counts(more);
                }
            }
        }
    }

    /// Share of the requests that get to an exit which would leave at a threshold; `None` where too
    /// few got there.
    pub(super) fn rate(&self, task: &PlannedTask, exit: &str, threshold: f32) -> Option<f64> {
        self.exits.get(&exit_key(task, exit)?)?.share_within(f64::from(threshold))
    }
}

fn exit_key(task: &PlannedTask, exit: &str) -> Option<ExitKey> {
    let known = task.graph.exits.iter().find(|known| known.output == exit)?;
    let head = task.graph.blocks.get(known.head)?.block;
    Some((task.name.clone(), exit.to_owned(), head))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(f64, u64)]) -> EntropyCounts {
        let mut counts = EntropyCounts::default();
        for (entropy, count) in of {
            counts.0[EntropyCounts::step_of(*entropy)] += count;
        }
        counts
    }

    #[test]
    fn how_many_leave_follows_for_every_threshold() {
        let mut recent = RecentEntropies::default();
        recent.add_counts(&counts(&[(0.05, 10)]));
        // Ten are too few to say anything.
        assert_eq!(recent.share_within(0.5), None);
        recent.add_counts(&counts(&[(0.05, 30), (0.3, 40), (0.9, 20)]));
        let near = |threshold: f64, share: f64| {
            let found = recent.share_within(threshold).unwrap();
            assert!((found - share).abs() < 0.01, "{threshold}: {found}, {share}");
        };
        near(0.0, 0.0);
        near(0.2, 0.4);
        near(0.5, 0.8);
        near(1.0, 1.0);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut recent = RecentEntropies::default();
        recent.add_counts(&counts(&[(0.05, 1000)]));
        for _ in 0..10 {
            recent.add_counts(&counts(&[(0.9, 500)]));
        }
        assert!(recent.share_within(0.5).unwrap() < 0.01);
    }
}
