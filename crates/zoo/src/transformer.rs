//! What BERT and GPT-2 have in common: linear layers on sequences, normalisation, attention.
//!
//! Everything keeps batch and sequence free: shapes are copied from the input, never written out.

use tessera_core::{DType, Dim};
use tessera_graph::builder::{
    f32_tensor, float_attribute, int_attribute, ints_attribute, tensor_attribute,
};

use crate::BatchSize;
use crate::network::{NetworkBuilder, module_scope};
use crate::weights::UniformRange;

/// One size of transformer.
pub(crate) struct TransformerLayout {
    /// Width of the sequences.
    pub(crate) width: usize,
    /// Width of the hidden layer between two layers of attention.
    pub(crate) inner: usize,
    /// Layers of attention.
    pub(crate) layers: usize,
    /// Heads of each layer.
    heads: usize,
}

/// The size of BERT base, RoBERTa base and GPT-2 small.
pub(crate) const BASE_LAYOUT: TransformerLayout =
    TransformerLayout { width: 768, inner: 3072, layers: 12, heads: 12 };

/// The size of BERT large, RoBERTa large and GPT-2 medium.
pub(crate) const LARGE_LAYOUT: TransformerLayout =
    TransformerLayout { width: 1024, inner: 4096, layers: 24, heads: 16 };

/// What the scores of positions to come are lowered by; far enough for a weight of zero.
const MASKED: f32 = -10_000.0;

impl TransformerLayout {
    /// The gain of the last layer of a branch, which is `gain` in the base size: all branches
    /// together add the same energy to the trunk, however many there are.
    pub(crate) fn branch_gain(&self, gain: f32) -> f32 {
        gain * (BASE_LAYOUT.layers as f32 / self.layers as f32).sqrt()
    }

    /// Width of one head.
    fn head_width(&self) -> usize {
        self.width / self.heads
    }
}

/// The dimensions of a sequence: batch, length, and `sizes`. The length is that of the recipe, or
/// else `length`.
pub(crate) fn sequence_dims(
    network: &NetworkBuilder<'_>,
    length: usize,
    sizes: &[usize],
) -> Vec<Dim> {
    let length = match network.recipe.batch {
        BatchSize::Fixed(_) => Dim::Fixed(network.recipe.sequence.unwrap_or(length)),
        BatchSize::Symbolic => Dim::Symbol("sequence".to_owned()),
    };
    let mut dims = network.batched_dims(sizes);
    dims.insert(1, length);
    dims
}

/// An input of token numbers.
pub(crate) fn add_token_input(
    network: &mut NetworkBuilder<'_>,
    name: &str,
    length: usize,
) -> String {
    let dims = sequence_dims(network, length, &[]);
    network.graph.add_input(name, DType::I64, dims)
}

/// A table of embeddings.
pub(crate) fn add_embedding_table(
    network: &mut NetworkBuilder<'_>,
    module: &str,
    (entries, width): (usize, usize),
    deviation: f32,
) -> String {
    let range = UniformRange::with_deviation(deviation);
    network.add_parameter(module, (0, "weight"), &[entries, width], range)
}

/// The rows of `table` for these token numbers.
pub(crate) fn add_embedding_lookup(
    network: &mut NetworkBuilder<'_>,
    module: &str,
    table: &str,
    tokens: &str,
) -> String {
    network.add_operator(module, "Gather", &[table, tokens])
}

/// The first rows of `table`, as many as `tokens` is long.
pub(crate) fn add_position_embeddings(
    network: &mut NetworkBuilder<'_>,
    module: &str,
    table: &str,
    tokens: &str,
) -> String {
    let scope = module_scope(module);
    let length = network.graph.add_named_node(
        &format!("{scope}/Shape"),
        "Shape",
        &[tokens],
        [int_attribute("start", 1), int_attribute("end", 2)],
    );
    let start = network.integers_constant("positions.start", &[0]);
    let axis = network.integers_constant("positions.axis", &[0]);
    let name = format!("{scope}/Slice");
    network.graph.add_named_node(&name, "Slice", &[table, &start, &length, &axis], [])
}

/// A linear layer on every position.
pub(crate) fn add_linear(
    network: &mut NetworkBuilder<'_>,
    module: &str,
    input: &str,
    (inputs, outputs): (usize, usize),
    gain: f32,
) -> String {
    let range = UniformRange::with_deviation(gain / (inputs as f32).sqrt());
    let weight = network.add_parameter(module, (0, "weight"), &[inputs, outputs], range);
    let bias = network.add_bias(module, outputs);
    let product = network.add_operator(module, "MatMul", &[input, &weight]);
    network.add_operator(module, "Add", &[&product, &bias])
}

/// Normalises every position.
pub(crate) fn add_layer_norm(
    network: &mut NetworkBuilder<'_>,
    layout: &TransformerLayout,
    module: &str,
    input: &str,
    epsilon: f32,
) -> String {
    let range = UniformRange::between(0.9, 1.1);
    let scale = network.add_parameter(module, (0, "weight"), &[layout.width], range);
    let bias = network.add_bias(module, layout.width);
    network.graph.add_named_node(
        &format!("{}/LayerNormalization", module_scope(module)),
        "LayerNormalization",
        &[input, &scale, &bias],
        [int_attribute("axis", -1), float_attribute("epsilon", epsilon)],
    )
}

/// Which positions a position attends to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttentionDirection {
    /// All of them.
    Bidirectional,
    /// Itself and those before it.
    Causal,
}

/// Attention in heads, from queries, keys and values over the full width.
pub(crate) fn add_attention(
    network: &mut NetworkBuilder<'_>,
    layout: &TransformerLayout,
    module: &str,
    [query, key, value]: [&str; 3],
    direction: AttentionDirection,
) -> String {
    let query = add_split_heads(network, layout, &format!("{module}.query"), query, &[0, 2, 1, 3]);
    let key = add_split_heads(network, layout, &format!("{module}.key"), key, &[0, 2, 3, 1]);
    let value = add_split_heads(network, layout, &format!("{module}.value"), value, &[0, 2, 1, 3]);
    let scores = network.add_operator(&format!("{module}.scores"), "MatMul", &[&query, &key]);
    let divisor = (layout.head_width() as f32).sqrt();
    let divisor = network.scalar_constant("attention.divisor", divisor);
    let mut scores = network.add_operator(module, "Div", &[&scores, &divisor]);
    if direction == AttentionDirection::Causal {
        let mask = add_causal_mask(network, &format!("{module}.mask"), &scores);
        scores = network.add_operator(&format!("{module}.mask"), "Add", &[&scores, &mask]);
    }
    let name = format!("{}/Softmax", module_scope(module));
    let weights =
        network.graph.add_named_node(&name, "Softmax", &[&scores], [int_attribute("axis", -1)]);
    let context = network.add_operator(&format!("{module}.context"), "MatMul", &[&weights, &value]);
    let name = format!("{}/Transpose", module_scope(module));
    let order = [ints_attribute("perm", &[0, 2, 1, 3])];
    let context = network.graph.add_named_node(&name, "Transpose", &[&context], order);
    let joined = network.integers_constant("attention.joined", &[0, 0, layout.width as i64]);
    network.add_operator(module, "Reshape", &[&context, &joined])
}

fn add_split_heads(
    network: &mut NetworkBuilder<'_>,
    layout: &TransformerLayout,
    module: &str,
    input: &str,
    order: &[i64],
) -> String {
    let shape = [0, 0, layout.heads as i64, layout.head_width() as i64];
    let shape = network.integers_constant("attention.heads", &shape);
    let heads = network.add_operator(module, "Reshape", &[input, &shape]);
    let name = format!("{}/Transpose", module_scope(module));
    network.graph.add_named_node(&name, "Transpose", &[&heads], [ints_attribute("perm", order)])
}

/// What to add to scores so that no position attends to later ones.
///
/// It is made from the scores' own shape: a mask made once, from the input, would be alive in
/// every layer, and no cut between two layers would have a single tensor to pass.
fn add_causal_mask(network: &mut NetworkBuilder<'_>, module: &str, scores: &str) -> String {
    let scope = module_scope(module);
    let name = format!("{scope}/Shape");
    let shape =
        network.graph.add_named_node(&name, "Shape", &[scores], [int_attribute("start", 2)]);
    let value = tensor_attribute("value", f32_tensor("value", &[1], &[MASKED]));
    let name = format!("{scope}/ConstantOfShape");
    let full = network.graph.add_named_node(&name, "ConstantOfShape", &[&shape], [value]);
    let diagonal = network.integer_constant("mask.diagonal", 1);
    let name = format!("{scope}/Trilu");
    network.graph.add_named_node(&name, "Trilu", &[&full, &diagonal], [int_attribute("upper", 1)])
}
