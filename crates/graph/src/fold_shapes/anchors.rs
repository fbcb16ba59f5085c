//! Takes sizes from a tensor that is there anyway.
//!
//! A size may be asked of a tensor that is long gone where the size is used: of the image at the
//! beginning, of the embeddings. Where another tensor is known to have the same size, and is alive at
//! that place or is a small input of the model, the size is asked of that one.

use std::collections::HashMap;

use tessera_core::{DType, Dim};

use super::KnownTensor;
use super::shape_facts::ShapeFacts;
use crate::builder::int_attribute;
use crate::infer::Element;
use crate::model::{Graph, GraphNode, NodeId, ValueId};
use crate::operators::is_cheap;
use crate::recomputed::SmallConstants;
use crate::size_estimate::SizeEstimates;
use crate::trunk_order::order_trunk;

/// `Concat` has its axis for sure from this opset on.
const LOWEST_OPSET: i64 = 4;

/// How many values before the place where a size is used are looked at.
const MOST_CANDIDATES: usize = 4096;

/// Asks other tensors for sizes where that helps; the graph must be linked again afterwards.
pub(super) fn anchor_sizes(graph: &mut Graph, facts: &ShapeFacts, sizes: &SizeEstimates) {
    if graph.opsets().get("").is_none_or(|&opset| opset < LOWEST_OPSET) {
        return;
    }
    let places = PlaceFinder::new(graph, facts, sizes);
    let mut moves: Vec<(NodeId, usize, ValueId)> = Vec::new();
    for (position, &id) in places.order.iter().enumerate() {
        if places.is_arithmetic(id) {
            continue;
        }
        for (input, value) in graph.node(id).inputs.iter().enumerate() {
            if let Some(anchor) = value.and_then(|value| places.find_anchor(position, id, value)) {
                moves.push((id, input, anchor));
            }
        }
    }
    let mut made: HashMap<(ValueId, ValueId), ValueId> = HashMap::new();
    for (id, input, anchor) in moves {
        let Some(old) = graph.nodes[id.index()].inputs[input] else { continue };
        let new = match made.get(&(old, anchor)) {
            Some(&known) => Some(known),
            None => SizeRequest::new(facts, old, anchor).map(|request| request.add_to(graph)),
        };
        if let Some(new) = new {
            made.insert((old, anchor), new);
            graph.nodes[id.index()].inputs[input] = Some(new);
        }
    }
}

/// Whether a value is made of sizes that have names.
fn is_made_of_sizes(facts: &ShapeFacts, value: ValueId) -> bool {
    let fact = facts.fact(value);
    let is_integer = fact.tensor.as_ref().is_some_and(|tensor| tensor.dtype == DType::I64);
    is_integer
        && fact.elements.as_ref().is_some_and(|elements| !elements.contains(&Element::Unknown))
}

/// The names of the sizes that a value is made of.
fn names_in(facts: &ShapeFacts, value: ValueId) -> impl Iterator<Item = &str> {
    facts.fact(value).elements.iter().flatten().filter_map(|element| match element {
        Element::Symbol(name) => Some(name.as_str()),
        _ => None,
    })
}

/// Finds the tensors that can be asked.
struct PlaceFinder<'a> {
    graph: &'a Graph,
    facts: &'a ShapeFacts,
    order: Vec<NodeId>,
    /// Per value, the position of its last use for more than its sizes.
    last_use: Vec<Option<usize>>,
    /// Computed values, and at which position they are made, in order.
    made_at: Vec<(usize, ValueId)>,
    made_at_position: Vec<Option<usize>>,
    small_inputs: Vec<ValueId>,
    small_constants: SmallConstants,
    /// Per value, whether it follows from small inputs and sizes by cheap operators.
    is_light: Vec<bool>,
}

impl<'a> PlaceFinder<'a> {
    fn new(graph: &'a Graph, facts: &'a ShapeFacts, sizes: &SizeEstimates) -> Self {
        let is_small = |id: &ValueId| sizes.bytes_of(*id).is_some_and(|b| b <= sizes.small_input);
        let small_inputs = graph.inputs().iter().copied().filter(is_small).collect();
        let order = order_trunk(graph, sizes, &|_| true);
        let empty = vec![None; graph.value_count()];
        let is_light = vec![false; graph.value_count()];
        let mut found = Self {
            graph,
            facts,
            order,
            last_use: empty.clone(),
            made_at: Vec::new(),
            made_at_position: empty,
            small_inputs,
            small_constants: SmallConstants::find(graph),
            is_light,
        };
        for (position, &id) in found.order.iter().enumerate() {
            let node = graph.node(id);
            if !matches!(node.op_type.as_str(), "Shape" | "Size") {
                for value in node.used_values() {
                    found.last_use[value.index()] = Some(position);
                }
            }
            for value in node.produced_values() {
                found.made_at.push((position, value));
                found.made_at_position[value.index()] = Some(position);
            }
            if found.is_light_node(id) {
                node.produced_values().for_each(|value| found.is_light[value.index()] = true);
            }
        }
        found
    }

    fn is_arithmetic(&self, id: NodeId) -> bool {
        let mut made = self.graph.node(id).produced_values();
        made.all(|value| is_made_of_sizes(self.facts, value))
    }

    /// Whether a node can run anywhere, if its sizes are asked of small inputs.
    fn is_light_node(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        is_cheap(&node.domain, &node.op_type)
            && node.used_values().all(|value| {
                self.small_constants.contains(value)
                    || self.small_inputs.contains(&value)
                    || self.is_light[value.index()]
                    || is_made_of_sizes(self.facts, value)
            })
    }

    /// The tensor to ask for the sizes that `value` has for the node; `None` where it may stay.
    fn find_anchor(&self, position: usize, id: NodeId, value: ValueId) -> Option<ValueId> {
        let is_computed = !self.graph.is_constant(value) && self.graph.producer(value).is_some();
        let is_named = names_in(self.facts, value).next().is_some();
        if !is_computed || !is_named || !is_made_of_sizes(self.facts, value) {
            return None;
        }
        let asked = self.asked_tensors(value)?;
        let has_names = |candidate: ValueId| {
            let dims = self.facts.fact(candidate).dims().unwrap_or_default();
            let has = |name: &str| dims.iter().any(|d| matches!(d, Dim::Symbol(n) if n == name));
            names_in(self.facts, value).all(has)
        };
        let small = || self.small_inputs.iter().copied().find(|&input| has_names(input));
        if self.is_light_node(id) {
            let is_fine = |tensor: &ValueId| {
                self.small_inputs.contains(tensor) || self.is_light[tensor.index()]
            };
            if asked.iter().all(is_fine) {
                return None;
            }
            if let Some(input) = small() {
                return Some(input);
            }
        }
        let is_alive =
            |tensor: ValueId| self.last_use[tensor.index()].is_some_and(|last| last >= position);
        if asked.iter().all(|&tensor| is_alive(tensor)) {
            return None;
        }
        let before = self.made_at.partition_point(|(made, _)| *made < position);
        let recent = self.made_at[..before].iter().rev().take(MOST_CANDIDATES);
        let recent = || recent.clone().map(|(_, value)| *value).filter(|&value| has_names(value));
        let is_later =
            |anchor: &ValueId| asked.iter().all(|&asked| self.is_made_before(asked, *anchor));
        if let Some(alive) = recent().find(|&tensor| is_alive(tensor)) {
            return Some(alive).filter(is_later);
        }
        // Or one that is gone, but much later.
        let is_near = |anchor: &ValueId| {
            let distance = |value: ValueId| {
                position.saturating_sub(self.made_at_position[value.index()].unwrap_or(0))
            };
            asked.iter().all(|&asked| distance(*anchor).saturating_mul(4) <= distance(asked))
        };
        small().or_else(|| recent().next().filter(is_near))
    }

    /// Whether a tensor is made before another; inputs are before all others.
    fn is_made_before(&self, first: ValueId, second: ValueId) -> bool {
        self.made_at_position[first.index()] < self.made_at_position[second.index()]
    }

    /// The tensors whose sizes a value is made of; `None` where it has something else in it.
    fn asked_tensors(&self, value: ValueId) -> Option<Vec<ValueId>> {
        let (mut asked, mut wanted) = (Vec::new(), vec![value]);
        let mut steps = 0;
        while let Some(value) = wanted.pop() {
            steps += 1;
            if self.graph.is_constant(value) {
                continue;
            }
            let node = self.graph.node(self.graph.producer(value)?);
            match node.op_type.as_str() {
                _ if steps > MOST_CANDIDATES => return None,
                "Shape" | "Size" => asked.extend(node.used_values()),
                _ => wanted.extend(node.used_values()),
            }
        }
        Some(asked)
    }
}

/// Nodes that ask a tensor for sizes: `Gather(Concat(Shape(anchor), fixed), places)`.
struct SizeRequest {
    name: String,
    anchor: ValueId,
    fixed: Vec<i64>,
    places: Vec<i64>,
    shape: Vec<usize>,
}

impl SizeRequest {
    fn new(facts: &ShapeFacts, value: ValueId, anchor: ValueId) -> Option<Self> {
        let (fact, dims) = (facts.fact(value), facts.fact(anchor).dims()?);
        let shape = fact.dims()?.iter().map(Dim::fixed_size).collect::<Option<_>>()?;
        let mut fixed: Vec<i64> = Vec::new();
        let mut places = Vec::new();
        for element in fact.elements.as_ref()? {
            let place = match element {
                Element::Symbol(_) => dims.iter().position(|dim| *dim == element.to_dim())?,
                _ => {
                    let size = element.as_integer()?;
                    let known = fixed.iter().position(|&known| known == size);
                    dims.len()
                        + known.unwrap_or_else(|| {
                            fixed.push(size);
                            fixed.len() - 1
                        })
                }
            };
            places.push(i64::try_from(place).ok()?);
        }
        let name = format!("size/{}/{}", value.index(), anchor.index());
        Some(Self { name, anchor, fixed, places, shape })
    }

    fn add_to(self, graph: &mut Graph) -> ValueId {
        let mut sizes = self.add_node(graph, "Shape", "all", vec![self.anchor], &[]);
        if !self.fixed.is_empty() {
            let fixed = self.fixed.clone();
            let shape = vec![fixed.len()];
            let fixed = self.add_weight(graph, "fixed", shape, fixed);
            sizes = self.add_node(graph, "Concat", "joined", vec![sizes, fixed], &[("axis", 0)]);
        }
        let places = self.add_weight(graph, "places", self.shape.clone(), self.places.clone());
        self.add_node(graph, "Gather", "taken", vec![sizes, places], &[])
    }

    fn add_value(&self, graph: &mut Graph, role: &str) -> ValueId {
        let id = ValueId(graph.names.len() as u32);
        graph.names.push(format!("{}/{role}", self.name));
        id
    }

    fn add_weight(
        &self,
        graph: &mut Graph,
        role: &str,
        shape: Vec<usize>,
        integers: Vec<i64>,
    ) -> ValueId {
        let id = self.add_value(graph, role);
        let elements = integers.into_iter().map(Element::Fixed).collect();
        let tensor = KnownTensor { dtype: DType::I64, shape, elements };
        graph.weights.insert(id, tensor.to_weight());
        id
    }

    fn add_node(
        &self,
        graph: &mut Graph,
        op_type: &str,
        role: &str,
        inputs: Vec<ValueId>,
        attributes: &[(&str, i64)],
    ) -> ValueId {
        let output = self.add_value(graph, role);
        let attribute = |&(name, value): &(&str, i64)| int_attribute(name, value);
        graph.nodes.push(GraphNode {
            name: graph.value_name(output).to_owned(),
            domain: String::new(),
            op_type: op_type.to_owned(),
            inputs: inputs.into_iter().map(Some).collect(),
            outputs: vec![Some(output)],
            captures: Vec::new(),
            attributes: attributes.iter().map(attribute).collect(),
        });
        output
    }
}
