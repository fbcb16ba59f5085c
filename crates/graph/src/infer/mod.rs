//! The types of every value of a graph: dtypes and dimensions, as far as they can be told.
//!
//! One pass over the nodes in their order. Each node's outputs follow from its inputs by the rule
//! of its operator; what the file declares fills the gaps. A rule that does not understand a node
//! says "unknown" and never fails, so that any graph that could be read gets its types.
//!
//! Small integer tensors are followed by value, not by type alone, because models compute shapes:
//! `Shape → Gather → Concat → Reshape` gives a shape only to whoever knows the elements.

mod contrib;
mod control;
mod convolution;
mod dtype;
mod elementwise;
mod fact;
mod given;
mod indexing;
mod matrix;
mod movement;
mod operator;
mod reduction;
mod resize;
mod rules;
mod sequence;
mod value;

use std::collections::BTreeMap;

use tessera_core::{Result, TensorType};

use crate::model::{Graph, Node, ValueId};

pub(crate) use control::{bodies, is_control, run_body, scan_length};
pub(crate) use fact::Fact;
pub(crate) use matrix::einsum_letters;
pub(crate) use operator::{Operator, Scope};

/// The type of every value of a graph, as far as it could be told.
#[derive(Clone, Debug)]
pub struct Types {
    facts: Vec<Fact>,
}

impl Types {
    /// The type of a value; `None` where not even its dtype could be told.
    ///
    /// Its dimensions may be missing, or some of them be symbolic or unknown.
    pub fn get(&self, id: ValueId) -> Option<&TensorType> {
        self.facts.get(id.index())?.tensor.as_ref()
    }

    /// Whether the value is known to be no tensor but a sequence, a map or an optional.
    pub fn is_other(&self, id: ValueId) -> bool {
        self.facts.get(id.index()).is_some_and(|fact| fact.other)
    }

    /// The type of a value that is to pass between blocks; fails where it can't.
    pub(crate) fn known(&self, graph: &Graph, id: ValueId) -> Result<&TensorType> {
        self.get(id).ok_or_else(|| {
            let name = graph.value_name(id);
            let why = match self.is_other(id) {
                true => "is a sequence, map or optional, and only tensors pass between blocks",
                false => "has no dtype that could be told, and can't pass between blocks",
            };
            tessera_core::Error::unsupported(format!("tensor \"{name}\" {why}"))
        })
    }

    /// All that is known of every value, by its number.
    pub(crate) fn facts(&self) -> &[Fact] {
        &self.facts
    }
}

/// Infers the types of all values; `shapes` fixes the shapes of inputs by name.
///
/// A symbol that a given shape fixes is fixed everywhere. Fails only where `shapes` makes no
/// sense: for a name that is no input, or a shape that its input can't have.
pub fn infer(graph: &Graph, shapes: &BTreeMap<String, Vec<usize>>) -> Result<Types> {
    let given = given::Given::new(graph, shapes)?;
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
            set(id, Fact::of(given.input(id, declared)));
        }
    }
    for node in graph.nodes() {
        let scope = scope_of(graph, node, &facts);
        let outputs = evaluate(&Operator::of_node(node, &facts, &scope));
        for (id, fact) in node.outputs.iter().zip(outputs) {
            let Some(id) = *id else { continue };
            let declared = graph.declared_type(id).map(|declared| given.substitute(declared));
            if let Some(slot) = facts.get_mut(id.index()) {
                *slot = fact.or_declared(declared.as_ref());
            }
        }
    }
    Ok(Types { facts })
}

/// What the bodies of a node see of the graph around them.
pub(crate) fn scope_of<'a>(graph: &'a Graph, node: &Node, facts: &[Fact]) -> Scope<'a> {
    let mut scope = Scope::new(graph.opsets());
    for (index, id) in node.captures.iter().enumerate() {
        let fact = facts.get(id.index()).cloned().unwrap_or_default();
        scope.insert(format!("@{index}"), fact);
    }
    scope
}

/// What is known of each output of an operator.
fn evaluate(operator: &Operator<'_>) -> Vec<Fact> {
    if is_control(operator) {
        return control::outputs(operator);
    }
    let mut dims = rules::dims(operator).into_iter();
    let mut outputs: Vec<Fact> = (0..operator.output_count)
        .map(|index| {
            let dims = dims.next().flatten();
            match dtype::kind(operator, index) {
                dtype::Kind::Tensor(dtype) => Fact::of(TensorType { dtype, dims }),
                dtype::Kind::Other => Fact::no_tensor(),
                dtype::Kind::Unknown => Fact::default(),
            }
        })
        .collect();
    value::propagate(operator, &mut outputs);
    outputs
}

/// What the tests of the rules share.
#[cfg(test)]
pub(crate) mod testing {
    use std::collections::BTreeMap;

    use tessera_core::Dim;

    use super::{Types, infer};
    use crate::builder::GraphBuilder;
    use crate::model::Graph;
    use crate::{NoExternalData, onnx};

    /// The graph that a builder holds.
    pub(crate) fn graph_of(builder: GraphBuilder) -> Graph {
        onnx::read::from_proto(builder.build(), &mut NoExternalData).unwrap()
    }

    /// The types of a graph without given shapes.
    pub(crate) fn types_of(graph: &Graph) -> Types {
        infer(graph, &BTreeMap::new()).unwrap()
    }

    /// The type of one value as users see it; `none` where it is not known.
    pub(crate) fn shown(graph: &Graph, types: &Types, name: &str) -> String {
        let id = graph.find_value(name).unwrap();
        types.get(id).map_or("none".to_owned(), ToString::to_string)
    }

    /// The type of the output of the only interesting node, `build`'s result.
    pub(crate) fn type_of(opset: i64, build: impl FnOnce(&mut GraphBuilder) -> String) -> String {
        let mut builder = GraphBuilder::new("test").opset(opset);
        let output = build(&mut builder);
        builder.output(&output);
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
    use crate::builder::{GraphBuilder, int};

    #[test]
    fn declared_types_fill_the_gaps_and_never_contradict_what_was_inferred() {
        let mut builder = GraphBuilder::new("gaps");
        let x = builder.input("x", DType::F32, [symbol("batch"), Dim::Fixed(4)]);
        let relu = builder.node("Relu", &[&x], []);
        builder.declare(&relu, DType::F32, [7, 9]);
        let mask = builder.input("mask", DType::Bool, [4]);
        let some = builder.node("Compress", &[&relu, &mask], [int("axis", 1)]);
        builder.declare(&some, DType::F32, [symbol("ignored"), symbol("kept")]);
        builder.output(&some);
        let graph = graph_of(builder);
        let types = types_of(&graph);
        assert_eq!(shown(&graph, &types, &relu), "f32[batch,4]");
        assert_eq!(shown(&graph, &types, &some), "f32[batch,kept]");
    }

    #[test]
    fn a_given_shape_reaches_declared_symbols_between_nodes() {
        let mut builder = GraphBuilder::new("given");
        let x = builder.input("x", DType::F32, [symbol("batch"), Dim::Fixed(4)]);
        let mask = builder.input("mask", DType::Bool, [4]);
        let some = builder.node("Compress", &[&x, &mask], []);
        builder.declare(&some, DType::F32, [symbol("batch")]);
        builder.output(&some);
        let graph = graph_of(builder);
        let shapes = BTreeMap::from([("x".to_owned(), vec![8, 4])]);
        let types = infer(&graph, &shapes).unwrap();
        assert_eq!(shown(&graph, &types, &some), "f32[8]");
        assert_eq!(shown(&graph, &types, "x"), "f32[8,4]");
    }

    #[test]
    fn a_sequence_is_no_tensor() {
        let mut builder = GraphBuilder::new("sequence");
        let x = builder.input("x", DType::F32, [4]);
        let sequence = builder.node("SequenceConstruct", &[&x, &x], []);
        let length = builder.node("SequenceLength", &[&sequence], []);
        builder.output(&length);
        let graph = graph_of(builder);
        let types = types_of(&graph);
        let id = graph.find_value(&sequence).unwrap();
        assert!(types.is_other(id));
        assert_eq!(types.get(id), None);
        assert_eq!(shown(&graph, &types, &length), "i64[]");
    }
}
