//! ResNet, laid out and named as in torchvision.

use tessera_core::DType;

use crate::network::{Convolution, GAIN_BEFORE_RELU, NetworkBuilder};

/// Side of the images.
const IMAGE: usize = 224;

/// Classes of the classifier.
const CLASSES: usize = 1000;

/// The gain of the classifier, so that logits have a deviation of 1 to 3.
const CLASSIFIER: f32 = 10.0;

/// The gain of the side exit's classifier: a mean over more positions varies less.
const EXIT_CLASSIFIER: f32 = 16.0;

/// The stage after which the side exit hangs.
///
/// For ResNet-152 this is where addnn has it: counted from 0, the layers are convolution, norm,
/// ReLU and pool (0 to 3), stages 1 and 2 (4 to 14), the exit itself (15), stages 3 and 4 (16 to
/// 54), pool and classifier (55, 56), which makes the 57 layers of the thesis's table 7.3.
const EXIT_AFTER: usize = 2;

/// One size of ResNet.
pub(crate) struct ResnetLayout {
    residual: ResidualKind,
    /// Residual layers in each of the four stages.
    depths: [usize; 4],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ResidualKind {
    /// Two 3×3 convolutions.
    Basic,
    /// 1×1, 3×3 and 1×1, the last to four times the width.
    Bottleneck,
}

pub(crate) const RESNET18: ResnetLayout =
    ResnetLayout { residual: ResidualKind::Basic, depths: [2, 2, 2, 2] };
pub(crate) const RESNET50: ResnetLayout =
    ResnetLayout { residual: ResidualKind::Bottleneck, depths: [3, 4, 6, 3] };
pub(crate) const RESNET101: ResnetLayout =
    ResnetLayout { residual: ResidualKind::Bottleneck, depths: [3, 4, 23, 3] };
pub(crate) const RESNET152: ResnetLayout =
    ResnetLayout { residual: ResidualKind::Bottleneck, depths: [3, 8, 36, 3] };

impl ResidualKind {
    fn output_channels(self, width: usize) -> usize {
        match self {
            Self::Basic => width,
            Self::Bottleneck => width * 4,
        }
    }
}

impl ResnetLayout {
    /// The gain of the last convolution of a branch: all branches together add a bounded energy
    /// to the trunk, however many there are.
    fn branch_gain(&self) -> f32 {
        let layers: usize = self.depths.iter().sum();
        GAIN_BEFORE_RELU / (layers as f32).sqrt()
    }
}

pub(crate) fn assemble_resnet(network: &mut NetworkBuilder<'_>, layout: &ResnetLayout) {
    let image = network.add_image_input(IMAGE);
    network.enter_stage(1);
    let stem = Convolution::new(3, 64, 7).with_stride(2);
    let stem = network.add_convolution("conv1", Some("bn1"), &image, stem);
    let stem = network.add_relu("relu", &stem);
    let mut trunk = network.add_pool("maxpool", "MaxPool", &stem, (3, 2, 1));
    let mut channels = 64;
    let mut exit = None;
    for (stage, &depth) in (1..).zip(&layout.depths) {
        network.enter_stage(stage);
        let width = 32 << stage;
        for number in 0..depth {
            let module = format!("layer{stage}.{number}");
            let stride = if stage > 1 && number == 0 { 2 } else { 1 };
            trunk = add_residual(network, layout, &module, &trunk, (channels, width, stride));
            channels = layout.residual.output_channels(width);
        }
        if stage == EXIT_AFTER {
            exit = add_side_exit(network, &trunk, channels);
        }
    }
    add_classifier(network, &trunk, channels);
    if let Some(exit) = exit {
        network.add_exit_output(&exit, CLASSES);
    }
}

/// Channels between the head of a split ResNet and what follows, at an eighth of the image's side.
const SPLIT_CHANNELS: usize = 12;

/// ResNet-50 whose stages 1 and 2 are a small head, as it is trained for split computing (head
/// network distillation): what the head hands on has a sixteenth of the image's bytes.
pub(crate) fn assemble_split_resnet(network: &mut NetworkBuilder<'_>) {
    let layout = &RESNET50;
    let mut trunk = network.add_image_input(IMAGE);
    network.enter_stage(1);
    let head = [(3, 32, 7), (32, 32, 3), (32, SPLIT_CHANNELS, 3)];
    for (number, (inputs, outputs, size)) in (1..).zip(head) {
        let convolution = Convolution::new(inputs, outputs, size).with_stride(2);
        let (name, norm) = (format!("head.conv{number}"), format!("head.bn{number}"));
        trunk = network.add_convolution(&name, Some(&norm), &trunk, convolution);
        trunk = network.add_relu(&format!("head.relu{number}"), &trunk);
    }
    network.enter_stage(2);
    let mut channels = layout.residual.output_channels(32 << 2);
    let widen = Convolution::new(SPLIT_CHANNELS, channels, 1);
    trunk = network.add_convolution("widen.conv", Some("widen.bn"), &trunk, widen);
    trunk = network.add_relu("widen.relu", &trunk);
    for stage in [3, 4] {
        network.enter_stage(stage);
        let width = 32 << stage;
        for number in 0..layout.depths[stage - 1] {
            let module = format!("layer{stage}.{number}");
            let stride = if number == 0 { 2 } else { 1 };
            trunk = add_residual(network, layout, &module, &trunk, (channels, width, stride));
            channels = layout.residual.output_channels(width);
        }
    }
    add_classifier(network, &trunk, channels);
}

/// What scores the classes.
fn add_classifier(network: &mut NetworkBuilder<'_>, trunk: &str, channels: usize) {
    network.enter_head();
    let features = network.add_pooled_features("", trunk);
    let shape = (channels, CLASSES);
    let output = network.add_dense("fc", &features, shape, CLASSIFIER, Some("output"));
    let dims = network.batched_dims(&[CLASSES]);
    network.graph.add_typed_output(&output, DType::F32, dims);
}

/// The classifier of the side exit, where the recipe has one.
fn add_side_exit(network: &mut NetworkBuilder<'_>, trunk: &str, channels: usize) -> Option<String> {
    let output = network.recipe.architecture.exit_output().filter(|_| network.recipe.exits)?;
    network.enter_head();
    let features = network.add_pooled_features("exit", trunk);
    let shape = (channels, CLASSES);
    Some(network.add_dense("exit.fc", &features, shape, EXIT_CLASSIFIER, Some(output)))
}

fn add_residual(
    network: &mut NetworkBuilder<'_>,
    layout: &ResnetLayout,
    module: &str,
    input: &str,
    (inputs, width, stride): (usize, usize, usize),
) -> String {
    let outputs = layout.residual.output_channels(width);
    let last = layout.branch_gain();
    let convolutions = match layout.residual {
        ResidualKind::Basic => vec![
            Convolution::new(inputs, width, 3).with_stride(stride),
            Convolution::new(width, width, 3).with_gain(last),
        ],
        ResidualKind::Bottleneck => vec![
            Convolution::new(inputs, width, 1),
            Convolution::new(width, width, 3).with_stride(stride),
            Convolution::new(width, outputs, 1).with_gain(last),
        ],
    };
    let count = convolutions.len();
    let mut branch = input.to_owned();
    for (number, convolution) in (1..).zip(convolutions) {
        let name = format!("{module}.conv{number}");
        let norm = format!("{module}.bn{number}");
        branch = network.add_convolution(&name, Some(&norm), &branch, convolution);
        if number < count {
            branch = network.add_relu(&relu_module(module, number), &branch);
        }
    }
    let shortcut = if inputs == outputs && stride == 1 {
        input.to_owned()
    } else {
        let projection = Convolution::new(inputs, outputs, 1).with_stride(stride);
        let norm = format!("{module}.downsample.1");
        network.add_convolution(&format!("{module}.downsample.0"), Some(&norm), input, projection)
    };
    let sum = network.add_operator(module, "Add", &[&branch, &shortcut]);
    network.add_relu(&relu_module(module, count), &sum)
}

/// The exporter's name for use `number` of a residual layer's one ReLU: `relu`, `relu_1`, `relu_2`.
fn relu_module(module: &str, number: usize) -> String {
    match number {
        1 => format!("{module}.relu"),
        number => format!("{module}.relu_{}", number - 1),
    }
}

#[cfg(test)]
mod tests {
    use tessera_graph::onnx::GraphProto;

    use crate::network::WeightData;
    use crate::{Architecture, Recipe, SharedStages};

    #[test]
    fn parameters_are_as_many_as_in_torchvision() {
        let cases = [
            (Architecture::Resnet18, 11_689_512),
            (Architecture::Resnet50, 25_557_032),
            (Architecture::Resnet101, 44_549_160),
            (Architecture::Resnet152, 60_192_808),
        ];
        for (architecture, expected) in cases {
            let recipe = Recipe { batch_norm: true, ..Recipe::new(architecture) };
            assert_eq!(recipe.count_parameters().unwrap(), expected, "{architecture}");
        }
    }

    #[test]
    fn folding_leaves_one_bias_for_each_normalised_channel() {
        // ResNet-18 normalises 4,800 channels, with a scale and a bias each.
        let folded = Recipe::new(Architecture::Resnet18).count_parameters().unwrap();
        assert_eq!(folded, 11_689_512 - 4_800);
    }

    fn graph(recipe: &Recipe) -> GraphProto {
        recipe.build_model().unwrap().model.graph.unwrap()
    }

    #[test]
    fn siblings_share_the_first_stages_and_nothing_else() {
        let recipe = Recipe { seed: 2, ..Recipe::new(Architecture::Resnet18) };
        let sibling = Recipe { shared_stages: Some(SharedStages { seed: 1, stages: 3 }), ..recipe };
        let parent = graph(&Recipe { seed: 1, ..recipe });
        let other = graph(&recipe);
        let sibling = graph(&sibling);
        assert_eq!(sibling.node, parent.node);
        for (number, weight) in sibling.initializer.iter().enumerate() {
            let name = weight.name.as_deref().unwrap();
            let own = name.starts_with("layer4.") || name.starts_with("fc.");
            let (same, different) = if own { (&other, &parent) } else { (&parent, &other) };
            assert_eq!(weight, &same.initializer[number], "{name}");
            assert_ne!(weight, &different.initializer[number], "{name}");
        }
    }

    #[test]
    fn exits_change_no_other_layer() {
        let plain = graph(&Recipe::new(Architecture::Resnet18));
        let with_exit = Recipe { exits: true, ..Recipe::new(Architecture::Resnet18) };
        let with_exit = graph(&with_exit);
        for weight in &plain.initializer {
            assert!(with_exit.initializer.contains(weight), "{:?}", weight.name);
        }
        assert_eq!(with_exit.initializer.len(), plain.initializer.len() + 2);
    }

    #[test]
    fn the_exit_of_resnet152_hangs_off_the_last_layer_of_stage_two() {
        let recipe = Recipe { exits: true, ..Recipe::new(Architecture::Resnet152) };
        let graph = recipe.assemble_network(WeightData::Omitted).unwrap().model.graph.unwrap();
        let pool = graph
            .node
            .iter()
            .find(|node| node.name.as_deref() == Some("/exit/avgpool/GlobalAveragePool"))
            .unwrap();
        assert_eq!(pool.input, ["/layer2/layer2.7/relu_2/Relu_output_0"]);
        assert_eq!(graph.output[1].name.as_deref(), Some("exit_15"));
    }
}
