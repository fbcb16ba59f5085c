//! What a model computes from constants alone.

use bytes::Bytes;
use tessera_core::{DType, Error, Result};

use crate::model::{Graph, NodeId, Weight};
use crate::onnx::{AttributeProto, NodeProto, tensors};
use crate::operators;

/// Per node, whether everything that it uses is constant and it gives the same each time.
pub(crate) fn constant_nodes(graph: &Graph) -> Vec<bool> {
    let mut constant = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        let mut within = Vec::new();
        crate::body::operators_within(&node.attributes, &mut within);
        within.push((&node.domain, &node.op_type));
        constant[index] = within.iter().all(|(domain, op)| operators::is_deterministic(domain, op))
            && node.used_values().all(|value| {
                graph.weights.contains_key(&value)
                    || graph.producer(value).is_some_and(|NodeId(made)| constant[made as usize])
            });
    }
    constant
}

/// The value of a `Constant` node.
pub(crate) fn constant_value(node: &mut NodeProto) -> Result<Weight> {
    let dense = |dtype, shape: Vec<usize>, bytes: Vec<u8>| Weight::Dense {
        dtype,
        shape,
        bytes: Bytes::from(bytes),
    };
    let [attribute] = node.attribute.as_mut_slice() else {
        return Err(Error::invalid(format!(
            "a Constant has {} attributes, expected exactly one",
            node.attribute.len()
        )));
    };
    let AttributeProto { t, f, i, s, floats, ints, strings, sparse_tensor, .. } = attribute;
    Ok(match attribute.name.as_deref().unwrap_or_default() {
        "value" => tensors::weight_from_tensor(
            t.take().ok_or_else(|| Error::invalid("a Constant without a tensor in \"value\""))?,
        )?,
        "value_float" => dense(DType::F32, vec![], f.unwrap_or(0.).to_le_bytes().into()),
        "value_int" => dense(DType::I64, vec![], i.unwrap_or(0).to_le_bytes().into()),
        "value_floats" => {
            let bytes = floats.iter().flat_map(|value| value.to_le_bytes()).collect();
            dense(DType::F32, vec![floats.len()], bytes)
        }
        "value_ints" => {
            let bytes = ints.iter().flat_map(|value| value.to_le_bytes()).collect();
            dense(DType::I64, vec![ints.len()], bytes)
        }
        "value_string" => {
            Weight::Strings { shape: vec![], strings: vec![s.take().unwrap_or_default()] }
        }
        "value_strings" => {
            Weight::Strings { shape: vec![strings.len()], strings: std::mem::take(strings) }
        }
        "sparse_value" => Weight::Sparse(Box::new(
            sparse_tensor
                .take()
                .ok_or_else(|| Error::invalid("a Constant without sparse_value"))?,
        )),
        other => {
            return Err(Error::invalid(format!("a Constant with the attribute \"{other}\"")));
        }
    })
}
