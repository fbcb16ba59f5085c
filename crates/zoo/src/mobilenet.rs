//! MobileNetV2, laid out and named as in torchvision.

use tessera_core::DType;

use crate::network::{Convolution, LINEAR_GAIN, NetworkBuilder, module_scope};

/// Side of the images.
const IMAGE: usize = 224;

/// Classes of the classifier.
const CLASSES: usize = 1000;

/// Channels in front of the classifier.
const FEATURES: usize = 1280;

/// The gain of the last convolution of a residual branch, so that ten of them stay in bounds.
const BRANCH: f32 = 0.5;

/// The gain of the classifiers, so that logits have a deviation of 1 to 3.
const CLASSIFIER: f32 = 12.0;

/// The stage after which the side exit hangs: the middle one.
const EXIT_AFTER: usize = 4;

/// For each stage: expansion, channels, layers, stride of the first layer.
const STAGES: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];

pub(crate) fn assemble_mobilenet(network: &mut NetworkBuilder<'_>) {
    let image = network.add_image_input(IMAGE);
    network.enter_stage(1);
    let stem = Convolution::new(3, 32, 3).with_stride(2);
    let mut trunk = add_activated_convolution(network, "features.0", &image, stem);
    let mut channels = 32;
    let mut number = 1;
    let mut exit = None;
    for (stage, (expansion, width, layers, first_stride)) in (1..).zip(STAGES) {
        network.enter_stage(stage);
        for layer in 0..layers {
            let stride = if layer == 0 { first_stride } else { 1 };
            let module = format!("features.{number}");
            let shape = (channels, width, stride);
            trunk = add_inverted_residual(network, &module, &trunk, expansion, shape);
            channels = width;
            number += 1;
        }
        if stage == EXIT_AFTER {
            exit = add_side_exit(network, &trunk, channels);
        }
    }
    network.enter_head();
    let last = Convolution::new(channels, FEATURES, 1);
    let trunk = add_activated_convolution(network, &format!("features.{number}"), &trunk, last);
    let features = network.add_pooled_features("", &trunk);
    let shape = (FEATURES, CLASSES);
    let output = network.add_dense("classifier.1", &features, shape, CLASSIFIER, Some("output"));
    let dims = network.batched_dims(&[CLASSES]);
    network.graph.add_typed_output(&output, DType::F32, dims);
    if let Some(exit) = exit {
        network.add_exit_output(&exit, CLASSES);
    }
}

/// The classifier of the side exit, where the recipe has one.
///
/// A stage ends without an activation, so the exit has the wide layer of the main head too: the
/// mean over bare features would be close to nothing.
fn add_side_exit(network: &mut NetworkBuilder<'_>, trunk: &str, channels: usize) -> Option<String> {
    let output = network.recipe.architecture.exit_output().filter(|_| network.recipe.exits)?;
    network.enter_head();
    let wide = Convolution::new(channels, FEATURES, 1);
    let wide = add_activated_convolution(network, "exit.features", trunk, wide);
    let features = network.add_pooled_features("exit", &wide);
    let shape = (FEATURES, CLASSES);
    Some(network.add_dense("exit.classifier", &features, shape, CLASSIFIER, Some(output)))
}

/// Widen, filter each channel, narrow; added to the input where the shapes agree.
fn add_inverted_residual(
    network: &mut NetworkBuilder<'_>,
    module: &str,
    input: &str,
    expansion: usize,
    (inputs, outputs, stride): (usize, usize, usize),
) -> String {
    let residual = stride == 1 && inputs == outputs;
    let hidden = inputs * expansion;
    let mut branch = input.to_owned();
    let mut layer = 0;
    if expansion > 1 {
        let widen = Convolution::new(inputs, hidden, 1);
        branch =
            add_activated_convolution(network, &format!("{module}.conv.{layer}"), &branch, widen);
        layer += 1;
    }
    let filter = Convolution::depthwise(hidden, 3).with_stride(stride);
    branch = add_activated_convolution(network, &format!("{module}.conv.{layer}"), &branch, filter);
    let gain = if residual { BRANCH } else { LINEAR_GAIN };
    let narrow = Convolution::new(hidden, outputs, 1).with_gain(gain);
    let name = format!("{module}.conv.{}", layer + 1);
    let norm = format!("{module}.conv.{}", layer + 2);
    branch = network.add_convolution(&name, Some(&norm), &branch, narrow);
    if residual {
        branch = network.add_operator(module, "Add", &[input, &branch]);
    }
    branch
}

/// A convolution, its normalisation and ReLU6: members 0, 1 and 2 of `module`.
fn add_activated_convolution(
    network: &mut NetworkBuilder<'_>,
    module: &str,
    input: &str,
    convolution: Convolution,
) -> String {
    let norm = format!("{module}.1");
    let output = network.add_convolution(&format!("{module}.0"), Some(&norm), input, convolution);
    let low = network.scalar_constant("relu6.min", 0.0);
    let high = network.scalar_constant("relu6.max", 6.0);
    let name = format!("{}/Clip", module_scope(&format!("{module}.2")));
    network.graph.add_named_node(&name, "Clip", &[&output, &low, &high], [])
}

#[cfg(test)]
mod tests {
    use crate::{Architecture, Recipe};

    #[test]
    fn parameters_are_as_many_as_in_torchvision() {
        let recipe = Recipe { batch_norm: true, ..Recipe::new(Architecture::MobilenetV2) };
        assert_eq!(recipe.count_parameters().unwrap(), 3_504_872);
    }

    #[test]
    fn folding_leaves_one_bias_for_each_normalised_channel() {
        // MobileNetV2 normalises 17,056 channels.
        let folded = Recipe::new(Architecture::MobilenetV2).count_parameters().unwrap();
        assert_eq!(folded, 3_504_872 - 17_056);
    }
}
