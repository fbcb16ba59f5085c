//! Problems to try strategies on: the hierarchy and the models of the addnn thesis (section 7.2).
//!
//! The figures are those of its tables. Where the thesis is of two minds, the tables win: nodes of
//! a tier are alike (section 7.2.1; section 7.2.3 says that their resources are drawn), and a
//! transfer inside of a tier takes 10 ms and a drawn share of the listed rate (the instances that
//! the thesis' program makes have none of the first and all of the second). [`HierarchyScenario`]
//! has both as settings.

use tessera_core::Random;

use super::problem::{
    ExitSetting, MigrationCost, PlacementLayer, PlacementModel, PlacementNode, PlacementProblem,
};

/// What is drawn for a hierarchy, beside what the tables list.
#[derive(Clone, Debug, PartialEq)]
pub struct HierarchyScenario {
    /// Smallest share of the listed throughput that a pair of nodes has.
    pub least_throughput: f64,
    /// Smallest share of the listed compute, memory and storage that a node has; 1: nodes of a tier
    /// are alike.
    pub least_resources: f64,
    /// Whether transfers inside of a tier have the full throughput and no latency.
    pub free_inside: bool,
}

impl Default for HierarchyScenario {
    fn default() -> Self {
        Self { least_throughput: 0.1, least_resources: 1.0, free_inside: false }
    }
}

/// Tiers with what a node computes per second, its memory and its storage (table 7.4).
const TIERS: [(&str, [f64; 3]); 3] = [
    ("iot", [4.93e9, 0.5e9, 0.5e9]),
    ("edge", [13.5e9, 4e9, 16e9]),
    ("cloud", [184e9, 16e9, 100e9]),
];

/// Most bits per second between tiers (table 7.5).
const BITS_PER_SECOND: [[f64; 3]; 3] = [[1e9, 50e6, 10e6], [50e6, 1e9, 100e6], [10e6, 100e6, 1e9]];

/// Milliseconds between tiers (table 7.6).
const LATENCY_MS: [[f64; 3]; 3] = [[10.0, 25.0, 50.0], [25.0, 10.0, 25.0], [50.0, 25.0, 10.0]];

/// A hierarchy from devices over the edge to the cloud, with as many nodes in each tier as in the
/// others (what is left over goes to the upper ones). Inputs come from the first node.
pub fn iot_edge_cloud(
    nodes: usize,
    model: &PlacementModel,
    seed: u64,
    scenario: &HierarchyScenario,
) -> PlacementProblem {
    let mut lots = Random::new(seed);
    let mut share = |least: f64| least + (1.0 - least) * lots.next_fraction();
    let counts = [nodes / 3, (nodes + 1) / 3, nodes.div_ceil(3)];
    let tiers: Vec<usize> =
        counts.iter().enumerate().flat_map(|(tier, &count)| vec![tier; count]).collect();
    let mut throughput = vec![vec![None; tiers.len()]; tiers.len()];
    let mut latency = throughput.clone();
    // Links are drawn before nodes: whether those differ changes nothing about the network.
    for from in 0..tiers.len() {
        for to in from + 1..tiers.len() {
            let listed = BITS_PER_SECOND[tiers[from]][tiers[to]];
            let part = share(scenario.least_throughput);
            let (rate, delay) = if scenario.free_inside && tiers[from] == tiers[to] {
                (listed, 0.0)
            } else {
                (listed * part, LATENCY_MS[tiers[from]][tiers[to]])
            };
            (throughput[from][to], throughput[to][from]) = (Some(rate), Some(rate));
            (latency[from][to], latency[to][from]) = (Some(delay), Some(delay));
        }
    }
    let mut made: Vec<PlacementNode> = Vec::with_capacity(tiers.len());
    for &tier in &tiers {
        let (name, listed) = TIERS[tier];
        let number = made.iter().filter(|node| node.tier as usize == tier).count();
        let [flops, memory, storage] = listed.map(|all| all * share(scenario.least_resources));
        made.push(PlacementNode {
            name: format!("{name}{number}"),
            tier: tier as u32,
            input: made.is_empty(),
            kind: None,
            flops_per_second: Some(flops),
            memory_bytes: Some(memory),
            storage_bytes: Some(storage),
            watts: None,
            joules_per_byte_sent: None,
        });
    }
    PlacementProblem {
        nodes: made,
        throughput_bits_per_second: throughput,
        latency_ms: latency,
        layers: Vec::new(),
        models: vec![model.clone()],
        moving: MigrationCost::default(),
    }
}

/// Layers of ResNet-152 as the thesis' program profiles them: how many in a row, what they are,
/// multiply-adds, bytes of memory, of storage and of input.
const RESNET_152: [(usize, &str, [f64; 4]); 14] = [
    (1, "convolution", [118_013_952.0, 3_851_008.0, 38_800.0, 602_539.0]),
    (1, "normalisation", [1_605_632.0, 6_423_040.0, 3_263.0, 3_211_691.0]),
    (1, "relu", [0.0, 6_422_528.0, 539.0, 3_211_691.0]),
    (1, "pool", [0.0, 4_014_080.0, 613.0, 3_211_691.0]),
    (1, "bottleneck", [235_225_088.0, 26_792_960.0, 314_990.0, 803_243.0]),
    (2, "bottleneck", [220_774_400.0, 19_549_184.0, 292_231.0, 3_211_692.0]),
    (1, "bottleneck", [375_115_776.0, 19_982_336.0, 1_537_667.0, 3_211_692.0]),
    (7, "bottleneck", [219_570_176.0, 10_754_048.0, 1_133_965.0, 1_606_060.0]),
    (1, "exit", [402_432.0, 1_613_848.0, 5_895.0, 1_606_060.0]),
    (1, "bottleneck", [373_811_200.0, 15_282_176.0, 6_080_160.0, 1_606_060.0]),
    (35, "bottleneck", [218_968_064.0, 9_285_632.0, 4_488_616.0, 803_243.0]),
    (1, "bottleneck", [373_158_912.0, 28_774_400.0, 24_209_056.0, 803_243.0]),
    (2, "bottleneck", [218_667_008.0, 20_258_816.0, 17_882_536.0, 401_835.0]),
    (1, "classifier", [104_448.0, 434_200.0, 18_183.0, 401_835.0]),
];

/// ResNet-152 with a side exit at layer 15, in the variant 0, 1 or 2 of table 7.1 (what is above
/// counts as 2). It has 56 layers, the last of which the thesis calls layer 55; its table 7.3 says
/// 57.
pub fn resnet152_model(variant: usize) -> PlacementModel {
    let rows = RESNET_152.iter().flat_map(|&(count, name, figures)| {
        let [flops, memory_bytes, storage_bytes, input] = figures;
        let layer = PlacementLayer {
            name: Some(name.to_owned()),
            flops,
            memory_bytes,
            storage_bytes,
            input_bytes: Some(input),
            ..PlacementLayer::default()
        };
        vec![layer; count]
    });
    let published = [(0.0, 0.0, 0.9739), (0.995, 0.37, 0.9346), (0.9995, 0.76, 0.8366)];
    with_exit("resnet152", rows.collect(), published, variant)
}

/// VGG-13 with a side exit at layer 20, in the variant 0, 1 or 2 of table 7.2 (what is above counts
/// as 2).
///
/// The thesis prints no profile of its layers; this one is worked out from the architecture by the
/// rules that ResNet-152's follows, with an exit that has the shape of the final classifier. Its
/// sums are those of table 7.3.
pub fn vgg13_model(variant: usize) -> PlacementModel {
    let mut layers = Vec::new();
    let (mut channels, mut side) = (3.0, 224.0);
    for (stage, wide) in [64.0, 128.0, 256.0, 512.0, 512.0].into_iter().enumerate() {
        for _ in 0..2 {
            let (before, after) = (channels * side * side, wide * side * side);
            let kernel = 9.0 * channels;
            layers.push(layer_by_elements(
                "convolution",
                kernel * after,
                before,
                after,
                (kernel + 1.0) * wide,
            ));
            layers.push(layer_by_elements("relu", 0.0, after, after, 0.0));
            channels = wide;
        }
        let before = channels * side * side;
        side /= 2.0;
        layers.push(layer_by_elements("pool", 0.0, before, before / 4.0, 0.0));
        if stage == 3 {
            layers.push(vgg_exit(before / 4.0));
        }
    }
    layers.push(layer_by_elements("pool", FEATURES, FEATURES, FEATURES, 0.0));
    layers.push(layer_by_elements("flatten", 0.0, FEATURES, FEATURES, 0.0));
    layers.extend(vgg_classifier());
    // Variant 1 has more right answers than variant 0: what leaves early must be right more often
    // than what goes all the way.
    let published = [(0.0, 0.0, 0.9216), (0.995, 0.37, 0.9281), (0.9995, 0.75, 0.9216)];
    with_exit("vgg13", layers, published, variant)
}

/// What goes into VGG's classifier: 512 channels of 7 by 7.
const FEATURES: f64 = 25_088.0;

/// What a tensor is larger by when it is sent, as PyTorch writes it.
const ENVELOPE_BYTES: f64 = 427.0;

/// A layer by its elements of four bytes: memory is for input, parameters and output.
fn layer_by_elements(
    name: &str,
    flops: f64,
    input: f64,
    output: f64,
    parameters: f64,
) -> PlacementLayer {
    PlacementLayer {
        name: Some(name.to_owned()),
        flops,
        memory_bytes: 4.0 * (input + output + parameters),
        storage_bytes: 4.0 * parameters,
        input_bytes: Some(4.0 * input + ENVELOPE_BYTES),
        ..PlacementLayer::default()
    }
}

/// The layers that make two classes of the features.
fn vgg_classifier() -> Vec<PlacementLayer> {
    let dense =
        |from: f64, to: f64| layer_by_elements("dense", from * to, from, to, from * to + to);
    let same = |name: &str| layer_by_elements(name, 0.0, 4096.0, 4096.0, 0.0);
    vec![
        dense(FEATURES, 4096.0),
        same("relu"),
        same("dropout"),
        dense(4096.0, 4096.0),
        same("relu"),
        same("dropout"),
        dense(4096.0, 2.0),
    ]
}

/// The side exit of VGG: pooled to the features, then the layers of a classifier of its own.
fn vgg_exit(input: f64) -> PlacementLayer {
    let mut parts = vec![
        layer_by_elements("pool", input, input, FEATURES, 0.0),
        layer_by_elements("flatten", 0.0, FEATURES, FEATURES, 0.0),
    ];
    parts.extend(vgg_classifier());
    let sum = |figure: fn(&PlacementLayer) -> f64| parts.iter().map(figure).sum();
    PlacementLayer {
        name: Some("exit".to_owned()),
        flops: sum(|part| part.flops),
        memory_bytes: sum(|part| part.memory_bytes),
        storage_bytes: sum(|part| part.storage_bytes),
        input_bytes: parts[0].input_bytes,
        ..PlacementLayer::default()
    }
}

/// A model with the three published settings of its exit, the variant's first.
///
/// The thesis prints the accuracy of the whole. What leaves at the exit is right so often that the
/// whole comes out as printed where the rest is right as often as it is without an exit.
fn with_exit(
    name: &str,
    mut layers: Vec<PlacementLayer>,
    published: [(f64, f64, f64); 3],
    variant: usize,
) -> PlacementModel {
    let (_, _, whole) = published[0];
    let mut settings: Vec<ExitSetting> = published
        .iter()
        .map(|&(threshold, rate, accuracy)| ExitSetting {
            threshold,
            rate,
            accuracy: Some(if rate > 0.0 {
                (accuracy - (1.0 - rate) * whole) / rate
            } else {
                whole
            }),
        })
        .collect();
    settings[..=variant.min(2)].rotate_right(1);
    if let Some(exit) = layers.iter_mut().find(|layer| layer.name.as_deref() == Some("exit")) {
        exit.exit = settings;
    }
    PlacementModel {
        name: name.to_owned(),
        weight: 1.0,
        input: None,
        reply_bytes: None,
        input_bytes: None,
        accuracy: Some(whole),
        least_accuracy: None,
        layers,
    }
}
