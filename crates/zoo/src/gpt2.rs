//! GPT-2: a decoder whose output layer is its table of tokens, transposed.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use tessera_core::DType;
use tessera_graph::builder::{int_attribute, ints_attribute};

use crate::network::{LINEAR_GAIN, NetworkBuilder, module_scope};
use crate::transformer::{
    AttentionDirection, TransformerLayout, add_attention, add_embedding_lookup,
    add_embedding_table, add_layer_norm, add_linear, add_position_embeddings, add_token_input,
    sequence_dims,
};

/// Length of the sequences where it is fixed.
const LENGTH: usize = 64;

/// Tokens that there are.
const VOCABULARY: usize = 50_257;

/// Positions that there are, so the greatest length.
pub(crate) const POSITIONS: usize = 1024;

/// Deviation of the tokens' embeddings, so that logits have a deviation of about 2.
const TOKEN: f32 = 0.07;

/// Deviation of the positions' embeddings.
const POSITION: f32 = 0.02;

/// The gain of the last layer of a branch in 12 layers: all of them together outweigh the
/// embedding that they are added to, or the output would name the input's own tokens.
const BRANCH: f32 = 0.2;

const EPSILON: f32 = 1e-5;

pub(crate) fn assemble_gpt2(network: &mut NetworkBuilder<'_>, layout: &TransformerLayout) {
    let words = add_token_input(network, "input_ids", LENGTH);
    network.enter_stage(1);
    // The table is also the output layer, so it is shared where the first stage is.
    let module = "transformer.wte";
    let word_table = add_embedding_table(network, module, (VOCABULARY, layout.width), TOKEN);
    let word = add_embedding_lookup(network, module, &word_table, &words);
    let module = "transformer.wpe";
    let position_table = add_embedding_table(network, module, (POSITIONS, layout.width), POSITION);
    let position = add_position_embeddings(network, module, &position_table, &words);
    let mut hidden = network.add_operator("transformer", "Add", &[&word, &position]);
    for number in 0..layout.layers {
        network.enter_stage(number + 1);
        hidden = add_decoder_layer(network, layout, &format!("transformer.h.{number}"), &hidden);
    }
    network.enter_head();
    let hidden = add_layer_norm(network, layout, "transformer.ln_f", &hidden, EPSILON);
    let name = "/lm_head/Transpose";
    let order = [ints_attribute("perm", &[1, 0])];
    let columns = network.graph.add_named_node(name, "Transpose", &[&word_table], order);
    let name = "/lm_head/MatMul";
    network.graph.add_node_into(name, "MatMul", &[&hidden, &columns], &["logits"], []);
    let dims = sequence_dims(network, LENGTH, &[VOCABULARY]);
    network.graph.add_typed_output("logits", DType::F32, dims);
}

fn add_decoder_layer(
    network: &mut NetworkBuilder<'_>,
    layout: &TransformerLayout,
    module: &str,
    input: &str,
) -> String {
    let &TransformerLayout { width, inner, .. } = layout;
    let last = layout.branch_gain(BRANCH);
    let normal = add_layer_norm(network, layout, &format!("{module}.ln_1"), input, EPSILON);
    let own = format!("{module}.attn");
    let joined =
        add_linear(network, &format!("{own}.c_attn"), &normal, (width, 3 * width), LINEAR_GAIN);
    let sizes = network.integers_constant("attention.thirds", &[width as i64; 3]);
    let split = format!("{}/Split", module_scope(&own));
    let thirds = [0, 1, 2].map(|number| format!("{split}_output_{number}"));
    let [query, key, value] = [&*thirds[0], &*thirds[1], &*thirds[2]];
    let outputs = [query, key, value];
    network.graph.add_node_into(
        &split,
        "Split",
        &[&joined, &sizes],
        &outputs,
        [int_attribute("axis", 2)],
    );
    let context = add_attention(network, layout, &own, outputs, AttentionDirection::Causal);
    let attended = add_linear(network, &format!("{own}.c_proj"), &context, (width, width), last);
    let trunk = network.add_operator(module, "Add", &[&attended, input]);

    let normal = add_layer_norm(network, layout, &format!("{module}.ln_2"), &trunk, EPSILON);
    let own = format!("{module}.mlp");
    let wide = add_linear(network, &format!("{own}.c_fc"), &normal, (width, inner), LINEAR_GAIN);
    let wide = add_tanh_gelu(network, &format!("{own}.act"), &wide);
    let narrow = add_linear(network, &format!("{own}.c_proj"), &wide, (inner, width), last);
    network.add_operator(&own, "Add", &[&trunk, &narrow])
}

/// x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2, which is GPT-2's own Gelu.
fn add_tanh_gelu(network: &mut NetworkBuilder<'_>, module: &str, input: &str) -> String {
    let three = network.scalar_constant("gelu.three", 3.0);
    let cubic = network.scalar_constant("gelu.cubic", 0.044_715);
    let root = network.scalar_constant("gelu.root", FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
    let one = network.scalar_constant("gelu.one", 1.0);
    let half = network.scalar_constant("gelu.half", 0.5);
    let cube = network.add_operator(module, "Pow", &[input, &three]);
    let cube = network.add_operator(&format!("{module}.cubic"), "Mul", &[&cube, &cubic]);
    let sum = network.add_operator(&format!("{module}.cubic"), "Add", &[input, &cube]);
    let value = network.add_operator(&format!("{module}.root"), "Mul", &[&sum, &root]);
    let value = network.add_operator(module, "Tanh", &[&value]);
    let value = network.add_operator(module, "Add", &[&value, &one]);
    let value = network.add_operator(module, "Mul", &[input, &value]);
    network.add_operator(&format!("{module}.half"), "Mul", &[&value, &half])
}

#[cfg(test)]
mod tests {
    use crate::{Architecture, Recipe};

    #[test]
    fn parameters_are_as_many_as_in_the_published_models() {
        let cases = [(Architecture::Gpt2, 124_439_808), (Architecture::Gpt2Medium, 354_823_168)];
        for (architecture, expected) in cases {
            let parameters = Recipe::new(architecture).count_parameters().unwrap();
            assert_eq!(parameters, expected, "{architecture}");
        }
    }
}
