//! Numbers of rows, and indices that are made of them.
//!
//! Exporters write "the elements of this row" as look-ups: the numbers of all rows, times the size
//! of a row, plus places within a row, into a tensor with all rows one after the other; or tuples of
//! the number of the row and places in it. Each row then gets its own elements.

use tessera_core::Dim;

use super::batch_axis::{BATCH_SYMBOL, BatchAxis};
use super::movement::moved_axis;
use super::{NO_RULE, RowFlow, RowMixing, RowRule, RowView};
use crate::infer::{Element, Fact, Operator, SizeProduct, resolve_axis};
use crate::model::Weight;

/// The number of each row, times a stride, plus something from 0 up to an end that is the same for
/// all rows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RowNumbers {
    /// The dimension of the rows.
    axis: usize,
    stride: SizeProduct,
    end: SizeProduct,
}

/// Indices along the last dimension, the one at `column` being the number of the row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RowTuples {
    axis: usize,
    column: usize,
}

const COMPUTES_WITH_NUMBERS: RowMixing = RowMixing::Joined("computes with the numbers of rows");

/// `Range` over the rows.
pub(super) fn all_row_numbers(operator: &Operator<'_>) -> Option<RowFlow> {
    let is_range = operator.domain.is_empty() && operator.op_type == "Range";
    let scalars = [0, 1, 2].map(|input| operator.input_scalar(input));
    match scalars {
        [Some(Element::Fixed(0)), Some(Element::Symbol(name)), Some(Element::Fixed(1))]
            if is_range && name == BATCH_SYMBOL =>
        {
            let one = SizeProduct::one();
            Some(RowFlow::Numbers(RowNumbers { axis: 0, stride: one.clone(), end: one }))
        }
        _ => None,
    }
}

/// What is made of numbers of rows, beside look-ups.
pub(super) fn numbers_flow(view: &RowView<'_>) -> RowRule {
    let numbers = |input: usize| match view.flow(input) {
        RowFlow::Numbers(numbers) => Some(numbers),
        _ => None,
    };
    match (view.operator.domain, view.operator.op_type) {
        ("", "Cast" | "Identity") => Ok(view.flow(0).clone()),
        ("", "Unsqueeze" | "Squeeze" | "Expand") => {
            let found = numbers(0).ok_or(COMPUTES_WITH_NUMBERS)?;
            let axis = moved_axis(view, found.axis, true)?;
            Ok(RowFlow::Numbers(RowNumbers { axis, ..found.clone() }))
        }
        ("", "Mul" | "Add") => {
            let (found, other) = match (numbers(0), numbers(1)) {
                (Some(found), None) => (found, 1),
                (None, Some(found)) => (found, 0),
                _ => return Err(COMPUTES_WITH_NUMBERS),
            };
            scaled_or_moved(view, found, 1 - other, other)
        }
        ("", "Concat") => tuples_flow(view),
        _ => Err(COMPUTES_WITH_NUMBERS),
    }
}

/// Times a size, or plus places within a row.
fn scaled_or_moved(
    view: &RowView<'_>,
    numbers: &RowNumbers,
    input: usize,
    other: usize,
) -> RowRule {
    let (rank, dims) = (view.dims(input)?.len(), view.dims(other)?);
    let from_end = rank - numbers.axis;
    let there = dims.len().checked_sub(from_end).and_then(|axis| dims.get(axis));
    if !view.is_same(other) || there.is_some_and(|dim| *dim != Dim::Fixed(1)) {
        return Err(COMPUTES_WITH_NUMBERS);
    }
    let axis = rank.max(dims.len()) - from_end;
    if view.operator.op_type == "Mul" {
        let size = view.operator.input_scalar(other).ok_or(COMPUTES_WITH_NUMBERS)?;
        let is_bare = numbers.end == SizeProduct::one();
        let size = SizeProduct::of_element(size).filter(|_| is_bare);
        let stride = size.and_then(|size| numbers.stride.times(&size));
        let stride = stride.ok_or(COMPUTES_WITH_NUMBERS)?;
        return Ok(RowFlow::Numbers(RowNumbers { axis, stride, end: SizeProduct::one() }));
    }
    let end = view.end(other).and_then(|end| sum_of_ends(&numbers.end, end));
    let end = end.ok_or(RowMixing::Unknown("looks up places that may be in other rows"))?;
    Ok(RowFlow::Numbers(RowNumbers { axis, stride: numbers.stride.clone(), end }))
}

/// `Concat` of a number of the row and places, along the last dimension.
fn tuples_flow(view: &RowView<'_>) -> RowRule {
    let mut found: Option<RowTuples> = None;
    for input in 0..view.flows.len() {
        let dims = view.dims(input)?;
        let axis = resolve_axis(view.operator.integer_attribute("axis", 0), dims.len());
        let is_column =
            axis.is_some_and(|axis| axis + 1 == dims.len()) && dims.last() == Some(&Dim::Fixed(1));
        match view.flow(input) {
            _ if !is_column => return Err(COMPUTES_WITH_NUMBERS),
            // Places that are the row's own are in the row all the same.
            RowFlow::Same | RowFlow::Rows(_) => {}
            RowFlow::Numbers(numbers) if found.is_none() => {
                let one = SizeProduct::one();
                if numbers.stride != one || numbers.end != one || numbers.axis + 1 >= dims.len() {
                    return Err(COMPUTES_WITH_NUMBERS);
                }
                found = Some(RowTuples { axis: numbers.axis, column: input });
            }
            _ => return Err(COMPUTES_WITH_NUMBERS),
        }
    }
    let found = found.ok_or(NO_RULE)?;
    let fits = |input: usize| {
        view.rows(input).is_none_or(|rows| rows.is_plain() && rows.axis == found.axis)
    };
    if (0..view.flows.len()).all(fits) {
        Ok(RowFlow::Tuples(found))
    } else {
        Err(COMPUTES_WITH_NUMBERS)
    }
}

/// `Gather` with indices that are made of numbers of rows: each row gets elements of its own.
pub(super) fn gather_own_flow(
    view: &RowView<'_>,
    rows: &BatchAxis,
    numbers: &RowNumbers,
    axis: usize,
) -> RowRule {
    let is_within = rows.is_row_of(&numbers.stride) && numbers.end.is_at_most(&numbers.stride);
    if rows.axis != axis || !is_within || view.dims(1)?.len() <= numbers.axis {
        return Err(RowMixing::Joined("looks up what may be in other rows"));
    }
    Ok(RowFlow::Rows(BatchAxis::at(axis + numbers.axis)))
}

/// `GatherND` with tuples that begin with the number of the row.
pub(super) fn gather_own_tuples_flow(rows: &BatchAxis, tuples: &RowTuples) -> RowRule {
    if rows.is_row_of(&SizeProduct::one()) && rows.axis == tuples.column {
        Ok(RowFlow::Rows(BatchAxis::at(tuples.axis)))
    } else {
        Err(RowMixing::Joined("looks up what may be in other rows"))
    }
}

/// Below which size the elements of a constant are, from 0 on.
pub(super) fn end_of_weight(weight: &Weight) -> Option<SizeProduct> {
    let Weight::Dense { dtype, bytes, .. } = weight else { return None };
    let (least, most) = match dtype {
        tessera_core::DType::I64 => {
            let numbers = bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
            (numbers.clone().min()?, numbers.max()?)
        }
        tessera_core::DType::I32 => {
            let numbers = bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
            (numbers.clone().min()?.into(), numbers.max()?.into())
        }
        _ => return None,
    };
    let end = usize::try_from(most).ok().and_then(|most| most.checked_add(1));
    end.filter(|_| least >= 0).map(SizeProduct::of_size)
}

/// Below which size the elements of a value are that is the same for all rows.
pub(super) fn end_of_output(view: &RowView<'_>, fact: &Fact) -> Option<SizeProduct> {
    if let Some(elements) = &fact.elements {
        let numbers = elements.iter().map(|element| usize::try_from(element.as_integer()?).ok());
        let numbers: Option<Vec<usize>> = numbers.collect();
        if let Some(most) = numbers.and_then(|numbers| numbers.into_iter().max()) {
            return most.checked_add(1).map(SizeProduct::of_size);
        }
    }
    match (view.operator.domain, view.operator.op_type) {
        ("", "Range") => {
            let ends = [0, 2].map(|input| view.operator.input_scalar(input));
            let counts = ends == [Some(&Element::Fixed(0)), Some(&Element::Fixed(1))];
            let limit = view.operator.input_scalar(1).filter(|_| counts)?;
            SizeProduct::of_element(limit)
        }
        (
            "",
            "Cast" | "Identity" | "Unsqueeze" | "Squeeze" | "Reshape" | "Expand" | "Transpose"
            | "Flatten",
        ) => view.end(0).cloned(),
        ("", "Add") => sum_of_ends(view.end(0)?, view.end(1)?),
        _ => None,
    }
}

/// The end of sums, of which one part is below the one end and one below the other.
fn sum_of_ends(first: &SizeProduct, second: &SizeProduct) -> Option<SizeProduct> {
    let one = SizeProduct::one();
    match (first.as_fixed(), second.as_fixed()) {
        _ if *first == one => Some(second.clone()),
        _ if *second == one => Some(first.clone()),
        (Some(first), Some(second)) => {
            first.checked_add(second).map(|sum| SizeProduct::of_size(sum - 1))
        }
        _ => None,
    }
}
