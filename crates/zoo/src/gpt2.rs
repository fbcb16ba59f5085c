//! GPT-2 small: a decoder whose output layer is its table of tokens, transposed.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use tessera_core::DType;
use tessera_graph::builder::{int, ints};

use crate::network::{LINEAR, Network, scope};
use crate::transformer::{
    Attends, INNER, LAYERS, WIDTH, attention, layer_norm, linear, lookup, positions, sequence,
    table, tokens,
};

/// Length of the sequences where it is fixed.
const LENGTH: usize = 64;

/// Tokens that there are.
const VOCABULARY: usize = 50_257;

/// Positions that there are, so the greatest length.
const POSITIONS: usize = 1024;

/// Deviation of the tokens' embeddings, so that logits have a deviation of about 2.
const TOKEN: f32 = 0.07;

/// Deviation of the positions' embeddings.
const POSITION: f32 = 0.02;

/// The gain of the last layer of a branch: all of them together outweigh the embedding that they
/// are added to, or the output would name the input's own tokens.
const BRANCH: f32 = 0.2;

const EPSILON: f32 = 1e-5;

pub(crate) fn assemble(network: &mut Network<'_>) {
    let words = tokens(network, "input_ids", LENGTH);
    network.stage(1);
    // The table is also the output layer, so it is shared where the first stage is.
    let module = "transformer.wte";
    let word_table = table(network, module, VOCABULARY, TOKEN);
    let word = lookup(network, module, &word_table, &words);
    let module = "transformer.wpe";
    let position_table = table(network, module, POSITIONS, POSITION);
    let position = positions(network, module, &position_table, &words);
    let mut hidden = network.operator("transformer", "Add", &[&word, &position]);
    for number in 0..LAYERS {
        network.stage(number + 1);
        hidden = layer(network, &format!("transformer.h.{number}"), &hidden);
    }
    network.head();
    let hidden = layer_norm(network, "transformer.ln_f", &hidden, EPSILON);
    let name = "/lm_head/Transpose";
    let order = [ints("perm", &[1, 0])];
    let columns = network.graph.node_named(name, "Transpose", &[&word_table], order);
    let name = "/lm_head/MatMul";
    network.graph.node_into(name, "MatMul", &[&hidden, &columns], &["logits"], []);
    let dims = sequence(network, LENGTH, &[VOCABULARY]);
    network.graph.output_typed("logits", DType::F32, dims);
}

fn layer(network: &mut Network<'_>, module: &str, input: &str) -> String {
    let normal = layer_norm(network, &format!("{module}.ln_1"), input, EPSILON);
    let own = format!("{module}.attn");
    let joined = linear(network, &format!("{own}.c_attn"), &normal, (WIDTH, 3 * WIDTH), LINEAR);
    let sizes = network.list("attention.thirds", &[WIDTH as i64; 3]);
    let split = format!("{}/Split", scope(&own));
    let thirds = [0, 1, 2].map(|number| format!("{split}_output_{number}"));
    let [query, key, value] = [&*thirds[0], &*thirds[1], &*thirds[2]];
    let outputs = [query, key, value];
    network.graph.node_into(&split, "Split", &[&joined, &sizes], &outputs, [int("axis", 2)]);
    let context = attention(network, &own, outputs, Attends::Backwards);
    let attended = linear(network, &format!("{own}.c_proj"), &context, (WIDTH, WIDTH), BRANCH);
    let trunk = network.operator(module, "Add", &[&attended, input]);

    let normal = layer_norm(network, &format!("{module}.ln_2"), &trunk, EPSILON);
    let inner = format!("{module}.mlp");
    let wide = linear(network, &format!("{inner}.c_fc"), &normal, (WIDTH, INNER), LINEAR);
    let wide = gelu(network, &format!("{inner}.act"), &wide);
    let narrow = linear(network, &format!("{inner}.c_proj"), &wide, (INNER, WIDTH), BRANCH);
    network.operator(&inner, "Add", &[&trunk, &narrow])
}

/// x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2, which is GPT-2's own Gelu.
fn gelu(network: &mut Network<'_>, module: &str, input: &str) -> String {
    let three = network.scalar("gelu.three", 3.0);
    let cubic = network.scalar("gelu.cubic", 0.044_715);
    let root = network.scalar("gelu.root", FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
    let one = network.scalar("gelu.one", 1.0);
    let half = network.scalar("gelu.half", 0.5);
    let cube = network.operator(module, "Pow", &[input, &three]);
    let cube = network.operator(&format!("{module}.cubic"), "Mul", &[&cube, &cubic]);
    let sum = network.operator(&format!("{module}.cubic"), "Add", &[input, &cube]);
    let value = network.operator(&format!("{module}.root"), "Mul", &[&sum, &root]);
    let value = network.operator(module, "Tanh", &[&value]);
    let value = network.operator(module, "Add", &[&value, &one]);
    let value = network.operator(module, "Mul", &[input, &value]);
    network.operator(&format!("{module}.half"), "Mul", &[&value, &half])
}

#[cfg(test)]
mod tests {
    use crate::{Architecture, Recipe};

    #[test]
    fn parameters_are_as_many_as_in_the_published_model() {
        let parameters = Recipe::new(Architecture::Gpt2).parameters().unwrap();
        assert_eq!(parameters, 124_439_808);
    }
}
