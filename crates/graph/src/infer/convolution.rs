//! Operators that move a window over the spatial dimensions: convolutions and pools.

use tessera_core::Dim;

use super::fact::Dims;
use super::operator::Operator;

/// How a window moves.
struct SlidingWindow<'a> {
    strides: &'a [i64],
    dilations: &'a [i64],
    /// All beginnings, then all ends.
    pads: &'a [i64],
    auto_pad: &'a str,
    /// Whether a window that is only partly inside counts.
    round_up: bool,
    /// Number of spatial dimensions.
    rank: usize,
}

/// How a window moves along one axis.
struct WindowStep {
    /// Elements from the first to the last of the window.
    extent: i128,
    stride: i128,
    begin: i128,
    end: i128,
}

impl<'a> SlidingWindow<'a> {
    fn of_operator(operator: &Operator<'a>, rank: usize) -> Self {
        Self {
            strides: operator.integers_attribute("strides").unwrap_or_default(),
            dilations: operator.integers_attribute("dilations").unwrap_or_default(),
            pads: operator.integers_attribute("pads").unwrap_or_default(),
            auto_pad: operator.text_attribute("auto_pad"),
            round_up: operator.integer_attribute("ceil_mode", 0) != 0,
            rank,
        }
    }

    fn axis_step(&self, axis: usize, kernel: &Dim) -> Option<WindowStep> {
        let at = |list: &[i64], place: usize, default: i64| {
            i128::from(list.get(place).copied().unwrap_or(default))
        };
        let kernel = i128::try_from(kernel.fixed_size()?).ok()?;
        let (stride, dilation) = (at(self.strides, axis, 1), at(self.dilations, axis, 1));
        if kernel < 1 || stride < 1 || dilation < 1 {
            return None;
        }
        let padded = matches!(self.auto_pad, "" | "NOTSET");
        let pad = |place: usize| if padded { at(self.pads, place, 0) } else { 0 };
        Some(WindowStep {
            extent: (kernel - 1).checked_mul(dilation)?.checked_add(1)?,
            stride,
            begin: pad(axis),
            end: pad(axis.checked_add(self.rank)?),
        })
    }

    /// The size of an axis after a convolution or a pool.
    fn output_size(&self, axis: usize, input: &Dim, kernel: &Dim) -> Dim {
        let Some(step) = self.axis_step(axis, kernel) else {
            return Dim::Unknown;
        };
        let same = matches!(self.auto_pad, "SAME_UPPER" | "SAME_LOWER");
        let Some(size) = input.fixed_size() else {
            let padding = step.begin.saturating_add(step.end);
            let keeps = step.stride == 1 && (same || padding == step.extent - 1);
            return if keeps { input.clone() } else { Dim::Unknown };
        };
        let windows = || {
            let size = i128::try_from(size).ok()?;
            if same {
                return Some((size + step.stride - 1) / step.stride);
            }
            let room =
                size.checked_add(step.begin)?.checked_add(step.end)?.checked_sub(step.extent)?;
            if !self.round_up {
                return Some(room.div_euclid(step.stride) + 1).filter(|&windows| windows > 0);
            }
            let windows = (room + step.stride - 1).div_euclid(step.stride) + 1;
            if windows < 1 {
                return None;
            }
            // A window that would start in the padding at the end is left out.
            let last = (windows - 1).checked_mul(step.stride)?;
            Some(if last >= size.checked_add(step.begin)? { windows - 1 } else { windows })
        };
        fixed_dim(windows())
    }

    /// The size of an axis after a transposed convolution.
    fn transposed_size(&self, axis: usize, input: &Dim, kernel: &Dim, extra: i64) -> Dim {
        let Some(step) = self.axis_step(axis, kernel) else {
            return Dim::Unknown;
        };
        let same = matches!(self.auto_pad, "SAME_UPPER" | "SAME_LOWER");
        let size = || {
            let input = i128::try_from(input.fixed_size()?).ok()?;
            if same {
                return input.checked_mul(step.stride);
            }
            (input - 1)
                .checked_mul(step.stride)?
                .checked_add(step.extent)?
                .checked_add(extra.into())?
                .checked_sub(step.begin)?
                .checked_sub(step.end)
        };
        fixed_dim(size())
    }
}

fn fixed_dim(size: Option<i128>) -> Dim {
    size.and_then(|size| usize::try_from(size).ok()).map_or(Dim::Unknown, Dim::Fixed)
}

/// The sizes of the window: the attribute, or else the weights' spatial dimensions.
fn kernel_size(operator: &Operator<'_>, weights: &[Dim], axis: usize) -> Dim {
    match operator.integers_attribute("kernel_shape") {
        Some(sizes) => fixed_dim(sizes.get(axis).map(|&size| size.into())),
        None => weights.get(axis).cloned().unwrap_or(Dim::Unknown),
    }
}

/// Which window of a convolution or a pool does not fit into what it moves over, for people; `None`
/// where all that are known do.
pub(crate) fn describe_unfit_window(operator: &Operator<'_>) -> Option<String> {
    let weights = match operator.op_type {
        "Conv" | "ConvInteger" | "FusedConv" | "NhwcFusedConv" => operator.input_dims(1),
        "QLinearConv" => operator.input_dims(3),
        "MaxPool" | "AveragePool" | "LpPool" | "QLinearAveragePool" => None,
        _ => return None,
    };
    let [_, _, spatial @ ..] = operator.input_dims(0)? else { return None };
    let sizes = weights.and_then(|weights| weights.get(2..)).unwrap_or_default();
    let window = SlidingWindow::of_operator(operator, spatial.len());
    spatial.iter().enumerate().find_map(|(axis, size)| {
        let kernel = kernel_size(operator, sizes, axis);
        let (known, width) = (size.fixed_size()?, kernel.fixed_size()?);
        let step = window.axis_step(axis, &kernel)?;
        let is_unfit = known == 0 || window.output_size(axis, size, &kernel) == Dim::Unknown;
        is_unfit.then(|| {
            let padding = step.begin.saturating_add(step.end);
            let name = operator.op_type;
            format!("the window of {name}, {width} wide, moves over {known}, padded by {padding}")
        })
    })
}

/// The dimensions that a convolution gives, whose weights are the input at `place`.
pub(crate) fn infer_convolution(operator: &Operator<'_>, place: usize) -> Dims {
    let weights = operator.input_dims(place);
    let input = match (operator.input_dims(0), weights) {
        (Some(input), _) => input.to_vec(),
        // The weights tell the rank.
        (None, Some(weights)) => vec![Dim::Unknown; weights.len()],
        _ => return None,
    };
    let [batch, _, spatial @ ..] = input.as_slice() else {
        return None;
    };
    let (channels, sizes) = match weights {
        Some([channels, _, sizes @ ..]) => (channels.clone(), sizes),
        _ => (Dim::Unknown, Default::default()),
    };
    let window = SlidingWindow::of_operator(operator, spatial.len());
    let mut dims = vec![batch.clone(), channels];
    dims.extend(
        spatial.iter().enumerate().map(|(axis, size)| {
            window.output_size(axis, size, &kernel_size(operator, sizes, axis))
        }),
    );
    Some(dims)
}

/// The dimensions that `ConvTranspose` gives.
pub(crate) fn infer_transposed_convolution(operator: &Operator<'_>) -> Dims {
    let [batch, _, spatial @ ..] = operator.input_dims(0)? else {
        return None;
    };
    let (per_group, sizes) = match operator.input_dims(1) {
        Some([_, per_group, sizes @ ..]) => (per_group.fixed_size(), sizes),
        _ => (None, Default::default()),
    };
    let groups = usize::try_from(operator.integer_attribute("group", 1)).ok();
    let channels = per_group.zip(groups).and_then(|(each, groups)| each.checked_mul(groups));
    let window = SlidingWindow::of_operator(operator, spatial.len());
    let extra = operator.integers_attribute("output_padding").unwrap_or_default();
    let given =
        operator.integers_attribute("output_shape").filter(|given| given.len() == spatial.len());
    let mut dims = vec![batch.clone(), channels.map_or(Dim::Unknown, Dim::Fixed)];
    dims.extend(spatial.iter().enumerate().map(|(axis, size)| {
        match given.and_then(|given| given.get(axis)) {
            Some(&given) => fixed_dim(Some(given.into())),
            None => {
                let extra = extra.get(axis).copied().unwrap_or(0);
                window.transposed_size(axis, size, &kernel_size(operator, sizes, axis), extra)
            }
        }
    }));
    Some(dims)
}

/// The dimensions that a pool gives.
pub(crate) fn infer_pool(operator: &Operator<'_>) -> Dims {
    let [batch, channels, spatial @ ..] = operator.input_dims(0)? else {
        return None;
    };
    let window = SlidingWindow::of_operator(operator, spatial.len());
    let mut dims = vec![batch.clone(), channels.clone()];
    dims.extend(
        spatial
            .iter()
            .enumerate()
            .map(|(axis, size)| window.output_size(axis, size, &kernel_size(operator, &[], axis))),
    );
    Some(dims)
}

/// The dimensions that a global pool gives: 1 in every spatial one.
pub(crate) fn infer_global_pool(operator: &Operator<'_>) -> Dims {
    let [batch, channels, spatial @ ..] = operator.input_dims(0)? else {
        return None;
    };
    let mut dims = vec![batch.clone(), channels.clone()];
    dims.extend(spatial.iter().map(|_| Dim::Fixed(1)));
    Some(dims)
}

/// The dimensions that a pool over regions gives: a batch per region.
pub(crate) fn infer_region_pool(operator: &Operator<'_>) -> Dims {
    let channels =
        operator.input_dims(0).and_then(|dims| dims.get(1)).cloned().unwrap_or(Dim::Unknown);
    let regions = operator.input_dims(1).and_then(<[Dim]>::first).cloned().unwrap_or(Dim::Unknown);
    let size = |place: usize, name: &str| match operator.integers_attribute("pooled_shape") {
        Some(sizes) => fixed_dim(sizes.get(place).map(|&size| size.into())),
        None => fixed_dim(Some(operator.integer_attribute(name, 1).into())),
    };
    Some(vec![regions, channels, size(0, "output_height"), size(1, "output_width")])
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::super::testing::{symbol, type_of};
    use super::*;
    use crate::builder::{GraphBuilder, int_attribute, ints_attribute, string_attribute};
    use crate::onnx::AttributeProto;

    fn over(op: &str, weights: Option<[usize; 4]>, attributes: Vec<AttributeProto>) -> String {
        type_of(13, |builder: &mut GraphBuilder| {
            let dims = [symbol("n"), Dim::Fixed(4), Dim::Fixed(15), Dim::Fixed(15)];
            let x = builder.add_input("x", DType::F32, dims);
            match weights {
                Some(dims) => {
                    let w = builder.add_input("w", DType::F32, dims);
                    builder.add_node(op, &[&x, &w], attributes)
                }
                None => builder.add_node(op, &[&x], attributes),
            }
        })
    }

    #[test]
    fn a_convolution_counts_the_places_of_its_window() {
        let conv = |attributes| over("Conv", Some([8, 4, 3, 3]), attributes);
        assert_eq!(conv(vec![]), "f32[n,8,13,13]");
        assert_eq!(conv(vec![ints_attribute("pads", &[1, 1, 1, 1])]), "f32[n,8,15,15]");
        assert_eq!(conv(vec![ints_attribute("strides", &[2, 2])]), "f32[n,8,7,7]");
        assert_eq!(conv(vec![ints_attribute("dilations", &[2, 7])]), "f32[n,8,11,1]");
        assert_eq!(conv(vec![ints_attribute("dilations", &[8, 1])]), "f32[n,8,?,13]");
        let same =
            vec![string_attribute("auto_pad", "SAME_UPPER"), ints_attribute("strides", &[2, 1])];
        assert_eq!(conv(same), "f32[n,8,8,15]");
        assert_eq!(conv(vec![ints_attribute("strides", &[0, -1])]), "f32[n,8,?,?]");
        assert_eq!(conv(vec![ints_attribute("dilations", &[i64::MAX, 1])]), "f32[n,8,?,13]");
    }

    #[test]
    fn a_transposed_convolution_undoes_the_strides() {
        let attributes = vec![
            int_attribute("group", 2),
            ints_attribute("strides", &[2, 2]),
            ints_attribute("pads", &[1, 1, 1, 1]),
            ints_attribute("output_padding", &[1, 0]),
        ];
        let shown = over("ConvTranspose", Some([4, 3, 3, 3]), attributes);
        assert_eq!(shown, "f32[n,6,30,29]");
    }

    #[test]
    fn a_pool_keeps_the_channels() {
        let pool = |mut attributes: Vec<AttributeProto>| {
            attributes.push(ints_attribute("kernel_shape", &[2, 2]));
            attributes.push(ints_attribute("strides", &[2, 2]));
            over("MaxPool", None, attributes)
        };
        assert_eq!(pool(vec![]), "f32[n,4,7,7]");
        assert_eq!(pool(vec![int_attribute("ceil_mode", 1)]), "f32[n,4,8,8]");
        let padded = vec![int_attribute("ceil_mode", 1), ints_attribute("pads", &[0, 0, 1, 1])];
        assert_eq!(pool(padded), "f32[n,4,8,8]");
        assert_eq!(over("GlobalAveragePool", None, vec![]), "f32[n,4,1,1]");
    }
}
