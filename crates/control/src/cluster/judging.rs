//! What is to be done about a plan: which tasks move, and which thresholds are chosen, as far as it
//! pays and lasts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use tessera_plan::placement::{
    ModelPlan, PlacementLayer, PlacementModel, PlacementPlan, PlacementProblem, evaluate_placement,
    find_violation,
};

use super::degrading::UNKNOWN_MS;
use super::degrading::elsewhere_reason;
use super::move_gate::{MOVES, MoveGain, MoveGate, THRESHOLDS, Verdict};
use super::observed::ObservedProblem;
use super::plan_status::{ExitPlanStatus, TaskPlanStatus};

/// What is to be done now.
#[derive(Debug, Default)]
pub(super) struct Judged {
    pub(super) moves: Vec<TaskMove>,
    pub(super) thresholds: Vec<ThresholdChange>,
    /// How it is with each task.
    pub(super) tasks: Vec<TaskPlanStatus>,
}

/// A task that is to move.
#[derive(Clone, Debug)]
pub(super) struct TaskMove {
    pub(super) task: String,
    pub(super) nodes: Vec<Arc<str>>,
    pub(super) before: Vec<Arc<str>>,
    pub(super) gain: MoveGain,
}

/// A task whose exits are to have other thresholds.
#[derive(Clone, Debug)]
pub(super) struct ThresholdChange {
    pub(super) task: String,
    /// By exit.
    pub(super) thresholds: BTreeMap<String, f32>,
    pub(super) before: BTreeMap<String, f32>,
    pub(super) gain: MoveGain,
}

/// When a task may change.
#[derive(Debug)]
pub(super) struct TaskGates {
    pub(super) moves: MoveGate,
    pub(super) thresholds: MoveGate,
    /// The number of the move that it is about to make, and where to.
    pub(super) moving: Option<(u64, Vec<Arc<str>>)>,
    /// Whether it may degrade, and can't where requests come in.
    has_no_exit_at_input: bool,
}

impl Default for TaskGates {
    fn default() -> Self {
        let (moves, thresholds) = (MoveGate::new(&MOVES), MoveGate::new(&THRESHOLDS));
        Self { moves, thresholds, moving: None, has_no_exit_at_input: false }
    }
}

/// What is to be done about a plan; `None` where it is not known where tasks are.
pub(super) fn judge_plan(
    observed: &ObservedProblem,
    plan: &PlacementPlan,
    gates: &mut HashMap<String, TaskGates>,
) -> Option<Judged> {
    let current = observed.current.as_ref()?;
    // Thresholds that are not accurate enough any more are no reason to go elsewhere.
    let places = without_goals(&observed.problem);
    // What it is about where tasks are: with the thresholds of the plan, wherever they are.
    let with_thresholds = mixed_plan(current, plan);
    let seconds = |problem: &PlacementProblem, plan: &PlacementPlan| -> Vec<f64> {
        let models = evaluate_placement(problem, plan).models;
        models.into_iter().map(|model| model.latency_seconds).collect()
    };
    let looked_at = Comparison {
        observed,
        current,
        plan,
        stays: find_violation(&places, current).is_none(),
        now: seconds(&places, current),
        chosen: seconds(&places, &with_thresholds),
        then: seconds(&places, plan),
        expected: [current, plan].map(|plan| seconds(&observed.measured, plan)),
        places: &places,
    };
    let mut judged = Judged::default();
    let mut moves = Vec::new();
    for (number, blocks) in observed.tasks.iter().enumerate() {
        let gates = gates.entry(blocks.task.name.clone()).or_default();
        let (thresholds, found, status) = looked_at.judge_task(number, gates);
        judged.thresholds.extend(thresholds);
        moves.extend(found.map(|found| (number, found)));
        judged.tasks.push(status);
    }
    // Some may stay for now: each that moves must fit beside them.
    let mut mixed = current.clone();
    for (number, found) in moves {
        let nodes = plan.models[number].nodes.clone();
        let before = std::mem::replace(&mut mixed.models[number].nodes, nodes);
        if looked_at.stays && find_violation(&places, &mixed).is_some() {
            mixed.models[number].nodes = before;
        } else {
            judged.moves.push(found);
        }
    }
    Some(judged)
}

/// What is today, beside what is planned.
struct Comparison<'a> {
    observed: &'a ObservedProblem,
    current: &'a PlacementPlan,
    plan: &'a PlacementPlan,
    /// The problem, where any accuracy is enough.
    places: &'a PlacementProblem,
    /// Whether everything may stay where it is.
    stays: bool,
    /// What a request of each task takes: today, with the plan's thresholds, and with all of it.
    now: Vec<f64>,
    chosen: Vec<f64>,
    then: Vec<f64>,
    /// What it really takes today and as planned: above it takes longer where it is not to be.
    expected: [Vec<f64>; 2],
}

impl Comparison<'_> {
    fn judge_task(
        &self,
        number: usize,
        gates: &mut TaskGates,
    ) -> (Option<ThresholdChange>, Option<TaskMove>, TaskPlanStatus) {
        let now = Instant::now();
        let (observed, task) = (self.observed, &self.observed.tasks[number].task.name);
        let (from, to) = (&self.current.models[number], &self.plan.models[number]);
        let is_reachable = self.stays || is_valid_alone(self.places, self.current, number);
        let is_measured = has_times(observed, number, &from.nodes);
        let is_target = |at: &[usize]| {
            gates.moving.as_ref().is_some_and(|(_, to)| *to == names_of(observed, at))
        };
        let (is_there, is_on_its_way) = (is_target(&from.nodes), is_target(&to.nodes));
        if is_there {
            // It has moved, though not all gateways may have said so yet.
            gates.moves.note_move(now);
            gates.moving = None;
        }
        let (thresholds, threshold_reason) = self.judge_thresholds(number, gates, now);
        // What it would take to stay, with whatever thresholds there are then.
        let staying = self.chosen[number].min(self.now[number]);
        let gain = MoveGain {
            current_seconds: is_reachable.then_some(staying),
            planned_seconds: self.then[number],
            moving_seconds: observed.moving_seconds(number, &to.nodes),
        };
        let verdict = if from.nodes == to.nodes {
            // Whatever it was about to do, it is where it should be.
            gates.moving = None;
            gates.moves.forget_wish();
            None
        } else if !has_times(observed, number, &to.nodes) || (is_reachable && !is_measured) {
            Some(Verdict::Stay("nodes have not found out yet how long it takes there".into()))
        } else if is_on_its_way {
            Some(Verdict::Stay("what it needs there is being fetched and started".into()))
        } else {
            Some(gates.moves.judge(&to.nodes, &gain, now))
        };
        let is_moving = verdict == Some(Verdict::Move);
        let model = &observed.problem.models[number];
        let status = TaskPlanStatus {
            task: task.clone(),
            input_node: model.input.clone().unwrap_or_default(),
            nodes: node_names(observed, &from.nodes),
            planned_nodes: node_names(observed, &to.nodes),
            expected_ms: is_reachable.then_some(self.expected[0][number] * 1e3),
            planned_ms: self.expected[1][number] * 1e3,
            requests_per_minute: observed.requests[number],
            moves: is_moving,
            reason: match verdict {
                Some(Verdict::Stay(reason)) => Some(reason),
                _ => None,
            },
            degrade_reason: self.degrade_reason(number, gates),
            exits: self.exit_statuses(number),
            least_accuracy: observed.least_accuracy(number),
            expected_accuracy: model.accuracy_with(&from.settings),
            planned_accuracy: model.accuracy_with(&to.settings),
            threshold_reason,
        };
        let found = is_moving.then(|| TaskMove {
            task: task.clone(),
            nodes: names_of(observed, &to.nodes),
            before: names_of(observed, &from.nodes),
            gain: MoveGain {
                current_seconds: is_reachable.then_some(self.expected[0][number]),
                planned_seconds: self.expected[1][number],
                ..gain
            },
        });
        (thresholds, found, status)
    }

    /// Why a task that may degrade can't where requests come in; said in the log when it is new.
    fn degrade_reason(&self, number: usize, gates: &mut TaskGates) -> Option<String> {
        let task = &self.observed.tasks[number].task;
        if !task.settings.degrade {
            return None;
        }
        let (problem, plan) = (&self.observed.problem, &self.plan.models[number]);
        let reason = self.observed.degrade_reasons[number]
            .clone()
            .or_else(|| elsewhere_reason(problem, number, &task.graph, plan));
        if let Some(reason) = reason.as_ref().filter(|_| !gates.has_no_exit_at_input) {
            tracing::warn!(task = task.name, reason, "a task can't degrade where it is cut off");
        }
        gates.has_no_exit_at_input = reason.is_some();
        reason
    }

    /// Whether other thresholds are taken now; why not, where others are planned or can't be.
    fn judge_thresholds(
        &self,
        number: usize,
        gates: &mut TaskGates,
        now: Instant,
    ) -> (Option<ThresholdChange>, Option<String>) {
        let model = &self.observed.problem.models[number];
        let known_reason = self.observed.choices[number].reason.clone();
        let (from, to) = (&self.current.models[number], &self.plan.models[number]);
        if from.settings == to.settings {
            gates.thresholds.forget_wish();
            return (None, known_reason);
        }
        // Where nothing is accurate enough, the most accurate ones are planned.
        let accuracy = |plan: &ModelPlan| model.accuracy_with(&plan.settings).unwrap_or(0.0);
        let is_accurate = match model.least_accuracy {
            Some(least) => accuracy(from) >= least - 1e-12,
            None => accuracy(from) >= accuracy(to),
        };
        let gain = MoveGain {
            current_seconds: is_accurate.then_some(self.now[number]),
            planned_seconds: self.chosen[number],
            moving_seconds: 0.0,
        };
        let target: Vec<usize> =
            to.settings.iter().map(|setting| setting.map_or(0, |at| at + 1)).collect();
        match gates.thresholds.judge(&target, &gain, now) {
            Verdict::Stay(reason) => (None, known_reason.or(Some(reason))),
            Verdict::Move => {
                let change = ThresholdChange {
                    task: self.observed.tasks[number].task.name.clone(),
                    thresholds: self.thresholds_of(number, to),
                    before: self.thresholds_of(number, from),
                    gain,
                };
                (Some(change), known_reason)
            }
        }
    }

    /// The thresholds of a plan, by exit.
    fn thresholds_of(&self, number: usize, plan: &ModelPlan) -> BTreeMap<String, f32> {
        let model = &self.observed.problem.models[number];
        let names = self.observed.choices[number].names();
        let exits = names.filter_map(|(block, name)| {
            let setting = setting_of(model, plan, block)?;
            Some((name.to_owned(), setting.threshold as f32))
        });
        exits.collect()
    }

    fn exit_statuses(&self, number: usize) -> Vec<ExitPlanStatus> {
        let model = &self.observed.problem.models[number];
        let names = self.observed.choices[number].names();
        let exits = names.filter_map(|(block, name)| {
            let now = setting_of(model, &self.current.models[number], block)?;
            let then = setting_of(model, &self.plan.models[number], block)?;
            Some(ExitPlanStatus {
                exit: name.to_owned(),
                threshold: now.threshold as f32,
                planned_threshold: then.threshold as f32,
                rate: now.rate,
                planned_rate: then.rate,
            })
        });
        exits.collect()
    }
}

fn setting_of<'a>(
    model: &'a PlacementModel,
    plan: &ModelPlan,
    block: usize,
) -> Option<&'a tessera_plan::placement::ExitSetting> {
    model.layers.get(block)?.exit.get((*plan.settings.get(block)?)?)
}

/// The nodes of one plan and the thresholds of another.
fn mixed_plan(nodes: &PlacementPlan, settings: &PlacementPlan) -> PlacementPlan {
    let models = nodes.models.iter().zip(&settings.models).map(|(nodes, settings)| ModelPlan {
        nodes: nodes.nodes.clone(),
        settings: settings.settings.clone(),
    });
    PlacementPlan { models: models.collect() }
}

fn without_goals(problem: &PlacementProblem) -> PlacementProblem {
    let mut problem = problem.clone();
    problem.models.iter_mut().for_each(|model| model.least_accuracy = None);
    problem
}

/// Whether a task by itself may stay where it is.
fn is_valid_alone(problem: &PlacementProblem, current: &PlacementPlan, task: usize) -> bool {
    let models = vec![problem.models[task].clone()];
    let problem = PlacementProblem { models, ..problem.clone() };
    let plan = PlacementPlan { models: vec![current.models[task].clone()] };
    find_violation(&problem, &plan).is_none()
}

/// Whether it is known how long each block of a task takes at these nodes.
pub(super) fn has_times(observed: &ObservedProblem, task: usize, nodes: &[usize]) -> bool {
    let problem = &observed.problem;
    let layers = problem.models[task].layers.iter().zip(nodes);
    let time = |(layer, &node): (&PlacementLayer, &usize)| {
        layer.times_ms.get(&problem.nodes[node].name).is_some_and(|time| *time < UNKNOWN_MS)
    };
    layers.into_iter().all(time)
}

/// Nodes by their names.
pub(super) fn names_of(observed: &ObservedProblem, nodes: &[usize]) -> Vec<Arc<str>> {
    nodes.iter().map(|&node| Arc::clone(&observed.nodes[node])).collect()
}

fn node_names(observed: &ObservedProblem, nodes: &[usize]) -> Vec<String> {
    nodes.iter().map(|&node| observed.nodes[node].to_string()).collect()
}
