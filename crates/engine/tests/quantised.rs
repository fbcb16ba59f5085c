//! Quantised models in the form that ONNX Runtime's own tool writes: pairs of `QuantizeLinear` and
//! `DequantizeLinear` around operators.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::num::NonZeroUsize;

use prost::Message;
use tessera_core::{DType, Dim, Tensor};
use tessera_engine::{Engine, LoadOptions, OnnxRuntime};
use tessera_graph::builder::{GraphBuilder, int_attribute, ints_attribute};
use tessera_graph::onnx::ModelProto;
use tessera_graph::{NoExternalData, onnx};

use common::program_of;

const CHANNELS: usize = 16;

/// Two quantised convolutions with scales for each channel.
fn model() -> ModelProto {
    let mut graph = GraphBuilder::new("quantised");
    let dims: Vec<Dim> =
        [Dim::Symbol("n".into())].into_iter().chain([16, 8, 8].map(Dim::Fixed)).collect();
    let mut value = graph.add_input("x", DType::F32, dims);
    for layer in 0..2 {
        let scale = graph.add_weight(&format!("scale{layer}"), &[], vec![0.02]);
        let zero = format!("zero{layer}");
        let zero = graph.add_raw_weight(&zero, DType::U8.to_onnx(), &[], vec![128].into());
        let quantised = graph.add_node("QuantizeLinear", &[&value, &scale, &zero], []);
        let x = graph.add_node("DequantizeLinear", &[&quantised, &scale, &zero], []);
        let count = CHANNELS * CHANNELS * 9;
        let bytes: Vec<u8> = (0..count).map(|index| (index * 7 % 251) as u8).collect();
        let shape = [CHANNELS, CHANNELS, 3, 3];
        let name = format!("w{layer}");
        let w = graph.add_raw_weight(&name, DType::I8.to_onnx(), &shape, bytes.into());
        let scales = (0..CHANNELS).map(|index| 0.001 + index as f32 / 1e5).collect();
        let scales = graph.add_weight(&format!("ws{layer}"), &[CHANNELS], scales);
        let zeros = vec![0u8; CHANNELS];
        let zeros = graph.add_raw_weight(
            &format!("wz{layer}"),
            DType::I8.to_onnx(),
            &[CHANNELS],
            zeros.into(),
        );
        let w =
            graph.add_node("DequantizeLinear", &[&w, &scales, &zeros], [int_attribute("axis", 0)]);
        let made = graph.add_node("Conv", &[&x, &w], [ints_attribute("pads", &[1, 1, 1, 1])]);
        value = graph.add_node("Relu", &[&made], []);
    }
    let scale = graph.add_weight("scale", &[], vec![0.05]);
    let zero = graph.add_raw_weight("zero", DType::U8.to_onnx(), &[], vec![0].into());
    let quantised = graph.add_node("QuantizeLinear", &[&value, &scale, &zero], []);
    let output = graph.add_node("DequantizeLinear", &[&quantised, &scale, &zero], []);
    graph.add_output_of_any_shape(&output, DType::F32);
    graph.build_model()
}

#[test]
fn a_block_is_what_the_uncut_file_is() {
    let engine = match OnnxRuntime::new() {
        Ok(engine) => engine,
        Err(error) => return eprintln!("SKIPPED with ONNX Runtime: {error}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.onnx");
    std::fs::write(&file, model().encode_to_vec()).unwrap();
    let graph = onnx::read::from_proto(model(), &mut NoExternalData).unwrap();
    let output = graph.value_name(graph.outputs()[0]).to_owned();
    let program = program_of(&graph);
    let input: Vec<f32> =
        (0..2 * 16 * 64).map(|index| ((index * 31 % 199) as f32 - 99.0) / 50.0).collect();
    let input = Tensor::from_f32(&[2, 16, 8, 8], &input).unwrap();
    let mut whole = engine
        .load_file(&file, &["x".to_owned()], &[(output, DType::F32)], &LoadOptions::default())
        .unwrap();
    let expected = whole.run_inference(std::slice::from_ref(&input), vec![None]).unwrap();
    // The second shares what the first has made of the weights, as far as its kernels can.
    let loaded: Vec<_> = [1, 2]
        .map(|threads| {
            let threads = NonZeroUsize::new(threads).unwrap();
            engine
                .load_program(&program, &LoadOptions { threads, ..LoadOptions::default() })
                .unwrap()
        })
        .into();
    for mut session in loaded {
        let found = session.run_inference(std::slice::from_ref(&input), vec![None]).unwrap();
        assert_eq!(found[0].to_f64(), expected[0].to_f64());
    }
}
