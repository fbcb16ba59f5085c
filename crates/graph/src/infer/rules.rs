//! Which rule gives an operator's outputs their dimensions.

use tessera_core::Dim;

use super::elementwise::{broadcast_all, combines, compares, keeps_type};
use super::fact::Dims;
use super::operator::{Operator, axis_of};
use super::{contrib, convolution, indexing, matrix, movement, reduction, resize, sequence};

/// The dimensions of each output; those that are missing at the end are unknown.
pub(crate) fn dims(operator: &Operator<'_>) -> Vec<Dims> {
    match operator.domain {
        "" => standard(operator, operator.op_type),
        "ai.onnx.ml" => machine_learning(operator),
        "com.microsoft" => contrib::dims(operator),
        _ => Vec::new(),
    }
}

/// The dimensions of each output, as the standard operator `name` gives them.
pub(crate) fn standard(operator: &Operator<'_>, name: &str) -> Vec<Dims> {
    if compares(name) || combines(name) {
        return vec![broadcast_all(operator)];
    }
    let one: Dims = match name {
        "BatchNormalization" => {
            let statistics = std::iter::repeat_n(operator.same(1), 4);
            return std::iter::once(operator.same(0)).chain(statistics).collect();
        }
        "Dropout" => return vec![operator.same(0), operator.same(0)],
        "LayerNormalization" | "SimplifiedLayerNormalization" => {
            let statistics = normalised(operator);
            return vec![operator.same(0), statistics.clone(), statistics];
        }
        "DynamicQuantizeLinear" => return vec![operator.same(0), Some(vec![]), Some(vec![])],
        "SoftmaxCrossEntropyLoss" => return vec![loss(operator), operator.same(0)],
        "StringSplit" => return string_split(operator),
        "Split" => return indexing::split(operator),
        "TopK" => return indexing::top(operator),
        "Unique" => return indexing::unique(operator),
        "LSTM" | "GRU" | "RNN" => return sequence::recurrent(operator),
        "Attention" => return sequence::attention(operator),
        "MaxPool" | "AveragePool" | "LpPool" => {
            let pooled = convolution::pool(operator);
            return vec![pooled.clone(), pooled];
        }

        name if keeps_type(name) => operator.same(0),
        "Bernoulli" | "BitCast" | "Cast" | "CastLike" | "DequantizeLinear" | "EyeLike"
        | "IsInf" | "IsNaN" | "Not" | "QuantizeLinear" | "RandomNormalLike"
        | "RandomUniformLike" | "RegexFullMatch" => operator.same(0),
        "Where" => broadcast_all(operator),
        "OptionalHasElement" | "SequenceLength" | "Size" => Some(vec![]),
        "Multinomial" => operator.dims(0).and_then(<[Dim]>::first).map(|batch| {
            let samples = usize::try_from(operator.integer("sample_size", 1));
            vec![batch.clone(), samples.map_or(Dim::Unknown, Dim::Fixed)]
        }),
        "RandomNormal" | "RandomUniform" => operator.integers("shape").map(|shape| {
            shape
                .iter()
                .map(|&size| usize::try_from(size).map_or(Dim::Unknown, Dim::Fixed))
                .collect()
        }),
        "BlackmanWindow" | "HammingWindow" | "HannWindow" => {
            Some(vec![operator.single(0).map_or(Dim::Unknown, |size| size.dim())])
        }
        "NegativeLogLikelihoodLoss" => loss(operator),
        "ImageDecoder" => Some(vec![Dim::Unknown; 3]),

        "Conv" | "ConvInteger" | "DeformConv" => convolution::convolution(operator, 1),
        "QLinearConv" => convolution::convolution(operator, 3),
        "ConvTranspose" => convolution::transposed(operator),
        "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" => convolution::global(operator),
        "RoiAlign" | "MaxRoiPool" => convolution::regions(operator),
        "GridSample" => resize::sampled(operator),
        "AffineGrid" => resize::affine_grid(operator),
        "Resize" | "Upsample" => resize::resize(operator),
        "DepthToSpace" => resize::depth_to_space(operator),
        "SpaceToDepth" => resize::space_to_depth(operator),
        "CenterCropPad" => resize::crop(operator),

        "Gemm" => matrix::general(operator, 1),
        "MatMul" | "MatMulInteger" => matrix::product_of(operator, 1),
        "QLinearMatMul" => matrix::product_of(operator, 3),
        "Einsum" => matrix::einsum(operator),
        "Det" => match operator.dims(0) {
            Some([batch @ .., _, _]) => Some(batch.to_vec()),
            _ => None,
        },

        "Reshape" => movement::reshape(operator),
        "Flatten" => movement::flatten(operator),
        "Transpose" => movement::transpose(operator),
        "Squeeze" => movement::squeeze(operator),
        "Unsqueeze" => movement::unsqueeze(operator),
        "Expand" => movement::expand(operator),
        "Tile" => movement::tile(operator),
        "Pad" => movement::pad(operator),
        "ConstantOfShape" => movement::constant_of_shape(operator),
        "Range" => movement::range(operator),

        "Shape" => operator
            .dims(0)
            .and_then(|dims| indexing::shape_part(operator, dims))
            .map(|part| vec![Dim::Fixed(part.len())]),
        "Concat" => {
            let inputs = operator.inputs.iter().map(|fact| fact.and_then(|fact| fact.dims()));
            indexing::concat(operator, &inputs.collect::<Vec<_>>())
        }
        "Slice" => indexing::slice(operator),
        "Gather" => indexing::gather(operator),
        "GatherElements" => operator.same(1),
        "GatherND" => indexing::gather_nd(operator),
        "OneHot" => indexing::one_hot(operator),
        "Compress" => indexing::compress(operator),
        "NonZero" => Some(vec![
            operator.dims(0).map_or(Dim::Unknown, |dims| Dim::Fixed(dims.len())),
            Dim::Unknown,
        ]),
        "NonMaxSuppression" => Some(vec![Dim::Unknown, Dim::Fixed(3)]),

        "ArgMax" | "ArgMin" => reduction::arg(operator),
        name if name.starts_with("Reduce") => reduction::reduce(operator),
        _ => None,
    };
    vec![one]
}

/// The dimensions of the mean that a layer is normalised by: 1 from `axis` on.
fn normalised(operator: &Operator<'_>) -> Dims {
    let dims = operator.dims(0)?;
    let axis = axis_of(operator.integer("axis", -1), dims.len())?;
    let keep = |(index, dim): (usize, &Dim)| {
        if index < axis { dim.clone() } else { Dim::Fixed(1) }
    };
    Some(dims.iter().enumerate().map(keep).collect())
}

fn loss(operator: &Operator<'_>) -> Dims {
    if operator.text("reduction") == "none" { operator.same(1) } else { Some(vec![]) }
}

fn string_split(operator: &Operator<'_>) -> Vec<Dims> {
    let parts = operator.dims(0).map(|dims| {
        let mut parts = dims.to_vec();
        parts.push(Dim::Unknown);
        parts
    });
    vec![parts, operator.same(0)]
}

/// The dimensions that the operators of classical machine learning give.
fn machine_learning(operator: &Operator<'_>) -> Vec<Dims> {
    let rows = match operator.dims(0) {
        Some([rows, _]) => rows.clone(),
        _ => Dim::Unknown,
    };
    let count =
        |name: &str| usize::try_from(operator.integer(name, 1)).map_or(Dim::Unknown, Dim::Fixed);
    match operator.op_type {
        "Binarizer" | "Imputer" | "LabelEncoder" | "CategoryMapper" | "Normalizer" | "Scaler" => {
            vec![operator.same(0)]
        }
        "LinearClassifier" | "SVMClassifier" | "TreeEnsembleClassifier" => {
            vec![Some(vec![rows.clone()]), Some(vec![rows, Dim::Unknown])]
        }
        "LinearRegressor" => vec![Some(vec![rows, count("targets")])],
        "TreeEnsembleRegressor" | "TreeEnsemble" => vec![Some(vec![rows, count("n_targets")])],
        "SVMRegressor" => vec![Some(vec![rows, Dim::Fixed(1)])],
        _ => Vec::new(),
    }
}
