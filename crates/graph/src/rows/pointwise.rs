//! Operators that go element by element, and those that join elements along some dimensions.

use tessera_core::Dim;

use super::batch_axis::BatchAxis;
use super::{NO_RULE, RowFlow, RowMixing, RowRule, RowView, UNKNOWN_SHAPE};
use crate::infer::{Axes, resolve_axis};

/// All inputs at these places are broadcast.
pub(super) fn broadcast_flow(view: &RowView<'_>, places: &[usize]) -> RowRule {
    let mut found: Option<(usize, &BatchAxis)> = None;
    let mut highest_rank = 0;
    for &place in places {
        let rank = view.dims(place)?.len();
        highest_rank = highest_rank.max(rank);
        let RowFlow::Rows(axis) = view.flow(place) else { continue };
        // Dimensions are broadcast from the end.
        let from_end = rank.checked_sub(axis.axis).ok_or(UNKNOWN_SHAPE)?;
        match found {
            None => found = Some((from_end, axis)),
            Some((known, other)) if known == from_end && other.is_alike(axis) => {}
            Some(_) => {
                return Err(RowMixing::Joined("joins rows that are in different dimensions"));
            }
        }
    }
    let (from_end, axis) = found.ok_or(NO_RULE)?;
    for &place in places {
        match view.flow(place) {
            RowFlow::Rows(_) => {}
            RowFlow::Same => {
                let dims = view.dims(place)?;
                let there = dims.len().checked_sub(from_end).and_then(|axis| dims.get(axis));
                match there {
                    None | Some(Dim::Fixed(1)) => {}
                    Some(Dim::Fixed(_)) => {
                        return Err(RowMixing::Joined("has constants for some number of rows"));
                    }
                    Some(_) => return Err(UNKNOWN_SHAPE),
                }
            }
            _ => {
                return Err(RowMixing::Joined("computes with the number of rows"));
            }
        }
    }
    let axis_now = highest_rank.checked_sub(from_end).ok_or(UNKNOWN_SHAPE)?;
    Ok(RowFlow::Rows(axis.moved_to(axis_now)))
}

/// Everything is broadcast.
pub(super) fn broadcast_all_flow(view: &RowView<'_>) -> RowRule {
    // Before opset 7, what is broadcast is the second input, at an axis that may be given.
    if view.operator.integer_attribute("broadcast", 0) != 0 {
        return Err(NO_RULE);
    }
    let places: Vec<usize> = (0..view.flows.len()).filter(|&at| view.flows[at].is_some()).collect();
    broadcast_flow(view, &places)
}

/// The first input, element by element; the others are the same for all.
pub(super) fn elementwise_flow(view: &RowView<'_>) -> RowRule {
    view.only_rows(0).map(|axis| RowFlow::Rows(axis.clone()))
}

/// The first input, whose rows are in the dimension of this number and stay there.
pub(super) fn fixed_axis_flow(view: &RowView<'_>, axis: usize) -> RowRule {
    let rows = view.only_rows(0)?;
    if rows.axis == axis {
        Ok(RowFlow::Rows(rows.clone()))
    } else {
        Err(RowMixing::Joined("joins the dimension that has the rows"))
    }
}

/// Elements are joined along one axis.
pub(super) fn along_axis_flow(view: &RowView<'_>, axis: i64) -> RowRule {
    let rows = view.only_rows(0)?;
    let axis = resolve_axis(axis, view.dims(0)?.len()).ok_or(UNKNOWN_SHAPE)?;
    apart_from(rows, axis)
}

/// Elements are joined along all axes from one on.
pub(super) fn from_axis_flow(view: &RowView<'_>, axis: i64) -> RowRule {
    let rows = view.only_rows(0)?;
    let axis = resolve_axis(axis, view.dims(0)?.len()).ok_or(UNKNOWN_SHAPE)?;
    if rows.axis < axis { Ok(RowFlow::Rows(rows.clone())) } else { Err(JOINS_ROWS) }
}

/// Elements are joined along the last `count` axes.
pub(super) fn last_axes_flow(view: &RowView<'_>, count: usize) -> RowRule {
    let rows = view.only_rows(0)?;
    let rank = view.dims(0)?.len();
    let stays = rank.checked_sub(count).is_some_and(|first| rows.axis < first);
    if stays { Ok(RowFlow::Rows(rows.clone())) } else { Err(JOINS_ROWS) }
}

/// `Softmax` and its like.
pub(super) fn softmax_flow(view: &RowView<'_>) -> RowRule {
    if view.operator.opset() >= 13 {
        return along_axis_flow(view, view.operator.integer_attribute("axis", -1));
    }
    // All from the axis on are one.
    from_axis_flow(view, view.operator.integer_attribute("axis", 1))
}

/// `ReduceSum` and its like.
pub(super) fn reduce_flow(view: &RowView<'_>) -> RowRule {
    let rows = view.only_rows(0)?;
    let rank = view.dims(0)?.len();
    let axes = match view.operator.read_axes(1) {
        Axes::Known(axes) if !axes.is_empty() => axes,
        Axes::Unknown => return Err(RowMixing::Unknown("reduces along axes that are computed")),
        _ if view.operator.integer_attribute("noop_with_empty_axes", 0) != 0 => {
            return Ok(RowFlow::Rows(rows.clone()));
        }
        _ => return Err(JOINS_ROWS),
    };
    let axes: Option<Vec<usize>> = axes.iter().map(|&axis| resolve_axis(axis, rank)).collect();
    without_axes(rows, &axes.ok_or(UNKNOWN_SHAPE)?, keeps_dims(view))
}

/// `ArgMax` and `ArgMin`.
pub(super) fn arg_max_flow(view: &RowView<'_>) -> RowRule {
    let rows = view.only_rows(0)?;
    let axis = view.operator.integer_attribute("axis", 0);
    let axis = resolve_axis(axis, view.dims(0)?.len()).ok_or(UNKNOWN_SHAPE)?;
    without_axes(rows, &[axis], keeps_dims(view))
}

/// `QuantizeLinear` and `DequantizeLinear`.
pub(super) fn quantize_flow(view: &RowView<'_>) -> RowRule {
    let rows = view.only_rows(0)?;
    let scale = view.dims(1)?;
    let is_scalar = scale.iter().all(|dim| *dim == Dim::Fixed(1));
    match scale {
        _ if is_scalar => Ok(RowFlow::Rows(rows.clone())),
        [_] => along_axis_flow(view, view.operator.integer_attribute("axis", 1)),
        _ => Err(NO_RULE),
    }
}

const JOINS_ROWS: RowMixing = RowMixing::Joined("joins all rows");

fn keeps_dims(view: &RowView<'_>) -> bool {
    view.operator.integer_attribute("keepdims", 1) != 0
}

fn apart_from(rows: &BatchAxis, axis: usize) -> RowRule {
    if rows.axis == axis { Err(JOINS_ROWS) } else { Ok(RowFlow::Rows(rows.clone())) }
}

/// Where the rows are once these axes are joined.
fn without_axes(rows: &BatchAxis, axes: &[usize], keeps_dims: bool) -> RowRule {
    if axes.contains(&rows.axis) {
        return Err(JOINS_ROWS);
    }
    let gone = if keeps_dims { 0 } else { axes.iter().filter(|&&axis| axis < rows.axis).count() };
    Ok(RowFlow::Rows(rows.moved_to(rows.axis - gone)))
}
