//! Versions of operators that mean the same.
//!
//! Most versions of an operator only allow more types than those before, or have an attribute that
//! changes nothing where it is missing. Blocks are written in the lowest version that means the same,
//! so that re-exporting a model with another opset gives the same blocks.

use tessera_core::DType;

/// Which dtypes the lowest of several versions allows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AllowedTypes {
    /// Floating-point numbers of 16 to 64 bits.
    Floats,
    /// Those, integers of 32 and 64 bits, truth values, and bytes.
    Usual,
}

/// Versions of an operator that mean the same for dtypes that the lowest allows.
struct EqualVersions {
    operator: &'static str,
    versions: &'static [i64],
    types: AllowedTypes,
    /// Attributes that only some of the versions have.
    without: &'static [&'static str],
}

const fn floats(operator: &'static str, versions: &'static [i64]) -> EqualVersions {
    EqualVersions { operator, versions, types: AllowedTypes::Floats, without: &[] }
}

const fn usual(operator: &'static str, versions: &'static [i64]) -> EqualVersions {
    EqualVersions { operator, versions, types: AllowedTypes::Usual, without: &[] }
}

const fn usual_without(
    operator: &'static str,
    versions: &'static [i64],
    without: &'static [&'static str],
) -> EqualVersions {
    EqualVersions { operator, versions, types: AllowedTypes::Usual, without }
}

/// From the changelog of ONNX's operators. Where a version moved something from an attribute to an
/// input, or changed what a value means, it begins a row of its own.
const EQUAL_VERSIONS: &[EqualVersions] = &[
    usual("Abs", &[6, 13]),
    usual("Add", &[7, 13, 14]),
    usual("ArgMax", &[12, 13]),
    usual("ArgMin", &[12, 13]),
    floats("AveragePool", &[19, 22]),
    floats("BatchNormalization", &[14, 15]),
    usual("Cast", &[9, 13, 19, 21, 23, 24, 25]),
    floats("Ceil", &[6, 13]),
    floats("Clip", &[11, 12, 13]),
    usual("Concat", &[11, 13]),
    usual("ConstantOfShape", &[9, 20, 21, 23, 24, 25]),
    floats("Conv", &[11, 22]),
    floats("ConvTranspose", &[11, 22]),
    floats("Cos", &[7, 22]),
    usual("CumSum", &[11, 14]),
    usual_without("DequantizeLinear", &[13, 19, 21, 23, 24, 25], &["block_size", "output_dtype"]),
    usual("Div", &[7, 13, 14]),
    floats("Dropout", &[12, 13, 22]),
    floats("Elu", &[6, 22]),
    usual("Equal", &[11, 13, 19]),
    usual("Erf", &[9, 13]),
    floats("Exp", &[6, 13]),
    usual("Expand", &[8, 13]),
    usual("Flatten", &[11, 13, 21, 23, 24, 25]),
    floats("Floor", &[6, 13]),
    usual("Gather", &[11, 13]),
    usual("GatherElements", &[11, 13]),
    usual("GatherND", &[12, 13]),
    floats("Gemm", &[11, 13]),
    floats("GlobalAveragePool", &[1, 22]),
    floats("GlobalMaxPool", &[1, 22]),
    usual("Greater", &[9, 13]),
    usual("GreaterOrEqual", &[12, 16]),
    floats("HardSigmoid", &[6, 22]),
    floats("HardSwish", &[14, 22]),
    usual("Identity", &[1, 13, 14, 16, 19, 21, 23, 24, 25]),
    floats("InstanceNormalization", &[6, 22]),
    floats("LeakyRelu", &[6, 16]),
    usual("Less", &[9, 13]),
    usual("LessOrEqual", &[12, 16]),
    floats("Log", &[6, 13]),
    floats("MatMul", &[1, 9, 13]),
    floats("Max", &[8, 12, 13]),
    floats("MaxPool", &[12, 22]),
    floats("Min", &[8, 12, 13]),
    usual("Mod", &[10, 13]),
    usual("Mul", &[7, 13, 14]),
    usual("Neg", &[6, 13]),
    usual("NonZero", &[9, 13]),
    floats("PRelu", &[9, 16]),
    usual("Pad", &[11, 13]),
    usual("Pad", &[18, 19, 21, 23, 24, 25]),
    floats("Pow", &[12, 13, 15]),
    usual_without(
        "QuantizeLinear",
        &[13, 19, 21, 23, 24, 25],
        &["block_size", "output_dtype", "precision", "saturate"],
    ),
    floats("Reciprocal", &[6, 13]),
    usual("ReduceMax", &[12, 13]),
    usual("ReduceMax", &[18, 20]),
    usual("ReduceMean", &[11, 13]),
    usual("ReduceMin", &[12, 13]),
    usual("ReduceMin", &[18, 20]),
    usual("ReduceProd", &[11, 13]),
    usual("ReduceL2", &[11, 13]),
    floats("Relu", &[6, 13, 14]),
    usual_without("Reshape", &[5, 13, 14, 19, 21, 23, 24, 25], &["allowzero"]),
    floats("Round", &[11, 22]),
    usual_without("ScatterND", &[11, 13, 16, 18], &["reduction"]),
    usual_without("ScatterElements", &[11, 13, 16, 18], &["reduction"]),
    floats("Selu", &[6, 22]),
    usual_without("Shape", &[1, 13, 15, 19, 21, 23, 24, 25], &["end", "start"]),
    floats("Sigmoid", &[6, 13]),
    usual("Sign", &[9, 13]),
    floats("Sin", &[7, 22]),
    usual("Size", &[1, 13, 19, 21, 23, 24, 25]),
    usual("Slice", &[11, 13]),
    floats("Softplus", &[1, 22]),
    floats("Softsign", &[1, 22]),
    floats("Sqrt", &[6, 13]),
    usual("Squeeze", &[13, 21, 23, 24, 25]),
    usual("Sub", &[7, 13, 14]),
    floats("Tanh", &[6, 13]),
    usual("Tile", &[6, 13]),
    usual("Transpose", &[1, 13, 21, 23, 24, 25]),
    usual("Unsqueeze", &[13, 21, 23, 24, 25]),
    usual("Where", &[9, 16]),
];

impl EqualVersions {
    fn allows(&self, dtype: DType) -> bool {
        use DType::{Bool, F16, F32, F64, I8, I32, I64, U8};
        match self.types {
            AllowedTypes::Floats => matches!(dtype, F16 | F32 | F64),
            AllowedTypes::Usual => matches!(dtype, F16 | F32 | F64 | I8 | U8 | I32 | I64 | Bool),
        }
    }
}

fn find_row(domain: &str, operator: &str, version: i64) -> Option<&'static EqualVersions> {
    let is_it = |row: &&EqualVersions| row.operator == operator && row.versions.contains(&version);
    EQUAL_VERSIONS.iter().find(is_it).filter(|_| domain.is_empty())
}

/// The lowest version that means the same as `version` of an operator, for values of these dtypes.
pub(crate) fn lowest_equal_version<'a>(
    domain: &str,
    operator: &str,
    version: i64,
    mut attributes: impl Iterator<Item = &'a str>,
    mut dtypes: impl Iterator<Item = Option<DType>>,
) -> i64 {
    let Some(row) = find_row(domain, operator, version) else {
        return version;
    };
    let is_plain = attributes.all(|name| !row.without.contains(&name));
    let is_allowed = dtypes.all(|dtype| dtype.is_some_and(|dtype| row.allows(dtype)));
    if is_plain && is_allowed { row.versions.first().copied().unwrap_or(version) } else { version }
}

/// Whether what was written for one version of an operator means the same in another: that is the
/// same, or a later one that only allows more.
pub(crate) fn means_the_same(domain: &str, operator: &str, written: i64, read: i64) -> bool {
    written == read
        || written < read
            && find_row(domain, operator, written).is_some_and(|row| row.versions.contains(&read))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::since_version;

    #[test]
    fn every_version_of_the_table_exists_and_rows_are_ascending() {
        for row in EQUAL_VERSIONS {
            assert!(row.versions.is_sorted(), "{}", row.operator);
            for &version in row.versions {
                let since = since_version("", row.operator, version);
                assert_eq!(since.unwrap(), version, "{} {version}", row.operator);
            }
            // Nothing in between is left out.
            let (first, last) = (row.versions[0], row.versions[row.versions.len() - 1]);
            for version in first..=last {
                let since = since_version("", row.operator, version).unwrap();
                assert!(row.versions.contains(&since), "{} {since}", row.operator);
            }
        }
    }

    #[test]
    fn a_version_is_lowered_only_where_nothing_tells_it_apart() {
        let lowest = |operator, version, attribute: &'static str, dtype| {
            lowest_equal_version(
                "",
                operator,
                version,
                [attribute].into_iter(),
                [dtype].into_iter(),
            )
        };
        assert_eq!(lowest("Relu", 14, "", Some(DType::F32)), 6);
        assert_eq!(lowest("Relu", 14, "", Some(DType::I32)), 14);
        assert_eq!(lowest("Relu", 14, "", None), 14);
        assert_eq!(lowest("Reshape", 14, "", Some(DType::F32)), 5);
        assert_eq!(lowest("Reshape", 14, "allowzero", Some(DType::F32)), 14);
        assert_eq!(lowest("Softmax", 13, "axis", Some(DType::F32)), 13);
        assert!(means_the_same("", "Add", 7, 14) && !means_the_same("", "Add", 14, 7));
        assert!(!means_the_same("", "Unsqueeze", 11, 13));
    }
}
