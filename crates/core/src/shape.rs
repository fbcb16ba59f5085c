//! Shapes, and the types of tensors before their shapes are known.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::DType;

/// One dimension of a tensor type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dim {
    /// A size that is fixed.
    Fixed(usize),
    /// A size with a name; equal names mean equal sizes within a model.
    Symbol(String),
    /// A size that nobody named.
    Unknown,
}

impl Dim {
    /// The size where it is fixed.
    pub fn fixed_size(&self) -> Option<usize> {
        match self {
            Self::Fixed(size) => Some(*size),
            _ => None,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Symbol(name) => f.write_str(name),
            Self::Unknown => f.write_str("?"),
        }
    }
}

/// What is known of a tensor before it exists: its dtype, and its dimensions where known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Dimensions; `None` where not even the rank is known.
    pub dims: Option<Vec<Dim>>,
}

impl TensorType {
    /// A type with these dimensions.
    pub fn new(dtype: DType, dims: Vec<Dim>) -> Self {
        Self { dtype, dims: Some(dims) }
    }

    /// A type of which only the dtype is known.
    pub fn of_any_shape(dtype: DType) -> Self {
        Self { dtype, dims: None }
    }

    /// The shape where every dimension is fixed.
    pub fn fixed_shape(&self) -> Option<Vec<usize>> {
        self.dims.as_ref()?.iter().map(Dim::fixed_size).collect()
    }

    /// The bytes of a tensor of this type, where every dimension is fixed.
    pub fn byte_len(&self) -> Option<usize> {
        self.dtype.byte_len(element_count(&self.fixed_shape()?)?)
    }

    /// Whether a tensor of this dtype and shape is of this type.
    pub fn can_accept(&self, dtype: DType, shape: &[usize]) -> bool {
        dtype == self.dtype
            && self.dims.as_ref().is_none_or(|dims| {
                dims.len() == shape.len()
                    && dims
                        .iter()
                        .zip(shape)
                        .all(|(dim, &size)| dim.fixed_size().is_none_or(|fixed| fixed == size))
            })
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)?;
        match &self.dims {
            None => f.write_str("[…]"),
            Some(dims) => {
                let dims: Vec<String> = dims.iter().map(Dim::to_string).collect();
                write!(f, "[{}]", dims.join(","))
            }
        }
    }
}

/// The number of elements of a shape; `None` where it overflows.
pub fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size))
}

/// A dtype and shape as users see them: `f32[1,3,224,224]`.
pub fn display_shape(dtype: DType, shape: &[usize]) -> String {
    let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
    format!("{dtype}[{}]", dims.join(","))
}
