//! Valid files, in all the ways that exporters write them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::collections::HashMap;

use bytes::Bytes;
use common::{Model, calling, graph_mut, node, opset, program};
use prost::Message;
use tessera_core::{DType, Dim, Error};
use tessera_graph::builder::{
    self, GraphBuilder, f32_tensor, float_attribute, i64_tensor, int_attribute, ints_attribute,
};
use tessera_graph::onnx::attribute_proto::AttributeType;
use tessera_graph::onnx::{
    AttributeProto, ModelProto, SparseTensorProto, StringStringEntryProto, TensorProto,
    tensor_proto,
};
use tessera_graph::{ExternalData, Split, Weight, read_model};

/// A model that hands out the weight `w`.
fn holding(tensor: TensorProto) -> ModelProto {
    let mut builder = GraphBuilder::new("holding");
    let w = builder.add_initializer(TensorProto { name: Some("w".to_owned()), ..tensor });
    builder.add_output(&w);
    builder.build_model()
}

/// The type and the bytes of a dense weight.
fn dense(model: &Model, name: &str) -> (String, Vec<u8>) {
    let weight = model.graph.weight(model.id(name)).unwrap();
    let Weight::Dense { bytes, .. } = weight else {
        panic!("{name} is not dense: {weight:?}");
    };
    (weight.tensor_type().unwrap().to_string(), bytes.to_vec())
}

fn typed(dtype: DType, dims: &[i64]) -> TensorProto {
    TensorProto { data_type: Some(dtype.to_onnx()), dims: dims.to_vec(), ..TensorProto::default() }
}

#[test]
fn elements_are_the_same_in_whichever_field_they_are_written() {
    let cases: Vec<(TensorProto, &str, Vec<u8>)> = vec![
        (
            TensorProto { float_data: vec![1.0, -2.5], ..typed(DType::F32, &[2]) },
            "f32[2]",
            [1.0f32.to_le_bytes(), (-2.5f32).to_le_bytes()].concat(),
        ),
        (
            TensorProto { double_data: vec![0.5], ..typed(DType::F64, &[]) },
            "f64[]",
            0.5f64.to_le_bytes().to_vec(),
        ),
        (
            TensorProto { int64_data: vec![-3], ..typed(DType::I64, &[1]) },
            "i64[1]",
            (-3i64).to_le_bytes().to_vec(),
        ),
        (
            TensorProto { uint64_data: vec![u64::from(u32::MAX)], ..typed(DType::U32, &[1]) },
            "u32[1]",
            vec![0xFF; 4],
        ),
        (
            TensorProto { int32_data: vec![0x3C00, 0xC000], ..typed(DType::F16, &[2]) },
            "f16[2]",
            vec![0x00, 0x3C, 0x00, 0xC0],
        ),
        (
            TensorProto { int32_data: vec![1, 0, 1], ..typed(DType::Bool, &[3]) },
            "bool[3]",
            vec![1, 0, 1],
        ),
        (TensorProto { int32_data: vec![-1, 5], ..typed(DType::I8, &[2]) }, "i8[2]", vec![0xFF, 5]),
        (
            TensorProto { int32_data: vec![0x21, 0x03], ..typed(DType::U4, &[3]) },
            "u4[3]",
            vec![0x21, 0x03],
        ),
        (typed(DType::F32, &[0, 7]), "f32[0,7]", vec![]),
    ];
    for (tensor, shown, bytes) in cases {
        let raw = TensorProto {
            raw_data: Some(bytes.clone().into()),
            data_type: tensor.data_type,
            dims: tensor.dims.clone(),
            ..TensorProto::default()
        };
        for tensor in [tensor, raw] {
            let model = Model::read(&holding(tensor));
            assert_eq!(dense(&model, "w"), (shown.to_owned(), bytes.clone()));
        }
    }
}

#[test]
fn an_initialiser_that_is_also_an_input_may_be_left_out_from_ir_4_on() {
    let model = |with_matrix: bool, ir_version: i64| {
        let mut builder = GraphBuilder::new("also");
        let x = builder.add_input("x", DType::F32, [4]);
        let w = builder.add_weight("w", &[4], vec![1.0; 4]);
        let mut y = builder.add_node("Add", &[&x, &w], []);
        let mut listed = vec![w];
        if with_matrix {
            let matrix = builder.add_weight("m", &[4, 8], vec![1.0; 32]);
            y = builder.add_node("MatMul", &[&y, &matrix], []);
            listed.push(matrix);
        }
        builder.add_output(&y);
        let mut proto = builder.build_model();
        for name in listed {
            let mut also = graph_mut(&mut proto).input[0].clone();
            also.name = Some(name);
            graph_mut(&mut proto).input.push(also);
        }
        proto.ir_version = Some(ir_version);
        Model::read(&proto)
    };
    for (with_matrix, ir_version, inputs, fixed) in [
        (false, 3, vec!["x"], vec![]),
        (false, 8, vec!["x", "w"], vec![]),
        (true, 3, vec!["x"], vec![]),
        // An exporter that lists all of its parameters: none is for callers.
        (true, 8, vec!["x"], vec!["w", "m"]),
    ] {
        let model = model(with_matrix, ir_version);
        let graph = &model.graph;
        let names = |ids: &[tessera_graph::ValueId]| -> Vec<String> {
            ids.iter().map(|&id| graph.value_name(id).to_owned()).collect()
        };
        assert_eq!(names(graph.inputs()), inputs, "{with_matrix} {ir_version}");
        assert_eq!(names(graph.fixed_inputs()), fixed, "{with_matrix} {ir_version}");
        let default = graph.input_default(model.id("w"));
        assert_eq!(default.is_some(), inputs.len() > 1);
        assert_eq!(graph.weight(model.id("w")).is_some(), default.is_none());
        if let Some(default) = default {
            assert_eq!(default.to_tensor(DType::F32).unwrap().to_f64().unwrap(), [1.0; 4]);
        }
    }
}

#[test]
fn nodes_may_stand_in_any_order() {
    let nodes = vec![
        node("Neg", &["b"], &["y"]),
        node("Sigmoid", &["a"], &["b"]),
        node("Relu", &["x"], &["a"]),
    ];
    let unsorted = Model::read(&calling(nodes.clone(), vec![]));
    let sorted = Model::read(&calling(nodes.into_iter().rev().collect(), vec![]));
    assert_eq!(unsorted.op_types(), ["Relu", "Sigmoid", "Neg"]);
    assert_eq!(unsorted.run(), sorted.run());
}

#[test]
fn dimensions_keep_their_names_and_may_have_none() {
    let mut builder = GraphBuilder::new("symbols");
    let batch = || Dim::Symbol("batch".to_owned());
    let x = builder.add_input("x", DType::F32, [batch(), Dim::Unknown, Dim::Fixed(4)]);
    let any = builder.add_input_of_any_shape("any", DType::I64);
    // Some exporters write the same for each that is open, others an expression.
    let unnamed = ["?", "", "past + 1"].map(|name| Dim::Symbol(name.to_owned()));
    let unnamed = builder.add_input("unnamed", DType::F32, unnamed);
    let y = builder.add_node("Relu", &[&x], []);
    builder.add_output(&y);
    let model = Model::of(builder);
    let declared = |name: &str| model.graph.declared_type(model.id(name)).unwrap().to_string();
    assert_eq!(declared(&x), "f32[batch,?,4]");
    assert_eq!(declared(&any), "i64[…]");
    assert_eq!(declared(&unnamed), "f32[?,?,?]");
    assert_eq!(model.types.get(model.id(&y)).unwrap().to_string(), "f32[batch,?,4]");
}

#[test]
fn constant_nodes_of_every_form_become_weights() {
    let list = |name: &str, kind: AttributeType| AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(kind as i32),
        ..AttributeProto::default()
    };
    let sparse = SparseTensorProto {
        values: Some(f32_tensor("", &[1], &[5.0])),
        indices: Some(i64_tensor("", &[1], &[2])),
        dims: vec![3],
    };
    let forms = [
        (builder::tensor_attribute("value", f32_tensor("", &[2, 1], &[1.0, 2.0])), "f32[2,1]"),
        (float_attribute("value_float", 0.5), "f32[]"),
        (int_attribute("value_int", -7), "i64[]"),
        (ints_attribute("value_ints", &[1, 2, 3]), "i64[3]"),
        (
            AttributeProto {
                floats: vec![1.0, 2.0],
                ..list("value_floats", AttributeType::Floats)
            },
            "f32[2]",
        ),
        (builder::string_attribute("value_string", "text"), "string[]"),
        (
            AttributeProto {
                strings: vec![Bytes::from_static(b"a"), Bytes::new()],
                ..list("value_strings", AttributeType::Strings)
            },
            "string[2]",
        ),
        (
            AttributeProto {
                sparse_tensor: Some(sparse),
                ..list("sparse_value", AttributeType::SparseTensor)
            },
            "f32[3]",
        ),
    ];
    for (attribute, expected) in forms {
        let form = attribute.name().to_owned();
        let mut builder = GraphBuilder::new("constant");
        let c = builder.add_node("Constant", &[], [attribute]);
        builder.add_output(&c);
        let model = Model::of(builder);
        assert!(model.graph.nodes().is_empty(), "{form}");
        let weight = model.graph.weight(model.id(&c)).unwrap();
        assert_eq!(weight.tensor_type().unwrap().to_string(), expected, "{form}");
        assert_eq!(model.split(&Split::Blocks(1), &[]).graph.outputs.len(), 1);
    }
}

#[test]
fn strings_reach_the_block_the_empty_one_too() {
    let mut builder = GraphBuilder::new("strings").with_opset(19);
    let x = builder.add_input("x", DType::String, [3]);
    let words: Vec<Bytes> =
        ["one", "", "drei"].map(|word| Bytes::from_static(word.as_bytes())).to_vec();
    let w = builder
        .add_initializer(TensorProto { string_data: words.clone(), ..typed(DType::String, &[3]) });
    let same = builder.add_node("Equal", &[&x, &w], []);
    builder.add_output(&same);
    let program = program(&Model::of(builder).whole());
    assert_eq!(program.initializer[0].string_data, words);
    assert_eq!(program.initializer[0].dims, [3]);
}

/// Files beside a model.
#[derive(Default)]
struct Folder {
    files: HashMap<String, Bytes>,
    opened: Vec<String>,
}

impl ExternalData for Folder {
    fn open_file(&mut self, location: &str) -> Result<Bytes, Error> {
        self.opened.push(location.to_owned());
        let file = self.files.get(location).cloned();
        file.ok_or_else(|| Error::not_found(format!("{location} does not exist")))
    }
}

fn external(name: &str, dims: &[i64], entries: &[(&str, &str)]) -> TensorProto {
    let entry = |&(key, value): &(&str, &str)| StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
    };
    TensorProto {
        name: Some(name.to_owned()),
        data_location: Some(tensor_proto::DataLocation::External as i32),
        external_data: entries.iter().map(entry).collect(),
        ..typed(DType::F32, dims)
    }
}

#[test]
fn tensors_lie_in_files_beside_the_model_at_offsets_of_their_own() {
    let mut proto = calling(
        vec![
            node("Add", &["x", "first"], &["a"]),
            node("Mul", &["a", "second"], &["b"]),
            node("Sub", &["b", "third"], &["y"]),
        ],
        vec![],
    );
    let shared = ("location", "weights/all.bin");
    graph_mut(&mut proto).initializer = vec![
        external("first", &[4], &[shared, ("length", "16")]),
        external("second", &[4], &[shared, ("offset", "16"), ("length", "16")]),
        external("third", &[4], &[("location", "third.bin")]),
    ];
    let bytes =
        |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let (first, second, third) = (bytes(&[1.0; 4]), bytes(&[2.0; 4]), bytes(&[3.0; 4]));
    let mut folder = Folder::default();
    let all = [first.clone(), second.clone()].concat();
    folder.files.insert("weights/all.bin".to_owned(), all.into());
    folder.files.insert("third.bin".to_owned(), third.clone().into());
    proto.opset_import = vec![opset("", 17)];
    let graph = read_model(proto.encode_to_vec().into(), &mut folder).unwrap();
    for (name, expected) in [("first", first), ("second", second), ("third", third)] {
        let Some(Weight::Dense { bytes, .. }) = graph.weight(graph.find_value(name).unwrap())
        else {
            panic!("{name} is no dense weight");
        };
        assert_eq!(*bytes, expected, "{name}");
    }
    assert!(folder.opened.iter().all(|file| folder.files.contains_key(file)));
}

#[test]
fn a_map_at_an_output_is_taken_off_its_tensor() {
    let mut builder = GraphBuilder::new("classic");
    let x = builder.add_input("x", DType::F32, [Dim::Symbol("n".to_owned()), Dim::Fixed(3)]);
    let scores = builder.add_node("Softmax", &[&x], []);
    builder.add_output(&scores);
    let mut proto = builder.build_model();
    let mut zip = node("ZipMap", &[&scores], &["probability"]);
    zip.domain = Some("ai.onnx.ml".to_owned());
    zip.attribute = vec![ints_attribute("classlabels_int64s", &[4, 5, 6])];
    let graph = graph_mut(&mut proto);
    graph.node.push(zip);
    graph.output[0].name = Some("probability".to_owned());
    proto.opset_import.push(opset("ai.onnx.ml", 3));
    let model = Model::read(&proto);
    assert_eq!(model.op_types(), ["Softmax", "Identity"]);
    let [map] = model.graph.map_outputs() else { panic!("one map") };
    assert_eq!((map.output.as_str(), map.classes.join(" ").as_str()), ("probability", "4 5 6"));
    let port = &model.split(&Split::Blocks(1), &[]).graph.outputs[0].0;
    assert_eq!(
        (port.name.as_str(), port.tensor_type.to_string().as_str()),
        ("probability", "f32[n,3]")
    );
}
