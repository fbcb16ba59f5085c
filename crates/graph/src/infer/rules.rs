//! Which domain's rules give an operator's outputs their dimensions.

use tessera_core::Dim;

use super::fact::Dims;
use super::operator::Operator;
use super::{contrib, standard_rules};

/// The dimensions of each output; those that are missing at the end are unknown.
pub(crate) fn infer_output_dims(operator: &Operator<'_>) -> Vec<Dims> {
    match operator.domain {
        "" => standard_rules::infer_standard_dims(operator, operator.op_type),
        "ai.onnx.ml" => infer_machine_learning_dims(operator),
        "com.microsoft" => contrib::infer_contrib_dims(operator),
        _ => Vec::new(),
    }
}

/// The dimensions that the operators of classical machine learning give.
fn infer_machine_learning_dims(operator: &Operator<'_>) -> Vec<Dims> {
    let rows = match operator.input_dims(0) {
        Some([rows, _]) => rows.clone(),
        _ => Dim::Unknown,
    };
    let count = |name: &str| {
        usize::try_from(operator.integer_attribute(name, 1)).map_or(Dim::Unknown, Dim::Fixed)
    };
    match operator.op_type {
        "Binarizer" | "Imputer" | "LabelEncoder" | "CategoryMapper" | "Normalizer" | "Scaler" => {
            vec![operator.copied_dims(0)]
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
