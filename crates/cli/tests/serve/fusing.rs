//! The blocks of real architectures, fused again, compute what the model computes in one piece.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tessera_core::{ContentHash, Device, Tensor};
use tessera_deploy::{BatchingChoice, Isolation, ResidencyChoice, Unit, UnitId, UnitSettings};
use tessera_engine::{Engine, LoadOptions, OnnxRuntime, Rten, find_library};
use tessera_graph::onnx::{self, ModelProto};
use tessera_graph::{
    Block, BlockGraph, NoExternalData, Partition, Split, fuse_blocks, infer, split_into_chain,
};
use tessera_node::{
    HostMemory, LoadedUnit, MachineCorePermits, UnitMemory, UnitResources, compare_output,
};
use tessera_tensormq::Wait;
use tessera_zoo::{Architecture, Recipe};

use crate::models::numbers;

fn cut(model: ModelProto, blocks: usize) -> Partition {
    let graph = onnx::read::from_proto(model, &mut NoExternalData).unwrap();
    let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
    split_into_chain(&graph, &types, &Split::Blocks(blocks), &[]).unwrap()
}

fn unit(graph: BlockGraph) -> Unit {
    Unit {
        id: UnitId("unit".to_owned()),
        graph,
        settings: UnitSettings {
            isolation: Isolation::Thread,
            replicas: 1,
            node: None,
            device: Device::Cpu,
            residency: ResidencyChoice::Auto,
            batching: BatchingChoice::Off,
        },
        takes_single_rows: false,
        is_batchable: false,
    }
}

fn run(engine: &Arc<dyn Engine>, partition: &Partition, inputs: &[Tensor]) -> (bool, Vec<Tensor>) {
    let unit = unit(partition.graph.clone());
    let resources = UnitResources::new(
        Arc::new(MachineCorePermits::new(NonZeroUsize::MIN)),
        UnitMemory::InProcess(Arc::new(HostMemory::default())),
    );
    let (engine, options) = (Arc::clone(engine), LoadOptions::default());
    let loaded = LoadedUnit::load_blocks(engine, partition, &unit, resources, options).unwrap();
    let wait = Wait::at_most(Duration::from_secs(10));
    let memory = HostMemory::default();
    let outputs = loaded.run_unit(NonZeroUsize::MIN, inputs, &memory, wait).unwrap();
    (loaded.is_fused(), outputs)
}

#[test]
fn blocks_of_architectures_are_fused_to_what_they_were_cut_from() {
    let engine: Arc<dyn Engine> = match find_library() {
        Some(_) => Arc::new(OnnxRuntime::new().unwrap()),
        None => Arc::new(Rten::new()),
    };
    // Those whose weights are quick to make.
    for architecture in [Architecture::MobilenetV2, Architecture::Detector, Architecture::Resnet18]
    {
        let name = architecture.name();
        let model = Recipe::new(architecture).build_model().unwrap().model;
        let (whole, pieces) = (cut(model.clone(), 1), cut(model, 4));
        assert_eq!(pieces.graph.blocks.len(), 4, "{name}");
        let (fused, alone) =
            fuse_blocks(&pieces.graph, &|hash| Ok(pieces.blocks[&hash].clone())).unwrap();
        assert!(alone.is_sound(), "{name}");
        assert_eq!(alone.blocks.len(), 1, "{name}");
        assert_eq!(alone.inputs, pieces.graph.inputs, "{name}");
        let only = &whole.blocks[&whole.graph.blocks[0].block];
        assert_eq!(fused.node_count(), only.node_count(), "{name}");
        let weights = |block: &Block| -> BTreeSet<ContentHash> {
            block.weights().iter().map(|weight| weight.hash).collect()
        };
        assert_eq!(weights(&fused), weights(only), "{name}");

        let inputs: Vec<Tensor> = whole
            .graph
            .inputs
            .iter()
            .map(|port| {
                let shape = port.tensor_type.fixed_shape().unwrap();
                let count = shape.iter().product();
                Tensor::from_f32(&shape, &numbers(count, 5)).unwrap()
            })
            .collect();
        let (is_fused, found) = run(&engine, &pieces, &inputs);
        let (_, expected) = run(&engine, &whole, &inputs);
        assert!(is_fused, "{name}");
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(&expected) {
            let difference = compare_output(name, found, expected).unwrap();
            assert!(difference.max_relative <= 1e-4, "{difference:?}");
        }
    }
}
