//! What every engine promises, as checks that run on any of them.
//!
//! Each check is a function that panics where the engine breaks the promise; [`CHECKS`] lists them.
//! The tests of this crate run them on every engine there is.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a check fails by panicking, as a test does"
)]

use std::num::NonZeroUsize;
use std::sync::Arc;

use tessera_core::{DType, ErrorKind, HostBuffer, Region, Tensor, TensorMut};
use tessera_graph::builder::{self, GraphBuilder};
use tessera_graph::onnx::ModelProto;
use tessera_graph::{NoExternalData, Partition, Split, infer, onnx, split_into_chain};

use crate::{Engine, EngineSession, LoadOptions, Program, ProgramWeight};

/// A check by name.
pub type ConformanceCheck = (&'static str, fn(&dyn Engine));

/// Every check.
pub const CHECKS: &[ConformanceCheck] = &[
    ("computes_what_the_operators_say", computes_what_the_operators_say),
    ("writes_to_the_memory_it_is_given", writes_to_the_memory_it_is_given),
    ("results_stay_when_the_session_is_gone", results_stay_when_the_session_is_gone),
    ("reads_weights_from_memory_of_the_caller", reads_weights_from_memory_of_the_caller),
    ("takes_any_batch_size", takes_any_batch_size),
    (
        "takes_several_inputs_and_gives_several_outputs",
        takes_several_inputs_and_gives_several_outputs,
    ),
    ("keeps_integers_exact", keeps_integers_exact),
    ("keeps_booleans", keeps_booleans),
    ("takes_tensors_that_are_not_aligned", takes_tensors_that_are_not_aligned),
    ("runs_bodies_that_capture", runs_bodies_that_capture),
    ("runs_bodies_with_weights_of_their_own", runs_bodies_with_weights_of_their_own),
    ("adds_a_residual_in_any_number_of_dimensions", adds_a_residual_in_any_number_of_dimensions),
    ("gives_the_same_with_any_number_of_threads", gives_the_same_with_any_number_of_threads),
    ("refuses_a_wrong_dtype_by_name", refuses_a_wrong_dtype_by_name),
    ("refuses_a_wrong_number_of_tensors", refuses_a_wrong_number_of_tensors),
    ("refuses_a_wrong_shape_and_goes_on", refuses_a_wrong_shape_and_goes_on),
    ("refuses_a_buffer_of_the_wrong_shape", refuses_a_buffer_of_the_wrong_shape),
    ("names_the_block_and_operator_it_lacks", names_the_block_and_operator_it_lacks),
    ("runs_two_sessions_of_a_block_at_once", runs_two_sessions_of_a_block_at_once),
];

/// Cuts a model into one block.
fn one_block_partition(model: ModelProto) -> Partition {
    let graph = onnx::read::from_proto(model, &mut NoExternalData).unwrap();
    let types = infer::infer_types(&graph, &Default::default()).unwrap();
    split_into_chain(&graph, &types, &Split::Blocks(1), &[]).unwrap()
}

fn only_program(partition: &Partition) -> Program {
    let block = partition.blocks.values().next().unwrap().clone();
    let weights = block
        .weights()
        .iter()
        .map(|reference| ProgramWeight {
            tensor: Tensor::from_bytes(
                reference.dtype,
                &reference.shape,
                partition.weights[&reference.hash].clone(),
            )
            .unwrap(),
            mapping: None,
        })
        .collect();
    Program::new(block, weights).unwrap()
}

fn load_model(engine: &dyn Engine, model: ModelProto) -> Box<dyn EngineSession> {
    engine
        .load_program(&only_program(&one_block_partition(model)), &LoadOptions::default())
        .unwrap()
}

fn values_as_f64(tensor: &Tensor) -> Vec<f64> {
    tensor.to_f64().unwrap()
}

/// `y = relu(x · w + b)`, `w` large enough to be a weight of its own.
fn dense_model() -> ModelProto {
    let mut graph = GraphBuilder::new("dense");
    let x = graph.add_input(
        "x",
        DType::F32,
        [tessera_core::Dim::Unknown, tessera_core::Dim::Fixed(64)],
    );
    let weights = (0..64 * 64).map(|index| ((index % 7) as f32 - 3.0) / 8.0).collect();
    let w = graph.add_weight("w", &[64, 64], weights);
    let b = graph.add_weight("b", &[64], (0..64).map(|index| index as f32 / 64.0).collect());
    let product = graph.add_node("MatMul", &[&x, &w], []);
    let sum = graph.add_node("Add", &[&product, &b], []);
    let y = graph.add_node("Relu", &[&sum], []);
    graph.add_output_of_any_shape(&y, DType::F32);
    graph.build_model()
}

fn dense_input(rows: usize) -> (Tensor, Vec<f64>) {
    let input: Vec<f32> = (0..rows * 64).map(|index| ((index % 11) as f32 - 5.0) / 4.0).collect();
    let mut expected = Vec::new();
    for row in input.chunks(64) {
        for column in 0..64 {
            let product: f64 = (0..64)
                .map(|k| f64::from(row[k]) * (((k * 64 + column) % 7) as f64 - 3.0) / 8.0)
                .sum();
            expected.push((product + column as f64 / 64.0).max(0.0));
        }
    }
    (Tensor::from_f32(&[rows, 64], &input).unwrap(), expected)
}

fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-4, "{found} is not {expected}");
    }
}

fn computes_what_the_operators_say(engine: &dyn Engine) {
    let (input, expected) = dense_input(3);
    let outputs = load_model(engine, dense_model()).run_inference(&[input], vec![None]).unwrap();
    assert_eq!(outputs[0].shape(), [3, 64]);
    assert_near(&values_as_f64(&outputs[0]), &expected);
}

fn writes_to_the_memory_it_is_given(engine: &dyn Engine) {
    let (input, expected) = dense_input(2);
    let buffer = HostBuffer::new(2 * 64 * 4);
    let address = buffer.address().as_ptr().addr();
    let bound = TensorMut::from_buffer(DType::F32, &[2, 64], Box::new(buffer)).unwrap();
    let outputs =
        load_model(engine, dense_model()).run_inference(&[input], vec![Some(bound)]).unwrap();
    assert_eq!(outputs[0].address(), Some(address));
    assert_near(&values_as_f64(&outputs[0]), &expected);
}

fn results_stay_when_the_session_is_gone(engine: &dyn Engine) {
    let (input, expected) = dense_input(2);
    let mut session = load_model(engine, dense_model());
    let first = session.run_inference(std::slice::from_ref(&input), vec![None]).unwrap();
    session.run_inference(&[Tensor::from_f32(&[1, 64], &[9.0; 64]).unwrap()], vec![None]).unwrap();
    drop(session);
    assert_near(&values_as_f64(&first[0]), &expected);
}

fn reads_weights_from_memory_of_the_caller(engine: &dyn Engine) {
    let partition = one_block_partition(dense_model());
    let program = only_program(&partition);
    let mut session = engine.load_program(&program, &LoadOptions::default()).unwrap();
    // The session must keep alive what it reads.
    drop((program, partition));
    let (input, expected) = dense_input(4);
    assert_near(
        &values_as_f64(&session.run_inference(&[input], vec![None]).unwrap()[0]),
        &expected,
    );
}

fn takes_any_batch_size(engine: &dyn Engine) {
    let mut session = load_model(engine, dense_model());
    for rows in [1, 5, 2] {
        let (input, expected) = dense_input(rows);
        assert_near(
            &values_as_f64(&session.run_inference(&[input], vec![None]).unwrap()[0]),
            &expected,
        );
    }
}

fn takes_several_inputs_and_gives_several_outputs(engine: &dyn Engine) {
    let mut graph = GraphBuilder::new("several");
    let a = graph.add_input("a", DType::F32, [2usize]);
    let b = graph.add_input("b", DType::F32, [2usize]);
    let sum = graph.add_node("Add", &[&a, &b], []);
    let difference = graph.add_node("Sub", &[&a, &b], []);
    graph.add_output_of_any_shape(&sum, DType::F32);
    graph.add_output_of_any_shape(&difference, DType::F32);
    let partition = one_block_partition(graph.build_model());
    let node = &partition.graph.blocks[0];
    let mut session =
        engine.load_program(&only_program(&partition), &LoadOptions::default()).unwrap();
    let given = [
        Tensor::from_f32(&[2], &[5.0, 7.0]).unwrap(),
        Tensor::from_f32(&[2], &[1.0, 2.0]).unwrap(),
    ];
    let inputs: Vec<Tensor> = node
        .inputs
        .iter()
        .map(|source| match source {
            tessera_graph::TensorSource::Input(index) => given[*index].clone(),
            tessera_graph::TensorSource::Block { .. } => {
                panic!("one block has no other to read from")
            }
        })
        .collect();
    let outputs = session.run_inference(&inputs, vec![None, None]).unwrap();
    for (port, output) in node.outputs.iter().zip(&outputs) {
        let expected = if port.name == sum { [6.0, 9.0] } else { [4.0, 5.0] };
        assert_near(&values_as_f64(output), &expected);
    }
}

fn keeps_integers_exact(engine: &dyn Engine) {
    let mut graph = GraphBuilder::new("integers");
    let x = graph.add_input("x", DType::I64, [3usize]);
    let one = graph.add_i64_weight("one", &[1], vec![1]);
    let y = graph.add_node("Add", &[&x, &one], []);
    graph.add_output_of_any_shape(&y, DType::I64);
    let input = Tensor::from_i64(&[3], &[0, -5, 1_000_000_007]).unwrap();
    let outputs =
        load_model(engine, graph.build_model()).run_inference(&[input], vec![None]).unwrap();
    assert_eq!(outputs[0].dtype(), DType::I64);
    assert_eq!(values_as_f64(&outputs[0]), [1.0, -4.0, 1_000_000_008.0]);
}

fn keeps_booleans(engine: &dyn Engine) {
    let mut graph = GraphBuilder::new("booleans");
    let x = graph.add_input("x", DType::F32, [3usize]);
    let zero = graph.add_weight("zero", &[1], vec![0.0]);
    let is_positive = graph.add_node("Greater", &[&x, &zero], []);
    let y = graph.add_node("Not", &[&is_positive], []);
    graph.add_output_of_any_shape(&y, DType::Bool);
    let input = Tensor::from_f32(&[3], &[1.0, -1.0, 0.0]).unwrap();
    let outputs =
        load_model(engine, graph.build_model()).run_inference(&[input], vec![None]).unwrap();
    assert_eq!((outputs[0].dtype(), outputs[0].bytes()), (DType::Bool, Some(&[0, 1, 1][..])));
}

fn takes_tensors_that_are_not_aligned(engine: &dyn Engine) {
    let (input, expected) = dense_input(2);
    let mut shifted = vec![0u8];
    shifted.extend_from_slice(input.bytes().unwrap());
    let bytes = bytes::Bytes::from(shifted).slice(1..);
    let input = Tensor::from_bytes(DType::F32, &[2, 64], bytes).unwrap();
    let outputs = load_model(engine, dense_model()).run_inference(&[input], vec![None]).unwrap();
    assert_near(&values_as_f64(&outputs[0]), &expected);
}

fn runs_bodies_that_capture(engine: &dyn Engine) {
    let mut model = GraphBuilder::new("captures");
    let x = model.add_input("x", DType::F32, [2usize]);
    let condition = model.add_input("condition", DType::Bool, [0usize; 0]);
    let doubled = model.add_node("Add", &[&x, &x], []);
    let branch = |op: &str| {
        let mut body = GraphBuilder::new(op);
        // The outer values are named as they are: that is how a body captures.
        let made = body.add_node(op, &[&doubled, &x], []);
        body.add_output_of_any_shape(&made, DType::F32);
        body.build_graph()
    };
    let attributes = [
        builder::graph_attribute("then_branch", branch("Mul")),
        builder::graph_attribute("else_branch", branch("Sub")),
    ];
    let y = model.add_node("If", &[&condition], attributes);
    model.add_output_of_any_shape(&y, DType::F32);
    let partition = one_block_partition(model.build_model());
    let mut session =
        engine.load_program(&only_program(&partition), &LoadOptions::default()).unwrap();
    for (flag, expected) in [(1u8, [18.0, 50.0]), (0, [3.0, 5.0])] {
        let x = Tensor::from_f32(&[2], &[3.0, 5.0]).unwrap();
        let flag = Tensor::copy_from_bytes(DType::Bool, &[], &[flag]).unwrap();
        let given = [x, flag];
        let inputs: Vec<Tensor> = partition.graph.blocks[0]
            .inputs
            .iter()
            .map(|source| match source {
                tessera_graph::TensorSource::Input(index) => given[*index].clone(),
                tessera_graph::TensorSource::Block { .. } => panic!("one block has no other"),
            })
            .collect();
        assert_near(
            &values_as_f64(&session.run_inference(&inputs, vec![None]).unwrap()[0]),
            &expected,
        );
    }
}

/// `(x · a) · b` or `(x · a) · c`, where `b` and `c` belong to the branches.
fn runs_bodies_with_weights_of_their_own(engine: &dyn Engine) {
    let diagonal = |value: f32| -> Vec<f32> {
        (0..64 * 64).map(|at| if at % 65 == 0 { value } else { 0.0 }).collect()
    };
    let mut model = GraphBuilder::new("weights of bodies");
    let x = model.add_input("x", DType::F32, [1usize, 64]);
    let condition = model.add_input("condition", DType::Bool, [0usize; 0]);
    let a = model.add_weight("a", &[64, 64], diagonal(2.0));
    let outer = model.add_named_node("outer", "MatMul", &[&x, &a], []);
    let branch = |name: &str, value: f32| {
        let mut body = GraphBuilder::new(name);
        let own = body.add_weight(name, &[64, 64], diagonal(value));
        let made = body.add_node("MatMul", &[&outer, &own], []);
        body.add_output_of_any_shape(&made, DType::F32);
        builder::graph_attribute(name, body.build_graph())
    };
    let branches = [branch("then_branch", 5.0), branch("else_branch", 7.0)];
    let y = model.add_node("If", &[&condition], branches);
    model.add_output_of_any_shape(&y, DType::F32);
    let partition = one_block_partition(model.build_model());
    let mut session =
        engine.load_program(&only_program(&partition), &LoadOptions::default()).unwrap();
    for (flag, factor) in [(1u8, 10.0), (0, 14.0)] {
        let given = [
            Tensor::from_f32(&[1, 64], &[3.0; 64]).unwrap(),
            Tensor::copy_from_bytes(DType::Bool, &[], &[flag]).unwrap(),
        ];
        let inputs: Vec<Tensor> = partition.graph.blocks[0]
            .inputs
            .iter()
            .map(|source| match source {
                tessera_graph::TensorSource::Input(index) => given[*index].clone(),
                tessera_graph::TensorSource::Block { .. } => panic!("one block has no other"),
            })
            .collect();
        let outputs = session.run_inference(&inputs, vec![None]).unwrap();
        assert_near(&values_as_f64(&outputs[0]), &[3.0 * factor; 64]);
    }
}

/// `x + conv(x)` with the kernel one, on one and two dimensions of space.
fn adds_a_residual_in_any_number_of_dimensions(engine: &dyn Engine) {
    for shape in [vec![1, 16, 8], vec![1, 16, 8, 8]] {
        for with_types in [false, true] {
            let mut graph = GraphBuilder::new("residual");
            let x = graph.add_input("x", DType::F32, shape.as_slice());
            let mut kernel = vec![16, 16];
            kernel.resize(shape.len(), 1);
            let weights = (0..256).map(|at| if at % 17 == 0 { 1.0 } else { 0.0 }).collect();
            let w = graph.add_weight("w", &kernel, weights);
            // Written out as exporters do: rten takes the default pads for those of an image.
            let (space, one) = (shape.len() - 2, [1, 1]);
            let attributes = [
                builder::ints_attribute("kernel_shape", &one[..space]),
                builder::ints_attribute("strides", &one[..space]),
                builder::ints_attribute("dilations", &one[..space]),
                builder::ints_attribute("pads", &[0; 4][..2 * space]),
            ];
            let made = graph.add_node("Conv", &[&x, &w], attributes);
            let sum = graph.add_node("Add", &[&made, &x], []);
            graph.add_output_of_any_shape(&sum, DType::F32);
            let partition = one_block_partition(graph.build_model());
            let mut program = only_program(&partition);
            if with_types {
                let types = [partition.graph.inputs[0].tensor_type.clone()];
                program = program.with_input_types(&types).unwrap();
            }
            let mut session = engine.load_program(&program, &LoadOptions::default()).unwrap();
            let count = shape.iter().product();
            let values: Vec<f32> = (0..count).map(|at| (at % 23) as f32 - 11.0).collect();
            let input = Tensor::from_f32(&shape, &values).unwrap();
            let expected: Vec<f64> = values.iter().map(|&v| 2.0 * f64::from(v)).collect();
            assert_near(&run_for_values(&mut *session, input), &expected);
        }
    }
}

fn run_for_values(session: &mut dyn EngineSession, input: Tensor) -> Vec<f64> {
    values_as_f64(&session.run_inference(&[input], vec![None]).unwrap()[0])
}

fn gives_the_same_with_any_number_of_threads(engine: &dyn Engine) {
    let partition = one_block_partition(dense_model());
    let (input, _) = dense_input(8);
    let run = |threads| {
        let options =
            LoadOptions { threads: NonZeroUsize::new(threads).unwrap(), ..LoadOptions::default() };
        let mut session = engine.load_program(&only_program(&partition), &options).unwrap();
        values_as_f64(&session.run_inference(std::slice::from_ref(&input), vec![None]).unwrap()[0])
    };
    assert_near(&run(2), &run(1));
}

fn refuses_a_wrong_dtype_by_name(engine: &dyn Engine) {
    let input = Tensor::from_i64(&[1, 64], &[0; 64]).unwrap();
    let error = load_model(engine, dense_model())
        .run_inference(&[input], vec![None])
        .unwrap_err()
        .to_string();
    assert!(error.contains("f32") && error.contains("i64[1,64]"), "{error}");
}

fn refuses_a_wrong_number_of_tensors(engine: &dyn Engine) {
    let mut session = load_model(engine, dense_model());
    let (input, _) = dense_input(1);
    assert!(session.run_inference(&[], vec![None]).is_err());
    assert!(session.run_inference(&[input.clone(), input.clone()], vec![None]).is_err());
    assert!(session.run_inference(std::slice::from_ref(&input), vec![]).is_err());
}

fn refuses_a_wrong_shape_and_goes_on(engine: &dyn Engine) {
    let mut session = load_model(engine, dense_model());
    let wrong = Tensor::from_f32(&[1, 63], &[0.0; 63]).unwrap();
    let error = session.run_inference(&[wrong], vec![None]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine);
    assert!(error.to_string().contains("block "), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    let (input, expected) = dense_input(1);
    assert_near(
        &values_as_f64(&session.run_inference(&[input], vec![None]).unwrap()[0]),
        &expected,
    );
}

fn refuses_a_buffer_of_the_wrong_shape(engine: &dyn Engine) {
    let mut session = load_model(engine, dense_model());
    let (input, _) = dense_input(2);
    let bound = TensorMut::new_zeroed(DType::F32, &[3, 64]).unwrap();
    assert!(session.run_inference(std::slice::from_ref(&input), vec![Some(bound)]).is_err());
    let bound = TensorMut::new_zeroed(DType::I64, &[2, 64]).unwrap();
    assert!(session.run_inference(&[input], vec![Some(bound)]).is_err());
}

fn names_the_block_and_operator_it_lacks(engine: &dyn Engine) {
    // Known to ONNX, and to no engine that we have.
    let mut graph = GraphBuilder::new("lacking").with_opset(22);
    let x = graph.add_input("x", DType::F32, [1usize, 1, 4, 4]);
    let scale = graph.add_node("DeformConv", &[&x, &x, &x], []);
    graph.add_output_of_any_shape(&scale, DType::F32);
    let partition = one_block_partition(graph.build_model());
    let program = only_program(&partition);
    let Err(error) = engine.load_program(&program, &LoadOptions::default()) else {
        // An engine that has it may load it: then there is nothing to say.
        return;
    };
    let text = error.to_string();
    assert!(text.contains("DeformConv") && text.contains(&program.label()), "{text}");
}

fn runs_two_sessions_of_a_block_at_once(engine: &dyn Engine) {
    let partition = one_block_partition(dense_model());
    let program = Arc::new(only_program(&partition));
    std::thread::scope(|scope| {
        for rows in 1..=3 {
            let program = Arc::clone(&program);
            scope.spawn(move || {
                let mut session = engine.load_program(&program, &LoadOptions::default()).unwrap();
                let (input, expected) = dense_input(rows);
                for _ in 0..20 {
                    let outputs =
                        session.run_inference(std::slice::from_ref(&input), vec![None]).unwrap();
                    assert_near(&values_as_f64(&outputs[0]), &expected);
                }
            });
        }
    });
}
