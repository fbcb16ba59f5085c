//! Lays the weights of a prepared block out as a GPU wants them: small ones first, then in the order
//! of their use, each at a multiple of what kernels read at a time. So the file is the image of what
//! is on the GPU, and comes there in a few large copies.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use prost::Message;
use tessera_core::{Error, Result};
use tessera_graph::onnx::{GraphProto, ModelProto, StringStringEntryProto, TensorProto};

use super::external_weights::{MODEL_FILE, WEIGHTS_FILE, is_external, weight_content};
use super::weight_layout::{WeightLayout, WeightPlace, place_weights};
use crate::{FileMapping, SharedFileMapping};

/// Where a weight begins: what CUDA's own memory begins at, and kernels are chosen by.
const ALIGNMENT: usize = 256;

/// Rewrites the weights of a prepared block in a folder, where it has any.
pub(super) fn align_weights(folder: &Path, layout: WeightLayout) -> Result<()> {
    let weights = folder.join(WEIGHTS_FILE);
    if !weights.exists() {
        return Ok(());
    }
    let model_file = folder.join(MODEL_FILE);
    let failed = |error: std::io::Error| Error::from_io(folder.display(), &error);
    let bytes = std::fs::read(&model_file).map_err(failed)?;
    let mut model = ModelProto::decode(bytes.as_slice())
        .map_err(|error| Error::engine(format!("the optimised form of a block: {error}")))?;
    let mapping = std::sync::Arc::new(FileMapping::map_file(&weights)?);
    let old = bytes::Bytes::from_owner(SharedFileMapping(mapping));
    let aligned = folder.join("weights.aligned");
    let mut writer =
        AlignedWriter { file: BufWriter::new(File::create(&aligned).map_err(failed)?), at: 0 };
    let graph = model.graph.get_or_insert_default();
    order_by_use(graph, layout);
    let tensors = graph.initializer.iter_mut().filter(|tensor| is_external(tensor));
    for tensor in tensors {
        writer.move_weight(tensor, &old)?;
    }
    // Those of bodies, which are put into the model when it is read.
    let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
    for body in attributes.flat_map(|a| a.g.iter_mut().chain(&mut a.graphs)) {
        move_weights_of_body(body, &old, &mut writer)?;
    }
    writer.file.flush().map_err(failed)?;
    std::fs::write(&model_file, model.encode_to_vec()).map_err(failed)?;
    std::fs::rename(&aligned, &weights).map_err(failed)
}

/// Puts initialisers into the order of their places, and there into that in which nodes use them
/// first.
fn order_by_use(graph: &mut GraphProto, layout: WeightLayout) {
    let places = place_weights(graph, layout);
    let mut first_use: HashMap<&str, usize> = HashMap::new();
    for (number, node) in graph.node.iter().enumerate() {
        for input in &node.input {
            first_use.entry(input.as_str()).or_insert(number);
        }
    }
    let order: HashMap<String, usize> =
        first_use.into_iter().map(|(name, number)| (name.to_owned(), number)).collect();
    let place = |tensor: &TensorProto| {
        let first_use = order.get(tensor.name()).copied().unwrap_or(usize::MAX);
        let place = places.get(tensor.name()).copied().unwrap_or(WeightPlace::AtFirst);
        (place, first_use)
    };
    graph.initializer.sort_by_key(place);
}

fn move_weights_of_body(
    body: &mut GraphProto,
    old: &bytes::Bytes,
    writer: &mut AlignedWriter,
) -> Result<()> {
    for tensor in body.initializer.iter_mut().filter(|tensor| is_external(tensor)) {
        writer.move_weight(tensor, old)?;
    }
    let attributes = body.node.iter_mut().flat_map(|node| &mut node.attribute);
    attributes
        .flat_map(|a| a.g.iter_mut().chain(&mut a.graphs))
        .try_for_each(|body| move_weights_of_body(body, old, writer))
}

struct AlignedWriter {
    file: BufWriter<File>,
    at: usize,
}

impl AlignedWriter {
    /// Writes a weight to where the next one may begin, and has its tensor say so.
    fn move_weight(&mut self, tensor: &mut TensorProto, old: &bytes::Bytes) -> Result<()> {
        let content = weight_content(tensor, old)?;
        let start = self.at.next_multiple_of(ALIGNMENT);
        let failed = |error: std::io::Error| Error::from_io("aligned weights", &error);
        self.file.write_all(&vec![0; start - self.at]).map_err(failed)?;
        self.file.write_all(&content).map_err(failed)?;
        self.at = start + content.len();
        let numbers = [("offset", start), ("length", content.len())];
        for (key, number) in numbers {
            let known = tensor.external_data.iter_mut().find(|entry| entry.key() == key);
            let value = Some(number.to_string());
            match known {
                Some(entry) => entry.value = value,
                None => tensor
                    .external_data
                    .push(StringStringEntryProto { key: Some(key.to_owned()), value }),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tessera_graph::onnx::{NodeProto, tensor_proto};

    use super::*;

    #[test]
    fn weights_are_aligned_in_the_order_of_their_use() {
        let entry = |key: &str, value: usize| StringStringEntryProto {
            key: Some(key.to_owned()),
            value: Some(value.to_string()),
        };
        let weight = |name: &str, offset: usize, length: usize| TensorProto {
            name: Some(name.to_owned()),
            data_location: Some(tensor_proto::DataLocation::External as i32),
            external_data: vec![entry("offset", offset), entry("length", length)],
            ..TensorProto::default()
        };
        let node = |inputs: &[&str]| NodeProto {
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            ..NodeProto::default()
        };
        let graph = GraphProto {
            node: vec![node(&["x", "late"]), node(&["early", "late"])],
            initializer: vec![weight("early", 0, 3), weight("late", 3, 300)],
            ..GraphProto::default()
        };
        let model = ModelProto { graph: Some(graph), ..ModelProto::default() };
        let folder = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..303u32).map(|number| (number % 251) as u8).collect();
        std::fs::write(folder.path().join(MODEL_FILE), model.encode_to_vec()).unwrap();
        std::fs::write(folder.path().join(WEIGHTS_FILE), &content).unwrap();
        align_weights(folder.path(), WeightLayout::InParts).unwrap();
        let written = std::fs::read(folder.path().join(MODEL_FILE)).unwrap();
        let graph = ModelProto::decode(&written[..]).unwrap().graph.unwrap();
        let file = std::fs::read(folder.path().join(WEIGHTS_FILE)).unwrap();
        assert_eq!(file.len(), 512 + 3);
        let file = bytes::Bytes::from(file);
        let names: Vec<&str> = graph.initializer.iter().map(TensorProto::name).collect();
        assert_eq!(names, ["late", "early"]);
        assert_eq!(weight_content(&graph.initializer[0], &file).unwrap(), content[3..]);
        assert_eq!(weight_content(&graph.initializer[1], &file).unwrap(), content[..3]);
        assert_eq!(graph.initializer[1].external_data[0].value(), "512");
    }
}
