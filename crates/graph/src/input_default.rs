//! Inputs that a caller may leave out: the file has a value for them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tessera_core::{DType, Result, Tensor, element_count};

use crate::model::Weight;

/// The most bytes that the value of an input has which may be left out.
const MOST_BYTES: usize = 4096;

/// The most elements of what has rows and columns and is no weight.
const MOST_TABLE_ELEMENTS: usize = 16;

/// The value of an input that a caller leaves out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InputDefault {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements, little endian.
    pub bytes: Vec<u8>,
}

impl InputDefault {
    /// What stands for an input of this dtype.
    pub fn to_tensor(&self, dtype: DType) -> Result<Tensor> {
        Tensor::from_bytes(dtype, &self.shape, Bytes::copy_from_slice(&self.bytes))
    }

    pub(crate) fn of_weight(weight: &Weight) -> Option<Self> {
        match weight {
            Weight::Dense { shape, bytes, .. } => {
                Some(Self { shape: shape.clone(), bytes: bytes.to_vec() })
            }
            _ => None,
        }
    }
}

/// Whether an initialiser that is listed as an input is a parameter of the model, which some
/// exporters list for all of them, and not something that a caller may give.
pub(crate) fn is_parameter(weight: &Weight) -> bool {
    match weight {
        Weight::Dense { shape, bytes, .. } => {
            let count = element_count(shape).unwrap_or(usize::MAX);
            bytes.len() > MOST_BYTES || (shape.len() > 1 && count > MOST_TABLE_ELEMENTS)
        }
        _ => true,
    }
}
