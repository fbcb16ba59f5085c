//! Operators that fold axes into one element: sums, means, extremes and their places.

use tessera_core::Dim;

use super::fact::Dims;
use super::operator::{Axes, Operator, axis_of};

/// The dimensions that a `Reduce…` operator gives.
pub(crate) fn reduce(operator: &Operator<'_>) -> Dims {
    reduce_from(operator, 1)
}

/// The same where the axes are the input at `place`, unless they are an attribute.
pub(crate) fn reduce_from(operator: &Operator<'_>, place: usize) -> Dims {
    let dims = operator.dims(0)?;
    let keep = operator.integer("keepdims", 1) != 0;
    let axes = match operator.axes(place) {
        Axes::Unknown => return keep.then(|| vec![Dim::Unknown; dims.len()]),
        Axes::Known(axes) if !axes.is_empty() => axes,
        _ if operator.integer("noop_with_empty_axes", 0) != 0 => return operator.same(0),
        _ => return folded(dims, &vec![true; dims.len()], keep),
    };
    let mut fold = vec![false; dims.len()];
    for axis in axes {
        *fold.get_mut(axis_of(axis, dims.len())?)? = true;
    }
    folded(dims, &fold, keep)
}

/// The dimensions that `ArgMax` and `ArgMin` give.
pub(crate) fn arg(operator: &Operator<'_>) -> Dims {
    let dims = operator.dims(0)?;
    let mut fold = vec![false; dims.len()];
    *fold.get_mut(axis_of(operator.integer("axis", 0), dims.len())?)? = true;
    folded(dims, &fold, operator.integer("keepdims", 1) != 0)
}

fn folded(dims: &[Dim], fold: &[bool], keep: bool) -> Dims {
    let each = dims.iter().zip(fold).filter_map(|(dim, fold)| match (fold, keep) {
        (false, _) => Some(dim.clone()),
        (true, true) => Some(Dim::Fixed(1)),
        (true, false) => None,
    });
    Some(each.collect())
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::super::testing::type_of;
    use crate::builder::{GraphBuilder, int, ints};

    #[test]
    fn axes_are_an_attribute_in_old_models_and_an_input_in_new_ones() {
        let old = |axes: &[i64], keep: i64| {
            type_of(11, |builder: &mut GraphBuilder| {
                let x = builder.input("x", DType::F32, [2, 3, 4]);
                let attributes = [ints("axes", axes), int("keepdims", keep)];
                builder.node("ReduceMean", &[&x], attributes)
            })
        };
        assert_eq!(old(&[-1], 1), "f32[2,3,1]");
        assert_eq!(old(&[0, 2], 0), "f32[3]");
        assert_eq!(old(&[9], 0), "f32[…]");
        let new = |noop: i64| {
            type_of(18, |builder: &mut GraphBuilder| {
                let x = builder.input("x", DType::F32, [2, 3, 4]);
                let axes = builder.weight_i64("axes", &[0], vec![]);
                builder.node("ReduceSum", &[&x, &axes], [int("noop_with_empty_axes", noop)])
            })
        };
        assert_eq!(new(0), "f32[1,1,1]");
        assert_eq!(new(1), "f32[2,3,4]");
    }

    #[test]
    fn the_place_of_an_extreme_has_one_axis_less_or_of_size_one() {
        let shown = type_of(13, |builder: &mut GraphBuilder| {
            let x = builder.input("x", DType::F32, [2, 3, 4]);
            builder.node("ArgMax", &[&x], [int("axis", 1), int("keepdims", 0)])
        });
        assert_eq!(shown, "i64[2,4]");
    }
}
