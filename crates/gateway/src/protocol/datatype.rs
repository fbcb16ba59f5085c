//! The protocol's names of element types.

use tessera_core::{DType, Error, Result};

/// dtype, name of the protocol, number and name in a model's configuration.
const DATATYPES: &[(DType, &str, i32, &str)] = &[
    (DType::Bool, "BOOL", 1, "TYPE_BOOL"),
    (DType::U8, "UINT8", 2, "TYPE_UINT8"),
    (DType::U16, "UINT16", 3, "TYPE_UINT16"),
    (DType::U32, "UINT32", 4, "TYPE_UINT32"),
    (DType::U64, "UINT64", 5, "TYPE_UINT64"),
    (DType::I8, "INT8", 6, "TYPE_INT8"),
    (DType::I16, "INT16", 7, "TYPE_INT16"),
    (DType::I32, "INT32", 8, "TYPE_INT32"),
    (DType::I64, "INT64", 9, "TYPE_INT64"),
    (DType::F16, "FP16", 10, "TYPE_FP16"),
    (DType::F32, "FP32", 11, "TYPE_FP32"),
    (DType::F64, "FP64", 12, "TYPE_FP64"),
    (DType::String, "BYTES", 13, "TYPE_STRING"),
    (DType::BF16, "BF16", 14, "TYPE_BF16"),
];

/// The protocol's name of a dtype; `Unsupported` for one that it has no name for.
pub(crate) fn datatype_name(dtype: DType) -> Result<&'static str> {
    datatype_row(dtype).map(|row| row.1)
}

/// Number and name of a dtype in a model's configuration.
pub(crate) fn config_datatype(dtype: DType) -> Result<(i32, &'static str)> {
    datatype_row(dtype).map(|row| (row.2, row.3))
}

/// The name of a dtype in a model's configuration: `TYPE_FP32`.
pub fn config_type_name(dtype: DType) -> Result<&'static str> {
    config_datatype(dtype).map(|(_, name)| name)
}

/// The dtype with this name in the protocol.
pub(crate) fn parse_datatype(name: &str) -> Result<DType> {
    DATATYPES.iter().find(|row| row.1 == name).map(|row| row.0).ok_or_else(|| {
        let names: Vec<&str> = DATATYPES.iter().map(|row| row.1).collect();
        Error::invalid(format!("unknown datatype \"{name}\", expected one of {}", names.join(", ")))
    })
}

/// Whether elements of this dtype can be sent as JSON, which has no half-precision numbers.
pub(crate) fn is_json(dtype: DType) -> bool {
    !matches!(dtype, DType::F16 | DType::BF16)
}

fn datatype_row(dtype: DType) -> Result<&'static (DType, &'static str, i32, &'static str)> {
    DATATYPES.iter().find(|row| row.0 == dtype).ok_or_else(|| {
        Error::unsupported(format!("the Open Inference Protocol has no datatype for {dtype}"))
    })
}

#[cfg(test)]
mod tests {
    use tessera_core::ErrorKind;

    use super::*;

    #[test]
    fn every_name_has_a_dtype_and_back() {
        for row in DATATYPES {
            assert_eq!(parse_datatype(row.1).unwrap(), row.0);
            assert_eq!(datatype_name(row.0).unwrap(), row.1);
        }
        assert!(parse_datatype("fp32").is_err());
    }

    #[test]
    fn a_dtype_without_a_name_is_unsupported() {
        let error = datatype_name(DType::C64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("c64"), "{error}");
    }
}
