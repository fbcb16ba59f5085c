//! Operators that take parts of a tensor or put parts together.

use tessera_core::Dim;

use super::elementwise::agreed;
use super::fact::Dims;
use super::operator::{Axes, Operator, axis_of};
use super::value::Element;

/// The dimensions that `Shape` tells: all, or those from `start` to `end`.
pub(crate) fn shape_part<'d>(operator: &Operator<'_>, dims: &'d [Dim]) -> Option<&'d [Dim]> {
    let rank = i64::try_from(dims.len()).ok()?;
    let place = |name: &str, default: i64| {
        let place = operator.integer(name, default);
        let place = if place < 0 { place.saturating_add(rank) } else { place };
        usize::try_from(place.clamp(0, rank)).ok()
    };
    let (start, end) = (place("start", 0)?, place("end", rank)?);
    dims.get(start..end.max(start))
}

/// What `Slice` does to one axis.
#[derive(Debug)]
pub(crate) struct Cut {
    axis: usize,
    start: Element,
    end: Element,
    /// Elements from one that is taken to the next; negative for backwards.
    pub(crate) step: Element,
}

impl Cut {
    /// The first place that is taken of an axis of this size, and how many are.
    pub(crate) fn range(&self, size: usize) -> Option<(i128, usize)> {
        let size = i128::try_from(size).ok()?;
        let from_start = |place: i64| {
            let place = i128::from(place);
            if place < 0 { place + size } else { place }
        };
        let step = i128::from(self.step.integer()?);
        let start = from_start(self.start.integer()?);
        let end = from_start(self.end.integer()?);
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

    fn size(&self, dim: &Dim) -> Dim {
        if let Some(size) = dim.fixed() {
            return self.range(size).map_or(Dim::Unknown, |(_, count)| Dim::Fixed(count));
        }
        // Of a size that is not fixed, only the whole is known: `x[0:]`, or up to that very size.
        let to_end = match &self.end {
            Element::Fixed(end) => *end >= i64::from(i32::MAX),
            Element::Symbol(_) => self.end.dim() == *dim,
            _ => false,
        };
        let whole = self.start == Element::Fixed(0) && self.step == Element::Fixed(1) && to_end;
        if whole { dim.clone() } else { Dim::Unknown }
    }
}

/// What `Slice` does to each axis that it cuts; `None` where it is not known which these are.
pub(crate) fn cuts(operator: &Operator<'_>, rank: usize) -> Option<Vec<Cut>> {
    let starts = operator.list("starts", 1)?;
    let ends = operator.list("ends", 2)?;
    let steps = match operator.inputs.get(4) {
        Some(Some(_)) => operator.list("steps", 4)?,
        _ => vec![Element::Fixed(1); starts.len()],
    };
    let axes: Vec<i64> = match operator.axes(3) {
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
            let axis = axis_of(axis, rank)?;
            Some(Cut { axis, start, end, step })
        })
        .collect()
}

/// The dimensions that `Slice` gives.
pub(crate) fn slice(operator: &Operator<'_>) -> Dims {
    let mut dims = operator.same(0)?;
    let Some(cuts) = cuts(operator, dims.len()) else {
        return Some(vec![Dim::Unknown; dims.len()]);
    };
    for cut in cuts {
        let dim = dims.get_mut(cut.axis)?;
        *dim = cut.size(dim);
    }
    Some(dims)
}

/// The dimensions that `Concat` gives for inputs of these.
pub(crate) fn concat(operator: &Operator<'_>, inputs: &[Option<&[Dim]>]) -> Dims {
    let mut known = inputs.iter().flatten();
    let mut dims = known.next()?.to_vec();
    // Before opset 4, the axis had a default.
    let axis = axis_of(operator.integer("axis", 1), dims.len())?;
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
            *dim = agreed(dim, other);
        }
    }
    let all_known = inputs.iter().all(Option::is_some);
    *dims.get_mut(axis)? = if all_known { total } else { Dim::Unknown };
    Some(dims)
}

/// The dimensions that `Split` gives its outputs.
pub(crate) fn split(operator: &Operator<'_>) -> Vec<Dims> {
    let count = operator.output_count;
    // Outputs at the end that nobody uses are not counted, but take their part.
    let parts = usize::try_from(operator.integer("num_outputs", 0)).unwrap_or(0).max(count).max(1);
    let Some(dims) = operator.dims(0) else {
        return Vec::new();
    };
    let Some(axis) = axis_of(operator.integer("axis", 0), dims.len()) else {
        return Vec::new();
    };
    let given: Option<Vec<Element>> = match (operator.integers("split"), operator.inputs.get(1)) {
        (Some(sizes), _) => Some(sizes.iter().copied().map(Element::Fixed).collect()),
        (None, Some(Some(_))) => Some(operator.list("split", 1).unwrap_or_default()),
        _ => None,
    };
    let size = |index: usize| match &given {
        Some(sizes) => sizes.get(index).map_or(Dim::Unknown, Element::dim),
        None => dims.get(axis).and_then(Dim::fixed).map_or(Dim::Unknown, |whole| {
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
pub(crate) fn gather(operator: &Operator<'_>) -> Dims {
    let (data, indices) = (operator.dims(0)?, operator.dims(1)?);
    let axis = axis_of(operator.integer("axis", 0), data.len())?;
    let (before, after) = (data.get(..axis)?, data.get(axis + 1..)?);
    Some([before, indices, after].concat())
}

/// The dimensions that `GatherND` gives.
pub(crate) fn gather_nd(operator: &Operator<'_>) -> Dims {
    let (data, indices) = (operator.dims(0)?, operator.dims(1)?);
    let (depth, places) = indices.split_last()?;
    let batch = usize::try_from(operator.integer("batch_dims", 0)).ok()?;
    let rest = data.get(batch.checked_add(depth.fixed()?)?..)?;
    Some([places, rest].concat())
}

/// The dimensions that `OneHot` gives.
pub(crate) fn one_hot(operator: &Operator<'_>) -> Dims {
    let mut dims = operator.same(0)?;
    let axis = axis_of(operator.integer("axis", -1), dims.len() + 1)?;
    let depth = operator.single(1).map_or(Dim::Unknown, Element::dim);
    dims.insert(axis, depth);
    Some(dims)
}

/// The dimensions that `TopK` gives its two outputs.
pub(crate) fn top(operator: &Operator<'_>) -> Vec<Dims> {
    let best = || {
        let mut dims = operator.same(0)?;
        let axis = axis_of(operator.integer("axis", -1), dims.len())?;
        let count = match operator.attribute("k") {
            Some(_) => Element::Fixed(operator.integer("k", 0)).dim(),
            None => operator.single(1).map_or(Dim::Unknown, Element::dim),
        };
        *dims.get_mut(axis)? = count;
        Some(dims)
    };
    let best: Dims = best();
    vec![best.clone(), best]
}

/// The dimensions that `Compress` gives.
pub(crate) fn compress(operator: &Operator<'_>) -> Dims {
    if operator.attribute("axis").is_none() {
        return Some(vec![Dim::Unknown]);
    }
    let mut dims = operator.same(0)?;
    let axis = axis_of(operator.integer("axis", 0), dims.len())?;
    *dims.get_mut(axis)? = Dim::Unknown;
    Some(dims)
}

/// The dimensions that `Unique` gives its outputs.
pub(crate) fn unique(operator: &Operator<'_>) -> Vec<Dims> {
    let list = Some(vec![Dim::Unknown]);
    vec![compress(operator), list.clone(), list.clone(), list]
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::super::testing::{graph_of, shown, symbol, type_of, types_of};
    use super::*;
    use crate::builder::{GraphBuilder, int, ints};

    fn cut(start: i64, end: i64, step: i64) -> Cut {
        Cut {
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
            assert_eq!(part.range(size), Some(expected), "{part:?} of {size}");
        }
        assert_eq!(cut(-1, i64::MIN, -1).range(0).map(|(_, count)| count), Some(0));
        assert_eq!(cut(0, 1, 0).range(10), None);
    }

    #[test]
    fn a_symbolic_axis_survives_only_a_slice_of_the_whole() {
        let sliced = |start: i64| {
            type_of(13, |builder: &mut GraphBuilder| {
                let x = builder.input("x", DType::F32, [symbol("n"), Dim::Fixed(9)]);
                let starts = builder.weight_i64("starts", &[2], vec![start, 1]);
                let ends = builder.weight_i64("ends", &[2], vec![i64::MAX, -1]);
                builder.node("Slice", &[&x, &starts, &ends], [])
            })
        };
        assert_eq!(sliced(0), "f32[n,7]");
        assert_eq!(sliced(1), "f32[?,7]");
    }

    #[test]
    fn gathering_puts_the_indices_in_place_of_the_axis() {
        let shown = type_of(13, |builder: &mut GraphBuilder| {
            let table = builder.input("table", DType::F32, [2, 100, 8]);
            let ids = builder.input("ids", DType::I64, [symbol("n"), Dim::Fixed(4)]);
            builder.node("Gather", &[&table, &ids], [int("axis", 1)])
        });
        assert_eq!(shown, "f32[2,n,4,8]");
    }

    #[test]
    fn parts_that_are_split_and_joined_again_have_the_whole_shape() {
        let mut builder = GraphBuilder::new("split").opset(11);
        let x = builder.input("x", DType::F32, [2, 7]);
        let given = builder.node_multi("Split", &[&x], 2, [int("axis", 1), ints("split", &[3, 4])]);
        let equal = builder.node_multi("Split", &[&x], 2, []);
        let joined = builder.node("Concat", &[&given[0], &given[1]], [int("axis", -1)]);
        builder.output(&joined);
        builder.output(&equal[1]);
        let graph = graph_of(builder);
        let types = types_of(&graph);
        assert_eq!(shown(&graph, &types, &given[1]), "f32[2,4]");
        assert_eq!(shown(&graph, &types, &equal[1]), "f32[1,7]");
        assert_eq!(shown(&graph, &types, &joined), "f32[2,7]");
    }
}
