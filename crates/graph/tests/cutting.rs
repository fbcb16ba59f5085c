//! Where a model can be cut, what the pieces are, and that together they are the whole.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::collections::HashSet;

use common::{
    Model, all_nodes, any_graph, block_at, calling, exit, graph_mut, made_up, node, program,
};
use proptest::prelude::*;
use tessera_core::DType;
use tessera_graph::builder::{
    GraphBuilder, f32_tensor, graph_attribute, ints_attribute, raw_tensor,
};
use tessera_graph::onnx::{GraphProto, ModelProto, NodeProto};
use tessera_graph::{Graph, Partition, ScoreKind, Split, TensorSource, ValueId, partition_graph};

/// A model of these nodes, `x` in and `outputs` out.
fn model(nodes: Vec<NodeProto>, outputs: &[&str]) -> ModelProto {
    let mut proto = calling(nodes, vec![]);
    let output = graph_mut(&mut proto).output[0].clone();
    graph_mut(&mut proto).output = outputs
        .iter()
        .map(|&name| {
            let mut output = output.clone();
            output.name = Some(name.to_owned());
            output
        })
        .collect();
    proto
}

/// The operators of each block, in order.
fn operators(partition: &Partition) -> Vec<Vec<String>> {
    (0..partition.graph.blocks.len())
        .map(|place| {
            let nodes = program(block_at(partition, place)).node;
            nodes.iter().map(|node| node.op_type().to_owned()).collect()
        })
        .collect()
}

#[test]
fn a_chain_can_be_cut_between_any_two_nodes() {
    let model = Model::read(&model(
        vec![
            node("Relu", &["x"], &["a"]),
            node("Sigmoid", &["a"], &["b"]),
            node("Neg", &["b"], &["y"]),
        ],
        &["y"],
    ));
    assert_eq!(model.cuts(&[]), ["a", "b"]);
    let every = model.split(&Split::Every, &[]);
    assert_eq!(operators(&every), [["Relu"], ["Sigmoid"], ["Neg"]]);
    assert_eq!(every.graph.blocks[1].inputs, [TensorSource::Block { block: 0, output: 0 }]);
    assert_eq!(model.run_pieces(&every), model.run());
    let at = model.split(&Split::At(vec!["b".to_owned()]), &[]);
    assert_eq!(operators(&at), [vec!["Relu", "Sigmoid"], vec!["Neg"]]);
    assert_eq!(model.run_pieces(&at), model.run());
}

#[test]
fn a_diamond_has_no_cut_point_inside() {
    let model = Model::read(&model(
        vec![
            node("Relu", &["x"], &["top"]),
            node("Sigmoid", &["top"], &["left"]),
            node("Tanh", &["top"], &["right"]),
            node("Neg", &["right"], &["further"]),
            node("Add", &["left", "further"], &["bottom"]),
            node("Neg", &["bottom"], &["y"]),
        ],
        &["y"],
    ));
    assert_eq!(model.cuts(&[]), ["top", "bottom"]);
}

#[test]
fn residual_blocks_can_be_cut_between_but_not_within() {
    let mut nodes = vec![node("Relu", &["x"], &["s0"])];
    for number in 0..3 {
        let name = |what: &str, number: usize| format!("{what}{number}");
        let (before, after) = (name("s", number), name("s", number + 1));
        let (first, second) = (name("first", number), name("second", number));
        nodes.push(node("Sigmoid", &[&before], &[&first]));
        nodes.push(node("Tanh", &[&first], &[&second]));
        nodes.push(node("Add", &[&before, &second], &[&after]));
    }
    nodes.push(node("Neg", &["s3"], &["y"]));
    let model = Model::read(&model(nodes, &["y"]));
    assert_eq!(model.cuts(&[]), ["s0", "s1", "s2", "s3"]);
    let every = model.split(&Split::Every, &[]);
    assert_eq!(every.graph.blocks.len(), 5);
    assert_eq!(model.run_pieces(&every), model.run());
    // The residual layers compute the same: they are one block, used three times.
    assert_eq!(every.graph.distinct_blocks().len(), 3);
}

#[test]
fn side_outputs_at_the_end_of_the_file_hide_no_cut_point() {
    // As GPT exporters do: the trunk first, then all the `present` outputs.
    let model = Model::read(&model(
        vec![
            node("Relu", &["x"], &["a"]),
            node("Sigmoid", &["a"], &["b"]),
            node("Tanh", &["b"], &["c"]),
            node("Neg", &["c"], &["y"]),
            node("Neg", &["a"], &["key.a"]),
            node("Identity", &["key.a"], &["present.a"]),
            node("Neg", &["b"], &["present.b"]),
        ],
        &["y", "present.a", "present.b"],
    ));
    assert_eq!(model.cuts(&[]), ["a", "b", "c"]);
    let every = model.split(&Split::Every, &[]);
    assert_eq!(every.graph.blocks.len(), 4);
    assert_eq!(model.run_pieces(&every), model.run());
}

#[test]
fn an_input_that_is_used_late_leaves_no_cut_point_before() {
    let mut proto = model(
        vec![
            node("Relu", &["x"], &["a"]),
            node("Sigmoid", &["a"], &["b"]),
            node("Add", &["b", "late"], &["c"]),
            node("Neg", &["c"], &["y"]),
        ],
        &["y"],
    );
    let mut late = graph_mut(&mut proto).input[0].clone();
    late.name = Some("late".to_owned());
    graph_mut(&mut proto).input.push(late.clone());
    // An input that nothing uses is not alive.
    late.name = Some("unused".to_owned());
    graph_mut(&mut proto).input.push(late);
    assert_eq!(Model::read(&proto).cuts(&[]), ["c"]);
}

#[test]
fn constants_are_not_alive_and_travel_with_whoever_uses_them() {
    let mut proto = model(
        vec![
            node("Neg", &["w"], &["negated"]),
            node("Add", &["x", "negated"], &["a"]),
            node("Mul", &["a", "negated"], &["b"]),
            node("Add", &["b", "w"], &["y"]),
        ],
        &["y"],
    );
    let weight = f32_tensor("w", &[4], &made_up(1, 4));
    graph_mut(&mut proto).initializer.push(weight);
    let model = Model::read(&proto);
    assert!(model.graph.is_constant(model.id("negated")));
    assert_eq!(model.cuts(&[]), ["a", "b"]);
    let every = model.split(&Split::Every, &[]);
    assert_eq!(operators(&every), [vec!["Neg", "Add"], vec!["Neg", "Mul"], vec!["Add"]]);
    assert!(every.graph.blocks.iter().all(|block| block.inputs.len() == 1));
    assert_eq!(model.run_pieces(&every), model.run());
}

#[test]
fn outputs_that_are_inputs_or_constants_are_handed_out() {
    let mut proto = model(
        vec![node("Neg", &["w"], &["negated"]), node("Relu", &["x"], &["y"])],
        &["y", "x", "w", "negated"],
    );
    let weight = f32_tensor("w", &[4], &made_up(1, 4));
    graph_mut(&mut proto).initializer.push(weight);
    let model = Model::read(&proto);
    let whole = model.split(&Split::Blocks(1), &[]);
    assert_eq!(whole.graph.outputs[1].1, TensorSource::Input(0));
    assert_eq!(model.run_pieces(&whole), model.run());
}

#[test]
fn random_numbers_are_alive_though_they_have_no_inputs() {
    let nodes = |source: NodeProto| {
        vec![
            source,
            node("Relu", &["x"], &["a"]),
            node("Sigmoid", &["a"], &["b"]),
            node("Add", &["b", "noise"], &["y"]),
        ]
    };
    let random = NodeProto {
        attribute: vec![ints_attribute("shape", &[4])],
        ..node("RandomNormal", &[], &["noise"])
    };
    let random = Model::read(&model(nodes(random), &["y"]));
    assert!(!random.graph.is_constant(random.id("noise")));
    assert_eq!(random.cuts(&[]), Vec::<String>::new());
    let fixed = NodeProto {
        attribute: vec![ints_attribute("value_ints", &[4])],
        ..node("Constant", &[], &["noise"])
    };
    let fixed = Model::read(&model(nodes(fixed), &["y"]));
    assert_eq!(fixed.cuts(&[]), ["a", "b"]);
}

fn branch(op: &str) -> GraphProto {
    let mut body = GraphBuilder::new("branch");
    let result = body.add_node(op, &["a", "c"], []);
    body.add_output(&result);
    body.build_graph()
}

#[test]
fn what_a_body_captures_is_alive_until_the_body_has_run() {
    let chosen = NodeProto {
        attribute: vec![
            graph_attribute("then_branch", branch("Add")),
            graph_attribute("else_branch", branch("Sub")),
        ],
        ..node("If", &["yes"], &["chosen"])
    };
    let mut proto = model(
        vec![
            node("Relu", &["x"], &["a"]),
            node("Sigmoid", &["a"], &["b"]),
            node("Tanh", &["b"], &["c"]),
            chosen,
            node("Neg", &["chosen"], &["y"]),
        ],
        &["y"],
    );
    let yes = raw_tensor("yes", DType::Bool.to_onnx(), &[], vec![1u8].into());
    graph_mut(&mut proto).initializer.push(yes);
    let model = Model::read(&proto);
    assert_eq!(model.cuts(&[]), ["a", "chosen"]);
    // A cut through the captures all the same, by hand: the body finds both as inputs.
    let parts = partition_graph(&model.graph, &model.types, &[0, 0, 0, 1, 1], &[]).unwrap();
    assert_eq!(parts.graph.blocks[1].inputs.len(), 2);
    let second = program(block_at(&parts, 1));
    let branch = second.node[0].attribute[0].g.as_ref().unwrap();
    let mut used = branch.node[0].input.clone();
    used.sort();
    assert_eq!(used, ["in0", "in1"]);
}

/// `a → b → y`, with heads `first` (a softmax) on `a` and `second` on `b`.
fn with_heads() -> Model {
    Model::read(&model(
        vec![
            node("Relu", &["x"], &["a"]),
            node("Sigmoid", &["a"], &["b"]),
            node("Neg", &["b"], &["y"]),
            node("Neg", &["a"], &["scores"]),
            node("Softmax", &["scores"], &["first"]),
            node("Tanh", &["b"], &["second"]),
        ],
        &["y", "second", "first"],
    ))
}

#[test]
fn the_head_of_an_exit_is_a_block_right_after_the_one_it_hangs_from() {
    let model = with_heads();
    let exits = [exit("second", 0.25), exit("first", 0.5)];
    assert_eq!(model.cuts(&exits), ["a", "b"]);
    let cut = model.split(&Split::Every, &exits);
    assert_eq!(
        operators(&cut),
        [vec!["Relu"], vec!["Neg", "Softmax"], vec!["Sigmoid"], vec!["Tanh"], vec!["Neg"]]
    );
    let [first, second] = cut.graph.exits.as_slice() else {
        panic!("{:?}", cut.graph.exits);
    };
    assert_eq!((first.output.as_str(), first.head, first.after), ("first", 1, Some(0)));
    assert_eq!((first.threshold, first.scores), (0.5, ScoreKind::Probabilities));
    assert_eq!((second.output.as_str(), second.head, second.after), ("second", 3, Some(2)));
    assert_eq!((second.threshold, second.scores), (0.25, ScoreKind::Logits));
    assert_eq!(cut.graph.exit_of(1), Some(first));
    assert_eq!(cut.graph.outputs.len(), 1);
    assert_eq!(model.run_pieces(&cut), model.run());
}

#[test]
fn exits_are_cut_off_whatever_else_is_asked_for() {
    let model = with_heads();
    for (exits, blocks) in
        [(vec![exit("first", 0.5)], 2), (vec![exit("first", 0.5), exit("second", 0.5)], 3)]
    {
        let heads = exits.len();
        for how in [Split::At(vec![]), Split::Blocks(blocks)] {
            let cut = model.split(&how, &exits);
            assert_eq!(cut.graph.blocks.len(), blocks + heads, "{how:?}");
            assert_eq!(cut.graph.exits.len(), heads);
            assert_eq!(model.run_pieces(&cut), model.run());
        }
    }
    let parts = vec![0; model.graph.nodes().len()];
    let cut = partition_graph(&model.graph, &model.types, &parts, &[exit("first", 0.5)]).unwrap();
    assert_eq!(cut.graph.blocks.len(), 2);
    assert_eq!(model.run_pieces(&cut), model.run());
}

#[test]
fn balanced_blocks_keep_a_convolution_and_its_activation_together() {
    let mut builder = GraphBuilder::new("convolutions");
    let mut value = builder.add_input("x", DType::F32, [1, 4, 8, 8]);
    for seed in 0..6 {
        let w = builder.add_weight("w", &[4, 4, 3, 3], made_up(seed, 4 * 4 * 9));
        value = builder.add_node("Conv", &[&value, &w], [ints_attribute("pads", &[1, 1, 1, 1])]);
        value = builder.add_node("Relu", &[&value], []);
    }
    builder.add_output(&value);
    let model = Model::of(builder);
    assert_eq!(model.cuts(&[]).len(), 11);
    for blocks in 1..=6 {
        let cut = model.split(&Split::Blocks(blocks), &[]);
        assert_eq!(cut.graph.blocks.len(), blocks);
        for operators in operators(&cut) {
            assert_eq!(operators.last().unwrap(), "Relu", "{operators:?}");
        }
    }
    let three = operators(&model.split(&Split::Blocks(3), &[]));
    assert!(three.iter().all(|operators| operators.len() == 4), "{three:?}");
    // With more blocks than such places, there is no other way.
    let all = model.split(&Split::Blocks(12), &[]);
    assert_eq!(all.graph.blocks.len(), 12);
    assert_eq!(all_nodes(&all).len(), 12);
}

#[test]
fn parts_may_have_several_inputs_and_outputs() {
    let model = Model::read(&model(
        vec![
            node("Relu", &["x"], &["a"]),
            node("Sigmoid", &["x"], &["b"]),
            node("Sub", &["a", "b"], &["c"]),
            node("Sub", &["b", "a"], &["d"]),
            node("Mul", &["c", "d"], &["y"]),
        ],
        &["y"],
    ));
    let cut = partition_graph(&model.graph, &model.types, &[3, 3, 8, 8, 9], &[]).unwrap();
    assert_eq!(cut.graph.blocks.len(), 3);
    assert_eq!(cut.graph.blocks[0].outputs.len(), 2);
    assert_eq!(cut.graph.blocks[1].inputs.len(), 2);
    assert_eq!(model.run_pieces(&cut), model.run());
}

/// The values without which no way leads from an input to the output, found by trying.
fn cut_points_by_trying(graph: &Graph) -> HashSet<String> {
    let passes = |without: ValueId| {
        let mut reached: HashSet<ValueId> = graph.inputs().iter().copied().collect();
        for node in graph.nodes() {
            if node.used_values().any(|value| reached.contains(&value)) {
                reached.extend(node.produced_values().filter(|&value| value != without));
            }
        }
        graph.outputs().iter().any(|output| reached.contains(output))
    };
    graph
        .value_ids()
        .filter(|&value| graph.producer(value).is_some() && !graph.is_output(value))
        .filter(|&value| !passes(value))
        .map(|value| graph.value_name(value).to_owned())
        .collect()
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_cut_points_are_those_that_every_way_passes(random in any_graph()) {
        let model = Model::read(&random.build());
        let found: HashSet<String> = model.cuts(&[]).into_iter().collect();
        prop_assert_eq!(found, cut_points_by_trying(&model.graph));
    }

    #[test]
    fn a_chain_of_any_length_computes_what_the_model_does(random in any_graph()) {
        let model = Model::read(&random.build());
        let whole = model.run();
        let places = model.cuts(&[]).len();
        for count in 1..=places + 1 {
            let cut = model.split(&Split::Blocks(count), &[]);
            prop_assert_eq!(cut.graph.blocks.len(), count);
            prop_assert_eq!(&model.run_pieces(&cut), &whole);
        }
        let every = model.split(&Split::Every, &[]);
        prop_assert_eq!(every.graph.blocks.len(), places + 1);
        prop_assert_eq!(&model.run_pieces(&every), &whole);
    }

    #[test]
    fn any_parts_in_order_compute_what_the_model_does(
        random in any_graph(),
        steps in prop::collection::vec(0usize..3, 32),
    ) {
        let model = Model::read(&random.build());
        let mut part = 0;
        let parts: Vec<usize> = (0..model.graph.nodes().len())
            .map(|node| {
                part += steps[node % steps.len()];
                part
            })
            .collect();
        let cut = partition_graph(&model.graph, &model.types, &parts, &[]).unwrap();
        prop_assert!(cut.graph.is_sound());
        let expected: Vec<_> = model.graph.node_ids().collect();
        prop_assert_eq!(all_nodes(&cut), expected);
        prop_assert_eq!(cut.graph.blocks.len(), parts.iter().collect::<HashSet<_>>().len());
        prop_assert_eq!(model.run_pieces(&cut), model.run());
    }
}
