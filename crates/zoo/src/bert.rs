//! BERT base with a classifier on the first token.
//!
//! There is no attention mask: a batch holds sequences of one length, nothing is padded, and so
//! a single tensor passes from layer to layer.

use std::f32::consts::SQRT_2;

use tessera_core::DType;
use tessera_graph::builder::int_attribute;

use crate::network::{LINEAR_GAIN, NetworkBuilder};
use crate::transformer::{
    AttentionDirection, INNER, LAYERS, WIDTH, add_attention, add_embedding_lookup,
    add_embedding_table, add_layer_norm, add_linear, add_position_embeddings, add_token_input,
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

pub(crate) fn assemble_bert(network: &mut NetworkBuilder<'_>) {
    let words = add_token_input(network, "input_ids", LENGTH);
    let types = add_token_input(network, "token_type_ids", LENGTH);
    network.enter_stage(1);
    let mut hidden = add_embeddings(network, &words, &types);
    for number in 0..LAYERS {
        network.enter_stage(number + 1);
        hidden = add_encoder_layer(network, &format!("encoder.layer.{number}"), &hidden);
    }
    network.enter_head();
    let first = network.integer_constant("pooler.first", 0);
    let name = "/pooler/Gather";
    let first = network.graph.add_named_node(
        name,
        "Gather",
        &[&hidden, &first],
        [int_attribute("axis", 1)],
    );
    let pooled = network.add_dense("pooler.dense", &first, (WIDTH, WIDTH), LINEAR_GAIN, None);
    let pooled = network.add_operator("pooler.activation", "Tanh", &[&pooled]);
    let shape = (WIDTH, CLASSES);
    let output = network.add_dense("classifier", &pooled, shape, CLASSIFIER, Some("output"));
    let dims = network.batched_dims(&[CLASSES]);
    network.graph.add_typed_output(&output, DType::F32, dims);
}

fn add_embeddings(network: &mut NetworkBuilder<'_>, words: &str, types: &str) -> String {
    let module = "embeddings.word_embeddings";
    let word_table = add_embedding_table(network, module, VOCABULARY, WORD);
    let word = add_embedding_lookup(network, module, &word_table, words);
    let module = "embeddings.token_type_embeddings";
    let type_table = add_embedding_table(network, module, TOKEN_TYPES, EMBEDDING);
    let kind = add_embedding_lookup(network, module, &type_table, types);
    let module = "embeddings.position_embeddings";
    let position_table = add_embedding_table(network, module, POSITIONS, EMBEDDING);
    let position = add_position_embeddings(network, module, &position_table, words);
    let sum = network.add_operator("embeddings", "Add", &[&word, &kind]);
    let sum = network.add_operator("embeddings.position", "Add", &[&sum, &position]);
    add_layer_norm(network, "embeddings.LayerNorm", &sum, EPSILON)
}

fn add_encoder_layer(network: &mut NetworkBuilder<'_>, module: &str, input: &str) -> String {
    let own = format!("{module}.attention.self");
    let shape = (WIDTH, WIDTH);
    let query = add_linear(network, &format!("{own}.query"), input, shape, LINEAR_GAIN);
    let key = add_linear(network, &format!("{own}.key"), input, shape, LINEAR_GAIN);
    let value = add_linear(network, &format!("{own}.value"), input, shape, LINEAR_GAIN);
    let context =
        add_attention(network, &own, [&query, &key, &value], AttentionDirection::Bidirectional);
    let output = format!("{module}.attention.output");
    let attended = add_linear(network, &format!("{output}.dense"), &context, shape, BRANCH);
    let sum = network.add_operator(&output, "Add", &[&attended, input]);
    let attended = add_layer_norm(network, &format!("{output}.LayerNorm"), &sum, EPSILON);

    let inner = format!("{module}.intermediate");
    let shape = (WIDTH, INNER);
    let wide = add_linear(network, &format!("{inner}.dense"), &attended, shape, LINEAR_GAIN);
    let wide = add_erf_gelu(network, &format!("{inner}.intermediate_act_fn"), &wide);
    let output = format!("{module}.output");
    let shape = (INNER, WIDTH);
    let narrow = add_linear(network, &format!("{output}.dense"), &wide, shape, BRANCH);
    let sum = network.add_operator(&output, "Add", &[&narrow, &attended]);
    add_layer_norm(network, &format!("{output}.LayerNorm"), &sum, EPSILON)
}

/// x · (1 + erf(x / √2)) / 2, as exporters write it before opset 20 has an operator for it.
fn add_erf_gelu(network: &mut NetworkBuilder<'_>, module: &str, input: &str) -> String {
    let root = network.scalar_constant("gelu.root", SQRT_2);
    let one = network.scalar_constant("gelu.one", 1.0);
    let half = network.scalar_constant("gelu.half", 0.5);
    let value = network.add_operator(module, "Div", &[input, &root]);
    let value = network.add_operator(module, "Erf", &[&value]);
    let value = network.add_operator(module, "Add", &[&value, &one]);
    let value = network.add_operator(module, "Mul", &[input, &value]);
    network.add_operator(&format!("{module}.half"), "Mul", &[&value, &half])
}

#[cfg(test)]
mod tests {
    use crate::{Architecture, Recipe};

    #[test]
    fn parameters_are_as_many_as_in_the_published_model() {
        // The encoder with its pooler, and a classifier of 16 classes.
        let parameters = Recipe::new(Architecture::BertBase).count_parameters().unwrap();
        assert_eq!(parameters, 109_482_240 + 16 * 768 + 16);
    }
}
