//! Outputs that are sequences of maps, as exporters of classic models write them by default.
//!
//! `ZipMap` makes of a tensor, which has a row for each sample and a column for each class, a map
//! from class to score for each sample. Only tensors pass between blocks and over the network, so
//! the map is taken off: the output is the tensor, and its columns are the classes in their order.

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message;
use tessera_core::{Error, Result};

use super::{ModelProto, NodeProto, OperatorSetIdProto};

/// The opset that a model gets which has none of ONNX's own operators.
const ANY_OPSET: i64 = 13;

/// An output whose map was taken off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapOutput {
    /// Name of the output.
    pub output: String,
    /// What the columns of its tensor are.
    pub classes: Vec<String>,
}

/// Takes the maps off a model's outputs.
pub(crate) fn take_off_maps(model: &mut ModelProto) -> Vec<MapOutput> {
    let Some(graph) = &mut model.graph else {
        return Vec::new();
    };
    let mut places = HashMap::with_capacity(graph.output.len());
    for (place, port) in graph.output.iter().enumerate() {
        places.entry(port.name()).or_insert(place);
    }
    let (mut found, mut typeless) = (Vec::new(), Vec::new());
    for node in &mut graph.node {
        let is_map = node.domain() == "ai.onnx.ml" && node.op_type() == "ZipMap";
        let [output] = node.output.as_slice() else { continue };
        let Some(&port) = places.get(output.as_str()).filter(|_| is_map) else { continue };
        // What it is follows from the tensor.
        typeless.push(port);
        found.push(MapOutput { output: output.clone(), classes: classes_of(node) });
        node.op_type = Some("Identity".to_owned());
        node.domain = None;
        node.attribute.clear();
    }
    for port in typeless {
        graph.output[port].r#type = None;
    }
    let has_opset = model.opset_import.iter().any(|opset| matches!(opset.domain(), "" | "ai.onnx"));
    if !found.is_empty() && !has_opset {
        model.opset_import.push(OperatorSetIdProto { domain: None, version: Some(ANY_OPSET) });
    }
    found
}

fn classes_of(node: &NodeProto) -> Vec<String> {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let of = |name: &str| node.attribute.iter().find(|attribute| attribute.name() == name);
    match (of("classlabels_strings"), of("classlabels_int64s")) {
        (Some(labels), _) if !labels.strings.is_empty() => {
            labels.strings.iter().map(text).collect()
        }
        (_, Some(labels)) => labels.ints.iter().map(i64::to_string).collect(),
        _ => Vec::new(),
    }
}

/// The model in `file` without the maps of its outputs; `None` where it has none.
pub fn without_map_outputs(file: Bytes) -> Result<Option<Bytes>> {
    let mut model = ModelProto::decode(file)
        .map_err(|error| Error::invalid(format!("not an ONNX model: {error}")))?;
    let found = take_off_maps(&mut model);
    Ok((!found.is_empty()).then(|| model.encode_to_vec().into()))
}
