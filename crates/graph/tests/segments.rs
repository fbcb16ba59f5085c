//! Models in their segments: any cut is made from there, and models that come later share blocks
//! with those that are there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::{Model, any_graph, exit, made_up};
use proptest::prelude::*;
use tessera_core::{ContentHash, DType};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::{
    AddedModel, BlockGraph, ExitSpec, ModelCut, Partition, RecutModel, SegmentedModel, SharedModel,
    Split, find_segments, share_with_stored,
};

/// Elements of a layer's weight, enough that it is stored on its own.
const WIDTH: usize = 1200;

/// A layer with a weight of its own (by seed) and an activation.
fn layer(builder: &mut GraphBuilder, value: &str, seed: u32) -> String {
    let w = builder.add_weight("w", &[WIDTH], made_up(seed, WIDTH));
    let scaled = builder.add_node("Mul", &[value, &w], []);
    builder.add_node("Relu", &[&scaled], [])
}

/// A model of layers with these seeds.
fn chain(seeds: &[u32]) -> Model {
    let mut builder = GraphBuilder::new("chain");
    let mut value = builder.add_input("x", DType::F32, [WIDTH]);
    for &seed in seeds {
        value = layer(&mut builder, &value, seed);
    }
    builder.add_output(&value);
    Model::of(builder)
}

/// The same with an exit after the layer of this number.
fn chain_with_exit(seeds: &[u32], after: usize) -> Model {
    let mut builder = GraphBuilder::new("chain");
    let mut value = builder.add_input("x", DType::F32, [WIDTH]);
    for (number, &seed) in seeds.iter().enumerate() {
        value = layer(&mut builder, &value, seed);
        if number == after {
            builder.add_node_into("head", "Tanh", &[&value], &["early"], []);
        }
    }
    builder.add_output(&value);
    builder.add_output("early");
    Model::of(builder)
}

fn segments_of(model: &Model, exits: &[ExitSpec]) -> SegmentedModel {
    SegmentedModel::of_partition(model.split(&Split::Every, exits)).unwrap()
}

fn path(graph: &BlockGraph) -> Vec<ContentHash> {
    graph.blocks.iter().map(|block| block.block).collect()
}

fn add(model: &Model, exits: &[ExitSpec], stored: &[(&SegmentedModel, &[usize])]) -> AddedModel {
    let cut = |&(segments, borders): &(&SegmentedModel, &[usize])| ModelCut {
        segments: segments.clone(),
        borders: borders.to_vec(),
    };
    let stored: Vec<ModelCut> = stored.iter().map(cut).collect();
    let model = SharedModel { graph: &model.graph, types: &model.types, exits };
    let added = share_with_stored(&model, &stored.iter().collect::<Vec<_>>()).unwrap();
    // Where it is cut can be told from what came of it.
    let found = find_segments(&model, &added.partition).unwrap().unwrap();
    assert_eq!(found.borders, added.cut.borders);
    added
}

/// What was cut anew, with the weights of the model that it was.
fn as_partition(recut: RecutModel, of: Partition) -> Partition {
    let nodes = vec![Vec::new(); recut.graph.blocks.len()];
    Partition { graph: recut.graph, blocks: recut.blocks, weights: of.weights, nodes }
}

/// Holds a cut that is made from segments against that of the model itself, and what it computes.
fn check_cut(model: &Model, exits: &[ExitSpec], borders: &[usize]) {
    let recut = check_form(model, exits, borders);
    let whole = model.split(&Split::Every, exits);
    assert_eq!(model.run_pieces(&as_partition(recut, whole)), model.run());
}

/// The same without running it.
fn check_form(model: &Model, exits: &[ExitSpec], borders: &[usize]) -> RecutModel {
    let segments = segments_of(model, exits);
    let recut = segments.cut_after(borders).unwrap();
    let names = model.cuts(exits);
    let at: Vec<String> = borders.iter().map(|&border| names[border].clone()).collect();
    let expected = model.split(&Split::At(at), exits);
    assert_eq!(recut.graph, expected.graph, "cut after {borders:?}");
    recut
}

#[test]
fn a_cut_from_segments_is_the_cut_of_the_model() {
    let model = chain(&[1, 2, 3, 1, 2]);
    for borders in [&[][..], &[1], &[0, 4], &[3, 5, 7], &[0, 1, 2, 3, 4, 5, 6, 7, 8]] {
        check_cut(&model, &[], borders);
    }
}

#[test]
fn exits_stay_where_they_hang() {
    let (model, exits) = (chain_with_exit(&[1, 2, 3, 4], 1), [exit("early", 0.5)]);
    for borders in [&[][..], &[0], &[3], &[1, 3, 5]] {
        check_cut(&model, &exits, borders);
    }
}

#[test]
fn what_is_used_all_along_is_computed_once_in_each_block() {
    // A mask that follows from an input, as transformers have it.
    let mut builder = GraphBuilder::new("masked");
    let mut value = builder.add_input("x", DType::F32, [WIDTH]);
    let small = builder.add_input("mask", DType::F32, [1]);
    let one = builder.add_weight("one", &[1], vec![1.0]);
    let turned = builder.add_node("Sub", &[&one, &small], []);
    let mask = builder.add_node("Mul", &[&turned, &turned], []);
    for seed in 1..6 {
        value = layer(&mut builder, &value, seed);
        value = builder.add_node("Add", &[&value, &mask], []);
    }
    builder.add_output(&value);
    let model = Model::of(builder);
    let count = model.cuts(&[]).len();
    assert!(count > 4, "{count}");
    for borders in [&[][..], &[2], &[1, 5], &[0, 3, 4]] {
        check_form(&model, &[], borders);
    }
}

#[test]
fn who_comes_later_shares_and_who_was_there_is_cut_further() {
    let (cats, dogs) = (chain(&[1, 2, 3, 10, 11]), chain(&[1, 2, 3, 20, 21]));
    let there = segments_of(&cats, &[]);
    let added = add(&dogs, &[], &[(&there, &[])]);
    assert_eq!(
        (added.cut.borders.as_slice(), added.recut.as_slice()),
        (&[5][..], &[Some(vec![5])][..])
    );
    let recut = there.cut_after(&[5]).unwrap();
    let (a, b) = (path(&recut.graph), path(&added.partition.graph));
    assert_eq!((a.len(), b.len()), (2, 2));
    assert_eq!(a[0], b[0]);
    assert_ne!(a[1], b[1]);
    assert_eq!(dogs.run_pieces(&added.partition), dogs.run());
    // A third finds what it needs, and one that has nothing in common changes nothing.
    let birds = add(&chain(&[1, 2, 3, 30]), &[], &[(&there, &[5]), (&added.cut.segments, &[5])]);
    assert_eq!(birds.recut, [None, None]);
    assert_eq!(path(&birds.partition.graph)[0], a[0]);
    let other = add(&chain(&[7, 8]), &[], &[(&there, &[5]), (&added.cut.segments, &[5])]);
    assert_eq!((other.cut.borders.len(), other.recut.as_slice()), (0, &[None, None][..]));
}

#[test]
fn a_cut_that_somebody_wanted_stays_and_is_used() {
    let there = segments_of(&chain(&[1, 2, 3, 10]), &[]);
    let added = add(&chain(&[1, 2, 3, 20]), &[], &[(&there, &[1])]);
    assert_eq!(added.recut, [Some(vec![1, 5])]);
    assert_eq!(added.cut.borders, [1, 5]);
}

#[test]
fn the_same_model_again_is_the_same_blocks() {
    let model = chain(&[1, 2, 3]);
    let there = segments_of(&model, &[]);
    let again = add(&model, &[], &[(&there, &[3])]);
    assert_eq!((again.cut.borders.as_slice(), again.recut.as_slice()), (&[3][..], &[None][..]));
}

#[test]
fn exits_are_shared_with_who_has_none() {
    let exits = [exit("early", 0.5)];
    let with = segments_of(&chain_with_exit(&[1, 2, 3], 1), &exits);
    let added = add(&chain(&[1, 2, 9]), &[], &[(&with, &[3])]);
    assert_eq!(added.recut, [None]);
    let shared = path(&added.partition.graph)[0];
    assert!(path(&with.cut_after(&[3]).unwrap().graph).contains(&shared));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn any_cut_of_a_random_model_computes_the_same(
        random in any_graph(),
        chosen in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let model = Model::read(&random.build());
        let pieces = model.split(&Split::Every, &[]);
        let segments = SegmentedModel::of_partition(pieces.clone()).unwrap();
        let borders: Vec<usize> = (0..segments.trunk_len()).filter(|&at| chosen[at % 40]).collect();
        let recut = segments.cut_after(&borders).unwrap();
        prop_assert!(recut.graph.is_sound());
        let recut = as_partition(recut, pieces);
        prop_assert_eq!(model.run_pieces(&recut), model.run());
    }
}
