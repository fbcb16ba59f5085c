//! ONNX Runtime's own operators (`com.microsoft`), which its optimised models consist of.

use tessera_core::Dim;

use super::elementwise::broadcast_some;
use super::fact::Dims;
use super::operator::Operator;
use super::standard_rules::infer_standard_dims;
use super::{convolution, indexing, matrix, movement, reduction, resize, sequence};

/// The dimensions of each output; those that are missing at the end are unknown.
pub(crate) fn infer_contrib_dims(operator: &Operator<'_>) -> Vec<Dims> {
    let one: Dims = match operator.op_type {
        "FusedConv" => return infer_standard_dims(operator, "Conv"),
        "FusedGemm" => return infer_standard_dims(operator, "Gemm"),
        "DynamicQuantizeLSTM" => return infer_standard_dims(operator, "LSTM"),
        "DequantizeLinear" | "GatherND" | "Pad" | "QLinearConv" | "QuantizeLinear" | "Range" => {
            return infer_standard_dims(operator, operator.op_type);
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
        | "Trilu" => operator.copied_dims(0),
        "BiasDropout" => return vec![operator.copied_dims(0), operator.copied_dims(0)],
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => {
            return vec![operator.copied_dims(0), None, None, operator.copied_dims(0)];
        }
        "SkipGroupNorm" => return vec![operator.copied_dims(0), operator.copied_dims(0)],
        "EmbedLayerNormalization" => return infer_embed_layer_normalization(operator),
        "BiasSplitGelu" => operator.copied_dims(0).map(|mut dims| {
            if let Some(last) = dims.last_mut() {
                *last = last.fixed_size().map_or(Dim::Unknown, |size| Dim::Fixed(size / 2));
            }
            dims
        }),
        "QLinearAdd" | "QLinearMul" => broadcast_some(operator, &[0, 3]),
        "QLinearWhere" => broadcast_some(operator, &[0, 1, 4]),
        "QLinearConcat" => {
            let quantised = operator.inputs.iter().skip(2).step_by(3);
            let inputs: Vec<_> = quantised.map(|fact| fact.and_then(|fact| fact.dims())).collect();
            indexing::infer_concat(operator, &inputs)
        }
        "QLinearReduceMean" => reduction::infer_reduce_with_axes(operator, usize::MAX),
        "QLinearAveragePool" | "QLinearGlobalAveragePool"
            if operator.integer_attribute("channels_last", 0) != 0 =>
        {
            None
        }
        "QLinearAveragePool" => convolution::infer_pool(operator),
        "QLinearGlobalAveragePool" => convolution::infer_global_pool(operator),
        "MaxpoolWithMask" => convolution::infer_pool(operator),
        "GridSample" => resize::infer_grid_sample(operator),
        "ExpandDims" => movement::infer_expand_dims(operator),

        "FusedMatMul" | "FusedMatMulActivation" | "TransposeMatMul" => {
            matrix::infer_fused_matmul(operator)
        }
        "DynamicQuantizeMatMul" | "GemmFastGelu" | "MatMulInteger16" | "MatMulIntegerToFloat" => {
            matrix::infer_matmul(operator, 1)
        }
        "MatMulNBits" | "MatMulBnb4" => matrix::infer_packed_matmul(operator),
        "QGemm" => matrix::infer_gemm(operator, 3),
        "Attention" | "QAttention" => sequence::infer_packed_attention(operator),
        "MultiHeadAttention" => sequence::infer_multi_head_attention(operator),
        "GroupQueryAttention" => sequence::infer_group_query_attention(operator),
        _ => None,
    };
    vec![one]
}

/// Word embeddings: what is looked up, a place per batch, and the sum before normalisation.
fn infer_embed_layer_normalization(operator: &Operator<'_>) -> Vec<Dims> {
    let Some([batch, length]) = operator.input_dims(0) else {
        return Vec::new();
    };
    let hidden = match operator.input_dims(2) {
        Some([_, hidden]) => hidden.clone(),
        _ => Dim::Unknown,
    };
    let embedded = Some(vec![batch.clone(), length.clone(), hidden]);
    vec![embedded.clone(), Some(vec![batch.clone()]), embedded]
}
