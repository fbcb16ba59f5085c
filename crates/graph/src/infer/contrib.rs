//! ONNX Runtime's own operators (`com.microsoft`), which its optimised models consist of.

use tessera_core::Dim;

use super::elementwise::broadcast_some;
use super::fact::Dims;
use super::operator::Operator;
use super::{convolution, indexing, matrix, movement, reduction, resize, rules, sequence};

/// The dimensions of each output; those that are missing at the end are unknown.
pub(crate) fn dims(operator: &Operator<'_>) -> Vec<Dims> {
    let one: Dims = match operator.op_type {
        "FusedConv" => return rules::standard(operator, "Conv"),
        "FusedGemm" => return rules::standard(operator, "Gemm"),
        "DynamicQuantizeLSTM" => return rules::standard(operator, "LSTM"),
        "DequantizeLinear" | "GatherND" | "Pad" | "QLinearConv" | "QuantizeLinear" | "Range" => {
            return rules::standard(operator, operator.op_type);
        }

        "BiasAdd"
        | "BiasGelu"
        | "BiasSoftmax"
        | "FastGelu"
        | "GatedRelativePositionBias"
        | "Gelu"
        | "GemmaRotaryEmbedding"
        | "GroupNorm"
        | "Inverse"
        | "LongformerAttention"
        | "MoE"
        | "QLinearLeakyRelu"
        | "QLinearSigmoid"
        | "QLinearSoftmax"
        | "QMoE"
        | "QuickGelu"
        | "RotaryEmbedding"
        | "ScaledSiLU"
        | "Trilu" => operator.same(0),
        "BiasDropout" => return vec![operator.same(0), operator.same(0)],
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => {
            return vec![operator.same(0), None, None, operator.same(0)];
        }
        "SkipGroupNorm" => return vec![operator.same(0), operator.same(0)],
        "EmbedLayerNormalization" => return embedding(operator),
        "BiasSplitGelu" => operator.same(0).map(|mut dims| {
            if let Some(last) = dims.last_mut() {
                *last = last.fixed().map_or(Dim::Unknown, |size| Dim::Fixed(size / 2));
            }
            dims
        }),
        "QLinearAdd" | "QLinearMul" => broadcast_some(operator, &[0, 3]),
        "QLinearWhere" => broadcast_some(operator, &[0, 1, 4]),
        "QLinearConcat" => {
            let quantised = operator.inputs.iter().skip(2).step_by(3);
            let inputs: Vec<_> = quantised.map(|fact| fact.and_then(|fact| fact.dims())).collect();
            indexing::concat(operator, &inputs)
        }
        "QLinearReduceMean" => reduction::reduce_from(operator, usize::MAX),
        "QLinearAveragePool" | "QLinearGlobalAveragePool"
            if operator.integer("channels_last", 0) != 0 =>
        {
            None
        }
        "QLinearAveragePool" => convolution::pool(operator),
        "QLinearGlobalAveragePool" => convolution::global(operator),
        "MaxpoolWithMask" => convolution::pool(operator),
        "GridSample" => resize::sampled(operator),
        "ExpandDims" => movement::expand_dims(operator),

        "FusedMatMul" | "FusedMatMulActivation" | "TransposeMatMul" => matrix::fused(operator),
        "DynamicQuantizeMatMul" | "GemmFastGelu" | "MatMulInteger16" | "MatMulIntegerToFloat" => {
            matrix::product_of(operator, 1)
        }
        "MatMulNBits" | "MatMulBnb4" => matrix::packed(operator),
        "QGemm" => matrix::general(operator, 3),
        "Attention" | "QAttention" => sequence::packed_attention(operator),
        "MultiHeadAttention" => sequence::multi_head_attention(operator),
        "GroupQueryAttention" => sequence::group_query_attention(operator),
        _ => None,
    };
    vec![one]
}

/// Word embeddings: what is looked up, a place per batch, and the sum before normalisation.
fn embedding(operator: &Operator<'_>) -> Vec<Dims> {
    let Some([batch, length]) = operator.dims(0) else {
        return Vec::new();
    };
    let hidden = match operator.dims(2) {
        Some([_, hidden]) => hidden.clone(),
        _ => Dim::Unknown,
    };
    let embedded = Some(vec![batch.clone(), length.clone(), hidden]);
    vec![embedded.clone(), Some(vec![batch.clone()]), embedded]
}
