//! Operators that take parts of tensors, or put them together.

use tessera_core::Dim;

use super::batch_axis::BATCH_SYMBOL;
use super::movement::data_rows;
use super::numbering::{gather_own_flow, gather_own_tuples_flow};
use super::{NO_RULE, RowFlow, RowMixing, RowRule, RowView, UNKNOWN_SHAPE};
use crate::infer::{Element, resolve_axis};

const PICKS_ROWS: RowMixing = RowMixing::Joined("picks rows");

/// `Concat` of these inputs.
pub(super) fn concat_flow(view: &RowView<'_>, places: &[usize], axis: i64) -> RowRule {
    let first = places.iter().find_map(|&place| view.rows(place)).ok_or(NO_RULE)?;
    for &place in places {
        let rank = view.dims(place)?.len();
        if resolve_axis(axis, rank).ok_or(UNKNOWN_SHAPE)? == first.axis {
            return Err(RowMixing::Joined("puts rows one after the other"));
        }
        // What is the same for all has as many rows as it has.
        if view.rows(place).is_none_or(|rows| rows != first) {
            return Err(RowMixing::Joined("joins rows with what is the same for all of them"));
        }
    }
    Ok(RowFlow::Rows(first.clone()))
}

/// `Gather`.
pub(super) fn gather_flow(view: &RowView<'_>) -> RowRule {
    let (data, indices) = (view.dims(0)?.len(), view.dims(1)?.len());
    let axis = resolve_axis(view.operator.integer_attribute("axis", 0), data);
    let axis = axis.ok_or(UNKNOWN_SHAPE)?;
    match (view.flow(0), view.flow(1)) {
        (RowFlow::Same, RowFlow::Rows(rows)) => Ok(RowFlow::Rows(rows.moved_to(axis + rows.axis))),
        (RowFlow::Rows(rows), RowFlow::Same) => {
            if rows.axis == axis {
                return Err(PICKS_ROWS);
            }
            let moved = if rows.axis < axis { rows.axis } else { rows.axis - 1 + indices };
            Ok(RowFlow::Rows(rows.moved_to(moved)))
        }
        (RowFlow::Rows(rows), RowFlow::Numbers(numbers)) => {
            gather_own_flow(view, rows, numbers, axis)
        }
        _ => Err(RowMixing::Joined("looks rows up by what is in rows")),
    }
}

/// `GatherElements`.
pub(super) fn gather_elements_flow(view: &RowView<'_>) -> RowRule {
    let axis = view.operator.integer_attribute("axis", 0);
    let axis = resolve_axis(axis, view.dims(0)?.len()).ok_or(UNKNOWN_SHAPE)?;
    same_axis_apart_from(view, &[0, 1], axis)
}

/// `ScatterElements`.
pub(super) fn scatter_elements_flow(view: &RowView<'_>) -> RowRule {
    let axis = view.operator.integer_attribute("axis", 0);
    let axis = resolve_axis(axis, view.dims(0)?.len()).ok_or(UNKNOWN_SHAPE)?;
    same_axis_apart_from(view, &[0, 1, 2], axis)
}

/// `GatherND`: what is looked up for each row is in that row, or the same for all.
pub(super) fn gather_nd_flow(view: &RowView<'_>) -> RowRule {
    let batch_dims = view.operator.integer_attribute("batch_dims", 0);
    match (view.flow(0), view.flow(1)) {
        (RowFlow::Rows(data), RowFlow::Rows(indices))
            if data == indices && usize::try_from(batch_dims).is_ok_and(|n| data.axis < n) =>
        {
            Ok(RowFlow::Rows(data.clone()))
        }
        (RowFlow::Rows(data), RowFlow::Tuples(tuples)) if batch_dims == 0 => {
            gather_own_tuples_flow(data, tuples)
        }
        (RowFlow::Same, RowFlow::Rows(indices))
            if batch_dims == 0 && indices.axis + 1 < view.dims(1)?.len() =>
        {
            Ok(RowFlow::Rows(indices.clone()))
        }
        _ => Err(NO_RULE),
    }
}

/// All of these have their rows in the same dimension, which is not this one.
fn same_axis_apart_from(view: &RowView<'_>, places: &[usize], axis: usize) -> RowRule {
    let first = view.rows(0).ok_or(NO_RULE)?;
    if places.iter().any(|&place| view.rows(place) != Some(first)) {
        return Err(NO_RULE);
    }
    if first.axis == axis { Err(PICKS_ROWS) } else { Ok(RowFlow::Rows(first.clone())) }
}

/// `Slice`: the rows stay all there.
pub(super) fn slice_flow(view: &RowView<'_>) -> RowRule {
    let (rows, rank) = (data_rows(view)?, view.dims(0)?.len());
    let operator = view.operator;
    let starts = operator.attribute_or_input("starts", 1).ok_or(UNKNOWN_SHAPE)?;
    let ends = operator.attribute_or_input("ends", 2).ok_or(UNKNOWN_SHAPE)?;
    let has = |input: usize| view.flows.get(input).is_some_and(Option::is_some);
    let axes: Vec<usize> = match operator.integers_attribute("axes") {
        Some(axes) => axes.iter().map(|&axis| resolve_axis(axis, rank)).collect::<Option<_>>(),
        None if has(3) => {
            let axes = operator.fixed_integers(3).ok_or(UNKNOWN_SHAPE)?;
            axes.iter().map(|&axis| resolve_axis(axis, rank)).collect::<Option<_>>()
        }
        None => Some((0..starts.len()).collect()),
    }
    .ok_or(UNKNOWN_SHAPE)?;
    let Some(place) = axes.iter().position(|&axis| axis == rows.axis) else {
        return Ok(RowFlow::Rows(rows.clone()));
    };
    let steps = if has(4) { operator.input_elements(4) } else { None };
    let is_forward = match steps {
        Some(steps) => steps.get(place) == Some(&Element::Fixed(1)),
        None => !has(4),
    };
    let is_whole = match ends.get(place) {
        Some(Element::Fixed(end)) => *end >= i64::from(i32::MAX),
        Some(Element::Symbol(name)) => name == BATCH_SYMBOL && rows.is_leading(),
        _ => false,
    };
    if is_forward && is_whole && starts.get(place) == Some(&Element::Fixed(0)) {
        Ok(RowFlow::Rows(rows.clone()))
    } else {
        Err(PICKS_ROWS)
    }
}

/// `OneHot`: a new dimension for the classes.
pub(super) fn one_hot_flow(view: &RowView<'_>) -> RowRule {
    let (rows, rank) = (view.only_rows(0)?, view.dims(0)?.len());
    let axis = resolve_axis(view.operator.integer_attribute("axis", -1), rank + 1);
    let axis = axis.ok_or(UNKNOWN_SHAPE)?;
    Ok(RowFlow::Rows(rows.moved_to(rows.axis + usize::from(axis <= rows.axis))))
}

/// `CumSum`: along an axis that is an input.
pub(super) fn cumulated_flow(view: &RowView<'_>) -> RowRule {
    let unknown = RowMixing::Unknown("goes along an axis that is computed");
    let axis = view.operator.input_scalar(1).and_then(Element::as_integer).ok_or(unknown)?;
    super::pointwise::along_axis_flow(view, axis)
}

/// `GridSample`: each row has a grid of its own, or all rows have one with one row each.
pub(super) fn grid_sample_flow(view: &RowView<'_>) -> RowRule {
    match (view.rows(0), view.rows(1)) {
        (Some(image), Some(grid)) if image == grid && image.axis == 0 => {
            Ok(RowFlow::Rows(image.clone()))
        }
        _ => Err(NO_RULE),
    }
}

/// The first dimension of a table of samples: the operators of classical machine learning.
pub(super) fn table_flow(view: &RowView<'_>) -> RowRule {
    let rows = view.only_rows(0)?;
    match view.dims(0)? {
        [_, _] if rows.axis == 0 => Ok(RowFlow::Rows(rows.clone())),
        // A lone dimension is that of the features of one sample.
        [Dim::Fixed(_) | Dim::Symbol(_) | Dim::Unknown] => {
            Err(RowMixing::Joined("takes its one dimension for features"))
        }
        _ => Err(NO_RULE),
    }
}
