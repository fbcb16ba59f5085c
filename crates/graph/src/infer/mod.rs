//! The types of every value of a graph: dtypes and dimensions, as far as they are known.
//!
//! One pass over the nodes in their order. Each node's outputs follow from its inputs by the rule
//! of its operator; what the file declares fills the gaps. A rule that does not understand a node
//! says "unknown" and never fails, so that any graph that could be read gets its types.
//!
//! Small integer tensors are followed by value, not by type alone, because models compute shapes:
//! `Shape → Gather → Concat → Reshape` gives a shape only to whoever knows the elements.

mod contrib;
mod control_flow;
mod convolution;
mod dtype;
mod element;
mod element_rules;
mod elementwise;
mod fact;
mod given_shapes;
mod indexing;
mod matrix;
mod movement;
mod operator;
mod reduction;
mod resize;
mod rules;
mod sequence;
mod size_product;
mod standard_rules;

use std::collections::BTreeMap;

use tessera_core::{Error, Result, TensorType};

use crate::model::{Graph, GraphNode, ValueId};

/// What types are inferred takes at most this much memory, in bytes.
const MOST_FACT_BYTES: usize = 1 << 30;

pub(crate) use control_flow::{control_flow_bodies, infer_body, is_control_flow, scan_length};
pub(crate) use convolution::describe_unfit_window;
pub(crate) use element::Element;
pub(crate) use elementwise::{is_broadcast_arithmetic, is_comparison, is_elementwise};
pub(crate) use fact::Fact;
pub(crate) use indexing::{AxisSlice, axis_slices};
pub(crate) use matrix::einsum_letters;
pub(crate) use operator::{Axes, Operator, Scope, resolve_axis};
pub(crate) use size_product::SizeProduct;

/// The type of every value of a graph, as far as it is known.
#[derive(Clone, Debug)]
pub struct InferredTypes {
    facts: Vec<Fact>,
}

impl InferredTypes {
    /// The type of a value; `None` where not even its dtype is known.
    ///
    /// Its dimensions may be missing, or some of them be symbolic or unknown.
    pub fn get(&self, id: ValueId) -> Option<&TensorType> {
        self.facts.get(id.index())?.tensor.as_ref()
    }

    /// Whether the value is known to be no tensor but a sequence, a map or an optional.
    pub fn is_non_tensor(&self, id: ValueId) -> bool {
        self.facts.get(id.index()).is_some_and(|fact| fact.non_tensor)
    }

    /// The type of a value that is to pass between blocks; fails where it can't.
    pub(crate) fn require_type(&self, graph: &Graph, id: ValueId) -> Result<&TensorType> {
        self.get(id).ok_or_else(|| {
            let name = graph.value_name(id);
            let reason = if self.is_non_tensor(id) {
                "is a sequence, map or optional, and only tensors pass between blocks"
            } else {
                "has no known dtype, and can't pass between blocks"
            };
            Error::unsupported(format!("tensor \"{name}\" {reason}"))
        })
    }

    /// All that is known of every value, by its number.
    pub(crate) fn facts(&self) -> &[Fact] {
        &self.facts
    }
}

/// Infers the types of all values; `shapes` fixes the shapes of inputs by name.
///
/// A symbol that a given shape fixes is fixed everywhere. Fails where `shapes` makes no sense (for a
/// name that is no input, or a shape that its input can't have) and where all that is known of the
/// values would take more memory than a model is worth.
pub fn infer_types(graph: &Graph, shapes: &BTreeMap<String, Vec<usize>>) -> Result<InferredTypes> {
    let given = given_shapes::GivenShapes::new(graph, shapes)?;
    let mut facts = vec![Fact::default(); graph.value_count()];
    let mut set = |id: ValueId, fact: Fact| {
        if let Some(slot) = facts.get_mut(id.index()) {
            *slot = fact;
        }
    };
    for (id, weight) in graph.weights() {
        set(id, Fact::of_weight(weight));
    }
    for &id in graph.inputs() {
        if let Some(declared) = graph.declared_type(id) {
            set(id, Fact::of_type(given.input_type(id, declared)));
        }
    }
    let mut bytes = 0usize;
    for node in graph.nodes() {
        let scope = scope_of(graph, node, &facts);
        let outputs = infer_output_facts(&Operator::of_node(node, &facts, &scope));
        for (id, fact) in node.outputs.iter().zip(outputs) {
            let Some(id) = *id else { continue };
            let declared =
                graph.declared_type(id).map(|declared| given.substitute_symbols(declared));
            if let Some(slot) = facts.get_mut(id.index()) {
                *slot = fact.or_declared(declared.as_ref());
                bytes = bytes.saturating_add(slot.heap_bytes());
            }
        }
        if bytes > MOST_FACT_BYTES {
            return Err(Error::unsupported(format!(
                "the types of the model's tensors take more than {MOST_FACT_BYTES} bytes, expected \
                 fewer or shorter names of dimensions"
            )));
        }
    }
    Ok(InferredTypes { facts })
}

/// What the bodies of a node see of the graph around them.
pub(crate) fn scope_of<'a>(graph: &'a Graph, node: &GraphNode, facts: &[Fact]) -> Scope<'a> {
    let mut scope = Scope::new(graph.opsets());
    for (index, id) in node.captures.iter().enumerate() {
        let fact = facts.get(id.index()).cloned().unwrap_or_default();
        scope.insert_fact(format!("@{index}"), fact);
    }
    scope
}

/// What is known of each output of an operator.
pub(crate) fn infer_output_facts(operator: &Operator<'_>) -> Vec<Fact> {
    if is_control_flow(operator) {
        return control_flow::infer_control_flow(operator);
    }
    let mut dims = rules::infer_output_dims(operator).into_iter();
    let mut outputs: Vec<Fact> = (0..operator.output_count)
        .map(|index| {
            let dims = dims.next().flatten();
            match dtype::infer_output_kind(operator, index) {
                dtype::OutputKind::Tensor(dtype) => Fact::of_type(TensorType { dtype, dims }),
                dtype::OutputKind::NonTensor => Fact::of_non_tensor(),
                dtype::OutputKind::Unknown => Fact::default(),
            }
        })
        .collect();
    element_rules::propagate_elements(operator, &mut outputs);
    outputs
}

/// What the tests of the rules share.
#[cfg(test)]
pub(crate) mod testing {
    use std::collections::BTreeMap;

    use tessera_core::Dim;

    use super::{InferredTypes, infer_types};
    use crate::builder::GraphBuilder;
    use crate::model::Graph;
    use crate::{NoExternalData, onnx};

    /// The graph that a builder holds.
    pub(crate) fn graph_of(builder: GraphBuilder) -> Graph {
        onnx::read::from_proto(builder.build_model(), &mut NoExternalData).unwrap()
    }

    /// The types of a graph without given shapes.
    pub(crate) fn types_of(graph: &Graph) -> InferredTypes {
        infer_types(graph, &BTreeMap::new()).unwrap()
    }

    /// The type of one value as users see it; `none` where it is not known.
    pub(crate) fn shown(graph: &Graph, types: &InferredTypes, name: &str) -> String {
        let id = graph.find_value(name).unwrap();
        types.get(id).map_or("none".to_owned(), ToString::to_string)
    }

    /// The type of the output of the only interesting node, `build`'s result.
    pub(crate) fn type_of(opset: i64, build: impl FnOnce(&mut GraphBuilder) -> String) -> String {
        let mut builder = GraphBuilder::new("test").with_opset(opset);
        let output = build(&mut builder);
        builder.add_output(&output);
        let graph = graph_of(builder);
        let types = types_of(&graph);
        shown(&graph, &types, &output)
    }

    /// A symbolic dimension.
    pub(crate) fn symbol(name: &str) -> Dim {
        Dim::Symbol(name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use tessera_core::{DType, Dim};

    use super::testing::{graph_of, shown, symbol, types_of};
    use super::*;
    use crate::builder::{GraphBuilder, int_attribute};

    #[test]
    fn declared_types_fill_the_gaps_and_never_contradict_what_was_inferred() {
        let mut builder = GraphBuilder::new("gaps");
        let x = builder.add_input("x", DType::F32, [symbol("batch"), Dim::Fixed(4)]);
        let relu = builder.add_node("Relu", &[&x], []);
        builder.declare_type(&relu, DType::F32, [7, 9]);
        let mask = builder.add_input("mask", DType::Bool, [4]);
        let some = builder.add_node("Compress", &[&relu, &mask], [int_attribute("axis", 1)]);
        builder.declare_type(&some, DType::F32, [symbol("ignored"), symbol("kept")]);
        builder.add_output(&some);
        let graph = graph_of(builder);
        let types = types_of(&graph);
        assert_eq!(shown(&graph, &types, &relu), "f32[batch,4]");
        assert_eq!(shown(&graph, &types, &some), "f32[batch,kept]");
    }

    #[test]
    fn a_given_shape_reaches_declared_symbols_between_nodes() {
        let mut builder = GraphBuilder::new("given");
        let x = builder.add_input("x", DType::F32, [symbol("batch"), Dim::Fixed(4)]);
        let mask = builder.add_input("mask", DType::Bool, [4]);
        let some = builder.add_node("Compress", &[&x, &mask], []);
        builder.declare_type(&some, DType::F32, [symbol("batch")]);
        builder.add_output(&some);
        let graph = graph_of(builder);
        let shapes = BTreeMap::from([("x".to_owned(), vec![8, 4])]);
        let types = infer_types(&graph, &shapes).unwrap();
        assert_eq!(shown(&graph, &types, &some), "f32[8]");
        assert_eq!(shown(&graph, &types, "x"), "f32[8,4]");
    }

    #[test]
    fn a_sequence_is_no_tensor() {
        let mut builder = GraphBuilder::new("sequence");
        let x = builder.add_input("x", DType::F32, [4]);
        let sequence = builder.add_node("SequenceConstruct", &[&x, &x], []);
        let length = builder.add_node("SequenceLength", &[&sequence], []);
        builder.add_output(&length);
        let graph = graph_of(builder);
        let types = types_of(&graph);
        let id = graph.find_value(&sequence).unwrap();
        assert!(types.is_non_tensor(id));
        assert_eq!(types.get(id), None);
        assert_eq!(shown(&graph, &types, &length), "i64[]");
    }
}
