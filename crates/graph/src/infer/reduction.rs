//! Operators that fold axes into one element: sums, means, extremes and their places.

use tessera_core::Dim;

use super::fact::Dims;
use super::operator::{Axes, Operator, resolve_axis};

/// The dimensions that a `Reduce…` operator gives.
pub(crate) fn infer_reduce(operator: &Operator<'_>) -> Dims {
    infer_reduce_with_axes(operator, 1)
}

/// The same where the axes are the input at `place`, unless they are an attribute.
pub(crate) fn infer_reduce_with_axes(operator: &Operator<'_>, place: usize) -> Dims {
    let dims = operator.input_dims(0)?;
    let keep = operator.integer_attribute("keepdims", 1) != 0;
    let axes = match operator.read_axes(place) {
        Axes::Unknown => return keep.then(|| vec![Dim::Unknown; dims.len()]),
        Axes::Known(axes) if !axes.is_empty() => axes,
        _ if operator.integer_attribute("noop_with_empty_axes", 0) != 0 => {
            return operator.copied_dims(0);
        }
        _ => return fold_axes(dims, &vec![true; dims.len()], keep),
    };
    let mut fold = vec![false; dims.len()];
    for axis in axes {
        *fold.get_mut(resolve_axis(axis, dims.len())?)? = true;
    }
    fold_axes(dims, &fold, keep)
}

/// The dimensions that `ArgMax` and `ArgMin` give.
pub(crate) fn infer_arg_max(operator: &Operator<'_>) -> Dims {
    let dims = operator.input_dims(0)?;
    let mut fold = vec![false; dims.len()];
    *fold.get_mut(resolve_axis(operator.integer_attribute("axis", 0), dims.len())?)? = true;
    fold_axes(dims, &fold, operator.integer_attribute("keepdims", 1) != 0)
}

fn fold_axes(dims: &[Dim], fold: &[bool], keep: bool) -> Dims {
    let each = dims.iter().zip(fold).filter_map(|(dim, &fold)| {
        if fold { keep.then_some(Dim::Fixed(1)) } else { Some(dim.clone()) }
    });
    Some(each.collect())
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::super::testing::type_of;
    use crate::builder::{GraphBuilder, int_attribute, ints_attribute};

    #[test]
    fn axes_are_an_attribute_in_old_models_and_an_input_in_new_ones() {
        let old = |axes: &[i64], keep: i64| {
            type_of(11, |builder: &mut GraphBuilder| {
                let x = builder.add_input("x", DType::F32, [2, 3, 4]);
                let attributes = [ints_attribute("axes", axes), int_attribute("keepdims", keep)];
                builder.add_node("ReduceMean", &[&x], attributes)
            })
        };
        assert_eq!(old(&[-1], 1), "f32[2,3,1]");
        assert_eq!(old(&[0, 2], 0), "f32[3]");
        assert_eq!(old(&[9], 0), "f32[…]");
        let new = |noop: i64| {
            type_of(18, |builder: &mut GraphBuilder| {
                let x = builder.add_input("x", DType::F32, [2, 3, 4]);
                let axes = builder.add_i64_weight("axes", &[0], vec![]);
                builder.add_node(
                    "ReduceSum",
                    &[&x, &axes],
                    [int_attribute("noop_with_empty_axes", noop)],
                )
            })
        };
        assert_eq!(new(0), "f32[1,1,1]");
        assert_eq!(new(1), "f32[2,3,4]");
    }

    #[test]
    fn the_place_of_an_extreme_has_one_axis_less_or_of_size_one() {
        let shown = type_of(13, |builder: &mut GraphBuilder| {
            let x = builder.add_input("x", DType::F32, [2, 3, 4]);
            builder.add_node(
                "ArgMax",
                &[&x],
                [int_attribute("axis", 1), int_attribute("keepdims", 0)],
            )
        });
        assert_eq!(shown, "i64[2,4]");
    }
}
