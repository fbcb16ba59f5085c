//! What a run of a block comes to for inputs of given shapes: whether every window fits, and how
//! much memory it takes. Known before it is run, as far as it follows from shapes.

use prost::Message;
use tessera_core::{Error, Result};

use crate::block::Block;
use crate::infer::{InferredTypes, Operator, describe_unfit_window, infer_types, scope_of};
use crate::model::{Graph, GraphNode, ValueId};
use crate::onnx::external::NoExternalData;
use crate::onnx::tensor_shape_proto::{Dimension, dimension::Value};
use crate::onnx::{
    ModelProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, read, tensor_proto,
    type_proto,
};

/// What a run comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunForecast {
    /// Bytes of the tensors that are there at the same time, at most, beside inputs and weights.
    /// What does not follow from shapes is not in it.
    pub peak_bytes: u64,
}

impl RunForecast {
    /// Looks ahead at a run of `block` on inputs of these shapes.
    ///
    /// Fails where a window does not fit into what it moves over: engines do not promise to notice
    /// (ONNX Runtime divides by zero, which ends the process).
    pub fn of_block(block: &Block, inputs: &[Vec<usize>]) -> Result<Self> {
        let Some((graph, types)) = typed_graph(block, inputs) else {
            return Ok(Self { peak_bytes: 0 });
        };
        for node in graph.nodes() {
            let scope = scope_of(&graph, node, types.facts());
            let operator = Operator::of_node(node, types.facts(), &scope);
            if let Some(problem) = describe_unfit_window(&operator) {
                return Err(Error::invalid(format!("inputs are too small: {problem}")));
            }
        }
        Ok(Self { peak_bytes: peak_bytes(&graph, &types) })
    }
}

/// The graph of a block without its weights, and the types of its values; `None` where there is
/// nothing to know.
fn typed_graph(block: &Block, inputs: &[Vec<usize>]) -> Option<(Graph, InferredTypes)> {
    let mut model = ModelProto::decode(block.program().clone()).ok()?;
    let graph = model.graph.as_mut()?;
    for (input, shape) in graph.input.iter_mut().zip(inputs) {
        if let Some(type_proto::Value::TensorType(tensor)) =
            input.r#type.as_mut().and_then(|declared| declared.value.as_mut())
        {
            tensor.shape = Some(fixed_shape(shape.iter().map(|&size| i64::try_from(size).ok())));
        }
    }
    // Of a weight that is stored on its own nothing but its type matters.
    let is_external =
        |tensor: &TensorProto| tensor.data_location() == tensor_proto::DataLocation::External;
    let (external, inline) =
        std::mem::take(&mut graph.initializer).into_iter().partition(is_external);
    graph.initializer = inline;
    let external: Vec<TensorProto> = external;
    graph.input.extend(external.into_iter().map(weight_as_input));
    let graph = read::from_proto(model, &mut NoExternalData).ok()?;
    let types = infer_types(&graph, &Default::default()).ok()?;
    Some((graph, types))
}

fn fixed_shape(sizes: impl Iterator<Item = Option<i64>>) -> TensorShapeProto {
    let dimension =
        |size: Option<i64>| Dimension { value: size.map(Value::DimValue), ..Default::default() };
    TensorShapeProto { dim: sizes.map(dimension).collect() }
}

fn weight_as_input(weight: TensorProto) -> ValueInfoProto {
    let tensor = type_proto::Tensor {
        elem_type: weight.data_type,
        shape: Some(fixed_shape(weight.dims.iter().map(|&size| Some(size)))),
    };
    let value = Some(type_proto::Value::TensorType(tensor));
    let declared = TypeProto { value, ..Default::default() };
    ValueInfoProto { name: weight.name, r#type: Some(declared), ..Default::default() }
}

/// The most bytes of computed tensors at a time, where each is freed after its last use.
fn peak_bytes(graph: &Graph, types: &InferredTypes) -> u64 {
    let bytes = |id: ValueId| -> u64 {
        /// What a string takes at least, wherever its characters are.
        const STRING_BITS: usize = 256;
        let Some(known) = types.get(id) else { return 0 };
        let Some(shape) = known.fixed_shape() else { return 0 };
        let bits = known.dtype.bits_per_element().unwrap_or(STRING_BITS) as u64;
        let count = shape.iter().fold(1u64, |count, &size| count.saturating_mul(size as u64));
        count.saturating_mul(bits).div_ceil(8)
    };
    let mut uses: Vec<usize> = graph
        .value_ids()
        .map(|id| graph.consumers(id).len() + usize::from(graph.is_output(id)))
        .collect();
    let (mut live, mut peak) = (0u64, 0u64);
    let mut release = |live: &mut u64, id: ValueId| {
        let Some(left) = uses.get_mut(id.index()) else { return };
        *left = left.saturating_sub(1);
        if *left == 0 && graph.producer(id).is_some() {
            *live = live.saturating_sub(bytes(id));
        }
    };
    for node in graph.nodes() {
        live = node.produced_values().fold(live, |live, id| live.saturating_add(bytes(id)));
        peak = peak.max(live);
        for id in used_once_each(node) {
            release(&mut live, id);
        }
    }
    peak
}

/// What a node uses, each value once: that is how its consumers are counted.
fn used_once_each(node: &GraphNode) -> Vec<ValueId> {
    let mut used: Vec<ValueId> = node.used_values().collect();
    used.sort_unstable();
    used.dedup();
    used
}

#[cfg(test)]
mod tests {
    use tessera_core::{DType, Dim};

    use super::*;
    use crate::builder::{GraphBuilder, ints_attribute};
    use crate::infer::testing::symbol;

    fn block_of(builder: GraphBuilder) -> Block {
        Block::parse_program(builder.build_model().encode_to_vec().into()).unwrap()
    }

    fn image_model() -> Block {
        let mut builder = GraphBuilder::new("pooled");
        let dims = [symbol("n"), Dim::Fixed(3), symbol("h"), symbol("w")];
        let x = builder.add_input("x", DType::F32, dims);
        let weights = builder.add_weight("w", &[16, 3, 3, 3], vec![0.5; 432]);
        let pads = ints_attribute("pads", &[1, 1, 1, 1]);
        let y = builder.add_node("Conv", &[&x, &weights], [pads]);
        let window = ints_attribute("kernel_shape", &[3, 3]);
        let y = builder.add_node("MaxPool", &[&y], [window, ints_attribute("strides", &[2, 2])]);
        builder.add_output_of_any_shape(&y, DType::F32);
        block_of(builder)
    }

    #[test]
    fn a_window_that_does_not_fit_is_found() {
        let block = image_model();
        assert!(RunForecast::of_block(&block, &[vec![1, 3, 8, 8]]).is_ok());
        assert!(RunForecast::of_block(&block, &[vec![0, 3, 8, 8]]).is_ok());
        for shape in [[1, 3, 1, 1], [1, 3, 1, 8], [0, 3, 1, 1], [1, 3, 0, 8]] {
            let error = RunForecast::of_block(&block, &[shape.to_vec()]).unwrap_err();
            assert!(error.to_string().contains("inputs are too small"), "{error}");
        }
    }

    #[test]
    fn memory_follows_from_shapes() {
        // The convolution's output, then the pool's beside it.
        let (conv, pool) = (16 * 100 * 100 * 4, 16 * 49 * 49 * 4);
        let forecast = RunForecast::of_block(&image_model(), &[vec![1, 3, 100, 100]]).unwrap();
        assert_eq!(forecast.peak_bytes, conv + pool);
    }

    #[test]
    fn what_is_used_no_more_is_not_counted() {
        let mut builder = GraphBuilder::new("chain");
        let x = builder.add_input("x", DType::F32, [symbol("n")]);
        let mut last = x;
        for _ in 0..20 {
            last = builder.add_node("Abs", &[&last], []);
        }
        builder.add_output_of_any_shape(&last, DType::F32);
        let block = block_of(builder);
        let forecast = RunForecast::of_block(&block, &[vec![1000]]).unwrap();
        assert_eq!(forecast.peak_bytes, 2 * 4000);
        let endless = RunForecast::of_block(&block, &[vec![1 << 60]]).unwrap();
        assert!(endless.peak_bytes > u64::MAX / 16);
    }
}
