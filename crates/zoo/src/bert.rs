//! BERT and RoBERTa with a classifier on the first token.
//!
//! RoBERTa is BERT with other tables; its positions are counted from 0 here, not from 2.
//!
//! There is no attention mask: a batch holds sequences of one length, nothing is padded, and so
//! a single tensor passes from layer to layer.

use std::f32::consts::SQRT_2;

use tessera_core::DType;
use tessera_graph::builder::int_attribute;

use crate::network::{LINEAR_GAIN, NetworkBuilder};
use crate::transformer::{
    AttentionDirection, BASE_LAYOUT, LARGE_LAYOUT, TransformerLayout, add_attention,
    add_embedding_lookup, add_embedding_table, add_layer_norm, add_linear, add_position_embeddings,
    add_token_input,
};

/// Length of the sequences where it is fixed.
const LENGTH: usize = 128;

/// Classes of the classifier.
const CLASSES: usize = 16;

/// Deviation of the words' embeddings: above the others, so that words decide.
const WORD: f32 = 0.05;

/// Deviation of the other embeddings, which is BERT's own.
const EMBEDDING: f32 = 0.02;

/// The gain of the last layer of a branch in 12 layers, so that tokens do not become all alike.
const BRANCH: f32 = 0.5;

/// The gain of the classifier, so that logits have a deviation of 1 to 3.
const CLASSIFIER: f32 = 3.0;

/// One model in the manner of BERT.
pub(crate) struct BertLayout {
    transformer: TransformerLayout,
    /// Tokens that there are.
    vocabulary: usize,
    /// Positions that there are, so the greatest length.
    pub(crate) positions: usize,
    types: TokenTypes,
    /// What is added to variances before they divide.
    epsilon: f32,
}

/// Kinds of tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenTypes {
    /// Of the first sentence and of the second, as an input says.
    Pair,
    /// One kind, so that no input has to say which.
    Single,
}

impl TokenTypes {
    fn type_count(self) -> usize {
        match self {
            Self::Pair => 2,
            Self::Single => 1,
        }
    }
}

pub(crate) const BERT_BASE: BertLayout = BertLayout {
    transformer: BASE_LAYOUT,
    vocabulary: 30_522,
    positions: 512,
    types: TokenTypes::Pair,
    epsilon: 1e-12,
};
pub(crate) const BERT_LARGE: BertLayout = BertLayout { transformer: LARGE_LAYOUT, ..BERT_BASE };
pub(crate) const ROBERTA_BASE: BertLayout = BertLayout {
    transformer: BASE_LAYOUT,
    vocabulary: 50_265,
    positions: 514,
    types: TokenTypes::Single,
    epsilon: 1e-5,
};
pub(crate) const ROBERTA_LARGE: BertLayout =
    BertLayout { transformer: LARGE_LAYOUT, ..ROBERTA_BASE };

pub(crate) fn assemble_bert(network: &mut NetworkBuilder<'_>, layout: &BertLayout) {
    let width = layout.transformer.width;
    let words = add_token_input(network, "input_ids", LENGTH);
    let types = match layout.types {
        TokenTypes::Pair => Some(add_token_input(network, "token_type_ids", LENGTH)),
        TokenTypes::Single => None,
    };
    network.enter_stage(1);
    let mut hidden = add_embeddings(network, layout, &words, types.as_deref());
    for number in 0..layout.transformer.layers {
        network.enter_stage(number + 1);
        hidden = add_encoder_layer(network, layout, &format!("encoder.layer.{number}"), &hidden);
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
    let pooled = network.add_dense("pooler.dense", &first, (width, width), LINEAR_GAIN, None);
    let pooled = network.add_operator("pooler.activation", "Tanh", &[&pooled]);
    let shape = (width, CLASSES);
    let output = network.add_dense("classifier", &pooled, shape, CLASSIFIER, Some("output"));
    let dims = network.batched_dims(&[CLASSES]);
    network.graph.add_typed_output(&output, DType::F32, dims);
}

fn add_embeddings(
    network: &mut NetworkBuilder<'_>,
    layout: &BertLayout,
    words: &str,
    types: Option<&str>,
) -> String {
    let width = layout.transformer.width;
    let module = "embeddings.word_embeddings";
    let word_table = add_embedding_table(network, module, (layout.vocabulary, width), WORD);
    let word = add_embedding_lookup(network, module, &word_table, words);
    let module = "embeddings.token_type_embeddings";
    let shape = (layout.types.type_count(), width);
    let type_table = add_embedding_table(network, module, shape, EMBEDDING);
    let kind = match types {
        Some(types) => add_embedding_lookup(network, module, &type_table, types),
        // The only row is added to every position.
        None => type_table,
    };
    let module = "embeddings.position_embeddings";
    let shape = (layout.positions, width);
    let position_table = add_embedding_table(network, module, shape, EMBEDDING);
    let position = add_position_embeddings(network, module, &position_table, words);
    let sum = network.add_operator("embeddings", "Add", &[&word, &kind]);
    let sum = network.add_operator("embeddings.position", "Add", &[&sum, &position]);
    add_normalisation(network, layout, "embeddings.LayerNorm", &sum)
}

fn add_encoder_layer(
    network: &mut NetworkBuilder<'_>,
    layout: &BertLayout,
    module: &str,
    input: &str,
) -> String {
    let transformer = &layout.transformer;
    let &TransformerLayout { width, inner, .. } = transformer;
    let last = transformer.branch_gain(BRANCH);
    let own = format!("{module}.attention.self");
    let shape = (width, width);
    let query = add_linear(network, &format!("{own}.query"), input, shape, LINEAR_GAIN);
    let key = add_linear(network, &format!("{own}.key"), input, shape, LINEAR_GAIN);
    let value = add_linear(network, &format!("{own}.value"), input, shape, LINEAR_GAIN);
    let operands = [&*query, &*key, &*value];
    let direction = AttentionDirection::Bidirectional;
    let context = add_attention(network, transformer, &own, operands, direction);
    let output = format!("{module}.attention.output");
    let attended = add_linear(network, &format!("{output}.dense"), &context, shape, last);
    let sum = network.add_operator(&output, "Add", &[&attended, input]);
    let attended = add_normalisation(network, layout, &format!("{output}.LayerNorm"), &sum);

    let between = format!("{module}.intermediate");
    let shape = (width, inner);
    let wide = add_linear(network, &format!("{between}.dense"), &attended, shape, LINEAR_GAIN);
    let wide = add_erf_gelu(network, &format!("{between}.intermediate_act_fn"), &wide);
    let output = format!("{module}.output");
    let shape = (inner, width);
    let narrow = add_linear(network, &format!("{output}.dense"), &wide, shape, last);
    let sum = network.add_operator(&output, "Add", &[&narrow, &attended]);
    add_normalisation(network, layout, &format!("{output}.LayerNorm"), &sum)
}

fn add_normalisation(
    network: &mut NetworkBuilder<'_>,
    layout: &BertLayout,
    module: &str,
    input: &str,
) -> String {
    add_layer_norm(network, &layout.transformer, module, input, layout.epsilon)
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
    use crate::network::WeightData;
    use crate::{Architecture, Recipe};

    #[test]
    fn parameters_are_as_many_as_in_the_published_models() {
        let cases = [
            (Architecture::BertBase, 109_482_240, 768),
            (Architecture::BertLarge, 335_141_888, 1024),
            (Architecture::RobertaBase, 124_645_632, 768),
            (Architecture::RobertaLarge, 355_359_744, 1024),
        ];
        for (architecture, published, width) in cases {
            // The encoder with its pooler, and a classifier of 16 classes.
            let parameters = Recipe::new(architecture).count_parameters().unwrap();
            assert_eq!(parameters, published + 16 * width + 16, "{architecture}");
        }
    }

    #[test]
    fn only_a_model_with_two_types_of_tokens_asks_which() {
        let cases = [
            (Architecture::BertBase, vec!["input_ids", "token_type_ids"]),
            (Architecture::RobertaBase, vec!["input_ids"]),
        ];
        for (architecture, expected) in cases {
            let assembly = Recipe::new(architecture).assemble_network(WeightData::Omitted).unwrap();
            let graph = assembly.model.graph.unwrap();
            let inputs: Vec<&str> =
                graph.input.iter().map(|input| input.name.as_deref().unwrap()).collect();
            assert_eq!(inputs, expected, "{architecture}");
        }
    }
}
