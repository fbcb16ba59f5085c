//! `If`, `Loop` and `Scan`: types inside their bodies, and what comes out of them.

use tessera_core::{DType, Dim, TensorType};

use super::fact::Fact;
use super::infer_output_facts;
use super::operator::{Operator, Scope, resolve_axis};
use crate::constants;
use crate::onnx::{GraphProto, NodeProto, ValueInfoProto, read};

/// Bodies inside more bodies than this are not looked into; what they declare has to do.
const MOST_NESTED_BODIES: usize = 6;

/// Bodies inside fewer bodies than this are gone through more than once, to find out which
/// dimensions stay the same from one iteration to the next.
const FIXPOINT_DEPTH: usize = 2;

/// A body, and what is known of its inputs in any iteration.
#[derive(Debug)]
pub(crate) struct ControlFlowBody<'a> {
    /// The body itself.
    pub(crate) graph: &'a GraphProto,
    /// What is known of its inputs.
    pub(crate) inputs: Vec<Fact>,
}

/// Called with every node of a body, and what is known of its outputs.
pub(crate) type BodyVisitor<'v> = dyn FnMut(&Operator<'_>, &[Fact]) + 'v;

/// Whether an operator runs bodies.
pub(crate) fn is_control_flow(operator: &Operator<'_>) -> bool {
    operator.domain.is_empty() && matches!(operator.op_type, "If" | "Loop" | "Scan")
}

/// The bodies of an operator: two for an `If`, one for a `Loop` or a `Scan`.
pub(crate) fn control_flow_bodies<'a>(operator: &Operator<'a>) -> Vec<ControlFlowBody<'a>> {
    let body = |name: &str| operator.attribute(name).and_then(|attribute| attribute.g.as_ref());
    match operator.op_type {
        "If" => {
            let branches = ["then_branch", "else_branch"].into_iter().filter_map(body);
            branches.map(|graph| ControlFlowBody { graph, inputs: Vec::new() }).collect()
        }
        "Loop" => body("body").map(|graph| loop_body(operator, graph)).into_iter().collect(),
        "Scan" => body("body").map(|graph| scan_body(operator, graph)).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// What is known of the outputs of an operator with bodies.
pub(crate) fn infer_control_flow(operator: &Operator<'_>) -> Vec<Fact> {
    let bodies = control_flow_bodies(operator);
    let mut results: Vec<Vec<Fact>> =
        bodies.iter().map(|body| infer_body(body, operator, &mut |_, _| {})).collect();
    let mut outputs = match (operator.op_type, results.as_mut_slice()) {
        ("If", [then, otherwise]) => {
            match operator.input_scalar(0).and_then(|taken| taken.as_integer()) {
                Some(0) => std::mem::take(otherwise),
                Some(_) => std::mem::take(then),
                None => {
                    let branches = std::mem::take(then).into_iter().zip(otherwise.iter());
                    branches.map(|(then, otherwise)| then.join_with(otherwise)).collect()
                }
            }
        }
        ("Loop", [result]) => loop_outputs(&bodies, std::mem::take(result)),
        ("Scan", [result]) => scan_outputs(operator, &bodies, std::mem::take(result)),
        _ => Vec::new(),
    };
    outputs.resize_with(operator.output_count, Fact::default);
    outputs
}

/// Goes through a body; returns what is known of its outputs.
pub(crate) fn infer_body(
    body: &ControlFlowBody<'_>,
    operator: &Operator<'_>,
    visit: &mut BodyVisitor<'_>,
) -> Vec<Fact> {
    let mut scope = Scope::nested_in(operator.scope);
    if scope.depth > MOST_NESTED_BODIES {
        let declared = body.graph.output.iter().map(declared_type);
        return declared.map(|declared| Fact::default().or_declared(declared.as_ref())).collect();
    }
    for tensor in &body.graph.initializer {
        scope.insert_fact(tensor.name().to_owned(), Fact::of_tensor(tensor));
    }
    let known = body.inputs.iter().cloned().chain(std::iter::repeat_with(Fact::default));
    for (input, fact) in body.graph.input.iter().zip(known) {
        let fact = fact.or_declared(declared_type(input).as_ref());
        scope.insert_fact(input.name().to_owned(), fact);
    }
    for node in &body.graph.node {
        let facts = {
            let operator = Operator::of_proto(node, &scope);
            let facts = constant_fact(node).unwrap_or_else(|| infer_output_facts(&operator));
            visit(&operator, &facts);
            facts
        };
        for (name, fact) in node.output.iter().zip(facts) {
            if !name.is_empty() {
                scope.insert_fact(name.clone(), fact);
            }
        }
    }
    let output = |output: &ValueInfoProto| {
        let fact = scope.find_fact(output.name()).cloned().unwrap_or_default();
        fact.or_declared(declared_type(output).as_ref())
    };
    body.graph.output.iter().map(output).collect()
}

/// The number of iterations of a `Scan`.
pub(crate) fn scan_length(operator: &Operator<'_>) -> Dim {
    let Some((states, _)) = scan_inputs(operator) else {
        return Dim::Unknown;
    };
    let lengths = (0..operator.inputs.len().saturating_sub(states)).map(|place| {
        let dims = operator.input_dims(states.saturating_add(place))?;
        dims.get(resolve_axis(scan_axis(operator, "scan_input_axes", place), dims.len())?).cloned()
    });
    lengths.flatten().find(|length| length.fixed_size().is_some()).unwrap_or(Dim::Unknown)
}

/// The value of a `Constant`: in a graph these are weights, in a body they stay nodes.
fn constant_fact(node: &NodeProto) -> Option<Vec<Fact>> {
    if !node.domain().is_empty() || node.op_type() != "Constant" {
        return None;
    }
    let value = constants::constant_value(&mut node.clone());
    Some(vec![value.map(|weight| Fact::of_weight(&weight)).unwrap_or_default()])
}

fn declared_type(info: &ValueInfoProto) -> Option<TensorType> {
    read::tensor_type(info.r#type.as_ref()?)
}

fn loop_body<'a>(operator: &Operator<'a>, graph: &'a GraphProto) -> ControlFlowBody<'a> {
    let count = graph.input.len().saturating_sub(2);
    let initial = |place: usize| {
        let fact = operator.input_fact(place.saturating_add(2)).cloned();
        fact.unwrap_or_default().without_elements()
    };
    let with = |carried: &[Fact]| {
        let mut inputs = vec![Fact::of_scalar(DType::I64), Fact::of_scalar(DType::Bool)];
        inputs.extend_from_slice(carried);
        ControlFlowBody { graph, inputs }
    };
    let next = |carried: &[Fact]| {
        let after = infer_body(&with(carried), operator, &mut |_, _| {});
        after.into_iter().skip(1).collect::<Vec<Fact>>()
    };
    let carried = iterate_to_fixpoint(operator, (0..count).map(initial).collect(), next);
    with(&carried)
}

fn loop_outputs(bodies: &[ControlFlowBody<'_>], result: Vec<Fact>) -> Vec<Fact> {
    let carried = bodies.first().map(|body| body.inputs.as_slice()).unwrap_or_default();
    let carried = carried.get(2..).unwrap_or_default();
    let mut result = result.into_iter().skip(1);
    // No iteration at all leaves what was carried in.
    let last: Vec<Fact> = carried
        .iter()
        .map(|before| before.clone().join_with(&result.next().unwrap_or_default()))
        .collect();
    last.into_iter().chain(result.map(|fact| stack_along_axis(fact, 0, Dim::Unknown))).collect()
}

/// The number of carried states, and of inputs that are scanned; `None` before opset 9.
fn scan_inputs(operator: &Operator<'_>) -> Option<(usize, usize)> {
    if operator.opset() < 9 {
        return None;
    }
    let scanned = usize::try_from(operator.integer_attribute("num_scan_inputs", -1)).ok()?;
    Some((operator.inputs.len().checked_sub(scanned)?, scanned))
}

fn scan_axis(operator: &Operator<'_>, name: &str, place: usize) -> i64 {
    operator.integers_attribute(name).and_then(|axes| axes.get(place)).copied().unwrap_or(0)
}

fn scan_body<'a>(operator: &Operator<'a>, graph: &'a GraphProto) -> ControlFlowBody<'a> {
    let Some((states, scanned)) = scan_inputs(operator) else {
        return ControlFlowBody { graph, inputs: Vec::new() };
    };
    let initial =
        |place: usize| operator.input_fact(place).cloned().unwrap_or_default().without_elements();
    let slice = |place: usize| {
        let fact = operator.input_fact(states.saturating_add(place)).cloned().unwrap_or_default();
        slice_along_axis(fact, scan_axis(operator, "scan_input_axes", place))
    };
    let slices: Vec<Fact> = (0..scanned).map(slice).collect();
    let with = |carried: &[Fact]| {
        let inputs = [carried, slices.as_slice()].concat();
        ControlFlowBody { graph, inputs }
    };
    let next = |carried: &[Fact]| infer_body(&with(carried), operator, &mut |_, _| {});
    let carried = iterate_to_fixpoint(operator, (0..states).map(initial).collect(), next);
    with(&carried)
}

fn scan_outputs(
    operator: &Operator<'_>,
    bodies: &[ControlFlowBody<'_>],
    result: Vec<Fact>,
) -> Vec<Fact> {
    let Some((states, _)) = scan_inputs(operator) else {
        return result.into_iter().map(Fact::of_any_shape).collect();
    };
    let carried = bodies.first().map(|body| body.inputs.as_slice()).unwrap_or_default();
    let length = scan_length(operator);
    let each =
        result.into_iter().enumerate().map(|(place, fact)| match place.checked_sub(states) {
            None => match carried.get(place) {
                Some(before) => before.clone().join_with(&fact),
                None => fact,
            },
            Some(place) => stack_along_axis(
                fact,
                scan_axis(operator, "scan_output_axes", place),
                length.clone(),
            ),
        });
    each.collect()
}

/// What is known of carried values in any iteration, given how an iteration changes them.
fn iterate_to_fixpoint(
    operator: &Operator<'_>,
    initial: Vec<Fact>,
    next: impl Fn(&[Fact]) -> Vec<Fact>,
) -> Vec<Fact> {
    let mut carried = initial;
    if operator.scope.depth < FIXPOINT_DEPTH {
        for _ in 0..2 {
            let mut after = next(&carried).into_iter();
            let either: Vec<Fact> = carried
                .iter()
                .map(|before| before.clone().join_with(&after.next().unwrap_or_default()))
                .collect();
            if either == carried {
                return carried;
            }
            carried = either;
        }
    }
    carried.into_iter().map(Fact::of_any_shape).collect()
}

/// The type of a tensor that holds one of these per iteration along a new axis.
fn stack_along_axis(fact: Fact, axis: i64, length: Dim) -> Fact {
    let mut fact = fact.without_elements();
    if let Some(tensor) = &mut fact.tensor {
        tensor.dims = tensor.dims.take().and_then(|mut dims| {
            dims.insert(resolve_axis(axis, dims.len() + 1)?, length);
            Some(dims)
        });
    }
    fact.tensor.map(Fact::of_type).unwrap_or_default()
}

/// The type of what one iteration sees of a tensor that is scanned along `axis`.
fn slice_along_axis(fact: Fact, axis: i64) -> Fact {
    let mut fact = fact.without_elements();
    if let Some(tensor) = &mut fact.tensor {
        tensor.dims = tensor.dims.take().and_then(|mut dims| {
            dims.remove(resolve_axis(axis, dims.len())?);
            Some(dims)
        });
    }
    fact
}

#[cfg(test)]
mod tests {
    use super::super::testing::{graph_of, shown, symbol, types_of};
    use super::*;
    use crate::builder::{
        GraphBuilder, graph_attribute as body_attribute, int_attribute, ints_attribute,
    };

    fn branch(perm: &[i64]) -> GraphProto {
        let mut builder = GraphBuilder::new("branch");
        let moved = builder.add_node("Transpose", &["x"], [ints_attribute("perm", perm)]);
        builder.add_output(&moved);
        builder.build_graph()
    }

    #[test]
    fn an_if_gives_what_both_branches_have_in_common() {
        let mut builder = GraphBuilder::new("if");
        builder.add_input("x", DType::F32, [symbol("n"), Dim::Fixed(3), Dim::Fixed(4)]);
        let condition = builder.add_input("condition", DType::Bool, Vec::<Dim>::new());
        let branches = [
            body_attribute("then_branch", branch(&[0, 1, 2])),
            body_attribute("else_branch", branch(&[0, 2, 1])),
        ];
        let chosen = builder.add_node("If", &[&condition], branches);
        builder.add_output(&chosen);
        let graph = graph_of(builder);
        assert_eq!(shown(&graph, &types_of(&graph), &chosen), "f32[n,?,?]");
    }

    #[test]
    fn an_if_whose_condition_is_constant_gives_what_its_branch_does() {
        let mut builder = GraphBuilder::new("if");
        builder.add_input("x", DType::F32, [3, 4]);
        let condition = builder.add_raw_weight("no", DType::Bool.to_onnx(), &[], vec![0u8].into());
        let branches = [
            body_attribute("then_branch", branch(&[0, 1])),
            body_attribute("else_branch", branch(&[1, 0])),
        ];
        let chosen = builder.add_node("If", &[&condition], branches);
        builder.add_output(&chosen);
        let graph = graph_of(builder);
        assert_eq!(shown(&graph, &types_of(&graph), &chosen), "f32[4,3]");
    }

    #[test]
    fn a_loop_keeps_the_dimensions_that_no_iteration_changes() {
        let mut inner = GraphBuilder::new("body");
        inner.add_input("iteration", DType::I64, Vec::<Dim>::new());
        let keep_going = inner.add_input("keep_going", DType::Bool, Vec::<Dim>::new());
        let same = inner.add_input_of_any_shape("same", DType::F32);
        let grows = inner.add_input_of_any_shape("grows", DType::F32);
        let keep_going = inner.add_node("Identity", &[&keep_going], []);
        let relu = inner.add_node("Relu", &[&same], []);
        let longer = inner.add_node("Concat", &[&grows, &same], [int_attribute("axis", 0)]);
        let each = inner.add_node("Identity", &[&relu], []);
        for output in [&keep_going, &relu, &longer, &each] {
            inner.add_output(output);
        }
        let mut builder = GraphBuilder::new("loop");
        let x = builder.add_input("x", DType::F32, [2, 5]);
        let trips = builder.add_i64_weight("trips", &[], vec![3]);
        let attributes = [body_attribute("body", inner.build_graph())];
        let outputs = builder.add_node_with_outputs("Loop", &[&trips, "", &x, &x], 3, attributes);
        builder.add_output(&outputs[0]);
        let graph = graph_of(builder);
        let types = types_of(&graph);
        assert_eq!(shown(&graph, &types, &outputs[0]), "f32[2,5]");
        assert_eq!(shown(&graph, &types, &outputs[1]), "f32[?,5]");
        assert_eq!(shown(&graph, &types, &outputs[2]), "f32[?,2,5]");
    }
}
