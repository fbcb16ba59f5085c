//! Operators over sequences: recurrent layers and attention.

use tessera_core::Dim;

use super::fact::Dims;
use super::operator::Operator;

/// The dimensions that `LSTM`, `GRU` and `RNN` give: all steps, the last one, and its cell.
pub(crate) fn infer_recurrent(operator: &Operator<'_>) -> Vec<Dims> {
    let batch_first = operator.integer_attribute("layout", 0) != 0;
    let (length, batch) = match operator.input_dims(0) {
        Some([batch, length, _]) if batch_first => (length.clone(), batch.clone()),
        Some([length, batch, _]) => (length.clone(), batch.clone()),
        _ => (Dim::Unknown, Dim::Unknown),
    };
    let directions =
        Dim::Fixed(if operator.text_attribute("direction") == "bidirectional" { 2 } else { 1 });
    let hidden = match (
        usize::try_from(operator.integer_attribute("hidden_size", -1)),
        operator.input_dims(2),
    ) {
        (Ok(hidden), _) => Dim::Fixed(hidden),
        (_, Some([_, _, hidden])) => hidden.clone(),
        _ => Dim::Unknown,
    };
    let (all, last) = if batch_first {
        (
            vec![batch.clone(), length, directions.clone(), hidden.clone()],
            vec![batch, directions, hidden],
        )
    } else {
        (
            vec![length, directions.clone(), batch.clone(), hidden.clone()],
            vec![directions, batch, hidden],
        )
    };
    vec![Some(all), Some(last.clone()), Some(last)]
}

/// The dimensions that ONNX's `Attention` gives: the result, then the keys and values so far.
pub(crate) fn infer_attention(operator: &Operator<'_>) -> Vec<Dims> {
    let count =
        |name: &str| usize::try_from(operator.integer_attribute(name, 0)).ok().filter(|&n| n > 0);
    // Dimensions of an input as [batch, heads, length, size of a head].
    let heads = |input: usize, name: &str| -> Option<[Dim; 4]> {
        match operator.input_dims(input)? {
            [batch, heads, length, size] => {
                Some([batch.clone(), heads.clone(), length.clone(), size.clone()])
            }
            [batch, length, hidden] => {
                let heads = count(name);
                let size =
                    hidden.fixed_size().zip(heads).and_then(|(all, heads)| all.checked_div(heads));
                let [heads, size] = [heads, size].map(|n| n.map_or(Dim::Unknown, Dim::Fixed));
                Some([batch.clone(), heads, length.clone(), size])
            }
            _ => None,
        }
    };
    let query = heads(0, "q_num_heads");
    let (key, value) = (heads(1, "kv_num_heads"), heads(2, "kv_num_heads"));
    let size = value.as_ref().map_or(Dim::Unknown, |[_, _, _, size]| size.clone());
    let result = match (operator.input_dims(0), &query) {
        (Some([_, _, _]), Some([batch, heads, length, _])) => {
            Some(vec![batch.clone(), length.clone(), multiply_dims(heads, &size)])
        }
        (_, Some([batch, heads, length, _])) => {
            Some(vec![batch.clone(), heads.clone(), length.clone(), size])
        }
        _ => None,
    };
    let has_past = operator.input_fact(4).is_some();
    let so_far = |parts: Option<[Dim; 4]>| {
        parts.map(|[batch, heads, length, size]| {
            vec![batch, heads, if has_past { Dim::Unknown } else { length }, size]
        })
    };
    vec![result, so_far(key), so_far(value)]
}

/// The dimensions that ONNX Runtime's `Attention` gives, which projects its input itself.
pub(crate) fn infer_packed_attention(operator: &Operator<'_>) -> Dims {
    let [batch, length, _] = operator.input_dims(0)? else {
        return None;
    };
    let hidden = match (operator.integers_attribute("qkv_hidden_sizes"), operator.input_dims(1)) {
        (Some([_, _, value]), _) => usize::try_from(*value).ok(),
        (_, Some([_, all])) => all.fixed_size().map(|all| all / 3),
        _ => None,
    };
    Some(vec![batch.clone(), length.clone(), hidden.map_or(Dim::Unknown, Dim::Fixed)])
}

/// The dimensions that ONNX Runtime's `MultiHeadAttention` gives.
pub(crate) fn infer_multi_head_attention(operator: &Operator<'_>) -> Dims {
    match (operator.input_dims(0)?, operator.input_dims(2)) {
        ([batch, length, _], Some([_, _, hidden])) => {
            Some(vec![batch.clone(), length.clone(), hidden.clone()])
        }
        ([batch, length, _], Some([_, heads, _, size])) => {
            Some(vec![batch.clone(), length.clone(), multiply_dims(heads, size)])
        }
        // Queries, keys and values in one.
        ([batch, length, heads, _, size], _) => {
            Some(vec![batch.clone(), length.clone(), multiply_dims(heads, size)])
        }
        ([batch, length, hidden], None) if operator.inputs.len() < 3 => {
            Some(vec![batch.clone(), length.clone(), hidden.clone()])
        }
        _ => None,
    }
}

/// The dimensions that ONNX Runtime's `GroupQueryAttention` gives.
pub(crate) fn infer_group_query_attention(operator: &Operator<'_>) -> Dims {
    let [batch, length, hidden] = operator.input_dims(0)? else {
        return None;
    };
    let hidden = if operator.input_fact(1).is_some() {
        hidden.clone()
    } else {
        // Queries, keys and values in one.
        let heads = usize::try_from(operator.integer_attribute("num_heads", 0)).ok()?;
        let shared = usize::try_from(operator.integer_attribute("kv_num_heads", 0)).ok()?;
        let all = shared.checked_mul(2)?.checked_add(heads)?;
        let size = hidden.fixed_size().and_then(|hidden| hidden.checked_div(all));
        size.and_then(|size| size.checked_mul(heads)).map_or(Dim::Unknown, Dim::Fixed)
    };
    Some(vec![batch.clone(), length.clone(), hidden])
}

fn multiply_dims(first: &Dim, second: &Dim) -> Dim {
    let product = first.fixed_size().zip(second.fixed_size()).and_then(|(a, b)| a.checked_mul(b));
    product.map_or(Dim::Unknown, Dim::Fixed)
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::super::testing::{graph_of, shown, symbol, type_of, types_of};
    use super::*;
    use crate::builder::{GraphBuilder, int_attribute, string_attribute};

    #[test]
    fn a_recurrent_layer_gives_all_steps_and_the_last() {
        let mut builder = GraphBuilder::new("lstm");
        let dims = [Dim::Fixed(9), symbol("n"), Dim::Fixed(4)];
        let x = builder.add_input("x", DType::F32, dims);
        let w = builder.add_input("w", DType::F32, [2, 24, 4]);
        let r = builder.add_input("r", DType::F32, [2, 24, 6]);
        let attributes =
            [int_attribute("hidden_size", 6), string_attribute("direction", "bidirectional")];
        let outputs = builder.add_node_with_outputs("LSTM", &[&x, &w, &r], 3, attributes);
        builder.add_output(&outputs[0]);
        let graph = graph_of(builder);
        let types = types_of(&graph);
        assert_eq!(shown(&graph, &types, &outputs[0]), "f32[9,2,n,6]");
        assert_eq!(shown(&graph, &types, &outputs[1]), "f32[2,n,6]");
        assert_eq!(shown(&graph, &types, &outputs[2]), "f32[2,n,6]");
    }

    #[test]
    fn attention_has_the_length_of_the_queries_and_the_heads_of_the_values() {
        let shown = type_of(23, |builder: &mut GraphBuilder| {
            let q =
                builder.add_input("q", DType::F32, [symbol("n"), Dim::Fixed(5), Dim::Fixed(32)]);
            let k =
                builder.add_input("k", DType::F32, [symbol("n"), Dim::Fixed(7), Dim::Fixed(16)]);
            let v =
                builder.add_input("v", DType::F32, [symbol("n"), Dim::Fixed(7), Dim::Fixed(20)]);
            let attributes = [int_attribute("q_num_heads", 4), int_attribute("kv_num_heads", 2)];
            builder.add_node("Attention", &[&q, &k, &v], attributes)
        });
        assert_eq!(shown, "f32[n,5,40]");
    }
}
