//! A model in the making: layers with their weights, from the seed of the current stage.

use std::collections::HashSet;

use bytes::Bytes;
use tessera_core::{DType, Dim};
use tessera_graph::builder::{
    GraphBuilder, f32_tensor, float_attribute, i64_tensor, int_attribute, ints_attribute,
};
use tessera_graph::onnx::ModelProto;

use crate::weights::{UniformRange, generate_weights};
use crate::{BatchSize, Recipe};

/// The gain of a layer in front of a ReLU, which leaves 1/2 − 1/2π of what varies.
pub(crate) const GAIN_BEFORE_RELU: f32 = 1.71;

/// The gain of a layer that nothing follows.
pub(crate) const LINEAR_GAIN: f32 = 1.0;

/// Biases are small, but not zero: a bias that is lost must show in the result.
const BIAS_BOUND: f32 = 0.05;

/// The confidence threshold of a side exit that nobody has tuned.
const EXIT_THRESHOLD: f32 = 0.5;

/// Whether weights have their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightData {
    /// They do.
    Generated,
    /// Only names and shapes count: the data is empty.
    Omitted,
}

/// What a finished network leaves.
pub(crate) struct AssembledNetwork {
    pub(crate) model: ModelProto,
    pub(crate) exits: Vec<(String, f32)>,
    pub(crate) parameters: u64,
}

/// A model in the making.
pub(crate) struct NetworkBuilder<'recipe> {
    pub(crate) graph: GraphBuilder,
    pub(crate) recipe: &'recipe Recipe,
    data: WeightData,
    /// Where the weights of the current stage come from.
    seed: u64,
    exits: Vec<(String, f32)>,
    parameters: u64,
    /// Constants that are there already.
    constants: HashSet<String>,
}

/// A square convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convolution {
    inputs: usize,
    outputs: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    groups: usize,
    gain: f32,
}

impl Convolution {
    /// Stride 1, padded to keep the size, in front of a ReLU.
    pub(crate) fn new(inputs: usize, outputs: usize, kernel: usize) -> Self {
        let padding = kernel / 2;
        Self { inputs, outputs, kernel, stride: 1, padding, groups: 1, gain: GAIN_BEFORE_RELU }
    }

    /// One filter for each channel.
    pub(crate) fn depthwise(channels: usize, kernel: usize) -> Self {
        Self { groups: channels, ..Self::new(channels, channels, kernel) }
    }

    pub(crate) fn with_stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    pub(crate) fn without_padding(self) -> Self {
        Self { padding: 0, ..self }
    }

    pub(crate) fn with_gain(self, gain: f32) -> Self {
        Self { gain, ..self }
    }
}

impl<'recipe> NetworkBuilder<'recipe> {
    pub(crate) fn new(recipe: &'recipe Recipe, data: WeightData) -> Self {
        Self {
            graph: GraphBuilder::new(recipe.architecture.name()),
            recipe,
            data,
            seed: recipe.seed,
            exits: Vec::new(),
            parameters: 0,
            constants: HashSet::new(),
        }
    }

    /// What follows belongs to this stage, counted from 1.
    pub(crate) fn enter_stage(&mut self, number: usize) {
        self.seed = match self.recipe.shared_stages {
            Some(shared) if number <= shared.stages => shared.seed,
            _ => self.recipe.seed,
        };
    }

    /// What follows belongs to a head, which is never shared.
    pub(crate) fn enter_head(&mut self) {
        self.seed = self.recipe.seed;
    }

    /// These dimensions after the batch.
    pub(crate) fn batched_dims(&self, sizes: &[usize]) -> Vec<Dim> {
        let batch = match self.recipe.batch {
            BatchSize::Fixed(size) => Dim::Fixed(size),
            BatchSize::Symbolic => Dim::Symbol("batch".to_owned()),
        };
        std::iter::once(batch).chain(sizes.iter().copied().map(Dim::Fixed)).collect()
    }

    /// The graph's input `input` for square images of this size.
    pub(crate) fn add_image_input(&mut self, size: usize) -> String {
        let dims = self.batched_dims(&[3, size, size]);
        self.graph.add_input("input", DType::F32, dims)
    }

    /// Adds an output that is a side exit.
    pub(crate) fn add_exit_output(&mut self, output: &str, classes: usize) {
        let dims = self.batched_dims(&[classes]);
        self.graph.add_typed_output(output, DType::F32, dims);
        self.exits.push((output.to_owned(), EXIT_THRESHOLD));
    }

    pub(crate) fn finish_network(self) -> AssembledNetwork {
        AssembledNetwork {
            model: self.graph.build_model(),
            exits: self.exits,
            parameters: self.parameters,
        }
    }

    /// A parameter of `module`: its tensor `index`, named `<module>.<name>`.
    pub(crate) fn add_parameter(
        &mut self,
        module: &str,
        (index, name): (u64, &str),
        dims: &[usize],
        range: UniformRange,
    ) -> String {
        self.parameters += dims.iter().product::<usize>() as u64;
        self.add_buffer(module, (index, name), dims, range)
    }

    /// A weight of `module` that training would not change.
    fn add_buffer(
        &mut self,
        module: &str,
        (index, name): (u64, &str),
        dims: &[usize],
        range: UniformRange,
    ) -> String {
        let data = match self.data {
            WeightData::Generated => {
                generate_weights(self.seed, module, index, dims.iter().product(), range)
            }
            WeightData::Omitted => Bytes::new(),
        };
        self.graph.add_raw_weight(&format!("{module}.{name}"), DType::F32.to_onnx(), dims, data)
    }

    /// A parameter that is added to every position.
    pub(crate) fn add_bias(&mut self, module: &str, size: usize) -> String {
        self.add_parameter(
            module,
            (1, "bias"),
            &[size],
            UniformRange::between(-BIAS_BOUND, BIAS_BOUND),
        )
    }

    /// A scalar constant, the same for all that ask for this name.
    pub(crate) fn scalar_constant(&mut self, name: &str, value: f32) -> String {
        if self.constants.insert(name.to_owned()) {
            self.graph.add_initializer(f32_tensor(name, &[], &[value]));
        }
        name.to_owned()
    }

    /// A constant list of integers, the same for all that ask for this name.
    pub(crate) fn integers_constant(&mut self, name: &str, values: &[i64]) -> String {
        if self.constants.insert(name.to_owned()) {
            self.graph.add_initializer(i64_tensor(name, &[values.len()], values));
        }
        name.to_owned()
    }

    /// A constant integer, the same for all that ask for this name.
    pub(crate) fn integer_constant(&mut self, name: &str, value: i64) -> String {
        if self.constants.insert(name.to_owned()) {
            self.graph.add_initializer(i64_tensor(name, &[], &[value]));
        }
        name.to_owned()
    }

    /// A node of `module` with one output.
    pub(crate) fn add_operator(&mut self, module: &str, op_type: &str, inputs: &[&str]) -> String {
        self.graph.add_named_node(
            &format!("{}/{op_type}", module_scope(module)),
            op_type,
            inputs,
            [],
        )
    }

    /// A convolution; `norm` is the module of its batch normalisation, used where not folded.
    pub(crate) fn add_convolution(
        &mut self,
        module: &str,
        norm: Option<&str>,
        input: &str,
        convolution: Convolution,
    ) -> String {
        let Convolution { inputs, outputs, kernel, stride, padding, groups, gain } = convolution;
        let fan_in = inputs / groups * kernel * kernel;
        let weight = self.add_parameter(
            module,
            (0, "weight"),
            &[outputs, inputs / groups, kernel, kernel],
            UniformRange::with_deviation(gain / (fan_in as f32).sqrt()).with_centered_rows(fan_in),
        );
        let norm = norm.filter(|_| self.recipe.batch_norm);
        let bias = if norm.is_none() { Some(self.add_bias(module, outputs)) } else { None };
        let operands: Vec<&str> = [input, &weight].into_iter().chain(bias.as_deref()).collect();
        let attributes = [
            ints_attribute("dilations", &[1, 1]),
            int_attribute("group", groups as i64),
            ints_attribute("kernel_shape", &[kernel as i64; 2]),
            ints_attribute("pads", &[padding as i64; 4]),
            ints_attribute("strides", &[stride as i64; 2]),
        ];
        let name = format!("{}/Conv", module_scope(module));
        let output = self.graph.add_named_node(&name, "Conv", &operands, attributes);
        match norm {
            Some(norm) => self.add_batch_norm(norm, &output, outputs),
            None => output,
        }
    }

    fn add_batch_norm(&mut self, module: &str, input: &str, channels: usize) -> String {
        let dims = [channels];
        let scale =
            self.add_parameter(module, (0, "weight"), &dims, UniformRange::between(0.9, 1.1));
        let bias = self.add_bias(module, channels);
        let mean = (2, "running_mean");
        let mean =
            self.add_buffer(module, mean, &dims, UniformRange::between(-BIAS_BOUND, BIAS_BOUND));
        let variance = (3, "running_var");
        let variance = self.add_buffer(module, variance, &dims, UniformRange::between(0.8, 1.2));
        self.graph.add_named_node(
            &format!("{}/BatchNormalization", module_scope(module)),
            "BatchNormalization",
            &[input, &scale, &bias, &mean, &variance],
            [float_attribute("epsilon", 1e-5)],
        )
    }

    pub(crate) fn add_relu(&mut self, module: &str, input: &str) -> String {
        self.add_operator(module, "Relu", &[input])
    }

    /// A pool over square windows: kernel, stride, padding.
    pub(crate) fn add_pool(
        &mut self,
        module: &str,
        op_type: &str,
        input: &str,
        (kernel, stride, padding): (i64, i64, i64),
    ) -> String {
        self.graph.add_named_node(
            &format!("{}/{op_type}", module_scope(module)),
            op_type,
            &[input],
            [
                ints_attribute("kernel_shape", &[kernel; 2]),
                ints_attribute("pads", &[padding; 4]),
                ints_attribute("strides", &[stride; 2]),
            ],
        )
    }

    /// The mean of every channel, as one row for each image; `prefix` is the owner's module.
    pub(crate) fn add_pooled_features(&mut self, prefix: &str, input: &str) -> String {
        let (pool, flatten) = match prefix {
            "" => ("avgpool".to_owned(), String::new()),
            prefix => (format!("{prefix}.avgpool"), prefix.to_owned()),
        };
        let pooled = self.add_operator(&pool, "GlobalAveragePool", &[input]);
        self.add_flatten(&flatten, &pooled)
    }

    pub(crate) fn add_flatten(&mut self, module: &str, input: &str) -> String {
        let name = format!("{}/Flatten", module_scope(module));
        self.graph.add_named_node(&name, "Flatten", &[input], [int_attribute("axis", 1)])
    }

    /// A fully connected layer on rows, into the value `output` where that has to have a name.
    pub(crate) fn add_dense(
        &mut self,
        module: &str,
        input: &str,
        (inputs, outputs): (usize, usize),
        gain: f32,
        output: Option<&str>,
    ) -> String {
        let range =
            UniformRange::with_deviation(gain / (inputs as f32).sqrt()).with_centered_rows(inputs);
        let weight = self.add_parameter(module, (0, "weight"), &[outputs, inputs], range);
        let bias = self.add_bias(module, outputs);
        let name = format!("{}/Gemm", module_scope(module));
        let output = output.map_or_else(|| format!("{name}_output_0"), str::to_owned);
        self.graph.add_node_into(
            &name,
            "Gemm",
            &[input, &weight, &bias],
            &[&output],
            [
                float_attribute("alpha", 1.0),
                float_attribute("beta", 1.0),
                int_attribute("transB", 1),
            ],
        );
        output
    }
}

/// The scope of a module in the names of nodes, as PyTorch's exporter writes it:
/// `layer1.0.conv1` is `/layer1/layer1.0/conv1`.
pub(crate) fn module_scope(module: &str) -> String {
    let mut scope = String::new();
    let mut level = String::new();
    for part in module.split('.').filter(|part| !part.is_empty()) {
        if part.bytes().all(|byte| byte.is_ascii_digit()) && !level.is_empty() {
            level = format!("{level}.{part}");
        } else {
            level = part.to_owned();
        }
        scope = format!("{scope}/{level}");
    }
    scope
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_look_like_those_of_the_pytorch_exporter() {
        let cases = [
            ("", ""),
            ("conv1", "/conv1"),
            ("layer1.0.conv1", "/layer1/layer1.0/conv1"),
            ("layer1.0.downsample.0", "/layer1/layer1.0/downsample/downsample.0"),
            ("features.1.conv.0.0", "/features/features.1/conv/conv.0/conv.0.0"),
        ];
        for (module, expected) in cases {
            assert_eq!(module_scope(module), expected);
        }
    }
}
