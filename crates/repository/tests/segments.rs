//! Segments are kept beside the model that they are of, and never used for another.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use tempfile::{TempDir, tempdir};
use tessera_core::{DType, ErrorKind};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::{
    Graph, InferredTypes, ModelCut, NoExternalData, Partition, SharedModel, Split, find_segments,
    infer, onnx, split_into_chain,
};
use tessera_repository::Repository;

/// A chain of layers.
struct Chain {
    graph: Graph,
    types: InferredTypes,
}

impl Chain {
    fn of(layers: &[u32]) -> Self {
        let mut builder = GraphBuilder::new("chain");
        let mut value = builder.add_input("x", DType::F32, [1, 64]);
        for layer in layers {
            let element = |index: u32| ((index * 31 + layer * 7919) % 257) as f32 / 2048.0;
            let weights: Vec<f32> = (0..64 * 64).map(element).collect();
            let w = builder.add_weight("w", &[64, 64], weights);
            value = builder.add_node("MatMul", &[&value, &w], []);
        }
        builder.add_output(&value);
        let graph = onnx::read::from_proto(builder.build_model(), &mut NoExternalData).unwrap();
        let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
        Self { graph, types }
    }

    fn cut(&self, blocks: usize) -> (Partition, ModelCut) {
        let how = Split::Blocks(blocks);
        let partition = split_into_chain(&self.graph, &self.types, &how, &[]).unwrap();
        let model = SharedModel { graph: &self.graph, types: &self.types, exits: &[] };
        let cut = find_segments(&model, &partition).unwrap().unwrap();
        (partition, cut)
    }
}

fn fresh() -> (TempDir, Repository) {
    let folder = tempdir().unwrap();
    let repository = Repository::open_or_create(&folder.path().join("repository")).unwrap();
    (folder, repository)
}

#[test]
fn a_model_is_cut_anew_from_what_is_kept() {
    let (_folder, repository) = fresh();
    let chain = Chain::of(&[1, 2, 3, 4]);
    let (partition, cut) = chain.cut(2);
    repository.put_model("m", &partition).unwrap();
    assert!(repository.read_segments("m").unwrap().is_none());
    repository.put_segments("m", &cut).unwrap();
    let read = repository.read_segments("m").unwrap().unwrap();
    assert_eq!(read.borders, cut.borders);
    assert_eq!(read.segments.graph(), cut.segments.graph());
    let borders = vec![0, 1, 2];
    let recut = read.segments.cut_after(&borders).unwrap();
    let cut = ModelCut { segments: read.segments, borders };
    repository.put_recut("m", &recut, &cut).unwrap();
    let expected = chain.cut(4).0;
    assert_eq!(repository.read_model("m").unwrap(), expected.graph);
    let problems = repository.verify_integrity(&mut |_| {}).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(repository.read_segments("m").unwrap().unwrap().borders, [0, 1, 2]);
    // What the first cut had, and nobody else has, is garbage now.
    assert!(repository.collect_garbage(false).unwrap().blocks > 0);
    repository.load_program(expected.graph.blocks[0].block).unwrap();
}

#[test]
fn segments_of_another_model_are_none() {
    let (_folder, repository) = fresh();
    let (partition, cut) = Chain::of(&[1, 2]).cut(1);
    repository.put_model("m", &partition).unwrap();
    repository.put_segments("m", &cut).unwrap();
    repository.put_model("m", &Chain::of(&[3, 4]).cut(1).0).unwrap();
    assert!(repository.read_segments("m").unwrap().is_none());
    repository.put_model("m", &partition).unwrap();
    assert!(repository.read_segments("m").unwrap().is_some());
    let file = repository.root().join("segments/m");
    repository.remove_model("m").unwrap();
    assert!(!file.exists());
    assert_eq!(repository.put_segments("m", &cut).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn damage_is_noticed() {
    let (_folder, repository) = fresh();
    let (partition, cut) = Chain::of(&[1, 2, 3]).cut(1);
    repository.put_model("m", &partition).unwrap();
    repository.put_segments("m", &cut).unwrap();
    let path = repository.root().join("segments/m");
    let sound = fs::read(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    for place in (0..sound.len()).step_by(sound.len() / 50) {
        for damaged in [sound[..place].to_vec(), flipped(&sound, place)] {
            fs::write(&path, damaged).unwrap();
            let error = repository.read_segments("m").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains("put the model again"), "{error}");
        }
    }
}

fn flipped(sound: &[u8], place: usize) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    bytes[place] ^= 1;
    bytes
}
