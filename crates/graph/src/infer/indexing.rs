//! Operators that take parts of a tensor or put parts together.

use tessera_core::Dim;

use super::element::Element;
use super::elementwise::unify_dims;
use super::fact::Dims;
use super::operator::{Axes, Operator, resolve_axis};

/// The dimensions that `Shape` tells: all, or those from `start` to `end`.
pub(crate) fn shape_range<'d>(operator: &Operator<'_>, dims: &'d [Dim]) -> Option<&'d [Dim]> {
    let rank = i64::try_from(dims.len()).ok()?;
    let place = |name: &str, default: i64| {
        let place = operator.integer_attribute(name, default);
        let place = if place < 0 { place.saturating_add(rank) } else { place };
        usize::try_from(place.clamp(0, rank)).ok()
    };
    let (start, end) = (place("start", 0)?, place("end", rank)?);
    dims.get(start..end.max(start))
}

/// What `Slice` does to one axis.
#[derive(Debug)]
pub(crate) struct AxisSlice {
    pub(crate) axis: usize,
    pub(crate) start: Element,
    pub(crate) end: Element,
    /// Elements from one that is taken to the next; negative for backwards.
    pub(crate) step: Element,
}

impl AxisSlice {
    /// The first place that is taken of an axis of this size, and how many are.
    pub(crate) fn start_and_count(&self, size: usize) -> Option<(i128, usize)> {
        let size = i128::try_from(size).ok()?;
        let from_start = |place: i64| {
            let place = i128::from(place);
            if place < 0 { place + size } else { place }
        };
        let step = i128::from(self.step.as_integer()?);
        let start = from_start(self.start.as_integer()?);
        let end = from_start(self.end.as_integer()?);
        let (start, count) = match step {
            0 => return None,
            1.. => {
                let (start, end) = (start.max(0).min(size), end.max(0).min(size));
                (start, (end - start + step - 1) / step)
            }
            _ => {
                let (start, end) = (start.max(0).min(size - 1), end.max(-1).min(size - 1));
                (start, (start - end - step - 1) / -step)
            }
        };
        Some((start, usize::try_from(count.max(0)).ok()?))
    }

    fn sliced_dim(&self, dim: &Dim) -> Dim {
        if let Some(size) = dim.fixed_size() {
            return self.start_and_count(size).map_or(Dim::Unknown, |(_, count)| Dim::Fixed(count));
        }
        // Of a size that is not fixed, only the whole is known: `x[0:]`, or up to that very size.
        let to_end = match &self.end {
            Element::Fixed(end) => *end >= i64::from(i32::MAX),
            Element::Symbol(_) => self.end.to_dim() == *dim,
            _ => false,
        };
        let whole = self.start == Element::Fixed(0) && self.step == Element::Fixed(1) && to_end;
        if whole { dim.clone() } else { Dim::Unknown }
    }
}

/// What `Slice` does to each axis that it cuts; `None` where it is not known which these are.
pub(crate) fn axis_slices(operator: &Operator<'_>, rank: usize) -> Option<Vec<AxisSlice>> {
    let starts = operator.attribute_or_input("starts", 1)?;
    let ends = operator.attribute_or_input("ends", 2)?;
    let steps = match operator.inputs.get(4) {
        Some(Some(_)) => operator.attribute_or_input("steps", 4)?,
        _ => vec![Element::Fixed(1); starts.len()],
    };
    let axes: Vec<i64> = match operator.read_axes(3) {
        Axes::Known(axes) => axes,
        Axes::Missing => (0i64..).take(starts.len()).collect(),
        Axes::Unknown => return None,
    };
    if ends.len() != starts.len() || steps.len() != starts.len() || axes.len() != starts.len() {
        return None;
    }
    let parts = axes.into_iter().zip(starts).zip(ends).zip(steps);
    parts
        .map(|(((axis, start), end), step)| {
            let axis = resolve_axis(axis, rank)?;
            Some(AxisSlice { axis, start, end, step })
        })
        .collect()
}

/// The dimensions that `Slice` gives.
pub(crate) fn infer_slice(operator: &Operator<'_>) -> Dims {
    let mut dims = operator.copied_dims(0)?;
    let Some(cuts) = axis_slices(operator, dims.len()) else {
        return Some(vec![Dim::Unknown; dims.len()]);
    };
    for cut in cuts {
        let dim = dims.get_mut(cut.axis)?;
        *dim = cut.sliced_dim(dim);
    }
    Some(dims)
}

/// The dimensions that `Concat` gives for inputs of these.
pub(crate) fn infer_concat(operator: &Operator<'_>, inputs: &[Option<&[Dim]>]) -> Dims {
    let mut known = inputs.iter().flatten();
    let mut dims = known.next()?.to_vec();
    // Before opset 4, the axis had a default.
    let axis = resolve_axis(operator.integer_attribute("axis", 1), dims.len())?;
    let mut total = dims.get(axis)?.clone();
    for other in known {
        if other.len() != dims.len() {
            return None;
        }
        total = match (&total, other.get(axis)?) {
            (Dim::Fixed(first), Dim::Fixed(second)) => {
                first.checked_add(*second).map_or(Dim::Unknown, Dim::Fixed)
            }
            (Dim::Fixed(0), size) | (size, Dim::Fixed(0)) => size.clone(),
            _ => Dim::Unknown,
        };
        for (dim, other) in dims.iter_mut().zip(*other) {
            *dim = unify_dims(dim, other);
        }
    }
    let all_known = inputs.iter().all(Option::is_some);
    *dims.get_mut(axis)? = if all_known { total } else { Dim::Unknown };
    Some(dims)
}

/// The dimensions that `Split` gives its outputs.
pub(crate) fn infer_split(operator: &Operator<'_>) -> Vec<Dims> {
    let count = operator.output_count;
    // Outputs at the end that nobody uses are not counted, but take their part.
    let parts = usize::try_from(operator.integer_attribute("num_outputs", 0))
        .unwrap_or(0)
        .max(count)
        .max(1);
    let Some(dims) = operator.input_dims(0) else {
        return Vec::new();
    };
    let Some(axis) = resolve_axis(operator.integer_attribute("axis", 0), dims.len()) else {
        return Vec::new();
    };
    let given: Option<Vec<Element>> =
        match (operator.integers_attribute("split"), operator.inputs.get(1)) {
            (Some(sizes), _) => Some(sizes.iter().copied().map(Element::Fixed).collect()),
            (None, Some(Some(_))) => {
                Some(operator.attribute_or_input("split", 1).unwrap_or_default())
            }
            _ => None,
        };
    let size = |index: usize| match &given {
        Some(sizes) => sizes.get(index).map_or(Dim::Unknown, Element::to_dim),
        None => dims.get(axis).and_then(Dim::fixed_size).map_or(Dim::Unknown, |whole| {
            let part = whole.div_ceil(parts);
            Dim::Fixed(part.min(whole.saturating_sub(part.saturating_mul(index))))
        }),
    };
    let part = |index: usize| {
        let mut dims = dims.to_vec();
        *dims.get_mut(axis)? = size(index);
        Some(dims)
    };
    (0..count).map(part).collect()
}

/// The dimensions that `Gather` gives.
pub(crate) fn infer_gather(operator: &Operator<'_>) -> Dims {
    let (data, indices) = (operator.input_dims(0)?, operator.input_dims(1)?);
    let axis = resolve_axis(operator.integer_attribute("axis", 0), data.len())?;
    let (before, after) = (data.get(..axis)?, data.get(axis + 1..)?);
    Some([before, indices, after].concat())
}

/// The dimensions that `GatherND` gives.
pub(crate) fn infer_gather_nd(operator: &Operator<'_>) -> Dims {
    let (data, indices) = (operator.input_dims(0)?, operator.input_dims(1)?);
    let (depth, places) = indices.split_last()?;
    let batch = usize::try_from(operator.integer_attribute("batch_dims", 0)).ok()?;
    let rest = data.get(batch.checked_add(depth.fixed_size()?)?..)?;
    Some([places, rest].concat())
}

/// The dimensions that `OneHot` gives.
pub(crate) fn infer_one_hot(operator: &Operator<'_>) -> Dims {
    let mut dims = operator.copied_dims(0)?;
    let axis = resolve_axis(operator.integer_attribute("axis", -1), dims.len() + 1)?;
    let depth = operator.input_scalar(1).map_or(Dim::Unknown, Element::to_dim);
    dims.insert(axis, depth);
    Some(dims)
}

/// The dimensions that `TopK` gives its two outputs.
pub(crate) fn infer_top_k(operator: &Operator<'_>) -> Vec<Dims> {
    let best = || {
        let mut dims = operator.copied_dims(0)?;
        let axis = resolve_axis(operator.integer_attribute("axis", -1), dims.len())?;
        let count = match operator.attribute("k") {
            Some(_) => Element::Fixed(operator.integer_attribute("k", 0)).to_dim(),
            None => operator.input_scalar(1).map_or(Dim::Unknown, Element::to_dim),
        };
        *dims.get_mut(axis)? = count;
        Some(dims)
    };
    let best: Dims = best();
    vec![best.clone(), best]
}

/// The dimensions that `Compress` gives.
pub(crate) fn infer_compress(operator: &Operator<'_>) -> Dims {
    if operator.attribute("axis").is_none() {
        return Some(vec![Dim::Unknown]);
    }
    let mut dims = operator.copied_dims(0)?;
    let axis = resolve_axis(operator.integer_attribute("axis", 0), dims.len())?;
    *dims.get_mut(axis)? = Dim::Unknown;
    Some(dims)
}

/// The dimensions that `Unique` gives its outputs.
pub(crate) fn infer_unique(operator: &Operator<'_>) -> Vec<Dims> {
    let list = Some(vec![Dim::Unknown]);
    vec![infer_compress(operator), list.clone(), list.clone(), list]
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::super::testing::{graph_of, shown, symbol, type_of, types_of};
    use super::*;
    use crate::builder::{GraphBuilder, int_attribute, ints_attribute};

    fn cut(start: i64, end: i64, step: i64) -> AxisSlice {
        AxisSlice {
            axis: 0,
            start: Element::Fixed(start),
            end: Element::Fixed(end),
            step: Element::Fixed(step),
        }
    }

    #[test]
    fn slices_wrap_and_clamp_as_in_python() {
        for (part, size, expected) in [
            (cut(0, 3, 1), 10, (0, 3)),
            (cut(-3, i64::MAX, 1), 10, (7, 3)),
            (cut(2, -2, 3), 10, (2, 2)),
            (cut(5, 2, 1), 10, (5, 0)),
            (cut(-1, i64::MIN, -1), 10, (9, 10)),
            (cut(8, 2, -4), 10, (8, 2)),
            (cut(0, 5, 1), 0, (0, 0)),
        ] {
            assert_eq!(part.start_and_count(size), Some(expected), "{part:?} of {size}");
        }
        assert_eq!(cut(-1, i64::MIN, -1).start_and_count(0).map(|(_, count)| count), Some(0));
        assert_eq!(cut(0, 1, 0).start_and_count(10), None);
    }

    #[test]
    fn a_symbolic_axis_survives_only_a_slice_of_the_whole() {
        let sliced = |start: i64| {
            type_of(13, |builder: &mut GraphBuilder| {
                let x = builder.add_input("x", DType::F32, [symbol("n"), Dim::Fixed(9)]);
                let starts = builder.add_i64_weight("starts", &[2], vec![start, 1]);
                let ends = builder.add_i64_weight("ends", &[2], vec![i64::MAX, -1]);
                builder.add_node("Slice", &[&x, &starts, &ends], [])
            })
        };
        assert_eq!(sliced(0), "f32[n,7]");
        assert_eq!(sliced(1), "f32[?,7]");
    }

    #[test]
    fn gathering_puts_the_indices_in_place_of_the_axis() {
        let shown = type_of(13, |builder: &mut GraphBuilder| {
            let table = builder.add_input("table", DType::F32, [2, 100, 8]);
            let ids = builder.add_input("ids", DType::I64, [symbol("n"), Dim::Fixed(4)]);
            builder.add_node("Gather", &[&table, &ids], [int_attribute("axis", 1)])
        });
        assert_eq!(shown, "f32[2,n,4,8]");
    }

    #[test]
    fn parts_that_are_split_and_joined_again_have_the_whole_shape() {
        let mut builder = GraphBuilder::new("split").with_opset(11);
        let x = builder.add_input("x", DType::F32, [2, 7]);
        let given = builder.add_node_with_outputs(
            "Split",
            &[&x],
            2,
            [int_attribute("axis", 1), ints_attribute("split", &[3, 4])],
        );
        let equal = builder.add_node_with_outputs("Split", &[&x], 2, []);
        let joined =
            builder.add_node("Concat", &[&given[0], &given[1]], [int_attribute("axis", -1)]);
        builder.add_output(&joined);
        builder.add_output(&equal[1]);
        let graph = graph_of(builder);
        let types = types_of(&graph);
        assert_eq!(shown(&graph, &types, &given[1]), "f32[2,4]");
        assert_eq!(shown(&graph, &types, &equal[1]), "f32[1,7]");
        assert_eq!(shown(&graph, &types, &joined), "f32[2,7]");
    }
}
