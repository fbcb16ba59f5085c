//! Well-known architectures as ONNX models, made in code with deterministic weights.
//!
//! Benchmarks and tests need real architectures, and tasks that share layers; neither needs
//! weights that know anything. A [`Recipe`] says which architecture and from which seed; two
//! recipes whose [`SharedStages`] have the same seed have those layers in common to the byte.
//!
//! The weights of a layer depend on the seed of its stage, its name and its shape alone, and are
//! scaled so that activations stay finite and logits differ between classes and inputs.

#![forbid(unsafe_code)]

mod architecture;
mod assemble_recipe;
mod bert;
mod detector;
mod gpt2;
mod mobilenet;
mod network;
mod random_inputs;
mod recipe;
mod resnet;
mod sequences;
mod tiny_model;
mod transformer;
mod vgg;
mod weights;

pub use architecture::Architecture;
pub use random_inputs::{random_input, random_inputs};
pub use recipe::{BatchSize, Recipe, SharedStages, ZooModel};
pub use tiny_model::{LINEAR_WIDTH, TinyModel, linear_weight};
