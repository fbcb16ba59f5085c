//! Inputs that a caller may leave out: the file has a value for them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tessera_core::{DType, Result, Tensor};

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
}
