//! Operators that scale, crop or rearrange the spatial dimensions of images.

use tessera_core::Dim;

use super::element::Element;
use super::fact::Dims;
use super::operator::{Axes, Operator, resolve_axis};

/// The dimensions that `Resize` and `Upsample` give.
pub(crate) fn infer_resize(operator: &Operator<'_>) -> Dims {
    let mut dims = operator.copied_dims(0)?;
    let rank = dims.len();
    let axes: Vec<i64> = match operator.integers_attribute("axes") {
        Some(axes) => axes.to_vec(),
        None => (0i64..).take(rank).collect(),
    };
    let scales = axis_scales(operator);
    let stretch = matches!(operator.text_attribute("keep_aspect_ratio_policy"), "" | "stretch");
    let sizes = operator.attribute_or_input("sizes", 3).filter(|sizes| !sizes.is_empty());
    for (place, &axis) in axes.iter().enumerate() {
        let dim = dims.get_mut(resolve_axis(axis, rank)?)?;
        *dim = match (scales.as_ref().filter(|scales| !scales.is_empty()), &sizes) {
            (Some(scales), _) => {
                scales.get(place).map_or(Dim::Unknown, |scale| scale_dim(dim, *scale))
            }
            (None, Some(sizes)) if stretch => {
                sizes.get(place).map_or(Dim::Unknown, Element::to_dim)
            }
            _ => Dim::Unknown,
        };
    }
    Some(dims)
}

/// The factor of each axis: an attribute in the first versions, an input since.
fn axis_scales(operator: &Operator<'_>) -> Option<Vec<Option<f32>>> {
    if let Some(attribute) = operator.attribute("scales") {
        return Some(attribute.floats.iter().copied().map(Some).collect());
    }
    let is_first = operator.op_type == "Upsample" || operator.opset() < 11;
    let elements = operator.input_elements(if is_first { 1 } else { 2 })?;
    let scale = |element: &Element| match element {
        Element::Real(scale) => Some(*scale as f32),
        _ => None,
    };
    Some(elements.iter().map(scale).collect())
}

fn scale_dim(dim: &Dim, scale: Option<f32>) -> Dim {
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
pub(crate) fn infer_grid_sample(operator: &Operator<'_>) -> Dims {
    let ([batch, channels, ..], [_, points @ .., _]) =
        (operator.input_dims(0)?, operator.input_dims(1)?)
    else {
        return None;
    };
    let mut dims = vec![batch.clone(), channels.clone()];
    dims.extend_from_slice(points);
    Some(dims)
}

/// The dimensions that `AffineGrid` gives: the coordinates of every point of an image.
pub(crate) fn infer_affine_grid(operator: &Operator<'_>) -> Dims {
    let sizes = operator.attribute_or_input("size", 1)?;
    let [batch, _, spatial @ ..] = sizes.as_slice() else {
        return None;
    };
    let mut dims = vec![batch.to_dim()];
    dims.extend(spatial.iter().map(Element::to_dim));
    dims.push(Dim::Fixed(spatial.len()));
    Some(dims)
}

/// The dimensions that `DepthToSpace` gives.
pub(crate) fn infer_depth_to_space(operator: &Operator<'_>) -> Dims {
    let [batch, channels, height, width] = operator.input_dims(0)? else {
        return None;
    };
    let block = block_size(operator)?;
    let area = block.checked_mul(block)?;
    let (channels, height, width) =
        (divide_dim(channels, area), multiply_dim(height, block), multiply_dim(width, block));
    Some(vec![batch.clone(), channels, height, width])
}

/// The dimensions that `SpaceToDepth` gives.
pub(crate) fn infer_space_to_depth(operator: &Operator<'_>) -> Dims {
    let [batch, channels, height, width] = operator.input_dims(0)? else {
        return None;
    };
    let block = block_size(operator)?;
    let area = block.checked_mul(block)?;
    let (channels, height, width) =
        (multiply_dim(channels, area), divide_dim(height, block), divide_dim(width, block));
    Some(vec![batch.clone(), channels, height, width])
}

fn block_size(operator: &Operator<'_>) -> Option<usize> {
    usize::try_from(operator.integer_attribute("blocksize", 0)).ok().filter(|&block| block > 0)
}

fn multiply_dim(dim: &Dim, factor: usize) -> Dim {
    let size = dim.fixed_size().and_then(|size| size.checked_mul(factor));
    size.map_or(Dim::Unknown, Dim::Fixed)
}

fn divide_dim(dim: &Dim, factor: usize) -> Dim {
    let size = dim.fixed_size().and_then(|size| size.checked_div(factor));
    size.map_or(Dim::Unknown, Dim::Fixed)
}

/// The dimensions that `CenterCropPad` gives.
pub(crate) fn infer_center_crop_pad(operator: &Operator<'_>) -> Dims {
    let mut dims = operator.copied_dims(0)?;
    let rank = dims.len();
    let axes: Vec<i64> = match operator.read_axes(usize::MAX) {
        Axes::Known(axes) => axes,
        _ => (0i64..).take(rank).collect(),
    };
    let Some(sizes) = operator.attribute_or_input("shape", 1) else {
        return Some(vec![Dim::Unknown; rank]);
    };
    for (place, axis) in axes.into_iter().enumerate() {
        *dims.get_mut(resolve_axis(axis, rank)?)? =
            sizes.get(place).map_or(Dim::Unknown, Element::to_dim);
    }
    Some(dims)
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::super::testing::{symbol, type_of};
    use super::*;
    use crate::builder::{GraphBuilder, int_attribute};

    #[test]
    fn images_are_scaled_by_factors_or_to_sizes() {
        let image = |builder: &mut GraphBuilder| {
            let dims = [symbol("n"), Dim::Fixed(3), Dim::Fixed(7), Dim::Fixed(9)];
            builder.add_input("x", DType::F32, dims)
        };
        let shown = type_of(13, |builder: &mut GraphBuilder| {
            let x = image(builder);
            let scales = builder.add_weight("scales", &[4], vec![1.0, 1.0, 2.0, 0.5]);
            builder.add_node("Resize", &[&x, "", &scales], [])
        });
        assert_eq!(shown, "f32[n,3,14,4]");
        let shown = type_of(13, |builder: &mut GraphBuilder| {
            let x = image(builder);
            let sizes = builder.add_i64_weight("sizes", &[4], vec![1, 3, 20, 30]);
            builder.add_node("Resize", &[&x, "", "", &sizes], [])
        });
        assert_eq!(shown, "f32[1,3,20,30]");
    }

    #[test]
    fn depth_becomes_space() {
        let shown = type_of(13, |builder: &mut GraphBuilder| {
            let x = builder.add_input("x", DType::F32, [1, 12, 4, 5]);
            builder.add_node("DepthToSpace", &[&x], [int_attribute("blocksize", 2)])
        });
        assert_eq!(shown, "f32[1,3,8,10]");
    }
}
