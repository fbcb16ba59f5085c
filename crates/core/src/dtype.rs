//! The element types of tensors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Element type of a tensor, with the names that users see (`f32`, `i64`, …).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are their own documentation")]
pub enum DType {
    F32,
    F64,
    F16,
    BF16,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
    String,
    C64,
    C128,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0,
    F4E2M1,
    I4,
    U4,
    I2,
    U2,
}

/// dtype, ONNX number, bits per element (0: not of fixed size), name.
const DTYPE_TABLE: &[(DType, i32, usize, &str)] = &[
    (DType::F32, 1, 32, "f32"),
    (DType::U8, 2, 8, "u8"),
    (DType::I8, 3, 8, "i8"),
    (DType::U16, 4, 16, "u16"),
    (DType::I16, 5, 16, "i16"),
    (DType::I32, 6, 32, "i32"),
    (DType::I64, 7, 64, "i64"),
    (DType::String, 8, 0, "string"),
    (DType::Bool, 9, 8, "bool"),
    (DType::F16, 10, 16, "f16"),
    (DType::F64, 11, 64, "f64"),
    (DType::U32, 12, 32, "u32"),
    (DType::U64, 13, 64, "u64"),
    (DType::C64, 14, 64, "c64"),
    (DType::C128, 15, 128, "c128"),
    (DType::BF16, 16, 16, "bf16"),
    (DType::F8E4M3FN, 17, 8, "f8e4m3fn"),
    (DType::F8E4M3FNUZ, 18, 8, "f8e4m3fnuz"),
    (DType::F8E5M2, 19, 8, "f8e5m2"),
    (DType::F8E5M2FNUZ, 20, 8, "f8e5m2fnuz"),
    (DType::U4, 21, 4, "u4"),
    (DType::I4, 22, 4, "i4"),
    (DType::F4E2M1, 23, 4, "f4e2m1"),
    (DType::F8E8M0, 24, 8, "f8e8m0"),
    (DType::U2, 25, 2, "u2"),
    (DType::I2, 26, 2, "i2"),
];

impl DType {
    /// The dtype with this number in ONNX's `TensorProto.DataType`.
    pub fn from_onnx(number: i32) -> Option<Self> {
        DTYPE_TABLE.iter().find(|row| row.1 == number).map(|row| row.0)
    }

    /// Its number in ONNX's `TensorProto.DataType`.
    pub fn to_onnx(self) -> i32 {
        self.table_row().1
    }

    /// Bits per element; `None` for strings.
    pub fn bits_per_element(self) -> Option<usize> {
        Some(self.table_row().2).filter(|&bits| bits > 0)
    }

    /// Bytes of `count` packed elements; `None` for strings and where the count overflows.
    pub fn byte_len(self, count: usize) -> Option<usize> {
        Some(count.checked_mul(self.bits_per_element()?)?.div_ceil(8))
    }

    /// The name that users see and write.
    pub fn name(self) -> &'static str {
        self.table_row().3
    }

    /// Whether elements are real floating-point numbers.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::BF16)
    }

    /// Whether elements are integers of a whole number of bytes.
    pub fn is_integer(self) -> bool {
        matches!(
            self,
            Self::I8
                | Self::I16
                | Self::I32
                | Self::I64
                | Self::U8
                | Self::U16
                | Self::U32
                | Self::U64
        )
    }

    fn table_row(self) -> &'static (DType, i32, usize, &'static str) {
        // Every variant has its row; the test below walks them all.
        DTYPE_TABLE.iter().find(|row| row.0 == self).unwrap_or(&DTYPE_TABLE[0])
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        DTYPE_TABLE
            .iter()
            .find(|row| row.3 == text)
            .map(|row| row.0)
            .ok_or_else(|| crate::Error::usage(format!("unknown dtype \"{text}\"")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_onnx_number_has_a_dtype_and_back() {
        for number in 1..=26 {
            let dtype = DType::from_onnx(number).unwrap();
            assert_eq!(dtype.to_onnx(), number);
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
        }
        assert_eq!(DType::from_onnx(0), None);
        assert_eq!(DType::from_onnx(27), None);
    }

    #[test]
    fn packed_elements_round_up_to_whole_bytes() {
        assert_eq!(DType::I4.byte_len(3), Some(2));
        assert_eq!(DType::F32.byte_len(3), Some(12));
        assert_eq!(DType::String.byte_len(3), None);
        assert_eq!(DType::F64.byte_len(usize::MAX), None);
    }
}
