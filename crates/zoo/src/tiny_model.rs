//! Models of a few nodes: some that do little, some whose runs have no end or want more memory than
//! there is.

use tessera_core::{DType, Dim, Random};
use tessera_graph::builder::{GraphBuilder, graph_attribute, ints_attribute, raw_tensor};
use tessera_graph::onnx::{ModelProto, tensor_proto};

/// Elements of a row of [`TinyModel::Linear`].
pub const LINEAR_WIDTH: usize = 16;

/// A model of a few nodes. Each has the input `x` and the output `y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TinyModel {
    /// Rows times a matrix of small whole numbers.
    Linear,
    /// Elements without their signs, in any matrix.
    Absolute,
    /// Adds `x` to a sum until that is 1: with 0 it never ends.
    Counting,
    /// A convolution, a pool and another convolution, for images of any size.
    Pooled,
    /// The sum over all products of two elements.
    OuterSum,
    /// As many ones as `x` says, added up.
    Expanded,
}

impl TinyModel {
    /// Every one of them.
    #[cfg(test)]
    const ALL: [Self; 6] = [
        Self::Linear,
        Self::Absolute,
        Self::Counting,
        Self::Pooled,
        Self::OuterSum,
        Self::Expanded,
    ];

    /// The name of its file and its task.
    pub fn task_name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Absolute => "absolute",
            Self::Counting => "counting",
            Self::Pooled => "pooled",
            Self::OuterSum => "outer-sum",
            Self::Expanded => "expanded",
        }
    }

    /// The model.
    pub fn build_model(self) -> ModelProto {
        let mut graph = GraphBuilder::new(self.task_name());
        match self {
            Self::Linear => add_linear(&mut graph),
            Self::Absolute => add_absolute(&mut graph),
            Self::Counting => add_counting(&mut graph),
            Self::Pooled => add_pooled(&mut graph),
            Self::OuterSum => add_outer_sum(&mut graph),
            Self::Expanded => add_expanded(&mut graph),
        }
        graph.build_model()
    }
}

/// The matrix of [`TinyModel::Linear`]: sums of products with whole numbers are exact, in whichever
/// order they are added.
pub fn linear_weight(row: usize, column: usize) -> f32 {
    ((row * 7 + column * 3) % 5) as f32 - 2.0
}

fn open_dim(name: &str) -> Dim {
    Dim::Symbol(name.to_owned())
}

fn add_linear(graph: &mut GraphBuilder) {
    let dims = [open_dim("n"), Dim::Fixed(LINEAR_WIDTH)];
    let x = graph.add_input("x", DType::F32, dims.clone());
    let weight = |index| linear_weight(index / LINEAR_WIDTH, index % LINEAR_WIDTH);
    let weights = (0..LINEAR_WIDTH * LINEAR_WIDTH).map(weight).collect();
    let weights = graph.add_weight("weights", &[LINEAR_WIDTH, LINEAR_WIDTH], weights);
    graph.add_node_into("product", "MatMul", &[&x, &weights], &["y"], []);
    graph.add_typed_output("y", DType::F32, dims);
}

fn add_absolute(graph: &mut GraphBuilder) {
    let dims = [open_dim("n"), open_dim("k")];
    let x = graph.add_input("x", DType::F32, dims.clone());
    graph.add_node_into("absolute", "Abs", &[&x], &["y"], []);
    graph.add_typed_output("y", DType::F32, dims);
}

fn add_counting(graph: &mut GraphBuilder) {
    let x = graph.add_input("x", DType::F32, [1]);
    graph.add_node_into("step", "Identity", &[&x], &["step"], []);
    let most = graph.add_i64_weight("most", &[], vec![i64::MAX]);
    let data_type = tensor_proto::DataType::Bool as i32;
    let yes = graph.add_initializer(raw_tensor("yes", data_type, &[], vec![1].into()));
    let zero = graph.add_weight("zero", &[1], vec![0.0]);
    let body = graph_attribute("body", counting_body().build_graph());
    graph.add_node_into("loop", "Loop", &[&most, &yes, &zero], &["y"], [body]);
    graph.add_typed_output("y", DType::F32, [1]);
}

fn counting_body() -> GraphBuilder {
    let mut body = GraphBuilder::new("body");
    body.add_input("number", DType::I64, [0usize; 0]);
    body.add_input("go_on", DType::Bool, [0usize; 0]);
    let sum = body.add_input("sum", DType::F32, [1]);
    let one = body.add_weight("one", &[1], vec![1.0]);
    body.add_node_into("add", "Add", &[&sum, "step"], &["next"], []);
    let less = body.add_node("Less", &["next", &one], []);
    body.add_node_into("squeeze", "Squeeze", &[&less], &["again"], []);
    body.add_typed_output("again", DType::Bool, [0usize; 0]);
    body.add_typed_output("next", DType::F32, [1]);
    body
}

fn add_pooled(graph: &mut GraphBuilder) {
    let dims = [open_dim("n"), Dim::Fixed(3), open_dim("h"), open_dim("w")];
    let x = graph.add_input("x", DType::F32, dims);
    let first = graph.add_weight("first", &[32, 3, 3, 3], small_numbers(32 * 27, 1));
    let second = graph.add_weight("second", &[32, 32, 3, 3], small_numbers(32 * 32 * 9, 2));
    let pads = || ints_attribute("pads", &[1, 1, 1, 1]);
    let y = graph.add_node("Conv", &[&x, &first], [pads()]);
    let window = [ints_attribute("kernel_shape", &[3, 3]), ints_attribute("strides", &[2, 2])];
    let y = graph.add_node("MaxPool", &[&y], window);
    graph.add_node_into("last", "Conv", &[&y, &second], &["y"], [pads()]);
    graph.add_output_of_any_shape("y", DType::F32);
}

fn small_numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.next_normal() as f32 * 0.1).collect()
}

fn add_outer_sum(graph: &mut GraphBuilder) {
    let x = graph.add_input("x", DType::F32, [open_dim("n")]);
    let axis = graph.add_i64_weight("axis", &[1], vec![1]);
    let column = graph.add_node("Unsqueeze", &[&x, &axis], []);
    let products = graph.add_node("Mul", &[&column, &x], []);
    graph.add_node_into("sum", "ReduceSum", &[&products], &["y"], []);
    graph.add_output_of_any_shape("y", DType::F32);
}

fn add_expanded(graph: &mut GraphBuilder) {
    let count = graph.add_input("x", DType::I64, [1]);
    let one = graph.add_weight("one", &[1], vec![1.0]);
    let ones = graph.add_node("Expand", &[&one, &count], []);
    graph.add_node_into("sum", "ReduceSum", &[&ones], &["y"], []);
    graph.add_output_of_any_shape("y", DType::F32);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message;
    use tessera_graph::{NoExternalData, Split, infer, read_model, split_into_chain};

    use super::*;

    #[test]
    fn every_model_is_read_and_made_a_block() {
        for model in TinyModel::ALL {
            let bytes = model.build_model().encode_to_vec();
            let graph = read_model(bytes.into(), &mut NoExternalData).unwrap();
            let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
            let partition = split_into_chain(&graph, &types, &Split::Blocks(1), &[]).unwrap();
            assert_eq!(partition.graph.inputs[0].name, "x", "{model:?}");
            assert_eq!(partition.graph.outputs[0].0.name, "y", "{model:?}");
        }
    }
}
