//! Small files that have everything in them that files can have, for the fuzzer to start from.

#![allow(unreachable_pub, clippy::unwrap_used, reason = "tests fail by panicking")]

use bytes::Bytes;
use tessera_core::{DType, Dim};
use tessera_graph::builder::{
    self, GraphBuilder, f32_tensor, float, graph, i64_tensor, int, ints, raw_tensor, string,
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
    let x = builder.input("x", DType::F32, dims);
    let first = builder.weight("first", &[16, 3, 3, 3], made_up(1, 16 * 27));
    // More than 4096 bytes: a weight that is stored on its own.
    let second = builder.weight("second", &[16, 16, 3, 3], made_up(2, 16 * 144));
    let bias = builder.weight("bias", &[16], made_up(3, 16));
    let shape = || {
        [
            ints("kernel_shape", &[3, 3]),
            ints("pads", &[1, 1, 1, 1]),
            ints("strides", &[1, 1]),
            ints("dilations", &[1, 1]),
            int("group", 1),
        ]
    };
    let conv = builder.node("Conv", &[&x, &first, &bias], shape());
    let stem = builder.node("Relu", &[&conv], []);
    let conv = builder.node("Conv", &[&stem, &second, &bias], shape());
    let scale = [&bias, &bias, &bias, &bias].map(String::as_str);
    let inputs = [&[conv.as_str()][..], &scale[..]].concat();
    let norm = builder.node("BatchNormalization", &inputs, [float("epsilon", 1e-5)]);
    let sum = builder.node("Add", &[&norm, &stem], []);
    let pooled = builder.node(
        "MaxPool",
        &[&sum],
        [ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2]), int("ceil_mode", 1)],
    );
    let head = builder.node("GlobalAveragePool", &[&stem], []);
    let head = builder.node("Flatten", &[&head], []);
    builder.node_into("exit", "Softmax", &[&head], &["exit"], []);
    let mean = builder.node("GlobalAveragePool", &[&pooled], []);
    let flat = builder.node("Flatten", &[&mean], [int("axis", 1)]);
    let w = builder.weight("dense", &[10, 16], made_up(4, 160));
    let logits = builder.node("Gemm", &[&flat, &w], [int("transB", 1), float("alpha", 1.0)]);
    builder.output(&logits);
    builder.output("exit");
    builder.build()
}

fn body(inputs: &[(&str, DType)], nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    let mut builder = GraphBuilder::new("body");
    for (name, dtype) in inputs {
        builder.input(name, *dtype, Vec::<Dim>::new());
    }
    for output in outputs {
        builder.output(output);
    }
    let mut body = builder.build_graph();
    body.node = nodes;
    body
}

fn control() -> ModelProto {
    let deep = |op: &str| body(&[], vec![node(op, &["x", "local"], &["d"])], &["d"]);
    let inner = NodeProto {
        attribute: vec![graph("then_branch", deep("Add")), graph("else_branch", deep("Sub"))],
        ..node("If", &["yes"], &["r"])
    };
    let mut then = body(&[], vec![node("Mul", &["a", "held"], &["local"]), inner], &["r"]);
    then.initializer.push(f32_tensor("held", &[4], &[2.0; 4]));
    let otherwise = body(&[], vec![node("Neg", &["a"], &["r"])], &["r"]);
    let chosen = NodeProto {
        attribute: vec![graph("then_branch", then), graph("else_branch", otherwise)],
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
        attribute: vec![graph("body", again)],
        ..node("Loop", &["trips", "", "chosen"], &["last", "stacked"])
    };
    let step = body(
        &[("state", DType::F32), ("slice", DType::F32)],
        vec![node("Add", &["state", "slice"], &["sum"]), node("Neg", &["sum"], &["out"])],
        &["sum", "out"],
    );
    let scan = NodeProto {
        attribute: vec![
            graph("body", step),
            int("num_scan_inputs", 1),
            ints("scan_input_axes", &[0]),
            ints("scan_output_axes", &[0]),
        ],
        ..node("Scan", &["last", "stacked"], &["final", "y"])
    };
    let nodes = vec![node("Sigmoid", &["x"], &["a"]), chosen, looped, scan];
    let mut model = calling(nodes, vec![]);
    let yes = raw_tensor("yes", DType::Bool.onnx(), &[], vec![1u8].into());
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
        attribute: vec![graph("then_branch", branch("Add")), graph("else_branch", branch("Sub"))],
        ..node("If", &["yes"], &["b"])
    };
    let constant = NodeProto {
        attribute: vec![builder::tensor(
            "value",
            raw_tensor("", DType::Bool.onnx(), &[], vec![0u8].into()),
        )],
        ..node("Constant", &[], &["yes"])
    };
    let mut inner = function("Inner", &["a"], &["b"], vec![constant, leaky, choice]);
    inner.attribute_proto.push(float("slope", 0.1));
    let given = NodeProto { attribute: vec![float("slope", 0.3)], ..call("Inner", &["t"], &["u"]) };
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
    let mut builder = GraphBuilder::new("strings").opset(21);
    let x = builder.input("x", DType::String, [3]);
    let words = ["one", "", "drei"].map(|word| Bytes::from_static(word.as_bytes()));
    let w = builder.initializer(TensorProto {
        name: Some("words".to_owned()),
        data_type: Some(DType::String.onnx()),
        dims: vec![3],
        string_data: words.to_vec(),
        ..TensorProto::default()
    });
    let joined = builder.node("StringConcat", &[&x, &w], []);
    let split = [string("delimiter", " "), int("maxsplit", 2)];
    let parts = builder.node_multi("StringSplit", &[&joined], 2, split);
    let same = builder.node("Equal", &[&x, &joined], []);
    for output in [&parts[0], &parts[1], &same] {
        builder.output(output);
    }
    builder.build()
}

fn defaults() -> ModelProto {
    let mut builder = GraphBuilder::new("defaults");
    let x = builder.input("x", DType::F32, [4]);
    let w = builder.weight("w", &[4], made_up(1, 4));
    let added = builder.node("Add", &[&x, &w], []);
    let negated = builder.node("Neg", &[&w], []);
    let product = builder.node("Mul", &[&added, &negated], []);
    let y = builder.node("Sub", &[&product, "sparse"], []);
    for output in [&y, &negated, &x, &w] {
        builder.output(output);
    }
    let mut model = builder.build();
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
    let ids = builder.input("ids", DType::I64, [batch, length]);
    let table = builder.weight("table", &[50, 16], made_up(1, 800));
    let index = |builder: &mut GraphBuilder, value: i64| builder.weight_i64("i", &[], vec![value]);
    let mut x = builder.node("Gather", &[&table, &ids], []);
    for layer in 0..2 {
        let w = builder.weight("qkv", &[16, 48], made_up(10 + layer, 768));
        let scale = builder.weight("scale", &[16], made_up(20 + layer, 16));
        let norm = builder.node("LayerNormalization", &[&x, &scale], [int("axis", -1)]);
        let qkv = builder.node("MatMul", &[&norm, &w], []);
        let parts = builder.node_multi("Split", &[&qkv], 3, [int("axis", -1)]);
        let shape = builder.node("Shape", &[&x], []);
        let mut sizes = Vec::new();
        for at in 0..2 {
            let at = index(&mut builder, at);
            let size = builder.node("Gather", &[&shape, &at], [int("axis", 0)]);
            let axes = builder.weight_i64("axes", &[1], vec![0]);
            sizes.push(builder.node("Unsqueeze", &[&size, &axes], []));
        }
        let heads = builder.weight_i64("heads", &[2], vec![4, 4]);
        let inputs = [sizes[0].as_str(), sizes[1].as_str(), heads.as_str()];
        let target = builder.node("Concat", &inputs, [int("axis", 0)]);
        let mut split_heads = Vec::new();
        for part in &parts {
            let apart = builder.node("Reshape", &[part, &target], []);
            let perm = [ints("perm", &[0, 2, 1, 3])];
            split_heads.push(builder.node("Transpose", &[&apart], perm));
        }
        let turned = [ints("perm", &[0, 1, 3, 2])];
        let keys = builder.node("Transpose", &[&split_heads[1]], turned);
        let scores = builder.node("MatMul", &[&split_heads[0], &keys], []);
        let weights = builder.node("Softmax", &[&scores], [int("axis", -1)]);
        let mixed = builder.node("MatMul", &[&weights, &split_heads[2]], []);
        let perm = [ints("perm", &[0, 2, 1, 3])];
        let mixed = builder.node("Transpose", &[&mixed], perm);
        let joined = builder.weight_i64("joined", &[3], vec![0, 0, 16]);
        let mixed = builder.node("Reshape", &[&mixed, &joined], []);
        x = builder.node("Add", &[&x, &mixed], []);
        builder.output(&split_heads[1]);
    }
    builder.output(&x);
    builder.build()
}

/// One of each of the operators whose shapes take arithmetic.
fn operators() -> ModelProto {
    let mut builder = GraphBuilder::new("operators").opset(18);
    let image = builder.input("image", DType::F32, [1, 4, 8, 8]);
    let rows = builder.input("rows", DType::F32, [6, 8]);
    let list = |builder: &mut GraphBuilder, values: &[i64]| {
        builder.weight_i64("list", &[values.len()], values.to_vec())
    };
    let mut made: Vec<String> = Vec::new();
    let pads = list(&mut builder, &[0, 0, 1, 1, 0, 0, 1, 1]);
    made.push(builder.node("Pad", &[&image, &pads], [string("mode", "constant")]));
    let (starts, ends) = (list(&mut builder, &[0, 1]), list(&mut builder, &[4, -1]));
    let (axes, steps) = (list(&mut builder, &[0, 1]), list(&mut builder, &[1, 2]));
    made.push(builder.node("Slice", &[&rows, &starts, &ends, &axes, &steps], []));
    let repeats = list(&mut builder, &[2, 3]);
    made.push(builder.node("Tile", &[&rows, &repeats], []));
    let scales = builder.weight("scales", &[4], vec![1.0, 1.0, 2.0, 0.5]);
    made.push(builder.node("Resize", &[&image, "", &scales], [string("mode", "linear")]));
    let sizes = list(&mut builder, &[1, 4, 3, 5]);
    made.push(builder.node("Resize", &[&image, "", "", &sizes], []));
    made.push(builder.node("Einsum", &[&rows, &rows], [string("equation", "ij,kj->ik")]));
    let k = list(&mut builder, &[3]);
    made.extend(builder.node_multi("TopK", &[&rows, &k], 2, [int("axis", 1)]));
    let kernel = builder.weight("kernel", &[4, 2, 3, 3], made_up(1, 72));
    let attributes = [
        ints("strides", &[2, 2]),
        ints("output_padding", &[1, 1]),
        ints("pads", &[1, 1, 1, 1]),
        ints("dilations", &[1, 1]),
        int("group", 1),
    ];
    made.push(builder.node("ConvTranspose", &[&image, &kernel], attributes));
    let attributes =
        [ints("kernel_shape", &[3, 2]), ints("strides", &[2, 3]), string("auto_pad", "SAME_UPPER")];
    made.push(builder.node("AveragePool", &[&image], attributes));
    made.push(builder.node("DepthToSpace", &[&image], [int("blocksize", 2)]));
    made.push(builder.node("SpaceToDepth", &[&image], [int("blocksize", 2)]));
    let axes = list(&mut builder, &[-1]);
    let keep = [int("keepdims", 0)];
    made.push(builder.node("ReduceMean", &[&image, &axes], keep));
    let thin = builder.node("Unsqueeze", &[&rows, &axes], []);
    made.push(builder.node("Squeeze", &[&thin, &axes], []));
    let parts = [int("axis", 0), int("num_outputs", 3)];
    made.extend(builder.node_multi("Split", &[&rows], 3, parts));
    let shape = builder.node("Shape", &[&image], [int("start", 1), int("end", -1)]);
    let value = builder::tensor("value", f32_tensor("", &[1], &[3.0]));
    made.push(builder.node("ConstantOfShape", &[&shape], [value]));
    let bounds = [0, 9, 2].map(|bound| builder.weight_i64("bound", &[], vec![bound]));
    made.push(builder.node("Range", &[&bounds[0], &bounds[1], &bounds[2]], []));
    let found = builder.node("NonZero", &[&rows], []);
    made.push(builder.node("Cast", &[&found], [int("to", 1)]));
    let target = list(&mut builder, &[2, 6, 8]);
    made.push(builder.node("Expand", &[&rows, &target], []));
    let target = list(&mut builder, &[2, -1, 0]);
    made.push(builder.node("Reshape", &[&rows, &target], [int("allowzero", 0)]));
    let indices = list(&mut builder, &[1, 2]);
    made.push(builder.node("GatherND", &[&rows, &indices], [int("batch_dims", 0)]));
    let depth = builder.weight_i64("depth", &[], vec![5]);
    made.push(builder.node("OneHot", &[&indices, &depth, &indices], [int("axis", -1)]));
    let sequence = builder.input("sequence", DType::F32, [5, 1, 3]);
    let w = builder.weight("lstm.w", &[1, 16, 3], made_up(2, 48));
    let r = builder.weight("lstm.r", &[1, 16, 4], made_up(3, 64));
    let attributes = [int("hidden_size", 4), string("direction", "forward")];
    made.extend(builder.node_multi("LSTM", &[&sequence, &w, &r], 3, attributes));
    for value in &made {
        builder.output(value);
    }
    builder.build()
}
