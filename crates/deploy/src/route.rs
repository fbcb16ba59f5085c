//! The route of a task: the units that a request passes, and which tensors go where.
//!
//! A request is one message that carries all tensors that are still needed. Each step takes its
//! inputs from them and adds its outputs; what nobody needs after it is dropped. So a path may
//! branch and join in any way, and a request is always in exactly one place.

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tessera_core::{Dim, Error, Result, TensorType};
use tessera_graph::{ScoreKind, TensorPort, TensorSource};

use crate::task::PlannedTask;
use crate::unit::UnitId;

/// One step of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteStep {
    /// The unit.
    pub unit: UnitId,
    /// Which of the tensors that a message carries are the unit's inputs, in its order.
    pub inputs: Vec<usize>,
    /// Which tensors the message carries afterwards: those before, then the unit's outputs, by
    /// number. The head of an exit adds none.
    pub keep: Vec<usize>,
    /// The exit whose head this is, by number.
    pub exit: Option<usize>,
}

/// A side exit of a route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteExit {
    /// Name of its output in the model.
    pub name: String,
    /// Taken where the normalised entropy is at most this.
    pub threshold: f32,
    /// What its scores are.
    pub scores: ScoreKind,
    /// The output that its scores stand for.
    pub output: usize,
}

/// How a task is served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRoute {
    /// The task.
    pub task: String,
    /// Its version.
    pub version: String,
    /// What a request brings.
    pub inputs: Vec<TensorPort>,
    /// What an answer has.
    pub outputs: Vec<TensorPort>,
    /// The steps, in order.
    pub steps: Vec<RouteStep>,
    /// The exits, in the order in which they are reached.
    pub exits: Vec<RouteExit>,
    /// How long a request may take where the client says nothing.
    pub deadline: Duration,
    /// Whether the last exit may answer where the rest fails or takes too long.
    pub degrade: bool,
    /// How much of the cores it gets beside others that want them.
    pub weight: u64,
    /// Whether dimensions of inputs that have the same name must have the same size.
    pub relies_on_dim_names: bool,
    /// Most rows of a request; 0 where the first dimension is no batch.
    pub max_rows: usize,
}

/// A run of a task's blocks, and the unit that it became.
pub(crate) struct FusedRun {
    pub(crate) unit: UnitId,
    pub(crate) range: Range<usize>,
    pub(crate) inputs: Vec<TensorSource>,
    pub(crate) outputs: Vec<TensorSource>,
}

pub(crate) fn build_route(task: &PlannedTask, placed: &[FusedRun]) -> Result<TaskRoute> {
    let graph = &task.graph;
    let wanted: Vec<TensorSource> = graph.outputs.iter().map(|(_, source)| *source).collect();
    let mut carried: Vec<TensorSource> = (0..graph.inputs.len()).map(TensorSource::Input).collect();
    let mut steps = Vec::with_capacity(placed.len());
    for (number, part) in placed.iter().enumerate() {
        let at = |source: &TensorSource| carried.iter().position(|known| known == source);
        let inputs = part.inputs.iter().map(at).collect::<Option<Vec<_>>>();
        let inputs =
            inputs.ok_or_else(|| Error::invalid("its path uses what no earlier block computes"))?;
        let exit = graph.exits.iter().position(|exit| exit.head == part.range.start);
        let mut after = carried.clone();
        if exit.is_none() {
            after.extend(&part.outputs);
        }
        let last = number + 1 == placed.len();
        let needed = |source: &TensorSource| {
            wanted.contains(source)
                || placed[number + 1..].iter().any(|later| later.inputs.contains(source))
        };
        let keep: Vec<usize> = if last {
            let find = |source: &TensorSource| after.iter().position(|known| known == source);
            wanted.iter().map(find).collect::<Option<_>>().ok_or_else(|| {
                Error::invalid("its path ends without computing one of its outputs")
            })?
        } else {
            (0..after.len()).filter(|&index| needed(&after[index])).collect()
        };
        carried = keep.iter().map(|&index| after[index]).collect();
        steps.push(RouteStep { unit: part.unit.clone(), inputs, keep, exit });
    }
    if steps.is_empty() {
        return Err(Error::invalid("its path has no blocks"));
    }
    let outputs: Vec<TensorPort> = graph.outputs.iter().map(|(port, _)| port.clone()).collect();
    let exits = graph
        .exits
        .iter()
        .map(|exit| {
            let head = graph.blocks[exit.head].outputs.first();
            let scores = head.map(|port| &port.tensor_type);
            let output = output_for_exit(&exit.output, scores, &outputs)?;
            Ok(RouteExit {
                name: exit.output.clone(),
                threshold: exit.threshold,
                scores: exit.scores,
                output,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(TaskRoute {
        task: task.name.clone(),
        version: task.version.clone(),
        inputs: graph.inputs.clone(),
        outputs,
        steps,
        exits,
        deadline: task.settings.deadline,
        degrade: task.settings.degrade,
        weight: task.settings.weight,
        relies_on_dim_names: graph.relies_on_dim_names,
        max_rows: if graph.is_row_wise() { task.settings.max_rows } else { 0 },
    })
}

impl TaskRoute {
    /// Whether it is the same to clients as another, whatever units it leads through.
    pub fn answers_like(&self, other: &Self) -> bool {
        let same_exits = self.exits.len() == other.exits.len()
            && self.exits.iter().zip(&other.exits).all(|(mine, other)| {
                (&mine.name, mine.scores, mine.output) == (&other.name, other.scores, other.output)
            });
        same_exits
            && (&self.task, &self.version) == (&other.task, &other.version)
            && (&self.inputs, &self.outputs) == (&other.inputs, &other.outputs)
    }
}

/// The output that the scores of an exit stand for: clients get it under that name.
fn output_for_exit(
    exit: &str,
    scores: Option<&TensorType>,
    outputs: &[TensorPort],
) -> Result<usize> {
    let [output] = outputs else {
        return Err(Error::unsupported(format!(
            "exit \"{exit}\" can't answer for {} outputs, expected one",
            outputs.len()
        )));
    };
    let fits = |a: &TensorType, b: &TensorType| {
        let (Some(left), Some(right)) = (&a.dims, &b.dims) else {
            return a.dtype == b.dtype;
        };
        let same = |a: &Dim, b: &Dim| match (a, b) {
            (Dim::Fixed(a), Dim::Fixed(b)) => a == b,
            _ => true,
        };
        a.dtype == b.dtype
            && left.len() == right.len()
            && left.iter().zip(right).all(|(a, b)| same(a, b))
    };
    match scores {
        Some(scores) if fits(scores, &output.tensor_type) => Ok(0),
        Some(scores) => Err(Error::unsupported(format!(
            "exit \"{exit}\" gives {scores}, and can't stand for output \"{}\", which is {}",
            output.name, output.tensor_type
        ))),
        None => Err(Error::invalid(format!("exit \"{exit}\" gives nothing"))),
    }
}
