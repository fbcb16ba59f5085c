//! Operators that give the same elements another shape or order, or repeat them.

use tessera_core::Dim;

use super::batch_axis::{BATCH_SYMBOL, BatchAxis};
use super::{NO_RULE, RowFlow, RowMixing, RowRule, RowView, UNKNOWN_SHAPE};
use crate::infer::{Axes, Element, Operator, resolve_axis};

const MERGES_ROWS: RowMixing = RowMixing::Unknown("may put rows into one: its shape is not known");

/// `Reshape`.
pub(super) fn reshape_flow(view: &RowView<'_>) -> RowRule {
    let rows = data_rows(view)?;
    let wanted = view.operator.attribute_or_input("shape", 1).ok_or(MERGES_ROWS)?;
    let keeps_zero = view.operator.integer_attribute("allowzero", 0) != 0;
    let moved = rows.reshaped(view.dims(0)?, &wanted, keeps_zero);
    moved.map(RowFlow::Rows).ok_or(MERGES_ROWS)
}

/// `Flatten`.
pub(super) fn flatten_flow(view: &RowView<'_>) -> RowRule {
    let (rows, dims) = (view.only_rows(0)?, view.dims(0)?);
    let axis = view.operator.integer_attribute("axis", 1);
    // The axis may be the rank itself: everything goes to the front.
    let axis = if axis < 0 { axis.checked_add(dims.len() as i64) } else { Some(axis) };
    let axis = axis.and_then(|axis| usize::try_from(axis).ok()).ok_or(UNKNOWN_SHAPE)?;
    rows.flattened(dims, axis).map(RowFlow::Rows).ok_or(MERGES_ROWS)
}

/// `Transpose`.
pub(super) fn transpose_flow(view: &RowView<'_>) -> RowRule {
    let (rows, rank) = (view.only_rows(0)?, view.dims(0)?.len());
    let axis = match view.operator.integers_attribute("perm") {
        None => rank.checked_sub(rows.axis + 1),
        Some(order) => order.iter().position(|&axis| resolve_axis(axis, rank) == Some(rows.axis)),
    };
    axis.map(|axis| RowFlow::Rows(rows.moved_to(axis))).ok_or(UNKNOWN_SHAPE)
}

/// `Squeeze`, `Unsqueeze` and `Expand`.
pub(super) fn resized_flow(view: &RowView<'_>) -> RowRule {
    let rows = data_rows(view)?;
    Ok(RowFlow::Rows(rows.moved_to(moved_axis(view, rows.axis, rows.is_plain())?)))
}

/// Where the dimension of the rows is once dimensions of one element come, go or are repeated.
pub(super) fn moved_axis(
    view: &RowView<'_>,
    axis: usize,
    is_plain: bool,
) -> Result<usize, RowMixing> {
    match view.operator.op_type {
        "Squeeze" => squeezed_axis(view, axis),
        "Unsqueeze" => unsqueezed_axis(view, axis),
        _ => expanded_axis(view, axis, is_plain),
    }
}

fn squeezed_axis(view: &RowView<'_>, axis: usize) -> Result<usize, RowMixing> {
    let rank = view.dims(0)?.len();
    let gone: Vec<usize> = match view.operator.read_axes(1) {
        Axes::Known(axes) => {
            let axes = axes.iter().map(|&axis| resolve_axis(axis, rank));
            axes.collect::<Option<_>>().ok_or(UNKNOWN_SHAPE)?
        }
        // One row alone would lose its dimension.
        Axes::Missing => return Err(RowMixing::Joined("drops the dimension of a lone row")),
        Axes::Unknown => return Err(UNKNOWN_SHAPE),
    };
    if gone.contains(&axis) {
        return Err(RowMixing::Joined("drops the dimension that has the rows"));
    }
    Ok(axis - gone.iter().filter(|&&gone| gone < axis).count())
}

fn unsqueezed_axis(view: &RowView<'_>, axis: usize) -> Result<usize, RowMixing> {
    let Axes::Known(axes) = view.operator.read_axes(1) else { return Err(UNKNOWN_SHAPE) };
    let rank = view.dims(0)?.len() + axes.len();
    let new: Option<Vec<usize>> = axes.iter().map(|&axis| resolve_axis(axis, rank)).collect();
    let new = new.ok_or(UNKNOWN_SHAPE)?;
    (0..rank).filter(|at| !new.contains(at)).nth(axis).ok_or(UNKNOWN_SHAPE)
}

fn expanded_axis(view: &RowView<'_>, axis: usize, is_plain: bool) -> Result<usize, RowMixing> {
    let rank = view.dims(0)?.len();
    let wanted = view.operator.input_elements(1).ok_or(UNKNOWN_SHAPE)?;
    let from_end = rank.checked_sub(axis).ok_or(UNKNOWN_SHAPE)?;
    let keeps = match wanted.len().checked_sub(from_end).and_then(|axis| wanted.get(axis)) {
        None | Some(Element::Fixed(1)) => true,
        Some(Element::Symbol(name)) => name == BATCH_SYMBOL && is_plain,
        // To more than one, a lone row would be repeated.
        Some(_) => false,
    };
    let repeats = RowMixing::Unknown("may repeat rows");
    if keeps { Ok(rank.max(wanted.len()) - from_end) } else { Err(repeats) }
}

/// What is the same for all, repeated as often as there are rows: `Expand` and `ConstantOfShape`.
pub(super) fn repeated_for_each_row(operator: &Operator<'_>) -> Option<RowFlow> {
    let input_rank = match (operator.domain, operator.op_type) {
        ("", "ConstantOfShape") => 0,
        ("", "Expand") => operator.input_dims(0)?.len(),
        _ => return None,
    };
    let shape = if operator.op_type == "Expand" { 1 } else { 0 };
    let wanted = operator.input_elements(shape)?;
    let is_batch = |element: &Element| matches!(element, Element::Symbol(n) if n == BATCH_SYMBOL);
    let mut places = wanted.iter().enumerate().filter(|(_, element)| is_batch(element));
    let (Some((axis, _)), None) = (places.next(), places.next()) else { return None };
    // No other size may have to do with the rows in a way that is not seen.
    if wanted.contains(&Element::Unknown) {
        return None;
    }
    let rank = wanted.len().max(input_rank);
    let from_end = wanted.len() - axis;
    let repeated = match input_rank.checked_sub(from_end) {
        Some(axis) => operator.input_dims(0)?.get(axis) == Some(&Dim::Fixed(1)),
        None => true,
    };
    repeated.then(|| RowFlow::Rows(BatchAxis::at(rank - from_end)))
}

/// `Tile`.
pub(super) fn tile_flow(view: &RowView<'_>) -> RowRule {
    let rows = data_rows(view)?;
    let repeats = view.operator.input_elements(1).ok_or(UNKNOWN_SHAPE)?;
    match repeats.get(rows.axis) {
        Some(Element::Fixed(1)) => Ok(RowFlow::Rows(rows.clone())),
        _ => Err(RowMixing::Unknown("may repeat rows")),
    }
}

/// `Pad`.
pub(super) fn pad_flow(view: &RowView<'_>) -> RowRule {
    let (rows, rank) = (data_rows(view)?, view.dims(0)?.len());
    let unknown = RowMixing::Unknown("may add rows");
    let named =
        view.operator.integers_attribute("pads").or(view.operator.integers_attribute("paddings"));
    let pads: Vec<i64> = match named {
        Some(pads) => pads.to_vec(),
        None => {
            let pads = view.operator.input_elements(1).ok_or(unknown)?;
            pads.iter().map(|element| element.as_integer().unwrap_or(1)).collect()
        }
    };
    let axes: Vec<usize> = match view.operator.fixed_integers(3) {
        Some(axes) => {
            let axes = axes.iter().map(|&axis| resolve_axis(axis, rank));
            axes.collect::<Option<_>>().ok_or(UNKNOWN_SHAPE)?
        }
        None if view.flows.get(3).is_some_and(Option::is_some) => return Err(unknown),
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(UNKNOWN_SHAPE);
    }
    let (front, back) = pads.split_at(axes.len());
    let is_kept = |(&axis, (&front, &back)): (&usize, (&i64, &i64))| {
        axis != rows.axis || (front, back) == (0, 0)
    };
    if axes.iter().zip(front.iter().zip(back)).all(is_kept) {
        Ok(RowFlow::Rows(rows.clone()))
    } else {
        Err(RowMixing::Joined("adds rows or takes some away"))
    }
}

/// `Resize` and `Upsample`: the rows stay as many.
pub(super) fn resize_flow(view: &RowView<'_>) -> RowRule {
    let rows = data_rows(view)?;
    if view.operator.attribute("axes").is_some() {
        let rank = view.dims(0)?.len();
        let axes = view.operator.integers_attribute("axes").unwrap_or_default();
        let touches = axes.iter().any(|&axis| resolve_axis(axis, rank) == Some(rows.axis));
        return if touches { Err(NO_RULE) } else { Ok(RowFlow::Rows(rows.clone())) };
    }
    if let Some(scales) = view.operator.attribute("scales").map(|scales| &scales.floats) {
        let stays = scales.get(rows.axis) == Some(&1.0);
        return if stays { Ok(RowFlow::Rows(rows.clone())) } else { Err(NO_RULE) };
    }
    let stays = |element: &Element| match element {
        Element::Real(scale) => *scale == 1.0,
        Element::Symbol(name) => name == BATCH_SYMBOL,
        _ => false,
    };
    // Scales are the second input of old versions and the third of new ones; sizes the fourth.
    let found = (1..view.flows.len()).filter_map(|input| {
        view.operator.input_elements(input).and_then(|elements| elements.get(rows.axis))
    });
    if found.into_iter().any(stays) {
        Ok(RowFlow::Rows(rows.clone()))
    } else {
        Err(RowMixing::Unknown("may resize the dimension that has the rows"))
    }
}

/// Where the rows of the first input are; the others may be sizes.
pub(super) fn data_rows<'a>(view: &'a RowView<'_>) -> Result<&'a BatchAxis, RowMixing> {
    let is_size = |input: usize| matches!(view.flow(input), RowFlow::Same | RowFlow::Count);
    match view.rows(0) {
        Some(axis) if (1..view.flows.len()).all(is_size) => Ok(axis),
        _ => Err(NO_RULE),
    }
}
