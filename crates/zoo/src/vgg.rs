//! VGG-13, laid out and named as in torchvision; dropout is left out, it does nothing here.

use tessera_core::DType;

use crate::network::{Convolution, GAIN_BEFORE_RELU, NetworkBuilder};

/// Side of the images.
const IMAGE: usize = 224;

/// Classes of the classifier.
const CLASSES: usize = 1000;

/// Channels of the five stages, each of two convolutions and a pool.
const STAGES: [usize; 5] = [64, 128, 256, 512, 512];

/// The classifier looks at this many values: 7×7 of the last stage.
const FEATURES: usize = 512 * 7 * 7;

/// Width of the classifier's hidden layers.
const HIDDEN: usize = 4096;

/// The gain of a convolution that a pool follows: the greatest of four values is greater.
const BEFORE_POOL: f32 = 1.45;

/// The gain of the last layer, so that logits have a deviation of 1 to 3.
const CLASSIFIER: f32 = 3.5;

/// The stage after which the side exit hangs.
///
/// Counted from 0 as torchvision counts them, its pool is layer 19 and the exit layer 20: where
/// addnn's thesis has it (table 7.3).
const EXIT_AFTER: usize = 4;

pub(crate) fn assemble_vgg(network: &mut NetworkBuilder<'_>) {
    let mut trunk = network.add_image_input(IMAGE);
    let mut channels = 3;
    let mut layer = 0;
    let mut exit = None;
    for (stage, &width) in (1..).zip(&STAGES) {
        network.enter_stage(stage);
        for gain in [GAIN_BEFORE_RELU, BEFORE_POOL] {
            let convolution = Convolution::new(channels, width, 3).with_gain(gain);
            let module = next_features_module(&mut layer);
            let norm = if network.recipe.batch_norm {
                Some(next_features_module(&mut layer))
            } else {
                None
            };
            trunk = network.add_convolution(&module, norm.as_deref(), &trunk, convolution);
            trunk = network.add_relu(&next_features_module(&mut layer), &trunk);
            channels = width;
        }
        trunk = network.add_pool(&next_features_module(&mut layer), "MaxPool", &trunk, (2, 2, 0));
        if stage == EXIT_AFTER {
            exit = add_side_exit(network, &trunk);
        }
    }
    network.enter_head();
    let rows = network.add_flatten("", &trunk);
    let output = add_classifier(network, "classifier", &rows, "output");
    let dims = network.batched_dims(&[CLASSES]);
    network.graph.add_typed_output(&output, DType::F32, dims);
    if let Some(exit) = exit {
        network.add_exit_output(&exit, CLASSES);
    }
}

/// The next of the numbered layers in torchvision's list `features`.
fn next_features_module(layer: &mut usize) -> String {
    let module = format!("features.{layer}");
    *layer += 1;
    module
}

/// The classifier of the side exit, where the recipe has one.
///
/// It is a whole classifier over 7×7 values, as in the thesis: for the two classes it trained,
/// the features with two such classifiers have 248.5 M parameters, and its 994 MB on disk.
fn add_side_exit(network: &mut NetworkBuilder<'_>, trunk: &str) -> Option<String> {
    let output = network.recipe.architecture.exit_output().filter(|_| network.recipe.exits)?;
    network.enter_head();
    let pooled = network.add_pool("exit.avgpool", "AveragePool", trunk, (2, 2, 0));
    let rows = network.add_flatten("exit", &pooled);
    Some(add_classifier(network, "exit.classifier", &rows, output))
}

fn add_classifier(
    network: &mut NetworkBuilder<'_>,
    module: &str,
    rows: &str,
    output: &str,
) -> String {
    let mut hidden = rows.to_owned();
    for (layer, inputs) in [(0, FEATURES), (3, HIDDEN)] {
        let shape = (inputs, HIDDEN);
        let name = format!("{module}.{layer}");
        hidden = network.add_dense(&name, &hidden, shape, GAIN_BEFORE_RELU, None);
        hidden = network.add_relu(&format!("{module}.{}", layer + 1), &hidden);
    }
    let shape = (HIDDEN, CLASSES);
    network.add_dense(&format!("{module}.6"), &hidden, shape, CLASSIFIER, Some(output))
}

#[cfg(test)]
mod tests {
    use crate::network::WeightData;
    use crate::{Architecture, Recipe};

    #[test]
    fn parameters_are_as_many_as_in_torchvision() {
        let recipe = Recipe::new(Architecture::Vgg13);
        assert_eq!(recipe.count_parameters().unwrap(), 133_047_848);
    }

    #[test]
    fn the_exit_is_a_whole_classifier_after_the_fourth_pool() {
        let plain = Recipe::new(Architecture::Vgg13);
        let recipe = Recipe { exits: true, ..plain };
        let classifier = recipe.count_parameters().unwrap() - plain.count_parameters().unwrap();
        assert_eq!(classifier, 123_642_856);
        let graph = recipe.assemble_network(WeightData::Omitted).unwrap().model.graph.unwrap();
        let pool =
            graph.node.iter().find(|node| node.op_type.as_deref() == Some("AveragePool")).unwrap();
        assert_eq!(pool.input, ["/features/features.19/MaxPool_output_0"]);
        assert_eq!(graph.output[1].name.as_deref(), Some("exit_20"));
    }
}
