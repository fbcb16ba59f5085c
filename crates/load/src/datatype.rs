//! The protocol's names of dtypes.

use tessera_core::{DType, Error, Result};

const TABLE: &[(DType, &str)] = &[
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
pub(crate) fn name(dtype: DType) -> Result<&'static str> {
    TABLE.iter().find(|row| row.0 == dtype).map(|row| row.1).ok_or_else(|| {
        Error::unsupported(format!("the Open Inference Protocol has no name for {dtype}"))
    })
}

/// The dtype that the protocol calls `text`.
pub(crate) fn parse(text: &str) -> Result<DType> {
    TABLE
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
        for (dtype, text) in TABLE {
            assert_eq!(name(*dtype).unwrap(), *text);
            assert_eq!(parse(text).unwrap(), *dtype);
        }
        assert!(name(DType::C64).is_err());
        assert!(parse("FP8").is_err());
    }
}
