//! Which inputs of a file a caller may leave out.

use tessera_core::element_count;

use crate::input_default::InputDefault;
use crate::model::Weight;

/// The most bytes that the value of an input has which may be left out.
const MOST_BYTES: usize = 4096;

/// The most elements of what has rows and columns and is no weight.
const MOST_TABLE_ELEMENTS: usize = 16;

/// The value of an input that has this initialiser.
pub(super) fn default_of_weight(weight: &Weight) -> Option<InputDefault> {
    match weight {
        Weight::Dense { shape, bytes, .. } => {
            Some(InputDefault { shape: shape.clone(), bytes: bytes.to_vec() })
        }
        _ => None,
    }
}

/// Whether an initialiser that is listed as an input is a parameter of the model, which some
/// exporters list for all of them, and not something that a caller may give.
pub(super) fn is_parameter(weight: &Weight) -> bool {
    match weight {
        Weight::Dense { shape, bytes, .. } => {
            let count = element_count(shape).unwrap_or(usize::MAX);
            bytes.len() > MOST_BYTES || (shape.len() > 1 && count > MOST_TABLE_ELEMENTS)
        }
        _ => true,
    }
}
