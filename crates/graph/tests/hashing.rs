//! What a block's hash depends on, and what leaves no trace in it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::collections::{BTreeMap, HashMap};

use common::{Model, any_graph, calling, graph_mut, made_up, node};
use proptest::prelude::*;
use prost::Message;
use tessera_core::{ContentHash, DType, Dim};
use tessera_graph::builder::{
    self, GraphBuilder, IntoDims, f32_tensor, i64_tensor, int_attribute, ints_attribute, raw_tensor,
};
use tessera_graph::onnx::{GraphProto, ModelProto, NodeProto, TensorProto};
use tessera_graph::{Block, Split, fold_shapes, infer};

fn hash(proto: &ModelProto) -> ContentHash {
    Model::read(proto).whole().hash()
}

/// A small convolutional net with a weight in the block and one (of 9 kB) beside it.
fn net(opset: i64, dims: impl IntoDims, prefix: &str) -> ModelProto {
    let name = |name: &str| format!("{prefix}{name}");
    let mut builder = GraphBuilder::new(name("net")).with_opset(opset);
    let x = builder.add_input(&name("x"), DType::F32, dims);
    let large = builder.add_weight(&name("large"), &[16, 16, 3, 3], made_up(1, 16 * 16 * 9));
    let small = builder.add_weight(&name("small"), &[16, 1, 1], made_up(2, 16));
    let pads = [ints_attribute("pads", &[1, 1, 1, 1])];
    let conv = builder.add_named_node(&name("conv"), "Conv", &[&x, &large], pads);
    let gate = builder.add_named_node(&name("gate"), "Sigmoid", &[&conv], []);
    let shape = [ints_attribute("kernel_shape", &[2, 2]), ints_attribute("strides", &[2, 2])];
    let pool = builder.add_named_node(&name("pool"), "MaxPool", &[&gate], shape);
    let scaled = builder.add_named_node(&name("scale"), "PRelu", &[&pool, &small], []);
    let mean = builder.add_named_node(&name("mean"), "GlobalAveragePool", &[&scaled], []);
    builder.add_output(&mean);
    builder.build_model()
}

fn plain() -> ModelProto {
    net(16, [1, 16, 8, 8], "")
}

/// The plain net after a change to its graph.
fn changed(change: impl FnOnce(&mut GraphProto)) -> ModelProto {
    let mut proto = plain();
    change(graph_mut(&mut proto));
    proto
}

#[test]
fn names_leave_no_trace() {
    let other = net(16, [1, 16, 8, 8], "other/");
    assert_eq!(hash(&plain()), hash(&other));
    let unnamed = changed(|graph| graph.node.iter_mut().for_each(|node| node.name = None));
    assert_eq!(hash(&plain()), hash(&unnamed));
}

#[test]
fn shapes_and_names_of_dimensions_leave_no_trace() {
    let batch = |name: &str| {
        let dims = [Dim::Symbol(name.to_owned()), Dim::Fixed(16), Dim::Unknown, Dim::Unknown];
        net(16, dims, "")
    };
    assert_eq!(hash(&plain()), hash(&batch("batch")));
    assert_eq!(hash(&plain()), hash(&batch("n")));
    assert_eq!(hash(&plain()), hash(&net(16, [32, 16, 64, 64], "")));
}

#[test]
fn what_the_file_says_besides_leaves_no_trace() {
    let mut documented = plain();
    documented.doc_string = Some("exported on a Tuesday".to_owned());
    documented.producer_name = Some("pytorch".to_owned());
    documented.ir_version = Some(7);
    let graph = graph_mut(&mut documented);
    graph.doc_string = Some("a net".to_owned());
    for node in &mut graph.node {
        node.doc_string = Some("File \"model.py\", line 3".to_owned());
        for attribute in &mut node.attribute {
            attribute.doc_string = Some("an attribute".to_owned());
        }
    }
    graph.initializer[0].doc_string = Some("a weight".to_owned());
    let declared = graph.node.iter().map(|node| node.output[0].clone());
    let declared: Vec<String> = declared.collect();
    for name in declared {
        let mut info = graph.input[0].clone();
        info.name = Some(name);
        graph.value_info.push(info);
    }
    assert_eq!(hash(&plain()), hash(&documented));
}

#[test]
fn how_a_weight_is_written_leaves_no_trace() {
    let typed = changed(|graph| {
        for tensor in &mut graph.initializer {
            let raw = tensor.raw_data.take().unwrap();
            tensor.float_data = raw
                .chunks_exact(4)
                .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
                .collect();
        }
    });
    assert_eq!(hash(&plain()), hash(&typed));
    let constants = changed(|graph| {
        for tensor in std::mem::take(&mut graph.initializer) {
            let name = tensor.name().to_owned();
            let mut constant = node("Constant", &[], &[&name]);
            constant.attribute = vec![builder::tensor_attribute("value", tensor)];
            graph.node.push(constant);
        }
    });
    assert_eq!(hash(&plain()), hash(&constants));
}

#[test]
fn how_a_tensor_in_an_attribute_is_written_leaves_no_trace() {
    let filled = |value: TensorProto| {
        let fill = NodeProto {
            attribute: vec![builder::tensor_attribute("value", value)],
            ..node("ConstantOfShape", &["shape"], &["y"])
        };
        calling(vec![node("Shape", &["x"], &["shape"]), fill], vec![])
    };
    let raw = f32_tensor("", &[1], &[2.0]);
    let mut named = raw.clone();
    named.name = Some("value_0".to_owned());
    let mut typed = raw.clone();
    typed.raw_data = None;
    typed.float_data = vec![2.0];
    let mut documented = raw.clone();
    documented.doc_string = Some("a value".to_owned());
    let expected = hash(&filled(raw));
    for other in [named, typed, documented] {
        assert_eq!(hash(&filled(other.clone())), expected, "{other:?}");
    }
}

#[test]
fn an_opset_that_changed_none_of_the_operators_leaves_no_trace() {
    let of = |opset| hash(&net(opset, [1, 16, 8, 8], ""));
    // PRelu changed in 16, MaxPool and Conv in 22, and only in the types that they allow.
    for opset in [13, 15, 17, 21, 22] {
        assert_eq!(of(16), of(opset), "{opset}");
    }
    let convolution = |opset| {
        let mut builder = GraphBuilder::new("convolution").with_opset(opset);
        let x = builder.add_input("x", DType::F32, [1, 1, 4, 4]);
        let w = builder.add_weight("w", &[1, 1, 1, 1], vec![2.0]);
        let conv = builder.add_node("Conv", &[&x, &w], []);
        let y = builder.add_node("Sigmoid", &[&conv], []);
        builder.add_output(&y);
        hash(&builder.build_model())
    };
    assert_eq!(convolution(13), convolution(17));
}

#[test]
fn an_operator_whose_definition_changed_is_another() {
    let softmax = |opset| {
        let mut builder = GraphBuilder::new("softmax").with_opset(opset);
        let x = builder.add_input("x", DType::F32, [2, 3, 4]);
        let y = builder.add_node("Softmax", &[&x], []);
        builder.add_output(&y);
        hash(&builder.build_model())
    };
    assert_eq!(softmax(11), softmax(12));
    assert_ne!(softmax(12), softmax(13));
    assert_eq!(softmax(13), softmax(20));
}

#[test]
fn handing_out_a_weight_changes_no_operators_definition() {
    let nodes = vec![node("Relu", &["x"], &["y"]), node("Softmax", &["w"], &["probabilities"])];
    let mut proto = calling(nodes, vec![]);
    proto.opset_import[0].version = Some(11);
    let graph = graph_mut(&mut proto);
    graph.initializer.push(f32_tensor("w", &[2, 2], &[0.5; 4]));
    for name in ["probabilities", "w"] {
        let mut output = graph.output[0].clone();
        output.name = Some(name.to_owned());
        graph.output.push(output);
    }
    let cut = Model::read(&proto).split(&Split::Blocks(1), &[]);
    for block in cut.blocks.values() {
        // Softmax means another thing from opset 13 on.
        let file = ModelProto::decode(block.program().clone()).unwrap();
        assert!(file.opset_import[0].version() <= 11, "{:?}", file.opset_import);
    }
}

#[test]
fn how_an_exporter_writes_the_same_layer_leaves_no_trace() {
    // An exporter writes equal weights once or for each use, zero as what is added or nothing, and a
    // weight before or after what it is added to; from opset 20 on Gelu is one operator.
    let written = |shares: bool, adds_zero: bool, weight_first: bool, is_gelu: bool| {
        let mut builder = GraphBuilder::new("net").with_opset(if is_gelu { 20 } else { 17 });
        let x = builder.add_input("x", DType::F32, [1, 4, 8, 8]);
        let kernel = builder.add_weight("k", &[4, 4, 1, 1], made_up(1, 16));
        let again = if shares {
            kernel.clone()
        } else {
            builder.add_weight("k2", &[4, 4, 1, 1], made_up(1, 16))
        };
        let zero = builder.add_weight("zero", &[4], vec![0.0; 4]);
        let scale = builder.add_weight("scale", &[4, 1, 1], made_up(2, 4));
        let mut inputs = vec![x.as_str(), kernel.as_str()];
        inputs.extend(adds_zero.then_some(zero.as_str()));
        let first = builder.add_node("Conv", &inputs, []);
        let second = builder.add_node("Conv", &[&first, &again], []);
        let order = if weight_first { [&scale, &second] } else { [&second, &scale] };
        let scaled = builder.add_node("Mul", &order.map(String::as_str), []);
        let output = if is_gelu {
            builder.add_node("Gelu", &[&scaled], [])
        } else {
            let mut constant = |name: &str, value: f32| builder.add_weight(name, &[], vec![value]);
            let (root, one) = (constant("r", std::f32::consts::SQRT_2), constant("o", 1.0));
            let half = constant("h", 0.5);
            let quotient = builder.add_node("Div", &[&scaled, &root], []);
            let error = builder.add_node("Erf", &[&quotient], []);
            let sum = builder.add_node("Add", &[&error, &one], []);
            let product = builder.add_node("Mul", &[&scaled, &sum], []);
            builder.add_node("Mul", &[&product, &half], [])
        };
        builder.add_output(&output);
        let Model { graph, types } = Model::read(&builder.build_model());
        let graph = fold_shapes(graph, &types).unwrap();
        let types = infer::infer_types(&graph, &BTreeMap::new()).unwrap();
        Model { graph, types }.whole().hash()
    };
    let expected = written(false, false, false, false);
    for case in 1..16 {
        let [a, b, c, d] = [1, 2, 4, 8].map(|bit| case & bit != 0);
        assert_eq!(written(a, b, c, d), expected, "{a} {b} {c} {d}");
    }
}

#[test]
fn every_bit_of_a_weight_counts() {
    let expected = hash(&plain());
    for weight in 0..2 {
        let bits = 8 * plain().graph.unwrap().initializer[weight].raw_data().len();
        for bit in (0..bits).step_by(if weight == 0 { 997 } else { 13 }) {
            let flipped = changed(|graph| {
                let tensor = &mut graph.initializer[weight];
                let mut data = tensor.raw_data.take().unwrap().to_vec();
                data[bit / 8] ^= 1 << (bit % 8);
                tensor.raw_data = Some(data.into());
            });
            assert_ne!(hash(&flipped), expected, "bit {bit} of weight {weight}");
        }
    }
}

#[test]
fn what_a_block_computes_counts() {
    let expected = hash(&plain());
    let cases: Vec<(&str, ModelProto)> = vec![
        (
            "dtype of a weight in the block",
            changed(|graph| graph.initializer[1].data_type = Some(DType::I32.to_onnx())),
        ),
        (
            "dtype of a weight beside it",
            changed(|graph| graph.initializer[0].data_type = Some(DType::I32.to_onnx())),
        ),
        ("shape of a weight", changed(|graph| graph.initializer[1].dims = vec![1, 16, 1, 1])),
        ("value of an attribute", changed(|graph| graph.node[2].attribute[1].ints = vec![1, 2])),
        (
            "an attribute more",
            changed(|graph| graph.node[2].attribute.push(int_attribute("ceil_mode", 1))),
        ),
        ("operator", changed(|graph| graph.node[1].op_type = Some("Tanh".to_owned()))),
        (
            "one node less",
            changed(|graph| {
                graph.node[2].input[0] = graph.node[0].output[0].clone();
                graph.node.remove(1);
            }),
        ),
    ];
    for (what, proto) in cases {
        assert_ne!(hash(&proto), expected, "{what}");
    }
}

#[test]
fn dtypes_of_inputs_and_the_wiring_count() {
    let of = |dtype: DType, first: &str, second: &str| {
        let mut builder = GraphBuilder::new("wiring");
        builder.add_input("a", dtype, [4]);
        let b = builder.add_node("Neg", &["a"], []);
        let name = |which: &str| {
            if which == "a" { "a".to_owned() } else { b.clone() }
        };
        let y = builder.add_node("Sub", &[&name(first), &name(second)], []);
        builder.add_output(&y);
        hash(&builder.build_model())
    };
    assert_ne!(of(DType::F32, "a", "b"), of(DType::F32, "b", "a"));
    assert_ne!(of(DType::F32, "a", "b"), of(DType::F32, "a", "a"));
    assert_ne!(of(DType::F32, "a", "b"), of(DType::F64, "a", "b"));
}

#[test]
fn the_order_of_independent_nodes_and_outputs_leaves_no_trace() {
    // Outputs that are computed alike, but of inputs that the third output tells apart.
    let model = |order: [usize; 3], dtype: DType| {
        let nodes = [
            node("Neg", &["a"], &["left"]),
            node("Neg", &["b"], &["right"]),
            node("Concat", &["a", "b"], &["both"]),
        ];
        let mut builder = GraphBuilder::new("outputs");
        builder.add_input("a", DType::F32, [4]);
        builder.add_input("b", dtype, [4]);
        for name in ["left", "right", "both"] {
            builder.add_output(name);
        }
        let mut proto = builder.build_model();
        let mut nodes: Vec<NodeProto> = order.map(|at| nodes[at].clone()).to_vec();
        for concat in nodes.iter_mut().filter(|node| node.op_type() == "Concat") {
            concat.attribute = vec![int_attribute("axis", 0)];
        }
        graph_mut(&mut proto).node = nodes;
        hash(&proto)
    };
    for dtype in [DType::F32, DType::F16] {
        let expected = model([0, 1, 2], dtype);
        for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            assert_eq!(model(order, dtype), expected, "{order:?} {dtype}");
        }
    }
}

#[test]
fn outputs_that_differ_in_the_type_of_a_weight_alone_have_one_order() {
    let model = |swapped: bool| {
        let mut nodes = vec![
            node("Expand", &["x", "long"], &["first"]),
            node("Expand", &["x", "short"], &["second"]),
        ];
        if swapped {
            nodes.reverse();
        }
        let mut builder = GraphBuilder::new("weights");
        builder.add_input("x", DType::F32, [4]);
        // The same bytes as one long and as two short integers.
        builder.add_initializer(i64_tensor("long", &[1], &[4]));
        let bytes = [4i32.to_le_bytes(), 0i32.to_le_bytes()].concat();
        builder.add_initializer(raw_tensor("short", DType::I32.to_onnx(), &[2], bytes.into()));
        for name in ["first", "second"] {
            builder.add_output(name);
        }
        let mut proto = builder.build_model();
        graph_mut(&mut proto).node = nodes;
        hash(&proto)
    };
    assert_eq!(model(false), model(true));
}

#[test]
fn a_block_reads_back_from_its_file() {
    let model = Model::read(&plain());
    for (hash, block) in model.split(&Split::Every, &[]).blocks {
        let read = Block::parse_program(block.program().clone()).unwrap();
        assert_eq!(read.hash(), hash);
        assert_eq!(read.inputs(), block.inputs());
        assert_eq!(read.outputs(), block.outputs());
        assert_eq!(read.weights(), block.weights());
        assert_eq!(read.operators(), block.operators());
        assert_eq!(read.node_count(), block.node_count());
        assert_eq!(ContentHash::of_content(block.program()), hash);
    }
    let whole = model.whole();
    let [large] = whole.weights() else {
        panic!("{:?}", whole.weights());
    };
    assert_eq!((large.dtype, large.byte_len), (DType::F32, 16 * 16 * 9 * 4));
    assert_eq!(large.location(), format!("{}.data", large.hash));
    assert_eq!(whole.weight_bytes(), large.byte_len);
    let operators = ["Conv", "Sigmoid", "MaxPool", "PRelu", "GlobalAveragePool"];
    assert_eq!(whole.operators(), operators);
}

/// The same model with other names and its nodes in another order.
fn disguised(mut proto: ModelProto, keys: &[u64]) -> ModelProto {
    let graph = graph_mut(&mut proto);
    let mut names: HashMap<String, String> = HashMap::new();
    let mut rename = |name: &mut String| {
        let fresh = names.len() as u64 * 7919 % 1009;
        *name = names.entry(name.clone()).or_insert_with(|| format!("z{fresh}")).clone();
    };
    for info in graph.input.iter_mut().chain(&mut graph.output) {
        rename(info.name.as_mut().unwrap());
    }
    for tensor in graph.initializer.iter_mut().rev() {
        rename(tensor.name.as_mut().unwrap());
    }
    for node in graph.node.iter_mut().rev() {
        node.name = None;
        node.output.iter_mut().for_each(&mut rename);
        node.input.iter_mut().for_each(&mut rename);
    }
    let mut order: Vec<usize> = (0..graph.node.len()).collect();
    order.sort_by_key(|&at| keys[at % keys.len()].rotate_left(at as u32));
    graph.node = order.iter().map(|&at| graph.node[at].clone()).collect();
    graph.initializer.reverse();
    proto
}

fn split_hashes(model: &Model) -> Vec<ContentHash> {
    let cut = model.split(&Split::Every, &[]);
    let mut hashes: Vec<ContentHash> = cut.graph.blocks.iter().map(|block| block.block).collect();
    hashes.sort();
    hashes
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_model_in_disguise_has_the_same_blocks(
        random in any_graph(),
        keys in prop::collection::vec(any::<u64>(), 24),
    ) {
        let proto = random.build();
        let model = Model::read(&proto);
        let other = Model::read(&disguised(proto, &keys));
        prop_assert_eq!(model.whole().hash(), other.whole().hash());
        prop_assert_eq!(split_hashes(&model), split_hashes(&other));
    }
}
