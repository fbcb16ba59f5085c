//! Valid files with functions of their own, and bodies that capture what is around them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use common::{Model, block_at, call, calling, function, graph_mut, node, program};
use tessera_core::{DType, Dim};
use tessera_graph::Split;
use tessera_graph::builder::{
    GraphBuilder, f32_tensor, float_attribute, graph_attribute, raw_tensor,
};
use tessera_graph::onnx::attribute_proto::AttributeType;
use tessera_graph::onnx::{AttributeProto, GraphProto, ModelProto, NodeProto};

fn refers(name: &str, to: &str) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        ref_attr_name: Some(to.to_owned()),
        r#type: Some(AttributeType::Float as i32),
        ..AttributeProto::default()
    }
}

#[test]
fn a_functions_attribute_is_the_calls_or_the_default_or_left_out() {
    let leaky = NodeProto {
        attribute: vec![refers("alpha", "slope")],
        ..node("LeakyRelu", &["a"], &["b"])
    };
    let mut required = function("Required", &["a"], &["b"], vec![leaky]);
    required.attribute = vec!["slope".to_owned()];
    let mut defaulted = required.clone();
    defaulted.name = Some("Defaulted".to_owned());
    defaulted.attribute.clear();
    defaulted.attribute_proto = vec![float_attribute("slope", 0.25)];
    let given = |name: &str, inputs: &[&str], outputs: &[&str]| NodeProto {
        attribute: vec![float_attribute("slope", 0.75)],
        ..call(name, inputs, outputs)
    };
    let nodes = vec![
        given("Required", &["x"], &["a"]),
        given("Defaulted", &["a"], &["b"]),
        call("Defaulted", &["b"], &["c"]),
        call("Required", &["c"], &["y"]),
    ];
    let model = Model::read(&calling(nodes, vec![required, defaulted]));
    let alphas: Vec<Option<f32>> = model
        .graph
        .nodes()
        .iter()
        .map(|node| node.attribute("alpha").and_then(|alpha| alpha.f))
        .collect();
    assert_eq!(model.op_types(), ["LeakyRelu"; 4]);
    assert_eq!(alphas, [Some(0.75), Some(0.75), Some(0.25), None]);
}

#[test]
fn functions_that_call_functions_are_inlined_with_names_of_their_own() {
    let inner = function(
        "Inner",
        &["a"],
        &["b"],
        vec![node("Sigmoid", &["a"], &["t"]), node("Neg", &["t"], &["b"])],
    );
    let outer = function(
        "Outer",
        &["a"],
        &["b"],
        vec![
            call("Inner", &["a"], &["t"]),
            call("Inner", &["t"], &["u"]),
            node("Add", &["t", "u"], &["b"]),
        ],
    );
    let nodes = vec![call("Outer", &["x"], &["t"]), call("Outer", &["t"], &["y"])];
    let model = Model::read(&calling(nodes, vec![outer, inner]));
    assert_eq!(model.graph.nodes().len(), 10);
    let by_hand = |x: &str, y: &str, p: &str| {
        let name = |end: &str| format!("{p}{end}");
        vec![
            node("Sigmoid", &[x], &[&name("1")]),
            node("Neg", &[&name("1")], &[&name("2")]),
            node("Sigmoid", &[&name("2")], &[&name("3")]),
            node("Neg", &[&name("3")], &[&name("4")]),
            node("Add", &[&name("2"), &name("4")], &[y]),
        ]
    };
    let expected = [by_hand("x", "middle", "p"), by_hand("middle", "y", "q")].concat();
    let expected = Model::read(&calling(expected, vec![]));
    assert_eq!(model.run(), expected.run());
    assert_eq!(model.whole().hash(), expected.whole().hash());
}

#[test]
fn an_input_that_the_call_leaves_out_stays_left_out() {
    let bounded = function(
        "Bounded",
        &["a", "low", "high"],
        &["b"],
        vec![node("Clip", &["a", "low", "high"], &["b"])],
    );
    let nodes = vec![call("Bounded", &["x", "", "h"], &["a"]), call("Bounded", &["a"], &["y"])];
    let mut proto = calling(nodes, vec![bounded]);
    let high = f32_tensor("h", &[], &[6.0]);
    graph_mut(&mut proto).initializer.push(high);
    let model = Model::read(&proto);
    let [first, second] = model.graph.nodes() else {
        panic!("{:?}", model.graph.nodes());
    };
    assert_eq!(first.inputs, [Some(model.id("x")), None, Some(model.id("h"))]);
    assert_eq!(second.inputs, [Some(model.id("a"))]);
}

#[test]
fn a_function_may_hand_an_input_straight_out() {
    let both = function("Both", &["a"], &["a", "b"], vec![node("Neg", &["a"], &["b"])]);
    let nodes =
        vec![call("Both", &["x"], &["same", "negated"]), node("Sub", &["same", "negated"], &["y"])];
    let model = Model::read(&calling(nodes, vec![both]));
    let doubled = Model::read(&calling(vec![node("Add", &["x", "x"], &["y"])], vec![]));
    assert_eq!(model.run(), doubled.run());
}

/// An `If` on the constant `yes`.
fn choice(yes: &str, output: &str, then: GraphProto, otherwise: GraphProto) -> NodeProto {
    NodeProto {
        attribute: vec![
            graph_attribute("then_branch", then),
            graph_attribute("else_branch", otherwise),
        ],
        ..node("If", &[yes], &[output])
    }
}

fn body(nodes: Vec<NodeProto>, output: &str) -> GraphProto {
    let mut body = GraphBuilder::new("body");
    body.add_output(output);
    GraphProto { node: nodes, ..body.build_graph() }
}

/// A model with an input `x`, a constant `yes` and these nodes.
fn branching(nodes: Vec<NodeProto>) -> ModelProto {
    let mut proto = calling(nodes, vec![]);
    let yes = raw_tensor("yes", DType::Bool.to_onnx(), &[], vec![1u8].into());
    graph_mut(&mut proto).initializer.push(yes);
    proto
}

fn captures(model: &Model, op: &str) -> Vec<String> {
    let node = model.graph.nodes().iter().find(|node| node.op_type == op);
    let captures = node.unwrap().captures.iter();
    captures.map(|&id| model.graph.value_name(id).to_owned()).collect()
}

fn then_branch(node: &NodeProto) -> &GraphProto {
    let branch = node.attribute.iter().find(|a| a.name() == "then_branch");
    branch.unwrap().g.as_ref().unwrap()
}

#[test]
fn functions_are_inlined_in_bodies_too() {
    let twice = function(
        "Twice",
        &["a"],
        &["b"],
        vec![node("Relu", &["a"], &["t"]), node("Relu", &["t"], &["b"])],
    );
    let then = body(vec![call("Twice", &["x"], &["r"])], "r");
    let otherwise = body(vec![node("Neg", &["x"], &["r"])], "r");
    let mut proto = branching(vec![choice("yes", "y", then, otherwise)]);
    proto.functions.push(twice);
    let model = Model::read(&proto);
    assert_eq!(captures(&model, "If"), ["x"]);
    let program = program(&model.whole());
    let ops = then_branch(&program.node[0]).node.iter();
    assert_eq!(ops.map(NodeProto::op_type).collect::<Vec<_>>(), ["Relu", "Relu"]);
}

#[test]
fn a_functions_body_keeps_its_own_names_apart_from_the_callers() {
    // The caller's "t" goes in as "a"; the branch inside has a "t" of its own.
    let then = body(vec![node("Neg", &["a"], &["t"]), node("Relu", &["t"], &["r"])], "r");
    let otherwise = body(vec![node("Neg", &["a"], &["r"])], "r");
    let chosen =
        function("Chosen", &["a", "yes"], &["b"], vec![choice("yes", "b", then, otherwise)]);
    let mut proto =
        branching(vec![node("Sigmoid", &["x"], &["t"]), call("Chosen", &["t", "yes"], &["y"])]);
    proto.functions.push(chosen);
    let model = Model::read(&proto);
    assert_eq!(captures(&model, "If"), ["t"]);
}

#[test]
fn a_branch_captures_what_is_around_it_and_finds_it_in_the_block() {
    // Both branches have a "t" of their own.
    let then = body(vec![node("Neg", &["a"], &["t"]), node("Add", &["t", "x"], &["r"])], "r");
    let otherwise = body(vec![node("Relu", &["x"], &["t"]), node("Sub", &["t", "x"], &["r"])], "r");
    let model = Model::read(&branching(vec![
        node("Sigmoid", &["x"], &["a"]),
        choice("yes", "y", then, otherwise),
    ]));
    let mut captured = captures(&model, "If");
    captured.sort();
    assert_eq!(captured, ["a", "x"]);
    let program = program(&model.whole());
    let [sigmoid, choice] = program.node.as_slice() else {
        panic!("{:?}", program.node);
    };
    let branch = then_branch(choice);
    assert_eq!(branch.node[0].input, sigmoid.output);
    assert_eq!(branch.node[1].input[0], branch.node[0].output[0]);
    assert_eq!(branch.node[1].input[1], sigmoid.input[0]);
    assert_eq!(branch.output[0].name(), branch.node[1].output[0]);
    assert_eq!(model.types.get(model.id("y")).unwrap().to_string(), "f32[4]");
}

#[test]
fn a_capture_two_bodies_deep_belongs_to_the_outermost_node() {
    let deep = |op: &str| body(vec![node(op, &["a", "local"], &["d"])], "d");
    let then = body(
        vec![node("Neg", &["x"], &["local"]), choice("yes", "r", deep("Add"), deep("Sub"))],
        "r",
    );
    let otherwise = body(vec![node("Relu", &["x"], &["r"])], "r");
    let model = Model::read(&branching(vec![
        node("Sigmoid", &["x"], &["a"]),
        choice("yes", "y", then, otherwise),
    ]));
    let mut captured = captures(&model, "If");
    captured.sort();
    assert_eq!(captured, ["a", "x", "yes"]);
    let program = program(&model.whole());
    let outer = then_branch(&program.node[1]);
    let inner = then_branch(&outer.node[1]);
    assert_eq!(inner.node[0].input[0], program.node[0].output[0]);
    assert_eq!(inner.node[0].input[1], outer.node[0].output[0]);
}

#[test]
fn a_loop_captures_and_carries() {
    let mut inner = GraphBuilder::new("body");
    let scalar = Vec::<Dim>::new;
    inner.add_input("iteration", DType::I64, scalar());
    let keep_going = inner.add_input("keep_going", DType::Bool, scalar());
    let state = inner.add_input("state", DType::F32, [4]);
    let keep_going = inner.add_node("Identity", &[&keep_going], []);
    let next = inner.add_node("Mul", &[&state, "scale"], []);
    inner.add_output(&keep_going);
    inner.add_output(&next);
    let mut builder = GraphBuilder::new("loop");
    let x = builder.add_input("x", DType::F32, [4]);
    builder.add_node_into("scaling", "Sigmoid", &[&x], &["scale"], []);
    let trips = builder.add_i64_weight("trips", &[], vec![3]);
    let y =
        builder.add_node("Loop", &[&trips, "", &x], [graph_attribute("body", inner.build_graph())]);
    builder.add_output(&y);
    let model = Model::of(builder);
    assert_eq!(captures(&model, "Loop"), ["scale"]);
    let partition = model.split(&Split::At(vec![]), &[]);
    let program = program(block_at(&partition, 0));
    let looped = program.node.iter().find(|node| node.op_type() == "Loop").unwrap();
    let sigmoid = program.node.iter().find(|node| node.op_type() == "Sigmoid").unwrap();
    let body = looped.attribute[0].g.as_ref().unwrap();
    let scaled = body.node.iter().find(|node| node.op_type() == "Mul").unwrap();
    assert_eq!(scaled.input[1], sigmoid.output[0]);
    assert_eq!(scaled.input[0], body.input[2].name());
}
