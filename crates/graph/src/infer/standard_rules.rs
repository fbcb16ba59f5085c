//! Which rule gives the outputs of one of ONNX's own operators their dimensions.

use tessera_core::Dim;

use super::elementwise::{
    broadcast_all, is_broadcast_arithmetic, is_comparison, is_type_preserving,
};
use super::fact::Dims;
use super::operator::{Operator, resolve_axis};
use super::{convolution, indexing, matrix, movement, reduction, resize, sequence};

/// The dimensions of each output, as the standard operator `name` gives them.
pub(crate) fn infer_standard_dims(operator: &Operator<'_>, name: &str) -> Vec<Dims> {
    if is_comparison(name) || is_broadcast_arithmetic(name) {
        return vec![broadcast_all(operator)];
    }
    let one: Dims = match name {
        "BatchNormalization" => {
            let statistics = std::iter::repeat_n(operator.copied_dims(1), 4);
            return std::iter::once(operator.copied_dims(0)).chain(statistics).collect();
        }
        "Dropout" => return vec![operator.copied_dims(0), operator.copied_dims(0)],
        "LayerNormalization" | "SimplifiedLayerNormalization" => {
            let statistics = infer_normalisation_mean(operator);
            return vec![operator.copied_dims(0), statistics.clone(), statistics];
        }
        "DynamicQuantizeLinear" => {
            return vec![operator.copied_dims(0), Some(vec![]), Some(vec![])];
        }
        "SoftmaxCrossEntropyLoss" => return vec![infer_loss(operator), operator.copied_dims(0)],
        "StringSplit" => return infer_string_split(operator),
        "Split" => return indexing::infer_split(operator),
        "TopK" => return indexing::infer_top_k(operator),
        "Unique" => return indexing::infer_unique(operator),
        "LSTM" | "GRU" | "RNN" => return sequence::infer_recurrent(operator),
        "Attention" => return sequence::infer_attention(operator),
        "MaxPool" | "AveragePool" | "LpPool" => {
            let pooled = convolution::infer_pool(operator);
            return vec![pooled.clone(), pooled];
        }

        name if is_type_preserving(name) => operator.copied_dims(0),
        "Bernoulli" | "BitCast" | "Cast" | "CastLike" | "DequantizeLinear" | "EyeLike"
        | "IsInf" | "IsNaN" | "Not" | "QuantizeLinear" | "RandomNormalLike"
        | "RandomUniformLike" | "RegexFullMatch" => operator.copied_dims(0),
        "Where" => broadcast_all(operator),
        "OptionalHasElement" | "SequenceLength" | "Size" => Some(vec![]),
        "Multinomial" => operator.input_dims(0).and_then(<[Dim]>::first).map(|batch| {
            let samples = usize::try_from(operator.integer_attribute("sample_size", 1));
            vec![batch.clone(), samples.map_or(Dim::Unknown, Dim::Fixed)]
        }),
        "RandomNormal" | "RandomUniform" => operator.integers_attribute("shape").map(|shape| {
            shape
                .iter()
                .map(|&size| usize::try_from(size).map_or(Dim::Unknown, Dim::Fixed))
                .collect()
        }),
        "BlackmanWindow" | "HammingWindow" | "HannWindow" => {
            Some(vec![operator.input_scalar(0).map_or(Dim::Unknown, |size| size.to_dim())])
        }
        "NegativeLogLikelihoodLoss" => infer_loss(operator),
        "ImageDecoder" => Some(vec![Dim::Unknown; 3]),

        "Conv" | "ConvInteger" | "DeformConv" => convolution::infer_convolution(operator, 1),
        "QLinearConv" => convolution::infer_convolution(operator, 3),
        "ConvTranspose" => convolution::infer_transposed_convolution(operator),
        "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" => {
            convolution::infer_global_pool(operator)
        }
        "RoiAlign" | "MaxRoiPool" => convolution::infer_region_pool(operator),
        "GridSample" => resize::infer_grid_sample(operator),
        "AffineGrid" => resize::infer_affine_grid(operator),
        "Resize" | "Upsample" => resize::infer_resize(operator),
        "DepthToSpace" => resize::infer_depth_to_space(operator),
        "SpaceToDepth" => resize::infer_space_to_depth(operator),
        "CenterCropPad" => resize::infer_center_crop_pad(operator),

        "Gemm" => matrix::infer_gemm(operator, 1),
        "MatMul" | "MatMulInteger" => matrix::infer_matmul(operator, 1),
        "QLinearMatMul" => matrix::infer_matmul(operator, 3),
        "Einsum" => matrix::infer_einsum(operator),
        "Det" => match operator.input_dims(0) {
            Some([batch @ .., _, _]) => Some(batch.to_vec()),
            _ => None,
        },

        "Reshape" => movement::infer_reshape(operator),
        "Flatten" => movement::infer_flatten(operator),
        "Transpose" => movement::infer_transpose(operator),
        "Squeeze" => movement::infer_squeeze(operator),
        "Unsqueeze" => movement::infer_unsqueeze(operator),
        "Expand" => movement::infer_expand(operator),
        "Tile" => movement::infer_tile(operator),
        "Pad" => movement::infer_pad(operator),
        "ConstantOfShape" => movement::infer_constant_of_shape(operator),
        "Range" => movement::infer_range(operator),

        "Shape" => operator
            .input_dims(0)
            .and_then(|dims| indexing::shape_range(operator, dims))
            .map(|part| vec![Dim::Fixed(part.len())]),
        "Concat" => {
            let inputs = operator.inputs.iter().map(|fact| fact.and_then(|fact| fact.dims()));
            indexing::infer_concat(operator, &inputs.collect::<Vec<_>>())
        }
        "Slice" => indexing::infer_slice(operator),
        "Gather" => indexing::infer_gather(operator),
        "GatherElements" => operator.copied_dims(1),
        "GatherND" => indexing::infer_gather_nd(operator),
        "OneHot" => indexing::infer_one_hot(operator),
        "Compress" => indexing::infer_compress(operator),
        "NonZero" => Some(vec![
            operator.input_dims(0).map_or(Dim::Unknown, |dims| Dim::Fixed(dims.len())),
            Dim::Unknown,
        ]),
        "NonMaxSuppression" => Some(vec![Dim::Unknown, Dim::Fixed(3)]),

        "ArgMax" | "ArgMin" => reduction::infer_arg_max(operator),
        name if name.starts_with("Reduce") => reduction::infer_reduce(operator),
        _ => None,
    };
    vec![one]
}

/// The dimensions of the mean that a layer is normalised by: 1 from `axis` on.
fn infer_normalisation_mean(operator: &Operator<'_>) -> Dims {
    let dims = operator.input_dims(0)?;
    let axis = resolve_axis(operator.integer_attribute("axis", -1), dims.len())?;
    let keep = |(index, dim): (usize, &Dim)| {
        if index < axis { dim.clone() } else { Dim::Fixed(1) }
    };
    Some(dims.iter().enumerate().map(keep).collect())
}

fn infer_loss(operator: &Operator<'_>) -> Dims {
    if operator.text_attribute("reduction") == "none" {
        operator.copied_dims(1)
    } else {
        Some(vec![])
    }
}

fn infer_string_split(operator: &Operator<'_>) -> Vec<Dims> {
    let parts = operator.input_dims(0).map(|dims| {
        let mut parts = dims.to_vec();
        parts.push(Dim::Unknown);
        parts
    });
    vec![parts, operator.copied_dims(0)]
}
