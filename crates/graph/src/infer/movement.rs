//! Operators that give the same elements another shape, or repeat them.

use tessera_core::Dim;

use super::element::Element;
use super::elementwise::broadcast_shapes;
use super::fact::{Dims, HIGHEST_RANK};
use super::operator::{Axes, Operator, resolve_axis};
use super::size_product::SizeProduct;

/// The dimensions that `Reshape` gives.
pub(crate) fn infer_reshape(operator: &Operator<'_>) -> Dims {
    let wanted = operator.attribute_or_input("shape", 1)?;
    let input = operator.input_dims(0);
    let keeps_zero = operator.integer_attribute("allowzero", 0) != 0;
    let dim = |(axis, element): (usize, &Element)| match element {
        Element::Fixed(0) if !keeps_zero => {
            input.and_then(|dims| dims.get(axis)).cloned().unwrap_or(Dim::Unknown)
        }
        element => element.to_dim(),
    };
    let mut dims: Vec<Dim> = wanted.iter().enumerate().map(dim).collect();
    // The elements stay as many, so one dimension that is -1 or not known follows from the others.
    let unknown = dims.iter().enumerate().filter(|(_, dim)| **dim == Dim::Unknown);
    let unknown: Vec<usize> = unknown.map(|(axis, _)| axis).collect();
    if let ([axis], Some(input)) = (unknown.as_slice(), input) {
        let others = dims.iter().enumerate().filter(|(other, _)| other != axis);
        let others = SizeProduct::of_dims(others.map(|(_, dim)| dim));
        let rest = SizeProduct::of_dims(input).zip(others);
        let rest = rest.and_then(|(whole, others)| whole.divided_by(&others));
        let rest = rest.map_or(Dim::Unknown, |rest| rest.to_dim());
        *dims.get_mut(*axis)? = rest;
    }
    Some(dims)
}

/// The dimensions that `Flatten` gives.
pub(crate) fn infer_flatten(operator: &Operator<'_>) -> Dims {
    let dims = operator.input_dims(0)?;
    // The axis may be the rank itself: everything goes to the front.
    let axis = resolve_axis(operator.integer_attribute("axis", 1), dims.len() + 1)?;
    let axis = if operator.integer_attribute("axis", 1) < 0 { axis.checked_sub(1)? } else { axis };
    let product =
        |dims: &[Dim]| SizeProduct::of_dims(dims).map_or(Dim::Unknown, |count| count.to_dim());
    Some(vec![product(dims.get(..axis)?), product(dims.get(axis..)?)])
}

/// The dimensions that `Transpose` gives.
pub(crate) fn infer_transpose(operator: &Operator<'_>) -> Dims {
    let dims = operator.input_dims(0)?;
    let Some(order) = operator.integers_attribute("perm") else {
        return Some(dims.iter().rev().cloned().collect());
    };
    if order.len() != dims.len() {
        return None;
    }
    order.iter().map(|&axis| dims.get(resolve_axis(axis, dims.len())?).cloned()).collect()
}

/// The dimensions that `Squeeze` gives.
pub(crate) fn infer_squeeze(operator: &Operator<'_>) -> Dims {
    let dims = operator.input_dims(0)?;
    let mut gone = vec![false; dims.len()];
    match operator.read_axes(1) {
        Axes::Known(axes) => {
            for axis in axes {
                *gone.get_mut(resolve_axis(axis, dims.len())?)? = true;
            }
        }
        Axes::Missing => {
            for (gone, dim) in gone.iter_mut().zip(dims) {
                *gone = dim.fixed_size()? == 1;
            }
        }
        Axes::Unknown => return None,
    }
    let kept = dims.iter().zip(gone).filter(|(_, gone)| !gone);
    Some(kept.map(|(dim, _)| dim.clone()).collect())
}

/// The dimensions that `Unsqueeze` gives.
pub(crate) fn infer_unsqueeze(operator: &Operator<'_>) -> Dims {
    match operator.read_axes(1) {
        Axes::Known(axes) => with_new_axes(operator.input_dims(0)?, &axes),
        _ => None,
    }
}

/// The dimensions that ONNX Runtime's `ExpandDims` gives.
pub(crate) fn infer_expand_dims(operator: &Operator<'_>) -> Dims {
    with_new_axes(operator.input_dims(0)?, &[operator.input_scalar(1)?.as_integer()?])
}

fn with_new_axes(dims: &[Dim], axes: &[i64]) -> Dims {
    let rank = dims.len().checked_add(axes.len()).filter(|&rank| rank <= HIGHEST_RANK)?;
    let mut new = vec![false; rank];
    for &axis in axes {
        *new.get_mut(resolve_axis(axis, rank)?)? = true;
    }
    let mut old = dims.iter();
    let all = new.iter().map(|&new| if new { Some(Dim::Fixed(1)) } else { old.next().cloned() });
    // An axis that is given twice leaves a place too many.
    all.collect()
}

/// The dimensions that `Expand` gives.
pub(crate) fn infer_expand(operator: &Operator<'_>) -> Dims {
    let dims = operator.input_dims(0)?;
    let wanted: Vec<Dim> =
        operator.attribute_or_input("shape", 1)?.iter().map(Element::to_dim).collect();
    Some(broadcast_shapes(&[dims, &wanted]))
}

/// The dimensions that `Tile` gives.
pub(crate) fn infer_tile(operator: &Operator<'_>) -> Dims {
    let dims = operator.input_dims(0)?;
    let repeats =
        operator.attribute_or_input("repeats", 1).filter(|repeats| repeats.len() == dims.len());
    let Some(repeats) = repeats else {
        return Some(vec![Dim::Unknown; dims.len()]);
    };
    let repeated = |(dim, repeat): (&Dim, &Element)| match (dim, repeat) {
        (dim, Element::Fixed(1)) => dim.clone(),
        (Dim::Fixed(1), repeat) => repeat.to_dim(),
        (Dim::Fixed(size), Element::Fixed(times)) => usize::try_from(*times)
            .ok()
            .and_then(|times| size.checked_mul(times))
            .map_or(Dim::Unknown, Dim::Fixed),
        _ => Dim::Unknown,
    };
    Some(dims.iter().zip(&repeats).map(repeated).collect())
}

/// The dimensions that `Pad` gives.
pub(crate) fn infer_pad(operator: &Operator<'_>) -> Dims {
    let mut dims = operator.copied_dims(0)?;
    let rank = dims.len();
    let unknown = Some(vec![Dim::Unknown; rank]);
    // Opset 1 called them `paddings`.
    let name = if operator.attribute("paddings").is_some() { "paddings" } else { "pads" };
    let Some(pads) = operator.attribute_or_input(name, 1) else {
        return unknown;
    };
    let axes: Vec<i64> = match operator.read_axes(3) {
        Axes::Known(axes) => axes,
        Axes::Missing => (0i64..).take(rank).collect(),
        Axes::Unknown => return unknown,
    };
    if pads.len() != axes.len().saturating_mul(2) {
        return unknown;
    }
    let ends = pads.iter().skip(axes.len());
    for (axis, (begin, end)) in axes.iter().zip(pads.iter().zip(ends)) {
        let dim = dims.get_mut(resolve_axis(*axis, rank)?)?;
        let added = begin.as_integer().zip(end.as_integer()).and_then(|(a, b)| a.checked_add(b));
        *dim = match (added, dim.fixed_size()) {
            (Some(0), _) => dim.clone(),
            (Some(added), Some(size)) => isize::try_from(added)
                .ok()
                .and_then(|added| size.checked_add_signed(added))
                .map_or(Dim::Unknown, Dim::Fixed),
            _ => Dim::Unknown,
        };
    }
    Some(dims)
}

/// The dimensions that `ConstantOfShape` gives.
pub(crate) fn infer_constant_of_shape(operator: &Operator<'_>) -> Dims {
    Some(operator.attribute_or_input("shape", 0)?.iter().map(Element::to_dim).collect())
}

/// The dimensions that `Range` gives.
pub(crate) fn infer_range(operator: &Operator<'_>) -> Dims {
    let length = || match (
        operator.input_scalar(0)?,
        operator.input_scalar(1)?,
        operator.input_scalar(2)?,
    ) {
        (Element::Fixed(start), Element::Fixed(limit), Element::Fixed(step)) => {
            let (start, limit, step) = (i128::from(*start), i128::from(*limit), i128::from(*step));
            let (distance, step) =
                if step < 0 { (start - limit, -step) } else { (limit - start, step) };
            let steps = distance.max(0).checked_add(step)?.checked_sub(1)?.checked_div(step)?;
            Some(Element::Fixed(i64::try_from(steps).ok()?).to_dim())
        }
        (Element::Real(start), Element::Real(limit), Element::Real(step)) => {
            let steps = ((limit - start) / step).ceil().max(0.0);
            (steps < 9.0e15).then_some(Dim::Fixed(steps as usize))
        }
        (Element::Fixed(0), size @ Element::Symbol(_), Element::Fixed(1)) => Some(size.to_dim()),
        _ => None,
    };
    Some(vec![length().unwrap_or(Dim::Unknown)])
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::super::testing::{symbol, type_of};
    use super::*;
    use crate::builder::{GraphBuilder, int_attribute, ints_attribute};

    fn reshaped(shape: &[i64]) -> String {
        type_of(14, |builder: &mut GraphBuilder| {
            let dims = [symbol("n"), Dim::Fixed(6), Dim::Fixed(4)];
            let x = builder.add_input("x", DType::F32, dims);
            let wanted = builder.add_i64_weight("wanted", &[shape.len()], shape.to_vec());
            builder.add_node("Reshape", &[&x, &wanted], [])
        })
    }

    #[test]
    fn reshape_copies_zeros_and_works_minus_one_out() {
        assert_eq!(reshaped(&[0, -1]), "f32[n,24]");
        assert_eq!(reshaped(&[-1, 24]), "f32[n,24]");
        assert_eq!(reshaped(&[0, 2, 3, -1]), "f32[n,2,3,4]");
        assert_eq!(reshaped(&[-1]), "f32[?]");
        assert_eq!(reshaped(&[-1, -1]), "f32[?,?]");
        assert_eq!(reshaped(&[0, 5, -1]), "f32[n,5,?]");
    }

    fn moved(op: &str, attributes: Vec<crate::onnx::AttributeProto>) -> String {
        type_of(11, |builder: &mut GraphBuilder| {
            let dims = [symbol("n"), Dim::Fixed(1), Dim::Fixed(4)];
            let x = builder.add_input("x", DType::F32, dims);
            builder.add_node(op, &[&x], attributes)
        })
    }

    #[test]
    fn axes_move_come_and_go() {
        assert_eq!(moved("Transpose", vec![]), "f32[4,1,n]");
        assert_eq!(moved("Transpose", vec![ints_attribute("perm", &[0, 2, 1])]), "f32[n,4,1]");
        assert_eq!(moved("Transpose", vec![ints_attribute("perm", &[0, 2, 7])]), "f32[…]");
        assert_eq!(moved("Squeeze", vec![ints_attribute("axes", &[1])]), "f32[n,4]");
        assert_eq!(moved("Squeeze", vec![]), "f32[…]");
        assert_eq!(moved("Unsqueeze", vec![ints_attribute("axes", &[0, -1])]), "f32[1,n,1,4,1]");
        assert_eq!(moved("Unsqueeze", vec![ints_attribute("axes", &[0, 0])]), "f32[…]");
        assert_eq!(moved("Flatten", vec![]), "f32[n,4]");
        assert_eq!(moved("Flatten", vec![int_attribute("axis", 3)]), "f32[?,1]");
        assert_eq!(moved("Flatten", vec![int_attribute("axis", -1)]), "f32[n,4]");
    }

    #[test]
    fn padding_adds_to_both_ends() {
        let shown = type_of(13, |builder: &mut GraphBuilder| {
            let x = builder.add_input("x", DType::F32, [symbol("n"), Dim::Fixed(5)]);
            let pads = builder.add_i64_weight("pads", &[4], vec![0, 1, 0, -2]);
            builder.add_node("Pad", &[&x, &pads], [])
        });
        assert_eq!(shown, "f32[n,4]");
    }
}
