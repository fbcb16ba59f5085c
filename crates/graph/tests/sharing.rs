//! Several models, cut so that the layers they have in common are shared blocks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::{Model, exit, made_up};
use proptest::prelude::*;
use tessera_core::{ContentHash, DType};
use tessera_graph::builder::GraphBuilder;
use tessera_graph::{ExitSpec, Partition, SharedModel, SharedPartitions, share_blocks};

/// Elements of a layer's weight, enough that it is stored on its own.
const WIDTH: usize = 1200;
/// Bytes of a layer's weight.
const LAYER: usize = WIDTH * 4;

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

fn share_with(models: &[&Model], exits: &[ExitSpec]) -> SharedPartitions {
    let given: Vec<SharedModel<'_>> = models
        .iter()
        .map(|model| SharedModel { graph: &model.graph, types: &model.types, exits })
        .collect();
    let mut seen = Vec::new();
    let shared = share_blocks(&given, &mut |index| seen.push(index)).unwrap();
    assert_eq!(seen, (0..models.len()).collect::<Vec<_>>());
    assert_eq!(shared.partitions.len(), models.len());
    for (model, partition) in models.iter().zip(&shared.partitions) {
        assert_eq!(model.run_pieces(partition), model.run());
    }
    shared
}

fn share_all(models: &[&Model]) -> SharedPartitions {
    share_with(models, &[])
}

fn path(partition: &Partition) -> Vec<ContentHash> {
    partition.graph.blocks.iter().map(|block| block.block).collect()
}

#[test]
fn siblings_share_one_block_and_keep_one_each() {
    let (first, second) = (chain(&[1, 2, 3, 10, 11]), chain(&[1, 2, 3, 20, 21]));
    let shared = share_all(&[&first, &second]);
    let (a, b) = (path(&shared.partitions[0]), path(&shared.partitions[1]));
    assert_eq!((a.len(), b.len()), (2, 2));
    assert_eq!(a[0], b[0]);
    assert_ne!(a[1], b[1]);
    let users = shared.models_by_block();
    assert_eq!(users.len(), 3);
    assert_eq!(users[&a[0]], [0, 1]);
    assert_eq!(users[&a[1]], [0]);
    assert_eq!(users[&b[1]], [1]);
    assert_eq!(shared.bytes_apart(), 10 * LAYER);
    assert_eq!(shared.bytes_shared(), 7 * LAYER);
    // The activation belongs to the layer before it, also where the two models part.
    let common = &shared.partitions[0].blocks[&a[0]];
    assert_eq!(common.node_count(), 6);
}

#[test]
fn a_run_in_the_middle_is_shared_by_itself() {
    let (first, second) = (chain(&[10, 1, 2, 11]), chain(&[20, 21, 1, 2, 22]));
    let shared = share_all(&[&first, &second]);
    let (a, b) = (path(&shared.partitions[0]), path(&shared.partitions[1]));
    assert_eq!((a.len(), b.len()), (3, 3));
    assert_eq!(a[1], b[1]);
    assert_eq!(shared.models_by_block().len(), 5);
    assert_eq!(shared.bytes_apart(), 9 * LAYER);
    assert_eq!(shared.bytes_shared(), 7 * LAYER);
}

#[test]
fn the_end_may_be_what_is_shared() {
    let (first, second) = (chain(&[10, 1, 2]), chain(&[20, 1, 2]));
    let shared = share_all(&[&first, &second]);
    let (a, b) = (path(&shared.partitions[0]), path(&shared.partitions[1]));
    assert_eq!((a.len(), b.len()), (2, 2));
    assert_eq!(a[1], b[1]);
    assert_eq!(shared.bytes_shared(), 4 * LAYER);
}

#[test]
fn identical_models_are_one_block_and_save_half() {
    let (first, second) = (chain(&[1, 2, 3]), chain(&[1, 2, 3]));
    let shared = share_all(&[&first, &second]);
    let (a, b) = (path(&shared.partitions[0]), path(&shared.partitions[1]));
    assert_eq!(a.len(), 1);
    assert_eq!(a, b);
    assert_eq!(shared.bytes_apart(), 6 * LAYER);
    assert_eq!(shared.bytes_shared(), 3 * LAYER);
}

#[test]
fn models_with_nothing_in_common_stay_whole() {
    let (first, second) = (chain(&[1, 2, 3]), chain(&[4, 5, 6]));
    let shared = share_all(&[&first, &second]);
    assert!(shared.partitions.iter().all(|partition| path(partition).len() == 1));
    assert_eq!(shared.models_by_block().len(), 2);
    assert_eq!(shared.bytes_apart(), shared.bytes_shared());
}

#[test]
fn one_model_alone_stays_whole() {
    let only = chain(&[1, 2, 3]);
    let shared = share_all(&[&only]);
    assert_eq!(path(&shared.partitions[0]).len(), 1);
    assert_eq!(shared.bytes_apart(), 3 * LAYER);
    assert!(share_all(&[]).partitions.is_empty());
}

#[test]
fn layers_that_one_model_repeats_are_one_block() {
    let tied = chain(&[1, 1, 1]);
    let shared = share_all(&[&tied]);
    let partition = &shared.partitions[0];
    let hashes = path(partition);
    assert_eq!(hashes.len(), 3);
    assert_eq!(partition.blocks.len(), 1);
    assert_eq!(partition.weight_bytes(), LAYER);
    // A repeated pair is found as a pair.
    let pairs = chain(&[1, 2, 1, 2]);
    let shared = share_all(&[&pairs]);
    assert_eq!(path(&shared.partitions[0]).len(), 2);
    assert_eq!(shared.partitions[0].blocks.len(), 1);
    assert_eq!(shared.bytes_shared(), 2 * LAYER);
}

#[test]
fn three_models_share_in_pairs() {
    let (a, b, c) = (chain(&[1, 2, 10]), chain(&[1, 2, 20, 3]), chain(&[30, 3]));
    let shared = share_all(&[&a, &b, &c]);
    let lengths: Vec<usize> = shared.partitions.iter().map(|p| path(p).len()).collect();
    assert_eq!(lengths, [2, 3, 2]);
    assert_eq!(shared.bytes_apart(), 9 * LAYER);
    assert_eq!(shared.bytes_shared(), 6 * LAYER);
    let mut users: Vec<Vec<usize>> = shared.models_by_block().into_values().collect();
    users.sort();
    assert_eq!(users, [vec![0], vec![0, 1], vec![1], vec![1, 2], vec![2]]);
}

#[test]
fn activations_that_all_models_have_do_not_tear_them_apart() {
    // Relu follows everything, in both models: it alone is no reason to cut.
    let (first, second) = (chain(&[1, 2, 3, 4, 5]), chain(&[1, 12, 13, 14, 15]));
    let shared = share_all(&[&first, &second]);
    let lengths: Vec<usize> = shared.partitions.iter().map(|p| path(p).len()).collect();
    assert_eq!(lengths, [2, 2]);
}

/// Layers with these seeds, and an exit after the first `before` of them.
fn with_exit(seeds: &[u32], before: usize, head: u32) -> Model {
    let mut builder = GraphBuilder::new("exiting");
    let mut value = builder.add_input("x", DType::F32, [WIDTH]);
    let mut hung = String::new();
    for (number, &seed) in seeds.iter().enumerate() {
        value = layer(&mut builder, &value, seed);
        if number + 1 == before {
            hung.clone_from(&value);
        }
    }
    let w = builder.add_weight("head", &[WIDTH], made_up(head, WIDTH));
    builder.add_node_into("head", "Mul", &[&hung, &w], &["early"], []);
    builder.add_output(&value);
    builder.add_output("early");
    Model::of(builder)
}

#[test]
fn heads_of_exits_are_blocks_and_may_be_shared_too() {
    let exits = [exit("early", 0.5)];
    let (first, second) = (with_exit(&[1, 2, 3, 10], 2, 50), with_exit(&[1, 2, 3, 20], 2, 50));
    let shared = share_with(&[&first, &second], &exits);
    let (a, b) = (path(&shared.partitions[0]), path(&shared.partitions[1]));
    // Layers 1 and 2, the head, layer 3 (the cut at the exit is forced), and one's own.
    assert_eq!((a.len(), b.len()), (4, 4));
    assert_eq!(a[..3], b[..3]);
    assert_ne!(a[3], b[3]);
    for partition in &shared.partitions {
        let exit = &partition.graph.exits[0];
        assert_eq!((exit.head, exit.after), (1, Some(0)));
    }
    assert_eq!(shared.bytes_apart(), 10 * LAYER);
    assert_eq!(shared.bytes_shared(), 6 * LAYER);
    let other_head = with_exit(&[1, 2, 3, 10], 2, 51);
    let shared = share_with(&[&first, &other_head], &exits);
    assert_eq!(shared.bytes_shared(), 6 * LAYER);
    assert_eq!(shared.models_by_block().len(), 4);
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_is_shared_is_every_distinct_weight_once(
        first in prop::collection::vec(0u32..5, 1..6),
        second in prop::collection::vec(0u32..5, 1..6),
    ) {
        // `share_all` runs the pieces of both.
        let shared = share_all(&[&chain(&first), &chain(&second)]);
        let distinct = |seeds: &[u32]| {
            let mut seeds = seeds.to_vec();
            seeds.sort_unstable();
            seeds.dedup();
            seeds.len()
        };
        prop_assert_eq!(shared.bytes_apart(), (distinct(&first) + distinct(&second)) * LAYER);
        let both = [first, second].concat();
        prop_assert_eq!(shared.bytes_shared(), distinct(&both) * LAYER);
    }
}
