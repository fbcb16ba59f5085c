use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ort::session::builder::GraphOptimizationLevel;
use tessera_core::{Dim, Tensor, lock};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::{NoExternalData, Split, infer, read_model, split_into_chain};

use super::super::cpu_session::{OrtCpuSession, SharedSession};
use super::super::prepared_block::{ExecutionTarget, PreparedBlock};
use super::super::session_builder::SessionBuilders;
use super::super::weight_layout::WeightLayout;
use super::super::{OnnxRuntime, library};
use super::*;
use crate::{Engine, EngineSession, LoadOptions, Program, ProgramWeight};

const WIDTH: usize = 1600;

/// Notes what is waited for, on the CPU.
#[derive(Default)]
struct NotedWaits {
    parts: Mutex<Vec<usize>>,
    copies: AtomicUsize,
}

impl AwaitParts for NotedWaits {
    fn provider(&self) -> *const c_char {
        ptr::null()
    }

    fn await_part(&self, part: usize, _: *mut c_void) -> Result<()> {
        lock(&self.parts).push(part);
        Ok(())
    }

    unsafe fn copy_weight(
        &self,
        from: *const u8,
        to: *mut u8,
        len: usize,
        _: *mut c_void,
    ) -> Result<()> {
        self.copies.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller says.
        unsafe { ptr::copy_nonoverlapping(from, to, len) };
        Ok(())
    }
}

/// Three layers of 10 MB, so that each is a part of its own.
fn three_layers() -> Program {
    let mut graph = GraphBuilder::new("layers");
    let rows = || [Dim::Fixed(1), Dim::Fixed(WIDTH)];
    let mut value = graph.add_input("x", DType::F32, rows());
    for layer in 0..3 {
        let numbers = (0..WIDTH * WIDTH).map(|at| ((at * 31 + layer * 7) % 97) as f32 / 1e3);
        let weight = graph.add_weight("w", &[WIDTH, WIDTH], numbers.collect());
        let product = graph.add_node("MatMul", &[&value, &weight], []);
        value = if layer == 2 { "y".to_owned() } else { format!("h{layer}") };
        graph.add_node_into(&format!("t{layer}"), "Tanh", &[&product], &[&value], []);
    }
    graph.add_typed_output("y", DType::F32, rows());
    let model = prost::Message::encode_to_vec(&graph.build_model());
    let graph = read_model(model.into(), &mut NoExternalData).unwrap();
    let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
    let cut = split_into_chain(&graph, &types, &Split::Blocks(1), &[]).unwrap();
    let block = cut.blocks.values().next().unwrap().clone();
    let weight = |weight: &tessera_graph::WeightRef| {
        let bytes = cut.weights[&weight.hash].clone();
        let tensor = Tensor::from_bytes(weight.dtype, &weight.shape, bytes).unwrap();
        ProgramWeight { tensor, mapping: None }
    };
    let weights = block.weights().iter().map(weight).collect();
    Program::new(block, weights).unwrap()
}

#[test]
fn a_session_waits_for_parts_in_the_order_of_use_and_copies_no_weight() {
    let program = three_layers();
    let input: Vec<u8> =
        (0..WIDTH).flat_map(|at| ((at % 13) as f32 / 13.0).to_le_bytes()).collect();
    let input = [Tensor::from_bytes(DType::F32, &[1, WIDTH], input.into()).unwrap()];
    let mut plain =
        OnnxRuntime::new().unwrap().load_program(&program, &LoadOptions::default()).unwrap();
    let expected = plain.run_inference(&input, vec![None]).unwrap();
    let (environment, version) = library::open_library().unwrap();
    let builders = SessionBuilders::new(environment, &version);
    let options = LoadOptions::default();
    let target = ExecutionTarget::Cuda("test", WeightLayout::InParts);
    let builder = builders.session_builder(&options).unwrap();
    let prepared = PreparedBlock::prepare(builder, &program, &options, &version, target).unwrap();
    let (model, parts) = prepared.awaiting_model(WeightLayout::InParts);
    assert_eq!(parts.count(), 4);
    assert_eq!(parts.range(3).len(), WIDTH * WIDTH * 4);
    let noted = Arc::new(NotedWaits::default());
    let waiter: Arc<dyn AwaitParts> = Arc::<NotedWaits>::clone(&noted);
    let operators = WaitOperators::new(&waiter).unwrap();
    let builder = builders.session_builder(&options).unwrap();
    let mut builder = builder.with_optimization_level(GraphOptimizationLevel::Disable).unwrap();
    operators.add_to_session(&mut builder).unwrap();
    let made = prepared.session_over(builder, &model, prepared.weights());
    let (session, values) = made.map_err(|error| error.into_error("test")).unwrap();
    let session = Arc::new(SharedSession::of_block(session, Arc::new(prepared), values));
    let (inputs, outputs) = program.ports();
    let mut session = OrtCpuSession::new(session, program.label(), inputs, outputs).unwrap();
    for _ in 0..2 {
        let found = session.run_inference(&input, vec![None]).unwrap();
        let numbers = |tensors: &[Tensor]| -> Vec<f32> {
            let bytes = tensors[0].bytes().unwrap();
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let pairs = numbers(&found).into_iter().zip(numbers(&expected));
        assert!(pairs.into_iter().all(|(found, expected)| (found - expected).abs() < 1e-5));
    }
    assert_eq!(*lock(&noted.parts), [1, 2, 3, 1, 2, 3]);
    assert_eq!(noted.copies.load(Ordering::Relaxed), 0, "weights are where they were");
    drop(session);
}
