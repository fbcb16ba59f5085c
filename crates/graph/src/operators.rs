//! Which operators exist, and since which version of their domain.
//!
//! The table (`operators.txt`) lists ONNX's operators as of opset 28 and ONNX Runtime's own, each
//! with the versions at which its definition changed; an `x` marks the version that removed it.

use std::collections::HashMap;
use std::sync::OnceLock;

use tessera_core::{Error, Result};

use crate::infer::{is_broadcast_arithmetic, is_comparison, is_elementwise};

const OPERATOR_TABLE: &str = include_str!("operators.txt");

/// The newest version of ONNX's own domain that the table knows.
const NEWEST_OPSET: i64 = 28;

type OperatorVersions = Vec<(i64, bool)>;

fn operator_table() -> &'static HashMap<(&'static str, &'static str), OperatorVersions> {
    static PARSED: OnceLock<HashMap<(&'static str, &'static str), OperatorVersions>> =
        OnceLock::new();
    PARSED.get_or_init(|| {
        let mut parsed = HashMap::new();
        for line in OPERATOR_TABLE.lines() {
            let mut words = line.split(' ');
            let (Some(domain), Some(op)) = (words.next(), words.next()) else {
                continue;
            };
            let versions = words
                .filter_map(|word| {
                    let removed = word.ends_with('x');
                    word.trim_end_matches('x').parse().ok().map(|version| (version, removed))
                })
                .collect();
            parsed.insert((canonical_domain(domain), op), versions);
        }
        parsed
    })
}

/// The domain's name in one spelling: ONNX's own is the empty one.
pub(crate) fn canonical_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// The version at which the operator's definition last changed, as of `opset` of its domain.
///
/// Fails where the operator does not exist at that version.
pub(crate) fn since_version(domain: &str, op: &str, opset: i64) -> Result<i64> {
    let shown = if domain.is_empty() { op.to_owned() } else { format!("{domain}.{op}") };
    let Some(versions) = operator_table().get(&(domain, op)) else {
        if domain.is_empty() && opset > NEWEST_OPSET {
            return Ok(opset);
        }
        return Err(Error::invalid(format!(
            "unknown operator {shown}: not in ONNX (opset {opset}), ONNX Runtime or the model's functions"
        )));
    };
    match versions.iter().rev().find(|(since, _)| *since <= opset) {
        Some((since, false)) => {
            Ok(if domain.is_empty() && opset > NEWEST_OPSET { opset } else { *since })
        }
        Some((since, true)) => Err(Error::invalid(format!(
            "operator {shown} was removed in opset {since}, and the model imports opset {opset}"
        ))),
        None => Err(Error::invalid(format!(
            "operator {shown} exists from opset {}, and the model imports opset {opset}",
            versions.first().map_or(0, |(since, _)| *since)
        ))),
    }
}

/// Whether two runs of the operator on the same inputs give the same outputs.
pub(crate) fn is_deterministic(domain: &str, op: &str) -> bool {
    !matches!(
        (domain, op),
        (
            "",
            "RandomNormal"
                | "RandomNormalLike"
                | "RandomUniform"
                | "RandomUniformLike"
                | "Multinomial"
                | "Bernoulli"
        )
    )
}

/// Whether an operator takes about as long as writing its outputs, and gives the same each time.
pub(crate) fn is_cheap(domain: &str, op: &str) -> bool {
    domain.is_empty()
        && (is_elementwise(op)
            || is_comparison(op)
            || is_broadcast_arithmetic(op)
            || matches!(
                op,
                "ArgMax"
                    | "Cast"
                    | "CastLike"
                    | "Concat"
                    | "ConstantOfShape"
                    | "CumSum"
                    | "Expand"
                    | "EyeLike"
                    | "Flatten"
                    | "Gather"
                    | "GatherElements"
                    | "GatherND"
                    | "IsInf"
                    | "IsNaN"
                    | "Not"
                    | "OneHot"
                    | "Pad"
                    | "Range"
                    | "ReduceMax"
                    | "ReduceMin"
                    | "ReduceProd"
                    | "ReduceSum"
                    | "Reshape"
                    | "ScatterND"
                    | "Shape"
                    | "Size"
                    | "Slice"
                    | "Split"
                    | "Squeeze"
                    | "Tile"
                    | "Transpose"
                    | "Trilu"
                    | "Unsqueeze"
                    | "Where"
            ))
}

/// Whether engines commonly fuse this operator of ONNX into the node that makes its input.
pub(crate) fn is_fused_into_its_input(op: &str) -> bool {
    matches!(
        op,
        "Relu"
            | "LeakyRelu"
            | "PRelu"
            | "Elu"
            | "Selu"
            | "Clip"
            | "Sigmoid"
            | "HardSigmoid"
            | "HardSwish"
            | "Tanh"
            | "Gelu"
            | "Mish"
            | "Softplus"
            | "BatchNormalization"
            | "Dropout"
            | "Identity"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_resolves_to_the_version_that_last_changed_it() {
        assert_eq!(since_version("", "Conv", 17).unwrap(), 11);
        assert_eq!(since_version("", "Conv", 22).unwrap(), 22);
        assert_eq!(since_version("com.microsoft", "FusedMatMul", 1).unwrap(), 1);
    }

    #[test]
    fn an_operator_that_does_not_exist_at_a_version_is_refused() {
        let message = |op, opset| since_version("", op, opset).unwrap_err().to_string();
        assert!(message("Frobnicate", 17).contains("unknown operator Frobnicate"));
        assert!(message("Gelu", 17).contains("exists from opset 20"));
        assert!(message("Upsample", 17).contains("removed in opset 10"));
    }
}
