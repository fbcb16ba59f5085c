//! What is known of the sizes in a graph when every open dimension has a name.

use std::collections::HashMap;

use tessera_core::Dim;

use crate::infer::{
    AxisSlice, Element, Fact, InferredTypes, Operator, SizeProduct, axis_slices,
    infer_output_facts, is_broadcast_arithmetic, is_comparison, is_control_flow, scope_of,
};
use crate::model::{Graph, ValueId};

/// What the open dimensions of inputs are called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DimNames {
    /// As in the file: equal names are equal sizes.
    AsDeclared,
    /// Each has a name of its own.
    OfEachInput,
}

/// What is known of every value. Nothing is believed that a file declares but the types of inputs;
/// every dimension that is not known gets a name of its own, and equal names are equal sizes.
pub(super) struct ShapeFacts {
    facts: Vec<Fact>,
    /// Sizes that are those of another name, or less where a constant has no more to give.
    bounded: HashMap<String, String>,
    /// Sizes that are products of others.
    products: HashMap<String, SizeProduct>,
    /// The names of products, each of which has one.
    product_names: HashMap<SizeProduct, String>,
}

impl ShapeFacts {
    /// Infers the facts; `visit` sees each node with what is known of its inputs and outputs.
    pub(super) fn infer(
        graph: &Graph,
        types: &InferredTypes,
        names: DimNames,
        visit: &mut dyn FnMut(crate::NodeId, &Operator<'_>, &[Fact]),
    ) -> Self {
        let facts = vec![Fact::default(); graph.value_count()];
        let mut known = Self {
            facts,
            bounded: HashMap::new(),
            products: HashMap::new(),
            product_names: HashMap::new(),
        };
        for (id, weight) in graph.weights() {
            known.facts[id.index()] = Fact::of_weight(weight);
        }
        for &id in graph.inputs() {
            let mut fact = types.get(id).cloned().map(Fact::of_type).unwrap_or_default();
            if names == DimNames::OfEachInput {
                fact.forget_names();
            }
            name_open_dims(&mut fact, id);
            known.facts[id.index()] = fact;
        }
        for id in graph.node_ids() {
            let node = graph.node(id);
            let scope = scope_of(graph, node, &known.facts);
            let operator = Operator::of_node(node, &known.facts, &scope);
            let mut outputs = infer_output_facts(&operator);
            if is_control_flow(&operator) {
                // Bodies have names from what the file declares.
                outputs.iter_mut().for_each(Fact::forget_names);
            }
            known.close_bounded_dims(&operator, &mut outputs);
            let bounds = bounded_axes(&operator, &outputs);
            let product = known.close_reshaped_dim(&operator, &mut outputs);
            for (value, fact) in node.outputs.iter().zip(&mut outputs) {
                if let Some(value) = *value {
                    name_open_dims(fact, value);
                }
            }
            visit(id, &operator, &outputs);
            if let Some(Some(value)) = node.outputs.first() {
                let named = |(axis, base)| (own_name(*value, axis), base);
                known.bounded.extend(bounds.into_iter().map(named));
                if let Some((axis, product)) = product {
                    let name = own_name(*value, axis);
                    known.products.insert(name.clone(), product.clone());
                    known.product_names.insert(product, name);
                }
            }
            for (value, fact) in node.outputs.iter().zip(outputs) {
                if let Some(value) = *value {
                    known.facts[value.index()] = fact;
                }
            }
        }
        known
    }

    /// What is known of a value.
    pub(super) fn fact(&self, id: ValueId) -> &Fact {
        &self.facts[id.index()]
    }

    /// Works out the one size of a `Reshape` that is not known. Returns the axis and the product where
    /// it is a product of sizes that has no name yet.
    fn close_reshaped_dim(
        &self,
        operator: &Operator<'_>,
        outputs: &mut [Fact],
    ) -> Option<(usize, SizeProduct)> {
        if !operator.domain.is_empty() || operator.op_type != "Reshape" {
            return None;
        }
        let dims = outputs.first_mut()?.tensor.as_mut()?.dims.as_mut()?;
        let mut unknown = (0..dims.len()).filter(|&axis| dims[axis] == Dim::Unknown);
        let (Some(axis), None) = (unknown.next(), unknown.next()) else {
            return None;
        };
        let others = dims.iter().enumerate().filter(|(other, _)| *other != axis);
        let others = self.product_of(others.map(|(_, dim)| dim))?;
        let rest = self.product_of(operator.input_dims(0)?)?.divided_by(&others)?;
        dims[axis] = match (rest.to_dim(), self.product_names.get(&rest)) {
            (Dim::Unknown, None) => return Some((axis, rest)),
            (Dim::Unknown, Some(name)) => Dim::Symbol(name.clone()),
            (known, _) => known,
        };
        None
    }

    /// The product of sizes, in terms of those that are no products themselves.
    fn product_of<'d>(&self, dims: impl IntoIterator<Item = &'d Dim>) -> Option<SizeProduct> {
        dims.into_iter().try_fold(SizeProduct::one(), |product, dim| match dim {
            Dim::Symbol(name) if self.products.contains_key(name) => {
                product.times(self.products.get(name)?)
            }
            dim => product.times(&SizeProduct::of_dims([dim])?),
        })
    }

    /// Broadcasting a size with one that is the same or less gives the size: neither is 1 unless both
    /// are, and otherwise they must be equal for the operator to run at all.
    fn close_bounded_dims(&self, operator: &Operator<'_>, outputs: &mut [Fact]) {
        let name = operator.op_type;
        let broadcasts = is_broadcast_arithmetic(name)
            || is_comparison(name)
            || matches!(name, "Expand" | "Where");
        if self.bounded.is_empty() || !operator.domain.is_empty() || !broadcasts {
            return;
        }
        let [output] = outputs else { return };
        let Some(dims) = output.tensor.as_mut().and_then(|tensor| tensor.dims.as_mut()) else {
            return;
        };
        let Some(shapes) = broadcast_shapes(operator) else { return };
        let rank = dims.len();
        for (axis, dim) in dims.iter_mut().enumerate().filter(|(_, dim)| **dim == Dim::Unknown) {
            let mut bases = shapes.iter().filter_map(|dims| {
                let dim = dims.get((axis + dims.len()).checked_sub(rank)?)?;
                Some(dim).filter(|dim| **dim != Dim::Fixed(1))
            });
            let base = |dim: &Dim| match dim {
                Dim::Symbol(name) => Some(self.bounded.get(name).unwrap_or(name).clone()),
                _ => None,
            };
            let Some(first) = bases.next().and_then(base) else { continue };
            if bases.all(|dim| base(dim).as_ref() == Some(&first)) {
                *dim = Dim::Symbol(first);
            }
        }
    }
}

/// The shapes that an operator broadcasts.
fn broadcast_shapes(operator: &Operator<'_>) -> Option<Vec<Vec<Dim>>> {
    if operator.op_type == "Expand" {
        let target = operator.input_elements(1)?.iter().map(Element::to_dim).collect();
        return Some(vec![operator.input_dims(0)?.to_vec(), target]);
    }
    operator.inputs.iter().flatten().map(|fact| Some(fact.dims()?.to_vec())).collect()
}

/// The axes of a `Slice` that take as much of a constant as there is of something else, at most all.
fn bounded_axes(operator: &Operator<'_>, outputs: &[Fact]) -> Vec<(usize, String)> {
    let is_slice = operator.domain.is_empty() && operator.op_type == "Slice";
    let (true, Some(dims)) = (is_slice, operator.input_dims(0)) else {
        return Vec::new();
    };
    let is_open = |axis: usize| {
        let dims = outputs.first().and_then(Fact::dims);
        dims.and_then(|dims| dims.get(axis)) == Some(&Dim::Unknown)
    };
    let bound = |slice: AxisSlice| {
        let has_more = dims.get(slice.axis)?.fixed_size()? > 1;
        let Element::Symbol(base) = slice.end else { return None };
        let from_start = slice.start == Element::Fixed(0) && slice.step == Element::Fixed(1);
        (has_more && from_start && is_open(slice.axis)).then_some((slice.axis, base))
    };
    axis_slices(operator, dims.len()).into_iter().flatten().filter_map(bound).collect()
}

fn own_name(id: ValueId, axis: usize) -> String {
    format!("#{}.{axis}", id.index())
}

/// Gives every open dimension a name: no other value has it but by a rule.
fn name_open_dims(fact: &mut Fact, id: ValueId) {
    let dims = fact.tensor.as_mut().and_then(|tensor| tensor.dims.as_mut());
    for (axis, dim) in dims.into_iter().flatten().enumerate() {
        if *dim == Dim::Unknown {
            *dim = Dim::Symbol(own_name(id, axis));
        }
    }
}
