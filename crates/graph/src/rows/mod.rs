//! Whether the rows of a batch are computed independently of each other.
//!
//! Requests are put together along the first dimension of their tensors. That gives each the answer
//! that it gets alone only where no row has an influence on another, which is a property of the
//! graph: the batch dimension is followed through the operators, and every operator either keeps
//! rows apart ([`rules`]) or is an obstacle. What is proved holds for all values and all numbers of
//! rows. What is not proved may be independent all the same: there may be no rule for an operator.
//!
//! Nothing is believed that a file declares but the ranks and fixed sizes of its inputs: names of
//! dimensions and types of values in between may be wrong. So the sizes that matter are inferred
//! here once more, with names of our own.

mod batch_axis;
mod matrix;
mod movement;
mod numbering;
mod pointwise;
mod rules;
mod selection;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tessera_core::{Dim, TensorType};

use crate::infer::{
    Element, Fact, InferredTypes, Operator, SizeProduct, infer_output_facts, is_control_flow,
    scope_of,
};
use crate::model::{Graph, GraphNode, ValueId};
use batch_axis::{BATCH_SYMBOL, BatchAxis, DEPENDENT};
use numbering::{RowNumbers, RowTuples};

/// Why rows are not known to be independent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowObstacle {
    /// Where: a node, or an input.
    pub place: String,
    /// What is in the way there.
    pub reason: String,
    /// Whether rows are known to have an influence on each other, or it is only not known that they
    /// have none.
    pub is_certain: bool,
}

impl fmt::Display for RowObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.place, self.reason)
    }
}

/// What a value has to do with the rows of a batch.
#[derive(Clone, Debug, PartialEq)]
enum RowFlow {
    /// It is the same, whatever rows there are and however many.
    Same,
    /// It follows from the number of rows, and not from what is in them.
    Count,
    /// It has a part for each row, which follows from that row alone.
    Rows(BatchAxis),
    /// Numbers of rows, to look up what is in them.
    Numbers(RowNumbers),
    /// Tuples with numbers of rows, to look up what is in them.
    Tuples(RowTuples),
    /// None of these, or it is not known.
    Mixed(Arc<RowObstacle>),
}

/// Why a rule does not keep rows apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowMixing {
    /// It is known that rows have an influence on each other.
    Joined(&'static str),
    /// Too little is known.
    Unknown(&'static str),
}

/// There is no rule for an operator.
const NO_RULE: RowMixing = RowMixing::Unknown("may join rows: there is no rule for it");

/// A shape that would have to be known is not.
const UNKNOWN_SHAPE: RowMixing = RowMixing::Unknown("has a shape that is not known");

/// What a rule says of an output.
type RowRule = Result<RowFlow, RowMixing>;

/// Which values of a graph have a part for each row of the batch, along their first dimension.
#[derive(Clone, Debug)]
pub struct RowProof {
    flows: Vec<RowFlow>,
    /// The first obstacle on the way to an output.
    obstacle: Option<RowObstacle>,
}

impl RowProof {
    /// Whether row `n` of the value follows from row `n` of the inputs, and from nothing else.
    pub fn is_row_wise(&self, id: ValueId) -> bool {
        match self.flows.get(id.index()) {
            Some(RowFlow::Rows(axis)) => axis.is_leading(),
            _ => false,
        }
    }

    /// Why some output is not row-wise; `None` where all are.
    pub fn obstacle(&self) -> Option<&RowObstacle> {
        self.obstacle.as_ref()
    }
}

/// Follows the batch through a graph. The first dimension of every input has to be open, and is
/// taken for the batch; `types` says which sizes the caller fixed.
pub fn prove_rows(graph: &Graph, types: &InferredTypes) -> RowProof {
    let mut facts = vec![Fact::default(); graph.value_count()];
    let mut flows = vec![RowFlow::Same; graph.value_count()];
    let first_name = graph.inputs().first().and_then(|&id| first_dim_name(types, id));
    let mut ends: Vec<Option<SizeProduct>> = vec![None; graph.value_count()];
    for (id, weight) in graph.weights() {
        if let (Some(fact), Some(end)) = (facts.get_mut(id.index()), ends.get_mut(id.index())) {
            (*fact, *end) = (Fact::of_weight(weight), numbering::end_of_weight(weight));
        }
    }
    for &id in graph.inputs() {
        let (fact, flow) = input_flow(graph, types, id, first_name);
        if let (Some(known), Some(slot)) = (facts.get_mut(id.index()), flows.get_mut(id.index())) {
            (*known, *slot) = (fact, flow);
        }
    }
    for node in graph.nodes() {
        let scope = scope_of(graph, node, &facts);
        let operator = Operator::of_node(node, &facts, &scope);
        let mut outputs = infer_output_facts(&operator);
        if is_control_flow(&operator) {
            // Bodies have names from what the file declares.
            outputs.iter_mut().for_each(Fact::forget_names);
        }
        let given = node.inputs.iter().map(|id| id.and_then(|id| flows.get(id.index())));
        let given: Vec<Option<&RowFlow>> = given.collect();
        let captured = node.captures.iter().filter_map(|id| flows.get(id.index()));
        let given_ends =
            node.inputs.iter().map(|id| id.and_then(|id| ends.get(id.index())?.as_ref()));
        let given_ends: Vec<Option<&SizeProduct>> = given_ends.collect();
        let view = RowView { operator: &operator, flows: &given, ends: &given_ends };
        let found = node_flows(node, &view, captured, &outputs);
        let end = outputs.first().and_then(|fact| numbering::end_of_output(&view, fact));
        if let Some(&Some(first)) = node.outputs.first()
            && let Some(slot) = ends.get_mut(first.index())
        {
            *slot = end;
        }
        for (place, id) in node.outputs.iter().enumerate() {
            let (Some(id), Some(fact)) = (*id, outputs.get_mut(place)) else { continue };
            let Some(flow) = found.get(place) else { continue };
            name_batch_dim(fact, flow);
            name_unknown_dims(fact, flow, id);
            if let (Some(known), Some(slot)) =
                (facts.get_mut(id.index()), flows.get_mut(id.index()))
            {
                (*known, *slot) = (std::mem::take(fact), flow.clone());
            }
        }
    }
    let obstacle = graph.outputs().iter().find_map(|&id| output_obstacle(graph, &flows, id));
    RowProof { flows, obstacle }
}

/// An input, whose first dimension is taken for the batch.
fn input_flow(
    graph: &Graph,
    types: &InferredTypes,
    id: ValueId,
    first_name: Option<&str>,
) -> (Fact, RowFlow) {
    let mixed = |reason: &str| {
        let place = format!("input \"{}\"", graph.value_name(id));
        let obstacle = RowObstacle { place, reason: reason.to_owned(), is_certain: true };
        RowFlow::Mixed(Arc::new(obstacle))
    };
    let Some(known) = types.get(id) else {
        return (Fact::default(), mixed("has no known type"));
    };
    let Some(dims) = &known.dims else {
        return (Fact::of_type(known.clone()), mixed("has no known number of dimensions"));
    };
    let own_name = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Fixed(size) => Dim::Fixed(*size),
        _ if axis == 0 => Dim::Symbol(BATCH_SYMBOL.to_owned()),
        _ => own_symbol(id, axis),
    };
    let own: Vec<Dim> = dims.iter().enumerate().map(own_name).collect();
    let flow = match dims.first() {
        _ if graph.input_default(id).is_some() => mixed("may be left out: it is for all rows"),
        None => mixed("has no dimensions"),
        Some(Dim::Fixed(_)) => mixed("has a fixed first dimension"),
        Some(_) if first_dim_name(types, id) != first_name => {
            mixed("has another first dimension than the first input")
        }
        Some(_) => RowFlow::Rows(BatchAxis::leading()),
    };
    (Fact::of_type(TensorType::new(known.dtype, own)), flow)
}

fn first_dim_name(types: &InferredTypes, id: ValueId) -> Option<&str> {
    match types.get(id)?.dims.as_ref()?.first()? {
        Dim::Symbol(name) => Some(name),
        _ => None,
    }
}

/// A name for a size that is not known: no other value has it but by a rule.
fn own_symbol(id: ValueId, axis: usize) -> Dim {
    Dim::Symbol(format!("{}.{axis}", id.index()))
}

/// The same for a size that may follow from the number of rows, or from what is in them.
fn own_dependent_symbol(id: ValueId, axis: usize) -> Dim {
    Dim::Symbol(format!("{DEPENDENT}?{}.{axis}", id.index()))
}

/// The size of the dimension with the rows is known.
fn name_batch_dim(fact: &mut Fact, flow: &RowFlow) {
    let RowFlow::Rows(rows) = flow else { return };
    let dims = fact.tensor.as_mut().and_then(|tensor| tensor.dims.as_mut());
    if let (Some(dim), Some(known)) = (dims.and_then(|dims| dims.get_mut(rows.axis)), rows.dim()) {
        *dim = known;
    }
}

fn name_unknown_dims(fact: &mut Fact, flow: &RowFlow, id: ValueId) {
    let is_dependent = |axis: usize| match flow {
        RowFlow::Same => false,
        RowFlow::Rows(rows) => rows.axis == axis,
        _ => true,
    };
    let dims = fact.tensor.as_mut().and_then(|tensor| tensor.dims.as_mut());
    for (axis, dim) in dims.into_iter().flatten().enumerate() {
        if *dim == Dim::Unknown {
            let name = if is_dependent(axis) { own_dependent_symbol } else { own_symbol };
            *dim = name(id, axis);
        }
    }
}

/// What the outputs of a node have to do with the rows.
fn node_flows<'a>(
    node: &GraphNode,
    view: &RowView<'a>,
    captured: impl Iterator<Item = &'a RowFlow> + Clone,
    outputs: &[Fact],
) -> Vec<RowFlow> {
    let operator = view.operator;
    let all = || view.flows.iter().copied().flatten().chain(captured.clone());
    if matches!((operator.domain, operator.op_type), ("", "Shape" | "Size")) {
        return outputs.iter().map(count_or_same).collect();
    }
    let mixed = |mixing: RowMixing| {
        let (reason, is_certain) = match mixing {
            RowMixing::Joined(reason) => (reason, true),
            RowMixing::Unknown(reason) => (reason, false),
        };
        let obstacle = RowObstacle { place: node.label(), reason: reason.to_owned(), is_certain };
        RowFlow::Mixed(Arc::new(obstacle))
    };
    if rules::draws_at_random(operator) {
        return vec![mixed(RowMixing::Unknown("draws at random")); outputs.len()];
    }
    if let Some(before) = all().find(|flow| matches!(flow, RowFlow::Mixed(_))) {
        return vec![before.clone(); outputs.len()];
    }
    if all().all(|flow| *flow == RowFlow::Same) {
        return vec![RowFlow::Same; outputs.len()];
    }
    let is_count = |flow: &RowFlow| matches!(flow, RowFlow::Same | RowFlow::Count);
    if all().all(is_count) {
        let one = movement::repeated_for_each_row(operator)
            .or_else(|| numbering::all_row_numbers(operator));
        return outputs.iter().map(|fact| one.clone().unwrap_or(count_or_same(fact))).collect();
    }
    if captured.clone().any(|flow| *flow != RowFlow::Same) {
        return vec![mixed(NO_RULE); outputs.len()];
    }
    let rule =
        |(place, fact): (usize, &Fact)| rules::output_flow(view, place, fact).unwrap_or_else(mixed);
    outputs.iter().enumerate().map(rule).collect()
}

/// A value that follows from sizes: the same, where its elements are known not to have to do with
/// the number of rows.
fn count_or_same(fact: &Fact) -> RowFlow {
    let is_free = |element: &Element| match element {
        Element::Fixed(_) | Element::Real(_) => true,
        Element::Symbol(name) => name != BATCH_SYMBOL && !name.starts_with(DEPENDENT),
        Element::Unknown => false,
    };
    match &fact.elements {
        Some(elements) if elements.iter().all(is_free) => RowFlow::Same,
        _ => RowFlow::Count,
    }
}

fn output_obstacle(graph: &Graph, flows: &[RowFlow], id: ValueId) -> Option<RowObstacle> {
    let obstacle = |reason: &str| RowObstacle {
        place: format!("output \"{}\"", graph.value_name(id)),
        reason: reason.to_owned(),
        is_certain: true,
    };
    match flows.get(id.index())? {
        RowFlow::Rows(axis) if axis.is_leading() => None,
        RowFlow::Rows(_) => Some(obstacle("has its rows in another dimension than the first")),
        RowFlow::Same => Some(obstacle("is the same for all rows")),
        RowFlow::Count | RowFlow::Numbers(_) | RowFlow::Tuples(_) => {
            Some(obstacle("follows from the number of rows"))
        }
        RowFlow::Mixed(known) => Some(RowObstacle::clone(known)),
    }
}

/// What a rule sees of a node.
struct RowView<'a> {
    operator: &'a Operator<'a>,
    flows: &'a [Option<&'a RowFlow>],
    /// Below which size the elements of an input are known to be, from 0 on.
    ends: &'a [Option<&'a SizeProduct>],
}

impl RowView<'_> {
    /// What an input has to do with the rows; the same where it is left out.
    fn flow(&self, input: usize) -> &RowFlow {
        self.flows.get(input).copied().flatten().unwrap_or(&RowFlow::Same)
    }

    /// Below which size the elements of an input are, where it is the same for all rows.
    fn end(&self, input: usize) -> Option<&SizeProduct> {
        self.ends.get(input).copied().flatten()
    }

    /// Whether something or its place is made of numbers of rows.
    fn has_numbers(&self) -> bool {
        let is_number = |flow: &&RowFlow| matches!(flow, RowFlow::Numbers(_) | RowFlow::Tuples(_));
        self.flows.iter().flatten().any(is_number)
    }

    /// Where the rows of an input are.
    fn rows(&self, input: usize) -> Option<&BatchAxis> {
        match self.flow(input) {
            RowFlow::Rows(axis) => Some(axis),
            _ => None,
        }
    }

    /// Whether an input is left out or the same for all rows.
    fn is_same(&self, input: usize) -> bool {
        *self.flow(input) == RowFlow::Same
    }

    /// Whether all inputs but these are the same for all rows.
    fn are_others_same(&self, places: &[usize]) -> bool {
        (0..self.flows.len()).all(|input| places.contains(&input) || self.is_same(input))
    }

    fn dims(&self, input: usize) -> Result<&[Dim], RowMixing> {
        self.operator.input_dims(input).ok_or(UNKNOWN_SHAPE)
    }

    /// Where the rows of the only input with rows are: `input`, all others being the same.
    fn only_rows(&self, input: usize) -> Result<&BatchAxis, RowMixing> {
        match self.rows(input) {
            Some(axis) if self.are_others_same(&[input]) => Ok(axis),
            _ => Err(NO_RULE),
        }
    }
}

#[cfg(test)]
mod tests;
