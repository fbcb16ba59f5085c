//! VGG-13, laid out and named as in torchvision; dropout is left out, it does nothing here.

use tessera_core::DType;

use crate::network::{BEFORE_RELU, Convolution, Network};

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

pub(crate) fn assemble(network: &mut Network<'_>) {
    let mut trunk = network.image(IMAGE);
    let mut channels = 3;
    let mut layer = 0;
    let mut exit = None;
    for (stage, &width) in (1..).zip(&STAGES) {
        network.stage(stage);
        for gain in [BEFORE_RELU, BEFORE_POOL] {
            let convolution = Convolution::new(channels, width, 3).gain(gain);
            let module = features(&mut layer);
            let norm = if network.recipe.batch_norm { Some(features(&mut layer)) } else { None };
            trunk = network.convolution(&module, norm.as_deref(), &trunk, convolution);
            trunk = network.relu(&features(&mut layer), &trunk);
            channels = width;
        }
        trunk = network.pool(&features(&mut layer), "MaxPool", &trunk, (2, 2, 0));
        if stage == EXIT_AFTER {
            exit = side_exit(network, &trunk);
        }
    }
    network.head();
    let rows = network.flatten("", &trunk);
    let output = classifier(network, "classifier", &rows, "output");
    let dims = network.batched(&[CLASSES]);
    network.graph.output_typed(&output, DType::F32, dims);
    if let Some(exit) = exit {
        network.exit(&exit, CLASSES);
    }
}

/// The next of the numbered layers in torchvision's list `features`.
fn features(layer: &mut usize) -> String {
    let module = format!("features.{layer}");
    *layer += 1;
    module
}

/// The classifier of the side exit, where the recipe has one.
///
/// It is a whole classifier over 7×7 values, as in the thesis: for the two classes it trained,
/// the features with two such classifiers have 248.5 M parameters, and its 994 MB on disk.
fn side_exit(network: &mut Network<'_>, trunk: &str) -> Option<String> {
    let output = network.recipe.architecture.exit().filter(|_| network.recipe.exits)?;
    network.head();
    let pooled = network.pool("exit.avgpool", "AveragePool", trunk, (2, 2, 0));
    let rows = network.flatten("exit", &pooled);
    Some(classifier(network, "exit.classifier", &rows, output))
}

fn classifier(network: &mut Network<'_>, module: &str, rows: &str, output: &str) -> String {
    let mut hidden = rows.to_owned();
    for (layer, inputs) in [(0, FEATURES), (3, HIDDEN)] {
        let shape = (inputs, HIDDEN);
        let name = format!("{module}.{layer}");
        hidden = network.dense(&name, &hidden, shape, BEFORE_RELU, None);
        hidden = network.relu(&format!("{module}.{}", layer + 1), &hidden);
    }
    let shape = (HIDDEN, CLASSES);
    network.dense(&format!("{module}.6"), &hidden, shape, CLASSIFIER, Some(output))
}

#[cfg(test)]
mod tests {
    use crate::network::Data;
    use crate::{Architecture, Recipe};

    #[test]
    fn parameters_are_as_many_as_in_torchvision() {
        let recipe = Recipe::new(Architecture::Vgg13);
        assert_eq!(recipe.parameters().unwrap(), 133_047_848);
    }

    #[test]
    fn the_exit_is_a_whole_classifier_after_the_fourth_pool() {
        let plain = Recipe::new(Architecture::Vgg13);
        let recipe = Recipe { exits: true, ..plain };
        let classifier = recipe.parameters().unwrap() - plain.parameters().unwrap();
        assert_eq!(classifier, 123_642_856);
        let graph = recipe.assemble(Data::Omitted).unwrap().model.graph.unwrap();
        let pool =
            graph.node.iter().find(|node| node.op_type.as_deref() == Some("AveragePool")).unwrap();
        assert_eq!(pool.input, ["/features/features.19/MaxPool_output_0"]);
        assert_eq!(graph.output[1].name.as_deref(), Some("exit_20"));
    }
}
