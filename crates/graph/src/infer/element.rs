//! One element of a small tensor, as far as it is known.

use tessera_core::{DType, Dim};

use crate::model::Weight;

/// Larger tensors are not followed by value: no shape has that many dimensions.
pub(crate) const MOST_ELEMENTS: usize = 64;

/// One element of a small tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Element {
    /// An integer; 0 or 1 for a truth value.
    Fixed(i64),
    /// A floating-point number, for the scales that shapes are multiplied with.
    Real(f64),
    /// The size of a symbolic dimension.
    Symbol(String),
    /// Anything.
    Unknown,
}

impl Element {
    /// The integer, where it is fixed.
    pub(crate) fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Fixed(value) => Some(*value),
            _ => None,
        }
    }

    /// The dimension of this size.
    pub(crate) fn to_dim(&self) -> Dim {
        match self {
            Self::Fixed(value) => usize::try_from(*value).map_or(Dim::Unknown, Dim::Fixed),
            Self::Symbol(name) => Dim::Symbol(name.clone()),
            Self::Real(_) | Self::Unknown => Dim::Unknown,
        }
    }

    /// The size of a dimension.
    pub(crate) fn of_dim(dim: &Dim) -> Self {
        match dim {
            Dim::Fixed(size) => i64::try_from(*size).map_or(Self::Unknown, Self::Fixed),
            Dim::Symbol(name) => Self::Symbol(name.clone()),
            Dim::Unknown => Self::Unknown,
        }
    }
}

/// The elements of a constant, where it is small and of a dtype that shapes are computed in.
pub(crate) fn elements_of_weight(weight: &Weight) -> Option<Vec<Element>> {
    fn read_elements<const N: usize>(
        bytes: &[u8],
        element: impl Fn([u8; N]) -> Element,
    ) -> Option<Vec<Element>> {
        let elements = bytes.chunks_exact(N).map(|chunk| <[u8; N]>::try_from(chunk).ok());
        elements.map(|bytes| bytes.map(&element)).collect()
    }
    let Weight::Dense { dtype, bytes, .. } = weight else {
        return None;
    };
    if weight.element_count() > MOST_ELEMENTS || bytes.len() > MOST_ELEMENTS.saturating_mul(8) {
        return None;
    }
    match dtype {
        DType::I64 => read_elements(bytes, |bytes| Element::Fixed(i64::from_le_bytes(bytes))),
        DType::I32 => {
            read_elements(bytes, |bytes| Element::Fixed(i32::from_le_bytes(bytes).into()))
        }
        DType::F32 => read_elements(bytes, |bytes| Element::Real(f32::from_le_bytes(bytes).into())),
        DType::F64 => read_elements(bytes, |bytes| Element::Real(f64::from_le_bytes(bytes))),
        DType::Bool => {
            read_elements(bytes, |bytes: [u8; 1]| Element::Fixed(i64::from(bytes != [0])))
        }
        _ => None,
    }
}
