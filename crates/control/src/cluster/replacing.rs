//! Has tasks move to where they answer soonest, when links or nodes change: observe, plan, judge,
//! move.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tessera_core::{Result, lock};
use tessera_plan::placement::{
    ModelPlan, PlacementLayer, PlacementPlan, PlacementProblem, evaluate_placement, find_violation,
};

use super::move_gate::{MoveGain, MoveGate, Verdict};
use super::observed::{LearnedFactors, ObservedProblem, UNKNOWN_MS};
use super::placement_choice::PlacementChoice;
use super::plan_status::{ClusterPlanStatus, LinkStatus, MoveStatus, TaskPlanStatus};

/// How often it is looked whether something is better elsewhere.
pub(super) const REPLACING_INTERVAL: Duration = Duration::from_millis(250);
/// Tasks that are placed together.
pub(super) const MOST_TASKS: usize = 16;
/// Groups of tasks whose plans are remembered.
const MOST_GROUPS: usize = 64;
/// Moves that are remembered.
const MOST_MOVES: usize = 100;
/// How fast it is assumed that weights get to a node.
const FETCH_BYTES_PER_SECOND: f64 = 10e6;

/// Decides which tasks move.
pub(super) struct Replacer {
    pub(super) choice: PlacementChoice,
    state: Mutex<ReplacerState>,
}

#[derive(Default)]
struct ReplacerState {
    factors: LearnedFactors,
    gates: HashMap<String, MoveGate>,
    /// The last problem of each group of tasks, roughly, and what came of it.
    planned: HashMap<Vec<String>, (PlacementProblem, PlacementPlan)>,
    status: ClusterPlanStatus,
    moves: VecDeque<MoveStatus>,
}

/// A task that is to move.
#[derive(Clone, Debug)]
pub(super) struct TaskMove {
    pub(super) task: String,
    pub(super) nodes: Vec<Arc<str>>,
    before: Vec<Arc<str>>,
    gain: MoveGain,
}

impl Replacer {
    pub(super) fn new(choice: PlacementChoice) -> Self {
        Self { choice, state: Mutex::default() }
    }

    /// Lets what was seen of units be looked at and changed.
    pub(super) fn with_factors<T>(&self, look: impl FnOnce(&mut LearnedFactors) -> T) -> T {
        look(&mut lock(&self.state).factors)
    }

    /// Where these tasks are best placed; `None` where that can't be known. May take a while.
    pub(super) fn plan_anew(&self, observed: &ObservedProblem) -> Option<Vec<Vec<Arc<str>>>> {
        let plan = self.find_plan(&observed.problem).inspect_err(|error| {
            tracing::warn!(%error, "tasks are placed without a plan");
        });
        let plan = plan.ok()?;
        let is_known =
            |(number, model): (usize, &ModelPlan)| has_times(observed, number, &model.nodes);
        let is_known = plan.models.iter().enumerate().all(is_known);
        is_known.then(|| plan.models.iter().map(|model| names_of(observed, &model.nodes)).collect())
    }

    /// What is to move now. May take a while.
    pub(super) fn judge(
        &self,
        observed: &ObservedProblem,
        links: Vec<LinkStatus>,
    ) -> Vec<TaskMove> {
        let planned = self.plan_when_changed(&observed.problem);
        let mut state = lock(&self.state);
        let status = ClusterPlanStatus {
            strategy: self.choice.name(),
            reason: None,
            tasks: Vec::new(),
            links,
            moves: Vec::new(),
            problem: Some(observed.problem.clone()),
        };
        let plan = match planned {
            Ok(plan) => plan,
            Err(error) => {
                state.status = ClusterPlanStatus { reason: Some(error.to_string()), ..status };
                return Vec::new();
            }
        };
        let Some(current) = &observed.current else { return Vec::new() };
        let names: Vec<String> =
            observed.tasks.iter().map(|blocks| blocks.task.name.clone()).collect();
        let stays = find_violation(&observed.problem, current).is_none();
        let now_seconds = evaluate_placement(&observed.problem, current);
        let then_seconds = evaluate_placement(&observed.problem, &plan);
        let now = Instant::now();
        let (mut moves, mut tasks) = (Vec::new(), Vec::new());
        for (number, name) in names.iter().enumerate() {
            let (from, to) = (&current.models[number].nodes, &plan.models[number].nodes);
            let is_reachable = stays || is_valid_alone(observed, number);
            let before = now_seconds.models[number].latency_seconds;
            let is_measured = has_times(observed, number, from);
            let gain = MoveGain {
                current_seconds: is_reachable.then_some(before),
                planned_seconds: then_seconds.models[number].latency_seconds,
                moving_seconds: moving_seconds(observed, number, to),
            };
            let gate = state.gates.entry(name.clone()).or_default();
            let verdict = if from == to {
                gate.forget_wish();
                None
            } else if !has_times(observed, number, to) || (is_reachable && !is_measured) {
                Some(Verdict::Stay("nodes have not found out yet how long it takes there".into()))
            } else {
                Some(gate.judge(to, &gain, now))
            };
            let is_moving = verdict == Some(Verdict::Move);
            tasks.push(TaskPlanStatus {
                task: name.clone(),
                input_node: observed.problem.models[number].input.clone().unwrap_or_default(),
                nodes: node_names(observed, from),
                planned_nodes: node_names(observed, to),
                expected_ms: gain.current_seconds.map(|seconds| seconds * 1e3),
                planned_ms: gain.planned_seconds * 1e3,
                requests_per_minute: observed.requests[number],
                moves: is_moving,
                reason: match verdict {
                    Some(Verdict::Stay(reason)) => Some(reason),
                    _ => None,
                },
            });
            if is_moving {
                let (nodes, before) = (names_of(observed, to), names_of(observed, from));
                moves.push((number, TaskMove { task: name.clone(), nodes, before, gain }));
            }
        }
        state.status = ClusterPlanStatus { tasks, ..status };
        // Some may stay for now: each that moves must fit beside them.
        let mut mixed = current.clone();
        let mut fitting = Vec::with_capacity(moves.len());
        for (number, found) in moves {
            let before = std::mem::replace(&mut mixed.models[number], plan.models[number].clone());
            if stays && find_violation(&observed.problem, &mixed).is_some() {
                mixed.models[number] = before;
            } else {
                fitting.push(found);
            }
        }
        fitting
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

    /// Tasks begin to move.
    pub(super) fn begin_moves(&self, moves: &[TaskMove]) {
        let decided = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut state = lock(&self.state);
        for found in moves {
            let gain = found.gain;
            let before_ms = gain.current_seconds.map(|seconds| seconds * 1e3);
            let names =
                |nodes: &[Arc<str>]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>();
            tracing::info!(
                task = found.task,
                from = %distinct(&found.before),
                to = %distinct(&found.nodes),
                before_ms,
                after_ms = gain.planned_seconds * 1e3,
                "moving a task"
            );
            state.moves.push_back(MoveStatus {
                task: found.task.clone(),
                decided_ms: u64::try_from(decided.as_millis()).unwrap_or(u64::MAX),
                from: names(&found.before),
                to: names(&found.nodes),
                before_ms,
                after_ms: gain.planned_seconds * 1e3,
                took_ms: None,
                error: None,
            });
        }
        while state.moves.len() > MOST_MOVES {
            state.moves.pop_front();
        }
    }

    /// Tasks have moved, or could not.
    pub(super) fn end_moves(&self, moves: &[TaskMove], took: Duration, result: &Result<()>) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        for found in moves {
            let gate = state.gates.entry(found.task.clone()).or_default();
            match result {
                Ok(()) => gate.note_move(now),
                Err(_) => gate.note_failure(now),
            }
            let status = state.moves.iter_mut().rev().find(|status| status.task == found.task);
            if let Some(status) = status {
                match result {
                    Ok(()) => status.took_ms = Some(took.as_secs_f64() * 1e3),
                    Err(error) => status.error = Some(error.to_string()),
                }
            }
        }
    }

    /// What it would do and why.
    pub(super) fn plan_status(&self) -> ClusterPlanStatus {
        let state = lock(&self.state);
        let moves = state.moves.iter().cloned().collect();
        ClusterPlanStatus { moves, strategy: self.choice.name(), ..state.status.clone() }
    }

    /// Plans where the problem is another than the last, by more than what changes all the time.
    fn plan_when_changed(&self, problem: &PlacementProblem) -> Result<PlacementPlan> {
        let rough = rounded(problem);
        let group: Vec<String> = problem.models.iter().map(|model| model.name.clone()).collect();
        if let Some((known, plan)) = lock(&self.state).planned.get(&group)
            && *known == rough
        {
            return Ok(plan.clone());
        }
        let plan = self.find_plan(problem)?;
        let mut state = lock(&self.state);
        if state.planned.len() >= MOST_GROUPS {
            state.planned.clear();
        }
        state.planned.insert(group, (rough, plan.clone()));
        Ok(plan)
    }

    fn find_plan(&self, problem: &PlacementProblem) -> Result<PlacementPlan> {
        Ok(self.choice.find_plan(problem)?.plan)
    }
}

/// Whether a task by itself may stay where it is.
fn is_valid_alone(observed: &ObservedProblem, task: usize) -> bool {
    let Some(current) = &observed.current else { return false };
    let models = vec![observed.problem.models[task].clone()];
    let problem = PlacementProblem { models, ..observed.problem.clone() };
    let plan = PlacementPlan { models: vec![current.models[task].clone()] };
    find_violation(&problem, &plan).is_none()
}

/// Whether it is known how long each block of a task takes at these nodes.
fn has_times(observed: &ObservedProblem, task: usize, nodes: &[usize]) -> bool {
    let problem = &observed.problem;
    let layers = problem.models[task].layers.iter().zip(nodes);
    let time = |(layer, &node): (&PlacementLayer, &usize)| {
        layer.times_ms.get(&problem.nodes[node].name).is_some_and(|time| *time < UNKNOWN_MS)
    };
    layers.into_iter().all(time)
}

/// What fetching costs each request of the next minute.
fn moving_seconds(observed: &ObservedProblem, task: usize, nodes: &[usize]) -> f64 {
    let seconds = observed.missing_bytes(task, nodes) as f64 / FETCH_BYTES_PER_SECOND;
    seconds / observed.requests[task].max(1.0)
}

fn names_of(observed: &ObservedProblem, nodes: &[usize]) -> Vec<Arc<str>> {
    nodes.iter().map(|&node| Arc::clone(&observed.nodes[node])).collect()
}

fn node_names(observed: &ObservedProblem, nodes: &[usize]) -> Vec<String> {
    nodes.iter().map(|&node| observed.nodes[node].to_string()).collect()
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
) -> Vec<LinkStatus> {
    let from_node = nodes.iter().filter(|(_, node)| node.is_attached());
    let links = from_node.flat_map(|(from, node)| {
        node.links.iter().map(|link| LinkStatus {
            from: from.clone(),
            to: link.to.clone(),
            round_trip_ms: link.round_trip.map(|time| time.as_secs_f64() * 1e3),
            megabits_per_second: link.bits_per_second.map(|rate| rate / 1e6),
            probe_bytes: link.probe_bytes,
            is_cut: link.is_cut,
        })
    });
    links.collect()
}
