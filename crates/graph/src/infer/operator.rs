//! What a rule sees of a node: its attributes, and what is known of its inputs.

use std::collections::{BTreeMap, HashMap};

use tessera_core::{DType, Dim};

use super::element::{Element, MOST_ELEMENTS};
use super::fact::{Dims, Fact};
use crate::model::{GraphNode, ValueId};
use crate::onnx::{AttributeProto, NodeProto};

/// The values that a body can name: its own, and those of the bodies around it.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    opsets: &'a BTreeMap<String, i64>,
    facts: HashMap<String, Fact>,
    outer: Option<&'a Scope<'a>>,
    /// How many bodies this one is in; 0 for what the graph itself captures for its nodes.
    pub(crate) depth: usize,
}

impl<'a> Scope<'a> {
    /// An empty scope outside all bodies.
    pub(crate) fn new(opsets: &'a BTreeMap<String, i64>) -> Self {
        Self { opsets, facts: HashMap::new(), outer: None, depth: 0 }
    }

    /// An empty scope that sees what `outer` sees.
    pub(crate) fn nested_in(outer: &'a Scope<'a>) -> Self {
        Self {
            opsets: outer.opsets,
            facts: HashMap::new(),
            outer: Some(outer),
            depth: outer.depth.saturating_add(1),
        }
    }

    /// Says what is known of a value.
    pub(crate) fn insert_fact(&mut self, name: String, fact: Fact) {
        self.facts.insert(name, fact);
    }

    /// What is known of a value.
    pub(crate) fn find_fact(&self, name: &str) -> Option<&Fact> {
        let mut scope = Some(self);
        while let Some(current) = scope {
            if let Some(fact) = current.facts.get(name) {
                return Some(fact);
            }
            scope = current.outer;
        }
        None
    }
}

/// The axes that an operator is given.
pub(crate) enum Axes {
    /// None are given: the operator has a default.
    Missing,
    /// These, as written: negative ones count from the end.
    Known(Vec<i64>),
    /// Some that are computed.
    Unknown,
}

/// A node, and what is known of its inputs.
#[derive(Debug)]
pub(crate) struct Operator<'a> {
    /// Domain; empty for ONNX's own.
    pub(crate) domain: &'a str,
    /// Operator.
    pub(crate) op_type: &'a str,
    /// What is known of each input; `None` for one that is left out or of which nothing is known.
    pub(crate) inputs: Vec<Option<&'a Fact>>,
    /// Number of outputs.
    pub(crate) output_count: usize,
    /// What its bodies see.
    pub(crate) scope: &'a Scope<'a>,
    attributes: &'a [AttributeProto],
}

impl<'a> Operator<'a> {
    /// A node of a graph; `facts` has an entry per value.
    pub(crate) fn of_node(node: &'a GraphNode, facts: &'a [Fact], scope: &'a Scope<'a>) -> Self {
        let fact = |id: &Option<ValueId>| facts.get((*id)?.index());
        Self {
            domain: &node.domain,
            op_type: &node.op_type,
            inputs: node.inputs.iter().map(fact).collect(),
            output_count: node.outputs.len(),
            scope,
            attributes: &node.attributes,
        }
    }

    /// A node of a body, whose values `scope` knows.
    pub(crate) fn of_proto(node: &'a NodeProto, scope: &'a Scope<'a>) -> Self {
        let fact = |name: &String| {
            if name.is_empty() { None } else { scope.find_fact(name) }
        };
        Self {
            domain: node.domain(),
            op_type: node.op_type(),
            inputs: node.input.iter().map(fact).collect(),
            output_count: node.output.len(),
            scope,
            attributes: &node.attribute,
        }
    }

    /// The version of the operator's domain.
    pub(crate) fn opset(&self) -> i64 {
        self.scope.opsets.get(self.domain).copied().unwrap_or(1)
    }

    /// What is known of an input.
    pub(crate) fn input_fact(&self, index: usize) -> Option<&'a Fact> {
        self.inputs.get(index).copied().flatten()
    }

    /// The dtype of an input.
    pub(crate) fn input_dtype(&self, index: usize) -> Option<DType> {
        self.input_fact(index)?.tensor.as_ref().map(|tensor| tensor.dtype)
    }

    /// The dimensions of an input.
    pub(crate) fn input_dims(&self, index: usize) -> Option<&'a [Dim]> {
        self.input_fact(index)?.dims()
    }

    /// The dimensions of an input, to give them to an output.
    pub(crate) fn copied_dims(&self, index: usize) -> Dims {
        self.input_dims(index).map(<[Dim]>::to_vec)
    }

    /// The elements of an input.
    pub(crate) fn input_elements(&self, index: usize) -> Option<&'a [Element]> {
        self.input_fact(index)?.elements.as_deref()
    }

    /// The integers that an input holds, where all are fixed.
    pub(crate) fn fixed_integers(&self, index: usize) -> Option<Vec<i64>> {
        self.input_elements(index)?.iter().map(Element::as_integer).collect()
    }

    /// The only element of an input.
    pub(crate) fn input_scalar(&self, index: usize) -> Option<&'a Element> {
        match self.input_elements(index)? {
            [element] => Some(element),
            _ => None,
        }
    }

    /// An attribute.
    pub(crate) fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        self.attributes.iter().find(|attribute| attribute.name() == name)
    }

    /// An integer attribute.
    pub(crate) fn integer_attribute(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).and_then(|attribute| attribute.i).unwrap_or(default)
    }

    /// An attribute that is a list of integers.
    pub(crate) fn integers_attribute(&self, name: &str) -> Option<&'a [i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    /// A text attribute; empty where it is missing.
    pub(crate) fn text_attribute(&self, name: &str) -> &'a str {
        self.attribute(name)
            .and_then(|attribute| attribute.s.as_deref())
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
            .unwrap_or_default()
    }

    /// The dtype that an attribute names by its number; `None` for 0, which means "the default".
    pub(crate) fn dtype_attribute(&self, name: &str) -> Option<DType> {
        i32::try_from(self.attribute(name)?.i?).ok().and_then(DType::from_onnx)
    }

    /// A short list: an attribute in old versions of an operator, an input in new ones.
    pub(crate) fn attribute_or_input(&self, attribute: &str, input: usize) -> Option<Vec<Element>> {
        if let Some(values) = self.integers_attribute(attribute) {
            let short = values.len() <= MOST_ELEMENTS;
            return short.then(|| values.iter().copied().map(Element::Fixed).collect());
        }
        let fact = self.input_fact(input)?;
        let unknown = || fact.small_count().map(|count| vec![Element::Unknown; count]);
        fact.elements.clone().or_else(unknown)
    }

    /// The axes, from the attribute `axes` or from an input.
    pub(crate) fn read_axes(&self, input: usize) -> Axes {
        if let Some(axes) = self.integers_attribute("axes") {
            return Axes::Known(axes.to_vec());
        }
        match self.inputs.get(input) {
            Some(Some(_)) => self.fixed_integers(input).map_or(Axes::Unknown, Axes::Known),
            _ => Axes::Missing,
        }
    }
}

/// The axis as an index, where the rank has such an axis; negative ones count from the end.
pub(crate) fn resolve_axis(axis: i64, rank: usize) -> Option<usize> {
    let from_end = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis.checked_add(from_end)? } else { axis };
    usize::try_from(axis).ok().filter(|&axis| axis < rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_axes_count_from_the_end() {
        assert_eq!(resolve_axis(-1, 4), Some(3));
        assert_eq!(resolve_axis(0, 4), Some(0));
        assert_eq!(resolve_axis(4, 4), None);
        assert_eq!(resolve_axis(-5, 4), None);
        assert_eq!(resolve_axis(i64::MIN, 4), None);
        assert_eq!(resolve_axis(0, 0), None);
    }
}
