//! What BERT and GPT-2 have in common: linear layers on sequences, normalisation, attention.
//!
//! Everything keeps batch and sequence free: shapes are copied from the input, never written out.

use tessera_core::{DType, Dim};
use tessera_graph::builder::{f32_tensor, float, int, ints, tensor};

use crate::Batch;
use crate::network::{Network, scope};
use crate::weights::Uniform;

/// Width of the sequences.
pub(crate) const WIDTH: usize = 768;

/// Width of the hidden layer between two blocks of attention.
pub(crate) const INNER: usize = 3072;

/// Layers of attention.
pub(crate) const LAYERS: usize = 12;

/// Heads of each layer.
const HEADS: usize = 12;

/// What the scores of positions to come are lowered by; far enough for a weight of zero.
const MASKED: f32 = -10_000.0;

/// The dimensions of a sequence: batch, length, and `sizes`.
pub(crate) fn sequence(network: &Network<'_>, length: usize, sizes: &[usize]) -> Vec<Dim> {
    let length = match network.recipe.batch {
        Batch::Fixed(_) => Dim::Fixed(length),
        Batch::Symbolic => Dim::Symbol("sequence".to_owned()),
    };
    let mut dims = network.batched(sizes);
    dims.insert(1, length);
    dims
}

/// An input of token numbers.
pub(crate) fn tokens(network: &mut Network<'_>, name: &str, length: usize) -> String {
    let dims = sequence(network, length, &[]);
    network.graph.input(name, DType::I64, dims)
}

/// A table of embeddings.
pub(crate) fn table(
    network: &mut Network<'_>,
    module: &str,
    entries: usize,
    deviation: f32,
) -> String {
    let range = Uniform::with_deviation(deviation);
    network.parameter(module, (0, "weight"), &[entries, WIDTH], range)
}

/// The rows of `table` for these token numbers.
pub(crate) fn lookup(network: &mut Network<'_>, module: &str, table: &str, tokens: &str) -> String {
    network.operator(module, "Gather", &[table, tokens])
}

/// The first rows of `table`, as many as `tokens` is long.
pub(crate) fn positions(
    network: &mut Network<'_>,
    module: &str,
    table: &str,
    tokens: &str,
) -> String {
    let scope = scope(module);
    let length = network.graph.node_named(
        &format!("{scope}/Shape"),
        "Shape",
        &[tokens],
        [int("start", 1), int("end", 2)],
    );
    let start = network.list("positions.start", &[0]);
    let axis = network.list("positions.axis", &[0]);
    let name = format!("{scope}/Slice");
    network.graph.node_named(&name, "Slice", &[table, &start, &length, &axis], [])
}

/// A linear layer on every position.
pub(crate) fn linear(
    network: &mut Network<'_>,
    module: &str,
    input: &str,
    (inputs, outputs): (usize, usize),
    gain: f32,
) -> String {
    let range = Uniform::with_deviation(gain / (inputs as f32).sqrt());
    let weight = network.parameter(module, (0, "weight"), &[inputs, outputs], range);
    let bias = network.bias(module, outputs);
    let product = network.operator(module, "MatMul", &[input, &weight]);
    network.operator(module, "Add", &[&product, &bias])
}

/// Normalises every position.
pub(crate) fn layer_norm(
    network: &mut Network<'_>,
    module: &str,
    input: &str,
    epsilon: f32,
) -> String {
    let range = Uniform::between(0.9, 1.1);
    let scale = network.parameter(module, (0, "weight"), &[WIDTH], range);
    let bias = network.bias(module, WIDTH);
    network.graph.node_named(
        &format!("{}/LayerNormalization", scope(module)),
        "LayerNormalization",
        &[input, &scale, &bias],
        [int("axis", -1), float("epsilon", epsilon)],
    )
}

/// Which positions a position attends to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attends {
    /// All of them.
    Everywhere,
    /// Itself and those before it.
    Backwards,
}

/// Attention in heads, from queries, keys and values over the full width.
pub(crate) fn attention(
    network: &mut Network<'_>,
    module: &str,
    [query, key, value]: [&str; 3],
    attends: Attends,
) -> String {
    let query = split_heads(network, &format!("{module}.query"), query, &[0, 2, 1, 3]);
    let key = split_heads(network, &format!("{module}.key"), key, &[0, 2, 3, 1]);
    let value = split_heads(network, &format!("{module}.value"), value, &[0, 2, 1, 3]);
    let scores = network.operator(&format!("{module}.scores"), "MatMul", &[&query, &key]);
    let divisor = network.scalar("attention.divisor", ((WIDTH / HEADS) as f32).sqrt());
    let mut scores = network.operator(module, "Div", &[&scores, &divisor]);
    if attends == Attends::Backwards {
        let mask = future_mask(network, &format!("{module}.mask"), &scores);
        scores = network.operator(&format!("{module}.mask"), "Add", &[&scores, &mask]);
    }
    let name = format!("{}/Softmax", scope(module));
    let shares = network.graph.node_named(&name, "Softmax", &[&scores], [int("axis", -1)]);
    let context = network.operator(&format!("{module}.context"), "MatMul", &[&shares, &value]);
    let name = format!("{}/Transpose", scope(module));
    let order = [ints("perm", &[0, 2, 1, 3])];
    let context = network.graph.node_named(&name, "Transpose", &[&context], order);
    let joined = network.list("attention.joined", &[0, 0, WIDTH as i64]);
    network.operator(module, "Reshape", &[&context, &joined])
}

fn split_heads(network: &mut Network<'_>, module: &str, input: &str, order: &[i64]) -> String {
    let shape = [0, 0, HEADS as i64, (WIDTH / HEADS) as i64];
    let shape = network.list("attention.heads", &shape);
    let heads = network.operator(module, "Reshape", &[input, &shape]);
    let name = format!("{}/Transpose", scope(module));
    network.graph.node_named(&name, "Transpose", &[&heads], [ints("perm", order)])
}

/// What to add to scores so that no position attends to later ones.
///
/// It is made from the scores' own shape: a mask made once, from the input, would be alive in
/// every layer, and no cut between two layers would have a single tensor to pass.
fn future_mask(network: &mut Network<'_>, module: &str, scores: &str) -> String {
    let scope = scope(module);
    let name = format!("{scope}/Shape");
    let shape = network.graph.node_named(&name, "Shape", &[scores], [int("start", 2)]);
    let value = tensor("value", f32_tensor("value", &[1], &[MASKED]));
    let name = format!("{scope}/ConstantOfShape");
    let full = network.graph.node_named(&name, "ConstantOfShape", &[&shape], [value]);
    let diagonal = network.index("mask.diagonal", 1);
    let name = format!("{scope}/Trilu");
    network.graph.node_named(&name, "Trilu", &[&full, &diagonal], [int("upper", 1)])
}
