//! Has tasks move to where they answer soonest, when links or nodes change: observe, plan, judge,
//! move.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tessera_core::{Error, Result, lock};
use tessera_plan::placement::{ModelPlan, PlacementPlan, PlacementProblem};

use super::exit_rates::LearnedExits;
use super::judging::{
    Judged, TaskGates, TaskMove, ThresholdChange, has_times, judge_plan, names_of,
};
use super::learned_hops::{LearnedHops, MeasuredLink};
use super::observed::{LearnedFactors, ObservedProblem};
use super::placement_choice::PlacementChoice;
use super::plan_status::{ClusterPlanStatus, LinkStatus, MoveStatus, ThresholdChangeStatus};

/// How often it is looked whether something is better elsewhere.
pub(super) const REPLACING_INTERVAL: Duration = Duration::from_millis(250);
/// Tasks that are placed together.
pub(super) const MOST_TASKS: usize = 16;
/// Groups of tasks whose plans are remembered.
const MOST_GROUPS: usize = 64;
/// Moves that are remembered.
const MOST_MOVES: usize = 100;
/// Decides which tasks move.
pub(super) struct Replacer {
    pub(super) choice: PlacementChoice,
    state: Mutex<ReplacerState>,
}

#[derive(Default)]
struct ReplacerState {
    learned: Learned,
    gates: HashMap<String, TaskGates>,
    /// The last problem of each group of tasks, roughly, and what came of it.
    planned: HashMap<Vec<String>, KnownPlan>,
    status: ClusterPlanStatus,
    moves: VecDeque<MoveStatus>,
    threshold_changes: VecDeque<ThresholdChangeStatus>,
    /// Counts moves.
    last_move: u64,
}

/// What was seen of tasks while they ran.
#[derive(Default)]
pub(super) struct Learned {
    pub(super) factors: LearnedFactors,
    pub(super) exits: LearnedExits,
    pub(super) hops: LearnedHops,
}

/// A problem, roughly, and what came of it.
struct KnownPlan {
    problem: PlacementProblem,
    previous: Option<PlacementPlan>,
    plan: PlacementPlan,
}

impl Replacer {
    pub(super) fn new(choice: PlacementChoice) -> Self {
        Self { choice, state: Mutex::default() }
    }

    /// Lets what was seen of tasks be looked at and changed.
    pub(super) fn with_learned<T>(&self, look: impl FnOnce(&mut Learned) -> T) -> T {
        look(&mut lock(&self.state).learned)
    }

    /// Where these tasks are best placed; `None` where that can't be known. May take a while.
    pub(super) fn plan_anew(&self, observed: &ObservedProblem) -> Option<Vec<Vec<Arc<str>>>> {
        let plan = self.choice.find_plan(&observed.problem, None).inspect_err(|error| {
            tracing::warn!(%error, "tasks are placed without a plan");
        });
        let plan = plan.ok()?.plan;
        let is_known =
            |(number, model): (usize, &ModelPlan)| has_times(observed, number, &model.nodes);
        let is_known = plan.models.iter().enumerate().all(is_known);
        is_known.then(|| plan.models.iter().map(|model| names_of(observed, &model.nodes)).collect())
    }

    /// What is to be done now. May take a while.
    pub(super) fn judge(&self, observed: &ObservedProblem, links: Vec<LinkStatus>) -> Judged {
        let planned = self.plan_when_changed(observed);
        let mut state = lock(&self.state);
        let status = ClusterPlanStatus {
            strategy: self.choice.name(),
            links,
            problem: Some(observed.problem.clone()),
            ..ClusterPlanStatus::default()
        };
        let plan = match planned {
            Ok(plan) => plan,
            Err(error) => {
                state.status = ClusterPlanStatus { reason: Some(error.to_string()), ..status };
                return Judged::default();
            }
        };
        let state = &mut *state;
        let Some(judged) = judge_plan(observed, &plan, &mut state.gates) else {
            return Judged::default();
        };
        state.status = ClusterPlanStatus { tasks: judged.tasks.clone(), ..status };
        judged
    }

    /// Forgets tasks that there are no more.
    pub(super) fn keep_tasks(&self, is_there: impl Fn(&str) -> bool) {
        lock(&self.state).gates.retain(|task, _| is_there(task));
    }

    /// Nothing can be planned.
    pub(super) fn note_nothing(&self, reason: &str, links: Vec<LinkStatus>) {
        lock(&self.state).status = ClusterPlanStatus {
            strategy: self.choice.name(),
            reason: Some(reason.to_owned()),
            links,
            ..ClusterPlanStatus::default()
        };
    }

    /// A task begins to move; one that it was about to make before is given up. Returns the number
    /// of the move.
    pub(super) fn begin_move(&self, found: &TaskMove) -> u64 {
        let gain = found.gain;
        let before_ms = gain.current_seconds.map(|seconds| seconds * 1e3);
        tracing::info!(
            task = found.task,
            from = %distinct(&found.before),
            to = %distinct(&found.nodes),
            before_ms,
            after_ms = gain.planned_seconds * 1e3,
            "moving a task"
        );
        let names = |nodes: &[Arc<str>]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>();
        let status = MoveStatus {
            task: found.task.clone(),
            decided_ms: milliseconds_now(),
            from: names(&found.before),
            to: names(&found.nodes),
            before_ms,
            after_ms: gain.planned_seconds * 1e3,
            took_ms: None,
            error: None,
        };
        let mut state = lock(&self.state);
        state.last_move += 1;
        let number = state.last_move;
        if let Some(gates) = state.gates.get_mut(&found.task) {
            gates.moving = Some((number, found.nodes.clone()));
        }
        remember(&mut state.moves, status);
        number
    }

    /// Whether a move is still to be made.
    pub(super) fn is_wanted(&self, task: &str, number: u64) -> bool {
        let state = lock(&self.state);
        let moving = state.gates.get(task).and_then(|gates| gates.moving.as_ref());
        moving.is_some_and(|(known, _)| *known == number)
    }

    /// A task has moved, or could not.
    pub(super) fn end_move(
        &self,
        found: &TaskMove,
        number: u64,
        took: Duration,
        result: &Result<()>,
    ) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        // One that was given up for another says nothing about that.
        if let Some(gates) = state.gates.get_mut(&found.task)
            && gates.moving.as_ref().is_some_and(|(known, _)| *known == number)
        {
            gates.moving = None;
            match result {
                Ok(()) => gates.moves.note_move(now),
                Err(_) => gates.moves.note_failure(now),
            }
        }
        let names: Vec<&str> = found.nodes.iter().map(|node| &**node).collect();
        let status = state.moves.iter_mut().rev().find(|status| {
            status.task == found.task && status.took_ms.is_none() && status.to == names
        });
        if let Some(status) = status {
            match result {
                Ok(()) => status.took_ms = Some(took.as_secs_f64() * 1e3),
                Err(error) => status.error = Some(error.to_string()),
            }
        }
    }

    /// Thresholds were chosen.
    pub(super) fn note_thresholds(&self, change: &ThresholdChange) {
        let before_ms = change.gain.current_seconds.map(|seconds| seconds * 1e3);
        let (from, to) = (&change.before, &change.thresholds);
        tracing::info!(task = change.task, ?from, ?to, before_ms, "thresholds are chosen");
        let status = ThresholdChangeStatus {
            task: change.task.clone(),
            decided_ms: milliseconds_now(),
            from: change.before.clone(),
            to: change.thresholds.clone(),
            before_ms,
            after_ms: change.gain.planned_seconds * 1e3,
        };
        let mut state = lock(&self.state);
        if let Some(gates) = state.gates.get_mut(&change.task) {
            gates.thresholds.note_move(Instant::now());
        }
        remember(&mut state.threshold_changes, status);
    }

    /// What it would do and why.
    pub(super) fn plan_status(&self) -> ClusterPlanStatus {
        let state = lock(&self.state);
        ClusterPlanStatus {
            moves: state.moves.iter().cloned().collect(),
            threshold_changes: state.threshold_changes.iter().cloned().collect(),
            strategy: self.choice.name(),
            ..state.status.clone()
        }
    }

    /// Plans where the problem is another than the last, by more than what changes all the time.
    fn plan_when_changed(&self, observed: &ObservedProblem) -> Result<PlacementPlan> {
        let (rough, previous) = (rounded(&observed.problem), observed.previous_plan());
        let models = &observed.problem.models;
        let group: Vec<String> = models.iter().map(|model| model.name.clone()).collect();
        if let Some(known) = lock(&self.state).planned.get(&group)
            && known.problem == rough
            && known.previous == previous
        {
            return Ok(known.plan.clone());
        }
        let plan = self.choice.find_plan(&observed.problem, previous.as_ref())?.plan;
        let mut state = lock(&self.state);
        if state.planned.len() >= MOST_GROUPS {
            state.planned.clear();
        }
        let known = KnownPlan { problem: rough, previous, plan: plan.clone() };
        state.planned.insert(group, known);
        Ok(plan)
    }
}

/// What a move ends with that is given up for another, or for none.
pub(super) fn given_up() -> Error {
    Error::lost("another plan became the better one meanwhile")
}

fn milliseconds_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Notes what happened, and forgets what was long ago.
fn remember<T>(list: &mut VecDeque<T>, status: T) {
    list.push_back(status);
    while list.len() > MOST_MOVES {
        list.pop_front();
    }
}

/// Nodes in the order in which requests pass them.
fn distinct(nodes: &[Arc<str>]) -> String {
    let runs = nodes.chunk_by(|one, other| one == other);
    runs.map(|run| &*run[0]).collect::<Vec<_>>().join(", ")
}

/// A problem whose figures are rounded to what makes a difference.
fn rounded(problem: &PlacementProblem) -> PlacementProblem {
    // Steps of three hundredths.
    let round = |figure: f64| {
        if figure > 0.0 { (figure.ln() / 0.03).round() } else { figure }
    };
    let round_table = |table: &[Vec<Option<f64>>]| {
        table.iter().map(|row| row.iter().map(|cell| cell.map(round)).collect()).collect()
    };
    let mut rough = problem.clone();
    rough.throughput_bits_per_second = round_table(&problem.throughput_bits_per_second);
    rough.latency_ms = round_table(&problem.latency_ms);
    for node in &mut rough.nodes {
        node.memory_bytes = node.memory_bytes.map(round);
    }
    for layer in rough.models.iter_mut().flat_map(|model| &mut model.layers) {
        layer.times_ms = layer.times_ms.iter().map(|(k, time)| (k.clone(), round(*time))).collect();
        for setting in &mut layer.exit {
            setting.rate = (setting.rate * 50.0).round();
        }
    }
    rough
}

/// The links that nodes have reported.
pub(super) fn link_statuses(
    nodes: &BTreeMap<String, super::node_table::KnownNode>,
    hops: &LearnedHops,
) -> Vec<LinkStatus> {
    let from_node = nodes.iter().filter(|(_, node)| node.is_attached());
    let links = from_node.flat_map(|(from, node)| {
        node.links.iter().map(|link| LinkStatus {
            from: from.clone(),
            to: link.to.clone(),
            round_trip_ms: link.round_trip.map(|time| time.as_secs_f64() * 1e3),
            megabits_per_second: link.bits_per_second.map(|rate| rate / 1e6),
            hop_ms: MeasuredLink::of(link).map(|known| hops.hop_ms(from, &link.to, known)),
            probe_bytes: link.probe_bytes,
            is_cut: link.is_cut,
            is_filtered: link.is_filtered,
        })
    });
    links.collect()
}
