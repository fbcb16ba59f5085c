//! What a node costs: parameters, operations and bytes, from which the planners balance blocks.
//!
//! Operations are counted as fvcore counts them, so that totals compare with published ones: a
//! multiply-add is **one** operation (ResNet-152 has 11.56 G), and only convolutions, products of
//! matrices, normalisation, interpolation and global average pooling count at all. What an
//! element-wise operator costs is the bytes that it moves.

use std::collections::HashSet;

use serde::Serialize;
use tessera_core::{DType, Dim, element_count};

use crate::infer::{self, Fact, InferredTypes, Operator};
use crate::model::{Graph, NodeId, ValueId, Weight};
use crate::onnx::{AttributeProto, TensorProto, tensors};

/// Operations per element of a batch normalisation: scale and shift, the statistics are folded.
const BATCH_NORMALISATION: u64 = 2;

/// Operations per element of the other normalisations, which compute their statistics.
const NORMALISATION: u64 = 5;

/// Operations per element of an interpolation between neighbours.
const INTERPOLATION: u64 = 4;

/// What a node, or several, cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Elements of the weights, of floating-point and quantised ones only.
    pub parameters: u64,
    /// Bytes of the weights, of all of them.
    pub weight_bytes: u64,
    /// Operations, a multiply-add being one.
    pub flops: u64,
    /// Bytes of the inputs that are no weights.
    pub input_bytes: u64,
    /// Bytes of the outputs.
    pub output_bytes: u64,
}

impl Cost {
    /// The memory that it takes: inputs, weights and outputs.
    pub fn memory_bytes(&self) -> u64 {
        self.input_bytes.saturating_add(self.weight_bytes).saturating_add(self.output_bytes)
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            parameters: self.parameters.saturating_add(other.parameters),
            weight_bytes: self.weight_bytes.saturating_add(other.weight_bytes),
            flops: self.flops.saturating_add(other.flops),
            input_bytes: self.input_bytes.saturating_add(other.input_bytes),
            output_bytes: self.output_bytes.saturating_add(other.output_bytes),
        }
    }

    /// A rough time to balance blocks by, at least 1.
    ///
    /// In picoseconds: 20 for an operation, 50 for a byte of weights, which come from far, and 20
    /// for a byte of activations, which are mostly near. Fitted to four blocks of ResNet-50 on one
    /// core of a Xeon; meant to be compared with others, not to be believed.
    pub fn balance_weight(&self) -> u64 {
        let operations = self.flops.saturating_mul(20);
        let weights = self.weight_bytes.saturating_mul(50);
        let activations = self.input_bytes.saturating_add(self.output_bytes).saturating_mul(20);
        operations.saturating_add(weights).saturating_add(activations).max(1)
    }

    fn add_weight(&mut self, dtype: Option<DType>, count: u64, bytes: u64) {
        if dtype.is_some_and(is_parameter) {
            self.parameters = self.parameters.saturating_add(count);
        }
        self.weight_bytes = self.weight_bytes.saturating_add(bytes);
    }
}

/// What a node costs, and whether that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCost {
    /// The cost; dimensions that are symbolic or unknown count as 1.
    pub cost: Cost,
    /// Whether all sizes are known, but for symbolic ones: then it is the cost for a batch of 1.
    pub known: bool,
}

/// What a node costs.
///
/// An `If` costs as much as its larger branch, a `Loop` as one iteration, a `Scan` as all.
pub fn node_cost(graph: &Graph, types: &InferredTypes, node: NodeId) -> NodeCost {
    let node = graph.node(node);
    let mut cost = Cost::default();
    let mut counter = SizeCounter { known: true };
    let fact = |id: ValueId| types.facts().get(id.index()).cloned().unwrap_or_default();
    let mut seen = HashSet::new();
    for id in node.used_values().filter(|id| seen.insert(*id)) {
        match graph.weight(id) {
            Some(weight) => {
                let dtype = weight.tensor_type().map(|tensor| tensor.dtype);
                cost.add_weight(dtype, weight_elements(weight), size_to_u64(weight.byte_len()));
            }
            None => {
                cost.input_bytes = cost.input_bytes.saturating_add(counter.tensor_bytes(&fact(id)));
            }
        }
    }
    for id in node.produced_values() {
        cost.output_bytes = cost.output_bytes.saturating_add(counter.tensor_bytes(&fact(id)));
    }
    body_weights(&node.attributes, &mut cost);
    let scope = infer::scope_of(graph, node, types.facts());
    let operator = Operator::of_node(node, types.facts(), &scope);
    let outputs: Vec<Fact> =
        node.outputs.iter().map(|id| id.map(fact).unwrap_or_default()).collect();
    cost.flops = count_flops(&operator, &outputs, &mut counter);
    NodeCost { cost, known: counter.known }
}

/// Measures types, and remembers whether one was incomplete.
struct SizeCounter {
    known: bool,
}

impl SizeCounter {
    fn dim_size(&mut self, dim: &Dim) -> u64 {
        match dim {
            Dim::Fixed(fixed) => size_to_u64(*fixed),
            Dim::Symbol(_) => 1,
            Dim::Unknown => {
                self.known = false;
                1
            }
        }
    }

    fn element_count(&mut self, dims: Option<&[Dim]>) -> u64 {
        match dims {
            Some(dims) => {
                dims.iter().fold(1, |count: u64, dim| count.saturating_mul(self.dim_size(dim)))
            }
            None => {
                self.known = false;
                1
            }
        }
    }

    /// The size of one dimension of an input, counted from the end (1: the last).
    fn dim_from_end(&mut self, dims: Option<&[Dim]>, place: usize) -> u64 {
        let dim = dims.and_then(|dims| dims.get(dims.len().checked_sub(place)?));
        let dim = dim.cloned().unwrap_or(Dim::Unknown);
        self.dim_size(&dim)
    }

    fn tensor_bytes(&mut self, fact: &Fact) -> u64 {
        let Some(tensor) = &fact.tensor else {
            self.known = false;
            return 0;
        };
        let count = self.element_count(tensor.dims.as_deref());
        // Strings have no size that is known before they are.
        count.saturating_mul(size_to_u64(tensor.dtype.bits_per_element().unwrap_or(0))).div_ceil(8)
    }
}

fn count_flops(operator: &Operator<'_>, outputs: &[Fact], counter: &mut SizeCounter) -> u64 {
    if infer::is_control_flow(operator) {
        return body_flops(operator, counter);
    }
    let output = outputs.first().and_then(Fact::dims);
    let convolution = |counter: &mut SizeCounter, moved: Option<&[Dim]>, place: usize| {
        // Of the weights, all but the dimension that the other side already counts.
        let each = operator.input_dims(place).and_then(|dims| dims.get(1..));
        counter.element_count(moved).saturating_mul(counter.element_count(each))
    };
    let attention = |counter: &mut SizeCounter, keys: Option<&[Dim]>| {
        let both = counter
            .element_count(operator.input_dims(0))
            .saturating_add(counter.element_count(output));
        both.saturating_mul(counter.dim_from_end(keys, 2))
    };
    match (operator.domain, operator.op_type) {
        ("", "Conv" | "ConvInteger" | "DeformConv")
        | ("com.microsoft", "FusedConv" | "NhwcConv" | "NhwcFusedConv")
        | ("com.microsoft.nchwc", "Conv") => convolution(counter, output, 1),
        (_, "QLinearConv") => convolution(counter, output, 3),
        (_, "ConvTranspose" | "ConvTransposeWithDynamicPads") => {
            convolution(counter, operator.input_dims(0), 1)
        }
        (_, "Gemm" | "FusedGemm" | "QGemm") => {
            let place = if operator.integer_attribute("transA", 0) != 0 { 2 } else { 1 };
            counter
                .element_count(output)
                .saturating_mul(counter.dim_from_end(operator.input_dims(0), place))
        }
        ("", "MatMul" | "MatMulInteger" | "QLinearMatMul")
        | (
            "com.microsoft",
            "DynamicQuantizeMatMul"
            | "GemmFastGelu"
            | "MatMulBnb4"
            | "MatMulFpQ4"
            | "MatMulInteger16"
            | "MatMulIntegerToFloat"
            | "MatMulNBits"
            | "FusedMatMul"
            | "FusedMatMulActivation"
            | "TransposeMatMul",
        ) => {
            let place = if operator.integer_attribute("transA", 0) != 0 { 2 } else { 1 };
            counter
                .element_count(output)
                .saturating_mul(counter.dim_from_end(operator.input_dims(0), place))
        }
        ("", "Einsum") => match infer::einsum_letters(operator) {
            Some((letters, _)) => letters
                .values()
                .fold(1, |count: u64, dim| count.saturating_mul(counter.dim_size(dim))),
            None => {
                counter.known = false;
                counter.element_count(output)
            }
        },
        (_, "LSTM" | "GRU" | "RNN" | "DynamicQuantizeLSTM") => {
            let steps =
                counter.element_count(operator.input_dims(0).and_then(|dims| dims.get(..2)));
            let weights = counter
                .element_count(operator.input_dims(1))
                .saturating_add(counter.element_count(operator.input_dims(2)));
            steps.saturating_mul(weights)
        }
        ("", "Attention") => attention(counter, operator.input_dims(1)),
        ("com.microsoft", "MultiHeadAttention" | "GroupQueryAttention") => {
            let keys =
                operator.input_dims(1).or(operator.input_dims(0).and_then(|dims| dims.get(..3)));
            attention(counter, keys)
        }
        ("com.microsoft", "Attention" | "QAttention") => {
            let columns = counter.dim_from_end(operator.input_dims(1), 1);
            let projected = counter.element_count(operator.input_dims(0)).saturating_mul(columns);
            let compared = counter
                .element_count(output)
                .saturating_mul(counter.dim_from_end(operator.input_dims(0), 2));
            projected.saturating_add(compared.saturating_mul(2))
        }
        ("", "BatchNormalization") => {
            counter.element_count(operator.input_dims(0)).saturating_mul(BATCH_NORMALISATION)
        }
        ("", "GroupNormalization" | "InstanceNormalization" | "LayerNormalization")
        | ("", "MeanVarianceNormalization" | "RMSNormalization" | "SimplifiedLayerNormalization")
        | ("com.microsoft", "GroupNorm" | "SkipGroupNorm" | "SkipLayerNormalization")
        | ("com.microsoft", "SkipSimplifiedLayerNormalization") => {
            counter.element_count(operator.input_dims(0)).saturating_mul(NORMALISATION)
        }
        (_, "GlobalAveragePool" | "QLinearGlobalAveragePool") => {
            counter.element_count(operator.input_dims(0))
        }
        ("", "Resize" | "Upsample") => {
            let nearest = matches!(operator.text_attribute("mode"), "" | "nearest");
            let each = if nearest { 1 } else { INTERPOLATION };
            counter.element_count(output).saturating_mul(each)
        }
        (_, "GridSample") => counter.element_count(output).saturating_mul(INTERPOLATION),
        _ => 0,
    }
}

/// The operations of the bodies of an `If`, a `Loop` or a `Scan`.
fn body_flops(operator: &Operator<'_>, counter: &mut SizeCounter) -> u64 {
    let mut largest = 0u64;
    for body in infer::control_flow_bodies(operator) {
        let mut total = 0u64;
        infer::infer_body(&body, operator, &mut |operator, outputs| {
            total = total.saturating_add(count_flops(operator, outputs, counter));
        });
        largest = largest.max(total);
    }
    match operator.op_type {
        "Scan" => largest.saturating_mul(counter.dim_size(&infer::scan_length(operator))),
        _ => largest,
    }
}

/// Adds the weights that lie in the bodies among `attributes`.
fn body_weights(attributes: &[AttributeProto], cost: &mut Cost) {
    let add = |tensor: &TensorProto, cost: &mut Cost| {
        let Ok((dtype, shape)) = tensors::dtype_and_shape(tensor) else {
            return;
        };
        let count = element_count(&shape).unwrap_or(0);
        cost.add_weight(
            Some(dtype),
            size_to_u64(count),
            size_to_u64(dtype.byte_len(count).unwrap_or(0)),
        );
    };
    for graph in attributes.iter().flat_map(|each| each.g.iter().chain(&each.graphs)) {
        for tensor in &graph.initializer {
            add(tensor, cost);
        }
        for node in &graph.node {
            if node.op_type() == "Constant" {
                for tensor in node.attribute.iter().filter_map(|attribute| attribute.t.as_ref()) {
                    add(tensor, cost);
                }
            }
            body_weights(&node.attribute, cost);
        }
    }
}

/// Whether weights of this dtype are parameters, and not indices or shapes.
pub fn is_parameter(dtype: DType) -> bool {
    !matches!(
        dtype,
        DType::I16
            | DType::I32
            | DType::I64
            | DType::U16
            | DType::U32
            | DType::U64
            | DType::Bool
            | DType::String
    )
}

/// The elements that a weight holds; of a sparse one, those that are not 0.
fn weight_elements(weight: &Weight) -> u64 {
    match weight {
        Weight::Dense { .. } | Weight::Strings { .. } => size_to_u64(weight.element_count()),
        Weight::Sparse(sparse) => {
            let sizes = sparse.values.iter().flat_map(|values| &values.dims);
            sizes.fold(1, |count: u64, &dim| count.saturating_mul(u64::try_from(dim).unwrap_or(0)))
        }
    }
}

fn size_to_u64(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{
        GraphBuilder, graph_attribute as body_attribute, int_attribute, ints_attribute,
    };
    use crate::infer::testing::{graph_of, symbol, types_of};
    use crate::onnx::GraphProto;

    fn last_cost(builder: GraphBuilder) -> NodeCost {
        let graph = graph_of(builder);
        let types = types_of(&graph);
        node_cost(&graph, &types, graph.node_ids().last().unwrap())
    }

    #[test]
    fn a_convolution_costs_a_multiply_add_per_weight_and_place() {
        let mut builder = GraphBuilder::new("conv");
        let dims = [symbol("n"), Dim::Fixed(4), Dim::Fixed(8), Dim::Fixed(8)];
        let x = builder.add_input("x", DType::F32, dims);
        let w = builder.add_weight("w", &[6, 2, 3, 3], vec![0.0; 108]);
        let b = builder.add_weight("b", &[6], vec![1.0; 6]);
        let attributes = [int_attribute("group", 2), ints_attribute("pads", &[1, 1, 1, 1])];
        let y = builder.add_node("Conv", &[&x, &w, &b], attributes);
        builder.add_output(&y);
        let NodeCost { cost, known } = last_cost(builder);
        assert!(known, "a symbolic batch counts as 1");
        assert_eq!(
            cost,
            Cost {
                parameters: 114,
                weight_bytes: 456,
                flops: 6 * 64 * 18,
                input_bytes: 4 * 64 * 4,
                output_bytes: 6 * 64 * 4,
            }
        );
        assert_eq!(cost.memory_bytes(), 456 + 1024 + 1536);
        let activations = (cost.input_bytes + cost.output_bytes) * 20;
        assert_eq!(cost.balance_weight(), cost.flops * 20 + cost.weight_bytes * 50 + activations);
    }

    #[test]
    fn products_count_and_shapes_do_not_make_parameters() {
        let mut builder = GraphBuilder::new("gemm");
        let x = builder.add_input("x", DType::F32, [2, 3]);
        let w = builder.add_weight("w", &[10, 3], vec![0.0; 30]);
        let y = builder.add_node("Gemm", &[&x, &w], [int_attribute("transB", 1)]);
        builder.add_output(&y);
        assert_eq!(last_cost(builder).cost.flops, 60);

        let mut builder = GraphBuilder::new("reshape");
        let x = builder.add_input("x", DType::F32, [2, 3]);
        let shape = builder.add_i64_weight("shape", &[1], vec![-1]);
        let y = builder.add_node("Reshape", &[&x, &shape], []);
        builder.add_output(&y);
        let cost = last_cost(builder).cost;
        assert_eq!((cost.parameters, cost.weight_bytes, cost.flops), (0, 8, 0));
    }

    #[test]
    fn a_weight_that_a_node_uses_twice_counts_once() {
        let mut builder = GraphBuilder::new("twice");
        let x = builder.add_input("x", DType::F32, [2]);
        let w = builder.add_weight("w", &[2], vec![0.0; 2]);
        let y = builder.add_node("Sum", &[&x, &w, &w], []);
        builder.add_output(&y);
        let cost = last_cost(builder).cost;
        assert_eq!((cost.parameters, cost.input_bytes), (2, 8));
    }

    #[test]
    fn what_is_not_known_counts_as_one_and_is_told() {
        let mut builder = GraphBuilder::new("unknown");
        let x = builder.add_input_of_any_shape("x", DType::F32);
        let y = builder.add_node("Relu", &[&x], []);
        builder.add_output(&y);
        let NodeCost { cost, known } = last_cost(builder);
        assert!(!known);
        assert_eq!((cost.input_bytes, cost.output_bytes), (4, 4));
    }

    #[test]
    fn an_if_costs_as_much_as_its_larger_branch() {
        let branch = |columns: usize| -> GraphProto {
            let mut builder = GraphBuilder::new("branch");
            let w = builder.add_weight("w", &[3, columns], vec![0.0; 3 * columns]);
            let y = builder.add_node("MatMul", &["x", &w], []);
            builder.add_output(&y);
            builder.build_graph()
        };
        let mut builder = GraphBuilder::new("if");
        builder.add_input("x", DType::F32, [2, 3]);
        let condition = builder.add_input("condition", DType::Bool, [1]);
        let branches =
            [body_attribute("then_branch", branch(4)), body_attribute("else_branch", branch(5))];
        let y = builder.add_node("If", &[&condition], branches);
        builder.add_output(&y);
        let cost = last_cost(builder).cost;
        assert_eq!(cost.flops, 2 * 3 * 5);
        assert_eq!(cost.parameters, 3 * 4 + 3 * 5);
    }

    #[test]
    fn costs_add_up_without_overflow() {
        let most = Cost { flops: u64::MAX, ..Cost::default() };
        assert_eq!(most.plus(most), most);
        assert_eq!(most.balance_weight(), u64::MAX);
        assert_eq!(Cost::default().balance_weight(), 1);
    }
}
