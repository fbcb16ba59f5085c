//! The protocol's names of dtypes.

use tessera_core::{DType, Error, Result};

const DATATYPE_NAMES: &[(DType, &str)] = &[
    (DType::Bool, "BOOL"),
    (DType::U8, "UINT8"),
    (DType::U16, "UINT16"),
    (DType::U32, "UINT32"),
    (DType::U64, "UINT64"),
    (DType::I8, "INT8"),
    (DType::I16, "INT16"),
    (DType::I32, "INT32"),
    (DType::I64, "INT64"),
    (DType::F16, "FP16"),
    (DType::F32, "FP32"),
    (DType::F64, "FP64"),
    (DType::BF16, "BF16"),
    (DType::String, "BYTES"),
];

/// What the protocol calls `dtype`.
pub(crate) fn datatype_name(dtype: DType) -> Result<&'static str> {
    DATATYPE_NAMES.iter().find(|row| row.0 == dtype).map(|row| row.1).ok_or_else(|| {
        Error::unsupported(format!("the Open Inference Protocol has no name for {dtype}"))
    })
}

/// The dtype that the protocol calls `text`.
pub(crate) fn parse_datatype(text: &str) -> Result<DType> {
    DATATYPE_NAMES
        .iter()
        .find(|row| row.1 == text)
        .map(|row| row.0)
        .ok_or_else(|| Error::unsupported(format!("datatype \"{text}\" is not known")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_as_the_dtype_it_was_written_for() {
        for (dtype, text) in DATATYPE_NAMES {
            assert_eq!(datatype_name(*dtype).unwrap(), *text);
            assert_eq!(parse_datatype(text).unwrap(), *dtype);
        }
        assert!(datatype_name(DType::C64).is_err());
        assert!(parse_datatype("FP8").is_err());
    }
}
