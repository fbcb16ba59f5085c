//! Which operator keeps the rows of a batch apart, and where they are afterwards.
//!
//! To add an operator: its name here, and a rule beside those of its kind where none fits.

use super::pointwise::{
    along_axis_flow, arg_max_flow, broadcast_all_flow, broadcast_flow, elementwise_flow,
    fixed_axis_flow, from_axis_flow, last_axes_flow, quantize_flow, reduce_flow, softmax_flow,
};
use super::{NO_RULE, RowFlow, RowMixing, RowRule, RowView};
use super::{matrix, movement, numbering, selection};
use crate::infer::{Fact, Operator, is_broadcast_arithmetic, is_comparison, is_elementwise};

/// Whether an operator gives something else each time.
pub(super) fn draws_at_random(operator: &Operator<'_>) -> bool {
    operator.domain.is_empty()
        && matches!(
            operator.op_type,
            "Bernoulli"
                | "Multinomial"
                | "RandomNormal"
                | "RandomNormalLike"
                | "RandomUniform"
                | "RandomUniformLike"
        )
}

/// What the output at `place` has to do with the rows, where some input has rows.
pub(super) fn output_flow(view: &RowView<'_>, place: usize, fact: &Fact) -> RowRule {
    if fact.non_tensor {
        return Err(NO_RULE);
    }
    let is_look_up = matches!(view.operator.op_type, "Gather" | "GatherND");
    if view.has_numbers() && !is_look_up {
        return numbering::numbers_flow(view);
    }
    match view.operator.domain {
        "" => standard_flow(view, place),
        "ai.onnx.ml" => machine_learning_flow(view),
        "com.microsoft" => contrib_flow(view, place),
        _ => Err(NO_RULE),
    }
}

const SCALES_OVER_ROWS: RowMixing = RowMixing::Joined("has one scale for all rows together");

fn standard_flow(view: &RowView<'_>, place: usize) -> RowRule {
    let name = view.operator.op_type;
    if is_comparison(name) || is_broadcast_arithmetic(name) || is_broadcast_other(name) {
        return broadcast_all_flow(view);
    }
    if is_elementwise(name) || is_elementwise_conversion(name) {
        return elementwise_flow(view);
    }
    let integer = |name: &str, default: i64| view.operator.integer_attribute(name, default);
    match name {
        "Dropout" if place > 0 || !is_inference(view) => Err(NO_RULE),
        "Dropout" => elementwise_flow(view),
        "BatchNormalization" if place > 0 || integer("training_mode", 0) != 0 => {
            Err(RowMixing::Joined("has statistics over all rows"))
        }
        "BatchNormalization" | "InstanceNormalization" | "GroupNormalization" | "LRN" => {
            fixed_axis_flow(view, 0)
        }
        "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" | "DepthToSpace"
        | "SpaceToDepth" => fixed_axis_flow(view, 0),
        // Places of the highest are counted over all rows.
        "MaxPool" if place > 0 => Err(RowMixing::Joined("counts places over all rows")),
        "MaxPool" | "AveragePool" | "LpPool" | "Conv" | "ConvInteger" | "QLinearConv"
        | "ConvTranspose" => fixed_axis_flow(view, 0),
        "LayerNormalization" | "RMSNormalization" | "SimplifiedLayerNormalization" => {
            from_axis_flow(view, integer("axis", -1))
        }
        "LpNormalization" => along_axis_flow(view, integer("axis", -1)),
        "MeanVarianceNormalization" => mean_variance_flow(view),
        "Softmax" | "LogSoftmax" | "Hardmax" => softmax_flow(view),
        "QuantizeLinear" | "DequantizeLinear" => quantize_flow(view),
        "DynamicQuantizeLinear" => Err(SCALES_OVER_ROWS),
        "ArgMax" | "ArgMin" => arg_max_flow(view),
        name if name.starts_with("Reduce") => reduce_flow(view),
        "TopK" => along_axis_flow(view, integer("axis", -1)),
        "CumSum" | "CumProd" => selection::cumulated_flow(view),
        "Trilu" | "Det" => last_axes_flow(view, 2),

        "MatMul" | "MatMulInteger" => matrix::matmul_flow(view, 0, 1),
        "QLinearMatMul" => matrix::matmul_flow(view, 0, 3),
        "Gemm" => matrix::gemm_flow(view, 0, 1, 2),
        "Einsum" => matrix::einsum_flow(view),
        "LSTM" | "GRU" | "RNN" => matrix::recurrent_flow(view, place),

        "Reshape" => movement::reshape_flow(view),
        "Flatten" => movement::flatten_flow(view),
        "Transpose" => movement::transpose_flow(view),
        "Squeeze" | "Unsqueeze" | "Expand" => movement::resized_flow(view),
        "Tile" => movement::tile_flow(view),
        "Pad" => movement::pad_flow(view),
        "Resize" | "Upsample" => movement::resize_flow(view),

        "Concat" => {
            let places: Vec<usize> = (0..view.flows.len()).collect();
            selection::concat_flow(view, &places, integer("axis", 1))
        }
        "Split" => along_axis_flow(view, integer("axis", 0)),
        "Slice" => selection::slice_flow(view),
        "Gather" => selection::gather_flow(view),
        "GatherElements" => selection::gather_elements_flow(view),
        "GatherND" => selection::gather_nd_flow(view),
        "ScatterElements" => selection::scatter_elements_flow(view),
        "OneHot" => selection::one_hot_flow(view),
        "GridSample" => selection::grid_sample_flow(view),
        _ => Err(NO_RULE),
    }
}

/// What the operators of classical machine learning do.
fn machine_learning_flow(view: &RowView<'_>) -> RowRule {
    match view.operator.op_type {
        "Binarizer" | "CategoryMapper" | "LabelEncoder" => elementwise_flow(view),
        "Imputer"
        | "Normalizer"
        | "Scaler"
        | "LinearClassifier"
        | "LinearRegressor"
        | "SVMClassifier"
        | "SVMRegressor"
        | "TreeEnsembleClassifier"
        | "TreeEnsembleRegressor"
        | "TreeEnsemble" => selection::table_flow(view),
        "ArrayFeatureExtractor" => last_axes_flow(view, 1),
        _ => Err(NO_RULE),
    }
}

/// What ONNX Runtime's own operators do.
fn contrib_flow(view: &RowView<'_>, place: usize) -> RowRule {
    let integer = |name: &str, default: i64| view.operator.integer_attribute(name, default);
    match view.operator.op_type {
        "Gelu" | "QuickGelu" | "QLinearSigmoid" | "QLinearLeakyRelu" => elementwise_flow(view),
        "BiasGelu" | "FastGelu" => broadcast_all_flow(view),
        "QLinearAdd" | "QLinearMul" if view.are_others_same(&[0, 3]) => {
            broadcast_flow(view, &[0, 3])
        }
        "QLinearAveragePool" | "QLinearGlobalAveragePool" if integer("channels_last", 0) == 0 => {
            fixed_axis_flow(view, 0)
        }
        "FusedConv" | "NhwcMaxPool" => fixed_axis_flow(view, 0),
        "LayerNormalization" | "SimplifiedLayerNormalization" => {
            from_axis_flow(view, integer("axis", -1))
        }
        "QuantizeLinear" | "DequantizeLinear" => quantize_flow(view),
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => {
            let normalised = broadcast_all_flow(view)?;
            let rank = view.dims(0)?.len();
            match &normalised {
                RowFlow::Rows(rows) if rows.axis + 1 < rank && (place == 0 || place == 3) => {
                    Ok(normalised)
                }
                _ => Err(NO_RULE),
            }
        }
        "MatMulNBits" => last_axes_flow(view, 1),
        "FusedMatMul" if integer("transA", 0) == 0 && integer("transB", 0) == 0 => {
            matrix::matmul_flow(view, 0, 1)
        }
        "MatMulIntegerToFloat" => matrix::matmul_flow(view, 0, 1),
        "FusedGemm" => matrix::gemm_flow(view, 0, 1, 2),
        "DynamicQuantizeMatMul" | "DynamicQuantizeLSTM" => Err(SCALES_OVER_ROWS),
        _ => Err(NO_RULE),
    }
}

/// Whether nothing is dropped: that is so unless a model is being trained.
fn is_inference(view: &RowView<'_>) -> bool {
    match view.flows.get(2).copied().flatten() {
        None => true,
        Some(_) => view.operator.fixed_integers(2).is_some_and(|mode| mode == [0]),
    }
}

fn mean_variance_flow(view: &RowView<'_>) -> RowRule {
    let axes = view.operator.integers_attribute("axes").unwrap_or(&[0, 2, 3]);
    axes.iter().try_fold(elementwise_flow(view)?, |_, &axis| along_axis_flow(view, axis))
}

/// Whether an operator goes element by element over all its inputs, broadcast.
fn is_broadcast_other(name: &str) -> bool {
    matches!(name, "PRelu" | "Where")
}

/// The same where the dtype may be another one.
fn is_elementwise_conversion(name: &str) -> bool {
    matches!(name, "Cast" | "CastLike" | "IsInf" | "IsNaN" | "Not" | "RegexFullMatch")
}
