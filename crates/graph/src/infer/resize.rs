//! Operators that scale, crop or rearrange the spatial dimensions of images.

use tessera_core::Dim;

use super::fact::Dims;
use super::operator::{Axes, Operator, axis_of};
use super::value::Element;

/// The dimensions that `Resize` and `Upsample` give.
pub(crate) fn resize(operator: &Operator<'_>) -> Dims {
    let mut dims = operator.same(0)?;
    let rank = dims.len();
    let axes: Vec<i64> = match operator.integers("axes") {
        Some(axes) => axes.to_vec(),
        None => (0i64..).take(rank).collect(),
    };
    let scales = scales(operator);
    let stretch = matches!(operator.text("keep_aspect_ratio_policy"), "" | "stretch");
    let sizes = operator.list("sizes", 3).filter(|sizes| !sizes.is_empty());
    for (place, &axis) in axes.iter().enumerate() {
        let dim = dims.get_mut(axis_of(axis, rank)?)?;
        *dim = match (scales.as_ref().filter(|scales| !scales.is_empty()), &sizes) {
            (Some(scales), _) => {
                scales.get(place).map_or(Dim::Unknown, |scale| scaled(dim, *scale))
            }
            (None, Some(sizes)) if stretch => sizes.get(place).map_or(Dim::Unknown, Element::dim),
            _ => Dim::Unknown,
        };
    }
    Some(dims)
}

/// The factor of each axis: an attribute in the first versions, an input since.
fn scales(operator: &Operator<'_>) -> Option<Vec<Option<f32>>> {
    if let Some(attribute) = operator.attribute("scales") {
        return Some(attribute.floats.iter().copied().map(Some).collect());
    }
    let is_first = operator.op_type == "Upsample" || operator.opset() < 11;
    let elements = operator.elements(if is_first { 1 } else { 2 })?;
    let scale = |element: &Element| match element {
        Element::Real(scale) => Some(*scale as f32),
        _ => None,
    };
    Some(elements.iter().map(scale).collect())
}

fn scaled(dim: &Dim, scale: Option<f32>) -> Dim {
    match (dim, scale) {
        (dim, Some(1.0)) => dim.clone(),
        (Dim::Fixed(size), Some(scale)) => {
            // In f32, as the engines do: another precision would round to another size.
            let size = (*size as f32 * scale).floor();
            if (0.0..9.0e15).contains(&size) { Dim::Fixed(size as usize) } else { Dim::Unknown }
        }
        _ => Dim::Unknown,
    }
}

/// The dimensions that `GridSample` gives: a place per point of the grid.
pub(crate) fn sampled(operator: &Operator<'_>) -> Dims {
    let ([batch, channels, ..], [_, points @ .., _]) = (operator.dims(0)?, operator.dims(1)?)
    else {
        return None;
    };
    let mut dims = vec![batch.clone(), channels.clone()];
    dims.extend_from_slice(points);
    Some(dims)
}

/// The dimensions that `AffineGrid` gives: the coordinates of every point of an image.
pub(crate) fn affine_grid(operator: &Operator<'_>) -> Dims {
    let sizes = operator.list("size", 1)?;
    let [batch, _, spatial @ ..] = sizes.as_slice() else {
        return None;
    };
    let mut dims = vec![batch.dim()];
    dims.extend(spatial.iter().map(Element::dim));
    dims.push(Dim::Fixed(spatial.len()));
    Some(dims)
}

/// The dimensions that `DepthToSpace` gives.
pub(crate) fn depth_to_space(operator: &Operator<'_>) -> Dims {
    let [batch, channels, height, width] = operator.dims(0)? else {
        return None;
    };
    let block = block_size(operator)?;
    let area = block.checked_mul(block)?;
    let (channels, height, width) =
        (divided(channels, area), multiplied(height, block), multiplied(width, block));
    Some(vec![batch.clone(), channels, height, width])
}

/// The dimensions that `SpaceToDepth` gives.
pub(crate) fn space_to_depth(operator: &Operator<'_>) -> Dims {
    let [batch, channels, height, width] = operator.dims(0)? else {
        return None;
    };
    let block = block_size(operator)?;
    let area = block.checked_mul(block)?;
    let (channels, height, width) =
        (multiplied(channels, area), divided(height, block), divided(width, block));
    Some(vec![batch.clone(), channels, height, width])
}

fn block_size(operator: &Operator<'_>) -> Option<usize> {
    usize::try_from(operator.integer("blocksize", 0)).ok().filter(|&block| block > 0)
}

fn multiplied(dim: &Dim, factor: usize) -> Dim {
    let size = dim.fixed().and_then(|size| size.checked_mul(factor));
    size.map_or(Dim::Unknown, Dim::Fixed)
}

fn divided(dim: &Dim, factor: usize) -> Dim {
    let size = dim.fixed().and_then(|size| size.checked_div(factor));
    size.map_or(Dim::Unknown, Dim::Fixed)
}

/// The dimensions that `CenterCropPad` gives.
pub(crate) fn crop(operator: &Operator<'_>) -> Dims {
    let mut dims = operator.same(0)?;
    let rank = dims.len();
    let axes: Vec<i64> = match operator.axes(usize::MAX) {
        Axes::Known(axes) => axes,
        _ => (0i64..).take(rank).collect(),
    };
    let Some(sizes) = operator.list("shape", 1) else {
        return Some(vec![Dim::Unknown; rank]);
    };
    for (place, axis) in axes.into_iter().enumerate() {
        *dims.get_mut(axis_of(axis, rank)?)? = sizes.get(place).map_or(Dim::Unknown, Element::dim);
    }
    Some(dims)
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::super::testing::{symbol, type_of};
    use super::*;
    use crate::builder::{GraphBuilder, int};

    #[test]
    fn images_are_scaled_by_factors_or_to_sizes() {
        let image = |builder: &mut GraphBuilder| {
            let dims = [symbol("n"), Dim::Fixed(3), Dim::Fixed(7), Dim::Fixed(9)];
            builder.input("x", DType::F32, dims)
        };
        let shown = type_of(13, |builder: &mut GraphBuilder| {
            let x = image(builder);
            let scales = builder.weight("scales", &[4], vec![1.0, 1.0, 2.0, 0.5]);
            builder.node("Resize", &[&x, "", &scales], [])
        });
        assert_eq!(shown, "f32[n,3,14,4]");
        let shown = type_of(13, |builder: &mut GraphBuilder| {
            let x = image(builder);
            let sizes = builder.weight_i64("sizes", &[4], vec![1, 3, 20, 30]);
            builder.node("Resize", &[&x, "", "", &sizes], [])
        });
        assert_eq!(shown, "f32[1,3,20,30]");
    }

    #[test]
    fn depth_becomes_space() {
        let shown = type_of(13, |builder: &mut GraphBuilder| {
            let x = builder.input("x", DType::F32, [1, 12, 4, 5]);
            builder.node("DepthToSpace", &[&x], [int("blocksize", 2)])
        });
        assert_eq!(shown, "f32[1,3,8,10]");
    }
}
