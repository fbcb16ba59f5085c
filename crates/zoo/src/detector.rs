//! A detector in the manner of SSD: a light backbone, features at six scales, two heads each.
//!
//! It is the zoo's model that is not a chain: every scale feeds two heads and the next scale.

use tessera_core::DType;
use tessera_graph::builder::{int_attribute, ints_attribute};

use crate::network::{Convolution, LINEAR_GAIN, NetworkBuilder, module_scope};

/// Side of the images.
const IMAGE: usize = 300;

/// Classes of an anchor, the background among them.
const CLASSES: usize = 21;

/// Anchors at each position of the six scales, as in SSD300: 8732 in all.
const ANCHORS: [usize; 6] = [4, 6, 6, 6, 4, 4];

/// Anchors of an image: scales of 38, 19, 10, 5, 3 and 1 positions a side.
const ALL_ANCHORS: usize = 8732;

/// Channels and stride of the two convolutions in each stage of the backbone.
const STAGES: [[(usize, usize); 2]; 4] =
    [[(16, 2), (32, 2)], [(64, 1), (128, 2)], [(128, 1), (128, 1)], [(256, 2), (256, 1)]];

/// The first stage whose output is a scale.
const FIRST_SCALE: usize = 3;

/// Channels between, channels after, and whether the extra layer halves; else it only shrinks by
/// the border that it does not pad.
const EXTRAS: [(usize, usize, bool); 4] =
    [(128, 256, true), (64, 128, true), (64, 128, false), (64, 128, false)];

/// The gain of class heads, so that the softmax is neither flat nor certain.
const CLASSIFIER: f32 = 4.0;

pub(crate) fn assemble_detector(network: &mut NetworkBuilder<'_>) {
    let mut trunk = network.add_image_input(IMAGE);
    let mut channels = 3;
    let mut scales = Vec::with_capacity(ANCHORS.len());
    for (stage, layers) in (1..).zip(STAGES) {
        network.enter_stage(stage);
        for (number, (width, stride)) in layers.into_iter().enumerate() {
            let convolution = Convolution::new(channels, width, 3).with_stride(stride);
            let module = format!("backbone.{}.{number}", stage - 1);
            trunk = add_activated_convolution(network, &module, &trunk, convolution);
            channels = width;
        }
        if stage >= FIRST_SCALE {
            scales.push((trunk.clone(), channels));
        }
    }
    network.enter_head();
    for (number, (between, width, halves)) in EXTRAS.into_iter().enumerate() {
        let narrow = Convolution::new(channels, between, 1);
        let module = format!("extras.{number}");
        trunk = add_activated_convolution(network, &format!("{module}.0"), &trunk, narrow);
        let widen = Convolution::new(between, width, 3);
        let widen = if halves { widen.with_stride(2) } else { widen.without_padding() };
        trunk = add_activated_convolution(network, &format!("{module}.1"), &trunk, widen);
        channels = width;
        scales.push((trunk.clone(), channels));
    }

    let scores = add_heads(network, "class_heads", &scales, CLASSES, CLASSIFIER);
    let scores = add_concat(network, "class_heads", &scores);
    let last = [int_attribute("axis", -1)];
    network.graph.add_node_into("/Softmax", "Softmax", &[&scores], &["scores"], last);
    let boxes = add_heads(network, "box_heads", &scales, 4, LINEAR_GAIN);
    let boxes: Vec<&str> = boxes.iter().map(String::as_str).collect();
    let name = "/box_heads/Concat";
    network.graph.add_node_into(name, "Concat", &boxes, &["boxes"], [int_attribute("axis", 1)]);
    for (output, size) in [("scores", CLASSES), ("boxes", 4)] {
        let dims = network.batched_dims(&[ALL_ANCHORS, size]);
        network.graph.add_typed_output(output, DType::F32, dims);
    }
}

/// One head on every scale: `size` values for each anchor, as rows.
fn add_heads(
    network: &mut NetworkBuilder<'_>,
    module: &str,
    scales: &[(String, usize)],
    size: usize,
    gain: f32,
) -> Vec<String> {
    let rows = network.integers_constant(&format!("{module}.rows"), &[0, -1, size as i64]);
    let mut outputs = Vec::with_capacity(scales.len());
    for (number, ((features, channels), anchors)) in scales.iter().zip(ANCHORS).enumerate() {
        let module = format!("{module}.{number}");
        let convolution = Convolution::new(*channels, anchors * size, 3).with_gain(gain);
        let output = network.add_convolution(&module, None, features, convolution);
        let name = format!("{}/Transpose", module_scope(&module));
        let order = [ints_attribute("perm", &[0, 2, 3, 1])];
        let output = network.graph.add_named_node(&name, "Transpose", &[&output], order);
        outputs.push(network.add_operator(&module, "Reshape", &[&output, &rows]));
    }
    outputs
}

fn add_concat(network: &mut NetworkBuilder<'_>, module: &str, rows: &[String]) -> String {
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let name = format!("{}/Concat", module_scope(module));
    network.graph.add_named_node(&name, "Concat", &rows, [int_attribute("axis", 1)])
}

/// A convolution, its normalisation and a ReLU: members 0, 1 and 2 of `module`.
fn add_activated_convolution(
    network: &mut NetworkBuilder<'_>,
    module: &str,
    input: &str,
    convolution: Convolution,
) -> String {
    let norm = format!("{module}.1");
    let output = network.add_convolution(&format!("{module}.0"), Some(&norm), input, convolution);
    network.add_relu(&format!("{module}.2"), &output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::WeightData;
    use crate::{Architecture, Recipe};

    #[test]
    fn six_scales_have_two_heads_each() {
        let recipe = Recipe::new(Architecture::Detector);
        let graph = recipe.assemble_network(WeightData::Omitted).unwrap().model.graph.unwrap();
        let concatenations: Vec<_> =
            graph.node.iter().filter(|node| node.op_type.as_deref() == Some("Concat")).collect();
        assert_eq!(concatenations.len(), 2);
        for node in concatenations {
            assert_eq!(node.input.len(), 6);
        }
    }

    #[test]
    fn the_anchors_of_all_scales_are_those_of_ssd300() {
        let sides = [38, 19, 10, 5, 3, 1];
        let anchors: usize =
            sides.iter().zip(ANCHORS).map(|(side, anchors)| side * side * anchors).sum();
        assert_eq!(anchors, ALL_ANCHORS);
    }
}
