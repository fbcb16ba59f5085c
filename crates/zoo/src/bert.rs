//! BERT base with a classifier on the first token.
//!
//! There is no attention mask: a batch holds sequences of one length, nothing is padded, and so
//! a single tensor passes from layer to layer.

use std::f32::consts::SQRT_2;

use tessera_core::DType;
use tessera_graph::builder::int;

use crate::network::{LINEAR, Network};
use crate::transformer::{
    Attends, INNER, LAYERS, WIDTH, attention, layer_norm, linear, lookup, positions, table, tokens,
};

/// Length of the sequences where it is fixed.
const LENGTH: usize = 128;

/// Tokens that there are.
const VOCABULARY: usize = 30_522;

/// Positions that there are, so the greatest length.
const POSITIONS: usize = 512;

/// Kinds of tokens: of the first sentence, of the second.
const TOKEN_TYPES: usize = 2;

/// Classes of the classifier.
const CLASSES: usize = 16;

/// Deviation of the words' embeddings: above the others, so that words decide.
const WORD: f32 = 0.05;

/// Deviation of the other embeddings, which is BERT's own.
const EMBEDDING: f32 = 0.02;

/// The gain of the last layer of a branch, so that tokens do not become all alike.
const BRANCH: f32 = 0.5;

/// The gain of the classifier, so that logits have a deviation of 1 to 3.
const CLASSIFIER: f32 = 3.0;

const EPSILON: f32 = 1e-12;

pub(crate) fn assemble(network: &mut Network<'_>) {
    let words = tokens(network, "input_ids", LENGTH);
    let types = tokens(network, "token_type_ids", LENGTH);
    network.stage(1);
    let mut hidden = embeddings(network, &words, &types);
    for number in 0..LAYERS {
        network.stage(number + 1);
        hidden = layer(network, &format!("encoder.layer.{number}"), &hidden);
    }
    network.head();
    let first = network.index("pooler.first", 0);
    let name = "/pooler/Gather";
    let first = network.graph.node_named(name, "Gather", &[&hidden, &first], [int("axis", 1)]);
    let pooled = network.dense("pooler.dense", &first, (WIDTH, WIDTH), LINEAR, None);
    let pooled = network.operator("pooler.activation", "Tanh", &[&pooled]);
    let shape = (WIDTH, CLASSES);
    let output = network.dense("classifier", &pooled, shape, CLASSIFIER, Some("output"));
    let dims = network.batched(&[CLASSES]);
    network.graph.output_typed(&output, DType::F32, dims);
}

fn embeddings(network: &mut Network<'_>, words: &str, types: &str) -> String {
    let module = "embeddings.word_embeddings";
    let word_table = table(network, module, VOCABULARY, WORD);
    let word = lookup(network, module, &word_table, words);
    let module = "embeddings.token_type_embeddings";
    let type_table = table(network, module, TOKEN_TYPES, EMBEDDING);
    let kind = lookup(network, module, &type_table, types);
    let module = "embeddings.position_embeddings";
    let position_table = table(network, module, POSITIONS, EMBEDDING);
    let position = positions(network, module, &position_table, words);
    let sum = network.operator("embeddings", "Add", &[&word, &kind]);
    let sum = network.operator("embeddings.position", "Add", &[&sum, &position]);
    layer_norm(network, "embeddings.LayerNorm", &sum, EPSILON)
}

fn layer(network: &mut Network<'_>, module: &str, input: &str) -> String {
    let own = format!("{module}.attention.self");
    let shape = (WIDTH, WIDTH);
    let query = linear(network, &format!("{own}.query"), input, shape, LINEAR);
    let key = linear(network, &format!("{own}.key"), input, shape, LINEAR);
    let value = linear(network, &format!("{own}.value"), input, shape, LINEAR);
    let context = attention(network, &own, [&query, &key, &value], Attends::Everywhere);
    let output = format!("{module}.attention.output");
    let attended = linear(network, &format!("{output}.dense"), &context, shape, BRANCH);
    let sum = network.operator(&output, "Add", &[&attended, input]);
    let attended = layer_norm(network, &format!("{output}.LayerNorm"), &sum, EPSILON);

    let inner = format!("{module}.intermediate");
    let shape = (WIDTH, INNER);
    let wide = linear(network, &format!("{inner}.dense"), &attended, shape, LINEAR);
    let wide = gelu(network, &format!("{inner}.intermediate_act_fn"), &wide);
    let output = format!("{module}.output");
    let shape = (INNER, WIDTH);
    let narrow = linear(network, &format!("{output}.dense"), &wide, shape, BRANCH);
    let sum = network.operator(&output, "Add", &[&narrow, &attended]);
    layer_norm(network, &format!("{output}.LayerNorm"), &sum, EPSILON)
}

/// x · (1 + erf(x / √2)) / 2, as exporters write it before opset 20 has an operator for it.
fn gelu(network: &mut Network<'_>, module: &str, input: &str) -> String {
    let root = network.scalar("gelu.root", SQRT_2);
    let one = network.scalar("gelu.one", 1.0);
    let half = network.scalar("gelu.half", 0.5);
    let value = network.operator(module, "Div", &[input, &root]);
    let value = network.operator(module, "Erf", &[&value]);
    let value = network.operator(module, "Add", &[&value, &one]);
    let value = network.operator(module, "Mul", &[input, &value]);
    network.operator(&format!("{module}.half"), "Mul", &[&value, &half])
}

#[cfg(test)]
mod tests {
    use crate::{Architecture, Recipe};

    #[test]
    fn parameters_are_as_many_as_in_the_published_model() {
        // The encoder with its pooler, and a classifier of 16 classes.
        let parameters = Recipe::new(Architecture::BertBase).parameters().unwrap();
        assert_eq!(parameters, 109_482_240 + 16 * 768 + 16);
    }
}
