//! What kind of value each output of an operator is, and of which dtype.

use tessera_core::DType;

use super::elementwise::{is_broadcast_arithmetic, is_comparison, is_type_preserving};
use super::operator::Operator;
use crate::onnx::tensor_proto;

/// What kind of value an output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputKind {
    /// A tensor of this dtype.
    Tensor(DType),
    /// A sequence, a map or an optional.
    NonTensor,
    /// Anything.
    Unknown,
}

impl OutputKind {
    fn of_dtype(dtype: Option<DType>) -> Self {
        dtype.map_or(Self::Unknown, Self::Tensor)
    }
}

/// What kind of value the output at `index` is.
pub(crate) fn infer_output_kind(operator: &Operator<'_>, index: usize) -> OutputKind {
    match operator.domain {
        "" => infer_standard_kind(operator, index),
        "ai.onnx.ml" => infer_machine_learning_kind(operator, index),
        "com.microsoft" => infer_contrib_kind(operator, index),
        "com.microsoft.nchwc" => OutputKind::of_dtype(operator.input_dtype(0)),
        _ => OutputKind::Unknown,
    }
}

fn infer_standard_kind(operator: &Operator<'_>, index: usize) -> OutputKind {
    let name = operator.op_type;
    let input = |index: usize| operator.input_dtype(index);
    let is_other = || operator.input_fact(0).is_some_and(|fact| fact.non_tensor);
    if matches!(name, "Identity" | "OptionalGetElement") && is_other() {
        // The element of an optional may be a sequence or a tensor.
        return if name == "Identity" { OutputKind::NonTensor } else { OutputKind::Unknown };
    }
    if is_comparison(name) {
        return OutputKind::Tensor(DType::Bool);
    }
    if is_broadcast_arithmetic(name) {
        return OutputKind::of_dtype(first_known(operator, 0, 1));
    }
    OutputKind::of_dtype(match (name, index) {
        (
            "Optional" | "SequenceConstruct" | "SequenceEmpty" | "SequenceErase" | "SequenceInsert",
            _,
        )
        | ("SequenceMap" | "SplitToSequence", _) => return OutputKind::NonTensor,
        ("IsInf" | "IsNaN" | "Not" | "OptionalHasElement" | "RegexFullMatch", _) => {
            Some(DType::Bool)
        }
        ("ArgMax" | "ArgMin" | "NonMaxSuppression" | "NonZero" | "SequenceLength" | "Shape", _)
        | ("Size", _)
        | ("MaxPool" | "StringSplit" | "TopK", 1)
        | ("Unique", 1..) => Some(DType::I64),
        ("Dropout", 1) if operator.opset() >= 10 => Some(DType::Bool),
        ("BatchNormalization", 1..) => input(if operator.opset() >= 14 { 3 } else { 1 }),
        ("LayerNormalization" | "SimplifiedLayerNormalization", 1..) => {
            operator.dtype_attribute("stash_type").or(Some(DType::F32))
        }
        ("Attention", 1) => input(4).or(input(1)),
        ("Attention", 2) => input(5).or(input(2)),
        ("CausalConvWithState" | "LinearAttention", 1..) => None,
        ("Concat", _) => first_known(operator, 0, 1),
        ("Cast", _) => cast_target(operator),
        ("BitCast", _) => operator.dtype_attribute("to"),
        ("CastLike", _) => input(1),
        ("QuantizeLinear", _) => {
            operator.dtype_attribute("output_dtype").or(input(2)).or(Some(DType::U8))
        }
        ("DequantizeLinear", _) => {
            operator.dtype_attribute("output_dtype").or(input(1)).or(Some(DType::F32))
        }
        ("DynamicQuantizeLinear", 1) => Some(DType::F32),
        ("DynamicQuantizeLinear", _) => Some(DType::U8),
        ("QLinearConv" | "QLinearMatMul", _) => input(7).or(input(0)),
        ("ConvInteger" | "MatMulInteger", _) => Some(DType::I32),
        ("ConstantOfShape", _) => match operator.attribute("value") {
            Some(value) => value.t.as_ref().and_then(|tensor| DType::from_onnx(tensor.data_type())),
            None => Some(DType::F32),
        },
        ("Bernoulli" | "EyeLike" | "RandomNormalLike" | "RandomUniformLike", _) => {
            operator.dtype_attribute("dtype").or(input(0))
        }
        ("RandomNormal" | "RandomUniform", _) => {
            operator.dtype_attribute("dtype").or(Some(DType::F32))
        }
        ("Multinomial", _) => operator.dtype_attribute("dtype").or(Some(DType::I32)),
        ("BlackmanWindow" | "HammingWindow" | "HannWindow" | "MelWeightMatrix", _) => {
            operator.dtype_attribute("output_datatype").or(Some(DType::F32))
        }
        ("Range", _) => first_known(operator, 0, 1),
        ("OneHot", _) => input(2),
        ("Where", _) => input(1).or(input(2)),
        ("StringNormalizer" | "StringSplit", _) => Some(DType::String),
        ("TfIdfVectorizer", _) => Some(DType::F32),
        ("ImageDecoder", _) => Some(DType::U8),
        (name, _) if is_type_preserving(name) || is_dtype_preserving(name) => input(0),
        _ => None,
    })
}

/// Whether all outputs have the dtype of the first input, though not its dimensions.
fn is_dtype_preserving(name: &str) -> bool {
    matches!(
        name,
        "AffineGrid"
            | "Attention"
            | "AveragePool"
            | "CausalConvWithState"
            | "CenterCropPad"
            | "Col2Im"
            | "Compress"
            | "Conv"
            | "ConvTranspose"
            | "DFT"
            | "DeformConv"
            | "DepthToSpace"
            | "Det"
            | "Einsum"
            | "Expand"
            | "Flatten"
            | "GRU"
            | "Gather"
            | "GatherElements"
            | "GatherND"
            | "Gemm"
            | "GlobalAveragePool"
            | "GlobalLpPool"
            | "GlobalMaxPool"
            | "GridSample"
            | "LSTM"
            | "LinearAttention"
            | "LpPool"
            | "MatMul"
            | "MaxPool"
            | "MaxRoiPool"
            | "MaxUnpool"
            | "NegativeLogLikelihoodLoss"
            | "OptionalGetElement"
            | "Pad"
            | "RNN"
            | "ReduceL1"
            | "ReduceL2"
            | "ReduceLogSum"
            | "ReduceLogSumExp"
            | "ReduceMax"
            | "ReduceMean"
            | "ReduceMin"
            | "ReduceProd"
            | "ReduceSum"
            | "ReduceSumSquare"
            | "Reshape"
            | "Resize"
            | "RoiAlign"
            | "STFT"
            | "Slice"
            | "SoftmaxCrossEntropyLoss"
            | "SpaceToDepth"
            | "Split"
            | "Squeeze"
            | "SwiGLU"
            | "Tile"
            | "TopK"
            | "Transpose"
            | "Unique"
            | "Unsqueeze"
            | "Upsample"
    )
}

/// The first dtype that is known among the inputs `start`, `start + step`, …
fn first_known(operator: &Operator<'_>, start: usize, step: usize) -> Option<DType> {
    let mut inputs = operator.inputs.iter().skip(start).step_by(step.max(1));
    inputs.find_map(|input| input.and_then(|fact| fact.tensor.as_ref()).map(|tensor| tensor.dtype))
}

/// The dtype that `Cast` gives: a number, before opset 6 a name.
fn cast_target(operator: &Operator<'_>) -> Option<DType> {
    operator.dtype_attribute("to").or_else(|| {
        let name = operator.text_attribute("to").to_ascii_uppercase();
        tensor_proto::DataType::from_str_name(&name)
            .and_then(|dtype| DType::from_onnx(dtype as i32))
    })
}

fn infer_machine_learning_kind(operator: &Operator<'_>, index: usize) -> OutputKind {
    let has = |name: &str| operator.attribute(name).is_some();
    let has_text = |name: &str| {
        operator.attribute(name).is_some_and(|attribute| !attribute.strings.is_empty())
    };
    let mapped = || match operator.input_dtype(0)? {
        DType::String => Some(DType::I64),
        _ => Some(DType::String),
    };
    OutputKind::of_dtype(match (operator.op_type, index) {
        ("ZipMap", _) => return OutputKind::NonTensor,
        ("LinearClassifier" | "SVMClassifier" | "TreeEnsembleClassifier", 0) => {
            Some(if has_text("classlabels_strings") { DType::String } else { DType::I64 })
        }
        ("LinearClassifier" | "SVMClassifier" | "TreeEnsembleClassifier", _)
        | ("FeatureVectorizer" | "LinearRegressor" | "Normalizer" | "OneHotEncoder", _)
        | ("SVMRegressor" | "Scaler" | "TreeEnsembleRegressor", _) => Some(DType::F32),
        ("ArrayFeatureExtractor" | "Binarizer" | "Imputer" | "TreeEnsemble", _) => {
            operator.input_dtype(0)
        }
        ("CastMap", _) => Some(match operator.text_attribute("cast_to") {
            "TO_STRING" => DType::String,
            "TO_INT64" => DType::I64,
            _ => DType::F32,
        }),
        ("CategoryMapper", _) => mapped(),
        ("LabelEncoder", _) if has("classes_strings") => mapped(),
        ("LabelEncoder", _) if has("values_strings") => Some(DType::String),
        ("LabelEncoder", _) if has("values_int64s") => Some(DType::I64),
        ("LabelEncoder", _) if has("values_floats") => Some(DType::F32),
        ("LabelEncoder", _) => operator
            .attribute("values_tensor")
            .and_then(|attribute| attribute.t.as_ref())
            .and_then(|tensor| DType::from_onnx(tensor.data_type())),
        _ => None,
    })
}

fn infer_contrib_kind(operator: &Operator<'_>, index: usize) -> OutputKind {
    let input = |index: usize| operator.input_dtype(index);
    OutputKind::of_dtype(match (operator.op_type, index) {
        ("QuantizeLinear" | "DequantizeLinear" | "QLinearConv" | "Unique" | "Range", _) => {
            return infer_standard_kind(operator, index);
        }
        ("MatMulInteger16" | "MulInteger", _) => Some(DType::I32),
        ("MatMulIntegerToFloat", _) => input(2).or(Some(DType::F32)),
        ("DynamicQuantizeMatMul" | "DynamicQuantizeLSTM" | "WordConvEmbedding", _) => {
            Some(DType::F32)
        }
        ("QGemm", _) => input(8).or(Some(DType::F32)),
        ("QAttention", _) => input(2).or(Some(DType::F32)),
        ("QLinearConcat", _) => input(1).or(first_known(operator, 2, 3)),
        ("QLinearWhere", _) => input(1),
        ("GatherBlockQuantized", _) => input(2),
        ("EmbedLayerNormalization", 1) | ("QEmbedLayerNormalization", 1) => Some(DType::I32),
        ("EmbedLayerNormalization", _) => input(2).or(Some(DType::F32)),
        ("QEmbedLayerNormalization", _) => Some(DType::F32),
        ("SkipLayerNormalization" | "SkipSimplifiedLayerNormalization", 1 | 2) => Some(DType::F32),
        ("BiasDropout", 1) | ("IsAllFinite", _) => Some(DType::Bool),
        ("BitmaskBiasDropout" | "BitmaskDropout", 1) => Some(DType::U32),
        ("BeamSearch" | "GreedySearch" | "Sampling" | "WhisperBeamSearch", 0) => Some(DType::I32),
        ("Tokenizer", _) => Some(DType::String),
        ("MurmurHash3", _) => Some(if operator.integer_attribute("positive", 1) != 0 {
            DType::U32
        } else {
            DType::I32
        }),
        (name, 0) if is_first_dtype_preserving(name) => input(0),
        (
            "Attention"
            | "DecoderMaskedMultiHeadAttention"
            | "DecoderMaskedSelfAttention"
            | "GroupQueryAttention"
            | "MultiHeadAttention"
            | "SkipGroupNorm"
            | "SkipLayerNormalization"
            | "SkipSimplifiedLayerNormalization"
            | "SparseAttention",
            _,
        ) => input(0),
        _ => None,
    })
}

/// Whether the first output of one of ONNX Runtime's own operators has its first input's dtype.
fn is_first_dtype_preserving(name: &str) -> bool {
    matches!(
        name,
        "Attention"
            | "AttnLSTM"
            | "BiasAdd"
            | "BiasDropout"
            | "BiasGelu"
            | "BiasSoftmax"
            | "BiasSplitGelu"
            | "BitmaskBiasDropout"
            | "BitmaskDropout"
            | "CDist"
            | "CausalConvWithState"
            | "ComplexMul"
            | "ComplexMulConj"
            | "ConvTransposeWithDynamicPads"
            | "CropAndResize"
            | "DecoderAttention"
            | "DecoderMaskedMultiHeadAttention"
            | "DecoderMaskedSelfAttention"
            | "ExpandDims"
            | "FastGelu"
            | "FusedConv"
            | "FusedGemm"
            | "FusedMatMul"
            | "FusedMatMulActivation"
            | "GatedRelativePositionBias"
            | "GatherND"
            | "Gelu"
            | "GemmFastGelu"
            | "GemmaRotaryEmbedding"
            | "GridSample"
            | "GroupNorm"
            | "GroupQueryAttention"
            | "Inverse"
            | "Irfft"
            | "LinearAttention"
            | "LongformerAttention"
            | "MatMulBnb4"
            | "MatMulFpQ4"
            | "MatMulNBits"
            | "MaxpoolWithMask"
            | "MoE"
            | "MultiHeadAttention"
            | "NGramRepeatBlock"
            | "NhwcConv"
            | "NhwcFusedConv"
            | "NhwcMaxPool"
            | "PackedAttention"
            | "PackedMultiHeadAttention"
            | "Pad"
            | "PagedAttention"
            | "QLinearAdd"
            | "QLinearAveragePool"
            | "QLinearGlobalAveragePool"
            | "QLinearLeakyRelu"
            | "QLinearMul"
            | "QLinearReduceMean"
            | "QLinearSigmoid"
            | "QLinearSoftmax"
            | "QMoE"
            | "QuickGelu"
            | "RelativePositionBias"
            | "RemovePadding"
            | "RestorePadding"
            | "Rfft"
            | "RotaryEmbedding"
            | "ScaledSiLU"
            | "SkipGroupNorm"
            | "SkipLayerNormalization"
            | "SkipSimplifiedLayerNormalization"
            | "SparseAttention"
            | "TorchEmbedding"
            | "TransposeMatMul"
            | "Trilu"
            | "UnfoldTensor"
    )
}

#[cfg(test)]
mod tests {
    use super::super::testing::{graph_of, shown, types_of};
    use super::*;
    use crate::builder::{GraphBuilder, int_attribute, string_attribute};

    #[test]
    fn every_output_gets_the_dtype_of_its_own() {
        let mut builder = GraphBuilder::new("outputs").with_opset(21);
        let x = builder.add_input("x", DType::F16, [2, 8]);
        let k = builder.add_i64_weight("k", &[1], vec![3]);
        let top = builder.add_node_with_outputs("TopK", &[&x, &k], 2, []);
        let dropped = builder.add_node_with_outputs("Dropout", &[&x], 2, []);
        let full = builder.add_node("Cast", &[&x], [int_attribute("to", 1)]);
        let quantised = builder.add_node_with_outputs("DynamicQuantizeLinear", &[&full], 3, []);
        let like = builder.add_node("CastLike", &[&x, &full], []);
        for output in [&like, &top[0], &dropped[1], &quantised[0]] {
            builder.add_output(output);
        }
        let graph = graph_of(builder);
        let types = types_of(&graph);
        for (value, expected) in [
            (&top[0], "f16[2,3]"),
            (&top[1], "i64[2,3]"),
            (&dropped[1], "bool[2,8]"),
            (&quantised[0], "u8[2,8]"),
            (&quantised[1], "f32[]"),
            (&quantised[2], "u8[]"),
            (&like, "f32[2,8]"),
        ] {
            assert_eq!(shown(&graph, &types, value), expected, "{value}");
        }
    }

    #[test]
    fn the_first_cast_named_its_dtype() {
        let mut builder = GraphBuilder::new("cast").with_opset(1);
        let x = builder.add_input("x", DType::F32, [2]);
        let cast = builder.add_node("Cast", &[&x], [string_attribute("to", "INT64")]);
        builder.add_output(&cast);
        let graph = graph_of(builder);
        let types = types_of(&graph);
        assert_eq!(shown(&graph, &types, &cast), "i64[2]");
    }
}
