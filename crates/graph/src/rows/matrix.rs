//! Products of matrices, and recurrent layers.

use tessera_core::Dim;

use super::batch_axis::BatchAxis;
use super::{NO_RULE, RowFlow, RowMixing, RowRule, RowView, UNKNOWN_SHAPE};

const SUMS_OVER_ROWS: RowMixing = RowMixing::Joined("sums over all rows");

/// `MatMul` of the inputs at these places; all others are the same for all.
pub(super) fn matmul_flow(view: &RowView<'_>, left: usize, right: usize) -> RowRule {
    if !view.are_others_same(&[left, right]) {
        return Err(NO_RULE);
    }
    let (left_rank, right_rank) = (view.dims(left)?.len(), view.dims(right)?.len());
    if left_rank == 0 || right_rank == 0 {
        return Err(UNKNOWN_SHAPE);
    }
    match (view.rows(left), view.rows(right)) {
        (Some(rows), None) if view.is_same(right) => {
            if rows.axis + 1 == left_rank {
                return Err(SUMS_OVER_ROWS);
            }
            // The last two are those of matrices, and all before are broadcast.
            let from_end = left_rank - rows.axis;
            check_broadcast(view.dims(right)?, from_end)?;
            // A vector on the right takes away the last, which is after.
            Ok(RowFlow::Rows(rows.moved_to(left_rank.max(right_rank) - from_end)))
        }
        (None, Some(rows)) if view.is_same(left) => {
            let from_end = right_rank - rows.axis;
            // A vector on the right is all summed, as are the rows of a matrix.
            if right_rank == 1 || from_end == 2 {
                return Err(SUMS_OVER_ROWS);
            }
            check_broadcast(view.dims(left)?, from_end)?;
            // A vector on the left has no dimension of its own in the product.
            let lost = usize::from(left_rank == 1 && from_end == 1);
            Ok(RowFlow::Rows(rows.moved_to(left_rank.max(right_rank) - from_end - lost)))
        }
        (Some(first), Some(second)) => {
            let ends = (left_rank - first.axis, right_rank - second.axis);
            if ends.0 != ends.1 || ends.0 < 3 || !first.is_alike(second) {
                return Err(RowMixing::Joined("multiplies rows with others"));
            }
            Ok(RowFlow::Rows(first.moved_to(left_rank.max(right_rank) - ends.0)))
        }
        _ => Err(NO_RULE),
    }
}

/// What is the same for all must have no rows where others are broadcast against it.
fn check_broadcast(dims: &[Dim], from_end: usize) -> Result<(), RowMixing> {
    if from_end < 3 {
        return Ok(());
    }
    match dims.len().checked_sub(from_end).and_then(|axis| dims.get(axis)) {
        None | Some(Dim::Fixed(1)) => Ok(()),
        _ => Err(RowMixing::Joined("has matrices for some number of rows")),
    }
}

/// `Gemm` of the inputs at these places, with what is added at the third.
pub(super) fn gemm_flow(view: &RowView<'_>, left: usize, right: usize, added: usize) -> RowRule {
    let turns = |name: &str| view.operator.integer_attribute(name, 0) != 0;
    if !view.are_others_same(&[left, right, added]) || view.rows(added).is_some() {
        return Err(NO_RULE);
    }
    let (rows, axis) = match (view.rows(left), view.rows(right)) {
        (Some(rows), None) if view.is_same(right) => {
            let kept = usize::from(turns("transA"));
            (rows, (rows.axis == kept).then_some(0))
        }
        (None, Some(rows)) if view.is_same(left) => {
            let kept = usize::from(!turns("transB"));
            (rows, (rows.axis == kept).then_some(1))
        }
        _ => return Err(RowMixing::Joined("multiplies rows with others")),
    };
    let axis = axis.ok_or(SUMS_OVER_ROWS)?;
    if view.flows.get(added).is_some_and(Option::is_some) {
        if !view.is_same(added) {
            return Err(NO_RULE);
        }
        let dims = view.dims(added)?;
        let there = dims.len().checked_sub(2 - axis).and_then(|place| dims.get(place));
        if there.is_some_and(|dim| *dim != Dim::Fixed(1)) {
            return Err(RowMixing::Joined("has constants for some number of rows"));
        }
    }
    Ok(RowFlow::Rows(rows.moved_to(axis)))
}

/// `Einsum`: the letter of the rows is in every input that has rows, in none that is the same for
/// all, and in the output.
pub(super) fn einsum_flow(view: &RowView<'_>) -> RowRule {
    let unknown = RowMixing::Unknown("has an equation that is not understood");
    let equation: String = view.operator.text_attribute("equation").replace(' ', "");
    let (inputs, output) = equation.split_once("->").ok_or(unknown)?;
    if equation.contains('.') {
        return Err(unknown);
    }
    let mut letter: Option<(char, &BatchAxis)> = None;
    let terms: Vec<Vec<char>> = inputs.split(',').map(|term| term.chars().collect()).collect();
    for (place, term) in terms.iter().enumerate() {
        if let Some(rows) = view.rows(place) {
            let found = *term.get(rows.axis).ok_or(UNKNOWN_SHAPE)?;
            match letter {
                Some((known, other)) if known != found || !other.is_alike(rows) => {
                    return Err(RowMixing::Joined("multiplies rows with others"));
                }
                _ => letter = Some((found, rows)),
            }
        }
    }
    let (letter, rows) = letter.ok_or(NO_RULE)?;
    for (place, term) in terms.iter().enumerate() {
        let count = term.iter().filter(|known| **known == letter).count();
        let expected = usize::from(view.rows(place).is_some());
        if count != expected || !(view.is_same(place) || view.rows(place).is_some()) {
            return Err(RowMixing::Joined("multiplies rows with others"));
        }
    }
    match output.chars().position(|known| known == letter) {
        Some(axis) => Ok(RowFlow::Rows(rows.moved_to(axis))),
        None => Err(SUMS_OVER_ROWS),
    }
}

/// `LSTM`, `GRU` and `RNN`.
pub(super) fn recurrent_flow(view: &RowView<'_>, output: usize) -> RowRule {
    /// Lengths of sequences, and the states at the beginning.
    const LENGTHS: usize = 4;
    const STATES: [usize; 2] = [5, 6];
    let is_batch_first = view.operator.integer_attribute("layout", 0) != 0;
    let rows = view.rows(0).ok_or(NO_RULE)?;
    if rows.axis != usize::from(!is_batch_first) {
        return Err(RowMixing::Joined("goes through the rows one after the other"));
    }
    if !view.are_others_same(&[0, LENGTHS, STATES[0], STATES[1]]) {
        return Err(NO_RULE);
    }
    let state_axis = usize::from(!is_batch_first);
    for (place, axis) in [(LENGTHS, 0), (STATES[0], state_axis), (STATES[1], state_axis)] {
        if view.flows.get(place).is_none_or(Option::is_none) {
            continue;
        }
        let known = view.rows(place).ok_or(RowMixing::Joined("has states for some rows"))?;
        if known.axis != axis || !known.is_alike(rows) {
            return Err(RowMixing::Joined("joins rows that are in different dimensions"));
        }
    }
    let axis = match (output, is_batch_first) {
        (0, false) => 2,
        (0, true) => 0,
        _ => state_axis,
    };
    Ok(RowFlow::Rows(rows.moved_to(axis)))
}
