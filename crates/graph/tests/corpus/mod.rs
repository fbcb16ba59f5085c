//! Small files that have everything in them that files can have, for the fuzzer to start from.

#![allow(unreachable_pub, clippy::unwrap_used, reason = "tests fail by panicking")]

use bytes::Bytes;
use tessera_core::{DType, Dim};
use tessera_graph::builder::{
    self, GraphBuilder, f32_tensor, float_attribute, graph_attribute, i64_tensor, int_attribute,
    ints_attribute, raw_tensor, string_attribute,
};
use tessera_graph::onnx::attribute_proto::AttributeType;
use tessera_graph::onnx::{
    AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto,
};

use crate::common::{call, calling, function, graph_mut, made_up, node};

/// Every file, by name.
pub fn all() -> Vec<(&'static str, ModelProto)> {
    vec![
        ("convolutions", convolutions()),
        ("control", control()),
        ("functions", functions()),
        ("strings", strings()),
        ("defaults", defaults()),
        ("transformer", transformer()),
        ("operators", operators()),
    ]
}

fn convolutions() -> ModelProto {
    let mut builder = GraphBuilder::new("convolutions");
    let batch = Dim::Symbol("batch".to_owned());
    let dims = [batch, Dim::Fixed(3), Dim::Fixed(16), Dim::Fixed(16)];
    let x = builder.add_input("x", DType::F32, dims);
    let first = builder.add_weight("first", &[16, 3, 3, 3], made_up(1, 16 * 27));
    // More than 4096 bytes: a weight that is stored on its own.
    let second = builder.add_weight("second", &[16, 16, 3, 3], made_up(2, 16 * 144));
    let bias = builder.add_weight("bias", &[16], made_up(3, 16));
    let shape = || {
        [
            ints_attribute("kernel_shape", &[3, 3]),
            ints_attribute("pads", &[1, 1, 1, 1]),
            ints_attribute("strides", &[1, 1]),
            ints_attribute("dilations", &[1, 1]),
            int_attribute("group", 1),
        ]
    };
    let conv = builder.add_node("Conv", &[&x, &first, &bias], shape());
    let stem = builder.add_node("Relu", &[&conv], []);
    let conv = builder.add_node("Conv", &[&stem, &second, &bias], shape());
    let scale = [&bias, &bias, &bias, &bias].map(String::as_str);
    let inputs = [&[conv.as_str()][..], &scale[..]].concat();
    let norm = builder.add_node("BatchNormalization", &inputs, [float_attribute("epsilon", 1e-5)]);
    let sum = builder.add_node("Add", &[&norm, &stem], []);
    let pooled = builder.add_node(
        "MaxPool",
        &[&sum],
        [
            ints_attribute("kernel_shape", &[2, 2]),
            ints_attribute("strides", &[2, 2]),
            int_attribute("ceil_mode", 1),
        ],
    );
    let head = builder.add_node("GlobalAveragePool", &[&stem], []);
    let head = builder.add_node("Flatten", &[&head], []);
    builder.add_node_into("exit", "Softmax", &[&head], &["exit"], []);
    let mean = builder.add_node("GlobalAveragePool", &[&pooled], []);
    let flat = builder.add_node("Flatten", &[&mean], [int_attribute("axis", 1)]);
    let w = builder.add_weight("dense", &[10, 16], made_up(4, 160));
    let logits = builder.add_node(
        "Gemm",
        &[&flat, &w],
        [int_attribute("transB", 1), float_attribute("alpha", 1.0)],
    );
    builder.add_output(&logits);
    builder.add_output("exit");
    builder.build_model()
}

fn body(inputs: &[(&str, DType)], nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    let mut builder = GraphBuilder::new("body");
    for (name, dtype) in inputs {
        builder.add_input(name, *dtype, Vec::<Dim>::new());
    }
    for output in outputs {
        builder.add_output(output);
    }
    let mut body = builder.build_graph();
    body.node = nodes;
    body
}

fn control() -> ModelProto {
    let deep = |op: &str| body(&[], vec![node(op, &["x", "local"], &["d"])], &["d"]);
    let inner = NodeProto {
        attribute: vec![
            graph_attribute("then_branch", deep("Add")),
            graph_attribute("else_branch", deep("Sub")),
        ],
        ..node("If", &["yes"], &["r"])
    };
    let mut then = body(&[], vec![node("Mul", &["a", "held"], &["local"]), inner], &["r"]);
    then.initializer.push(f32_tensor("held", &[4], &[2.0; 4]));
    let otherwise = body(&[], vec![node("Neg", &["a"], &["r"])], &["r"]);
    let chosen = NodeProto {
        attribute: vec![
            graph_attribute("then_branch", then),
            graph_attribute("else_branch", otherwise),
        ],
        ..node("If", &["yes"], &["chosen"])
    };
    let again = body(
        &[("i", DType::I64), ("go", DType::Bool), ("s", DType::F32)],
        vec![
            node("Identity", &["go"], &["on"]),
            node("Add", &["s", "a"], &["next"]),
            node("Relu", &["next"], &["each"]),
        ],
        &["on", "next", "each"],
    );
    let looped = NodeProto {
        attribute: vec![graph_attribute("body", again)],
        ..node("Loop", &["trips", "", "chosen"], &["last", "stacked"])
    };
    let step = body(
        &[("state", DType::F32), ("slice", DType::F32)],
        vec![node("Add", &["state", "slice"], &["sum"]), node("Neg", &["sum"], &["out"])],
        &["sum", "out"],
    );
    let scan = NodeProto {
        attribute: vec![
            graph_attribute("body", step),
            int_attribute("num_scan_inputs", 1),
            ints_attribute("scan_input_axes", &[0]),
            ints_attribute("scan_output_axes", &[0]),
        ],
        ..node("Scan", &["last", "stacked"], &["final", "y"])
    };
    let nodes = vec![node("Sigmoid", &["x"], &["a"]), chosen, looped, scan];
    let mut model = calling(nodes, vec![]);
    let yes = raw_tensor("yes", DType::Bool.to_onnx(), &[], vec![1u8].into());
    graph_mut(&mut model).initializer = vec![yes, i64_tensor("trips", &[], &[3])];
    model
}

fn functions() -> ModelProto {
    let slope = AttributeProto {
        name: Some("alpha".to_owned()),
        ref_attr_name: Some("slope".to_owned()),
        r#type: Some(AttributeType::Float as i32),
        ..AttributeProto::default()
    };
    let leaky = NodeProto { attribute: vec![slope], ..node("LeakyRelu", &["a"], &["t"]) };
    let branch = |op: &str| body(&[], vec![node(op, &["t", "a"], &["r"])], &["r"]);
    let choice = NodeProto {
        attribute: vec![
            graph_attribute("then_branch", branch("Add")),
            graph_attribute("else_branch", branch("Sub")),
        ],
        ..node("If", &["yes"], &["b"])
    };
    let constant = NodeProto {
        attribute: vec![builder::tensor_attribute(
            "value",
            raw_tensor("", DType::Bool.to_onnx(), &[], vec![0u8].into()),
        )],
        ..node("Constant", &[], &["yes"])
    };
    let mut inner = function("Inner", &["a"], &["b"], vec![constant, leaky, choice]);
    inner.attribute_proto.push(float_attribute("slope", 0.1));
    let given = NodeProto {
        attribute: vec![float_attribute("slope", 0.3)],
        ..call("Inner", &["t"], &["u"])
    };
    let outer = function(
        "Outer",
        &["a", "low"],
        &["b", "a"],
        vec![call("Inner", &["a"], &["t"]), given, node("Clip", &["u", "low"], &["b"])],
    );
    let nodes = vec![
        call("Outer", &["x"], &["p", "q"]),
        node("Add", &["p", "q"], &["s"]),
        call("Outer", &["s", ""], &["y"]),
    ];
    calling(nodes, vec![outer, inner])
}

fn strings() -> ModelProto {
    let mut builder = GraphBuilder::new("strings").with_opset(21);
    let x = builder.add_input("x", DType::String, [3]);
    let words = ["one", "", "drei"].map(|word| Bytes::from_static(word.as_bytes()));
    let w = builder.add_initializer(TensorProto {
        name: Some("words".to_owned()),
        data_type: Some(DType::String.to_onnx()),
        dims: vec![3],
        string_data: words.to_vec(),
        ..TensorProto::default()
    });
    let joined = builder.add_node("StringConcat", &[&x, &w], []);
    let split = [string_attribute("delimiter", " "), int_attribute("maxsplit", 2)];
    let parts = builder.add_node_with_outputs("StringSplit", &[&joined], 2, split);
    let same = builder.add_node("Equal", &[&x, &joined], []);
    for output in [&parts[0], &parts[1], &same] {
        builder.add_output(output);
    }
    builder.build_model()
}

fn defaults() -> ModelProto {
    let mut builder = GraphBuilder::new("defaults");
    let x = builder.add_input("x", DType::F32, [4]);
    let w = builder.add_weight("w", &[4], made_up(1, 4));
    let added = builder.add_node("Add", &[&x, &w], []);
    let negated = builder.add_node("Neg", &[&w], []);
    let product = builder.add_node("Mul", &[&added, &negated], []);
    let y = builder.add_node("Sub", &[&product, "sparse"], []);
    for output in [&y, &negated, &x, &w] {
        builder.add_output(output);
    }
    let mut model = builder.build_model();
    model.ir_version = Some(3);
    let graph = graph_mut(&mut model);
    let mut also = graph.input[0].clone();
    also.name = Some(w);
    graph.input.push(also);
    graph.sparse_initializer.push(SparseTensorProto {
        values: Some(f32_tensor("sparse", &[1], &[5.0])),
        indices: Some(i64_tensor("", &[1], &[2])),
        dims: vec![4],
    });
    model
}

fn transformer() -> ModelProto {
    let mut builder = GraphBuilder::new("transformer");
    let batch = Dim::Symbol("batch".to_owned());
    let length = Dim::Symbol("sequence".to_owned());
    let ids = builder.add_input("ids", DType::I64, [batch, length]);
    let table = builder.add_weight("table", &[50, 16], made_up(1, 800));
    let index =
        |builder: &mut GraphBuilder, value: i64| builder.add_i64_weight("i", &[], vec![value]);
    let mut x = builder.add_node("Gather", &[&table, &ids], []);
    for layer in 0..2 {
        let w = builder.add_weight("qkv", &[16, 48], made_up(10 + layer, 768));
        let scale = builder.add_weight("scale", &[16], made_up(20 + layer, 16));
        let norm =
            builder.add_node("LayerNormalization", &[&x, &scale], [int_attribute("axis", -1)]);
        let qkv = builder.add_node("MatMul", &[&norm, &w], []);
        let parts = builder.add_node_with_outputs("Split", &[&qkv], 3, [int_attribute("axis", -1)]);
        let shape = builder.add_node("Shape", &[&x], []);
        let mut sizes = Vec::new();
        for at in 0..2 {
            let at = index(&mut builder, at);
            let size = builder.add_node("Gather", &[&shape, &at], [int_attribute("axis", 0)]);
            let axes = builder.add_i64_weight("axes", &[1], vec![0]);
            sizes.push(builder.add_node("Unsqueeze", &[&size, &axes], []));
        }
        let heads = builder.add_i64_weight("heads", &[2], vec![4, 4]);
        let inputs = [sizes[0].as_str(), sizes[1].as_str(), heads.as_str()];
        let target = builder.add_node("Concat", &inputs, [int_attribute("axis", 0)]);
        let mut split_heads = Vec::new();
        for part in &parts {
            let apart = builder.add_node("Reshape", &[part, &target], []);
            let perm = [ints_attribute("perm", &[0, 2, 1, 3])];
            split_heads.push(builder.add_node("Transpose", &[&apart], perm));
        }
        let turned = [ints_attribute("perm", &[0, 1, 3, 2])];
        let keys = builder.add_node("Transpose", &[&split_heads[1]], turned);
        let scores = builder.add_node("MatMul", &[&split_heads[0], &keys], []);
        let weights = builder.add_node("Softmax", &[&scores], [int_attribute("axis", -1)]);
        let mixed = builder.add_node("MatMul", &[&weights, &split_heads[2]], []);
        let perm = [ints_attribute("perm", &[0, 2, 1, 3])];
        let mixed = builder.add_node("Transpose", &[&mixed], perm);
        let joined = builder.add_i64_weight("joined", &[3], vec![0, 0, 16]);
        let mixed = builder.add_node("Reshape", &[&mixed, &joined], []);
        x = builder.add_node("Add", &[&x, &mixed], []);
        builder.add_output(&split_heads[1]);
    }
    builder.add_output(&x);
    builder.build_model()
}

/// One of each of the operators whose shapes take arithmetic.
fn operators() -> ModelProto {
    let mut builder = GraphBuilder::new("operators").with_opset(18);
    let image = builder.add_input("image", DType::F32, [1, 4, 8, 8]);
    let rows = builder.add_input("rows", DType::F32, [6, 8]);
    let list = |builder: &mut GraphBuilder, values: &[i64]| {
        builder.add_i64_weight("list", &[values.len()], values.to_vec())
    };
    let mut made: Vec<String> = Vec::new();
    let pads = list(&mut builder, &[0, 0, 1, 1, 0, 0, 1, 1]);
    made.push(builder.add_node("Pad", &[&image, &pads], [string_attribute("mode", "constant")]));
    let (starts, ends) = (list(&mut builder, &[0, 1]), list(&mut builder, &[4, -1]));
    let (axes, steps) = (list(&mut builder, &[0, 1]), list(&mut builder, &[1, 2]));
    made.push(builder.add_node("Slice", &[&rows, &starts, &ends, &axes, &steps], []));
    let repeats = list(&mut builder, &[2, 3]);
    made.push(builder.add_node("Tile", &[&rows, &repeats], []));
    let scales = builder.add_weight("scales", &[4], vec![1.0, 1.0, 2.0, 0.5]);
    made.push(builder.add_node(
        "Resize",
        &[&image, "", &scales],
        [string_attribute("mode", "linear")],
    ));
    let sizes = list(&mut builder, &[1, 4, 3, 5]);
    made.push(builder.add_node("Resize", &[&image, "", "", &sizes], []));
    made.push(builder.add_node(
        "Einsum",
        &[&rows, &rows],
        [string_attribute("equation", "ij,kj->ik")],
    ));
    let k = list(&mut builder, &[3]);
    made.extend(builder.add_node_with_outputs("TopK", &[&rows, &k], 2, [int_attribute("axis", 1)]));
    let kernel = builder.add_weight("kernel", &[4, 2, 3, 3], made_up(1, 72));
    let attributes = [
        ints_attribute("strides", &[2, 2]),
        ints_attribute("output_padding", &[1, 1]),
        ints_attribute("pads", &[1, 1, 1, 1]),
        ints_attribute("dilations", &[1, 1]),
        int_attribute("group", 1),
    ];
    made.push(builder.add_node("ConvTranspose", &[&image, &kernel], attributes));
    let attributes = [
        ints_attribute("kernel_shape", &[3, 2]),
        ints_attribute("strides", &[2, 3]),
        string_attribute("auto_pad", "SAME_UPPER"),
    ];
    made.push(builder.add_node("AveragePool", &[&image], attributes));
    made.push(builder.add_node("DepthToSpace", &[&image], [int_attribute("blocksize", 2)]));
    made.push(builder.add_node("SpaceToDepth", &[&image], [int_attribute("blocksize", 2)]));
    let axes = list(&mut builder, &[-1]);
    let keep = [int_attribute("keepdims", 0)];
    made.push(builder.add_node("ReduceMean", &[&image, &axes], keep));
    let thin = builder.add_node("Unsqueeze", &[&rows, &axes], []);
    made.push(builder.add_node("Squeeze", &[&thin, &axes], []));
    let parts = [int_attribute("axis", 0), int_attribute("num_outputs", 3)];
    made.extend(builder.add_node_with_outputs("Split", &[&rows], 3, parts));
    let shape =
        builder.add_node("Shape", &[&image], [int_attribute("start", 1), int_attribute("end", -1)]);
    let value = builder::tensor_attribute("value", f32_tensor("", &[1], &[3.0]));
    made.push(builder.add_node("ConstantOfShape", &[&shape], [value]));
    let bounds = [0, 9, 2].map(|bound| builder.add_i64_weight("bound", &[], vec![bound]));
    made.push(builder.add_node("Range", &[&bounds[0], &bounds[1], &bounds[2]], []));
    let found = builder.add_node("NonZero", &[&rows], []);
    made.push(builder.add_node("Cast", &[&found], [int_attribute("to", 1)]));
    let target = list(&mut builder, &[2, 6, 8]);
    made.push(builder.add_node("Expand", &[&rows, &target], []));
    let target = list(&mut builder, &[2, -1, 0]);
    made.push(builder.add_node("Reshape", &[&rows, &target], [int_attribute("allowzero", 0)]));
    let indices = list(&mut builder, &[1, 2]);
    made.push(builder.add_node("GatherND", &[&rows, &indices], [int_attribute("batch_dims", 0)]));
    let depth = builder.add_i64_weight("depth", &[], vec![5]);
    made.push(builder.add_node(
        "OneHot",
        &[&indices, &depth, &indices],
        [int_attribute("axis", -1)],
    ));
    let sequence = builder.add_input("sequence", DType::F32, [5, 1, 3]);
    let w = builder.add_weight("lstm.w", &[1, 16, 3], made_up(2, 48));
    let r = builder.add_weight("lstm.r", &[1, 16, 4], made_up(3, 64));
    let attributes = [int_attribute("hidden_size", 4), string_attribute("direction", "forward")];
    made.extend(builder.add_node_with_outputs("LSTM", &[&sequence, &w, &r], 3, attributes));
    for value in &made {
        builder.add_output(value);
    }
    builder.build_model()
}
