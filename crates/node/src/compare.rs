//! How far two results are apart.

use serde::Serialize;
use tessera_core::{DType, Error, Result, Tensor, display_shape};

/// How far one output of a run is from the output that was expected.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutputDifference {
    /// Name of the output.
    pub output: String,
    /// Largest difference between two elements.
    pub max_absolute: f64,
    /// That, relative to the largest expected element. (Element by element, a value next to zero
    /// would make rounding look like an error.)
    pub max_relative: f64,
    /// The largest element that was expected.
    pub largest: f64,
    /// Whether the largest element is at the same place, in every sample of the batch.
    pub same_top: bool,
}

/// Compares an output with what was expected.
pub fn compare_output(name: &str, found: &Tensor, expected: &Tensor) -> Result<OutputDifference> {
    if found.dtype() != expected.dtype() || found.shape() != expected.shape() {
        return Err(Error::engine(format!(
            "output \"{name}\" is {}, expected {}",
            display_shape(found.dtype(), found.shape()),
            display_shape(expected.dtype(), expected.shape())
        )));
    }
    let output = name.to_owned();
    if expected.dtype() == DType::String || expected.to_f64().is_none() {
        let same = found.strings() == expected.strings() && found.bytes() == expected.bytes();
        let distance = if same { 0.0 } else { 1.0 };
        return Ok(OutputDifference {
            output,
            max_absolute: distance,
            max_relative: distance,
            largest: 1.0,
            same_top: same,
        });
    }
    let (found_values, expected_values) =
        (found.to_f64().unwrap_or_default(), expected.to_f64().unwrap_or_default());
    let mut max_absolute: f64 = 0.0;
    let mut largest: f64 = 0.0;
    for (&a, &b) in found_values.iter().zip(&expected_values) {
        let same = a == b || (a.is_nan() && b.is_nan());
        let distance = if same { 0.0 } else { (a - b).abs() };
        // A NaN on one side only is as wrong as can be.
        max_absolute = max_absolute.max(if distance.is_nan() { f64::INFINITY } else { distance });
        if b.is_finite() {
            largest = largest.max(b.abs());
        }
    }
    let max_relative = if max_absolute == 0.0 { 0.0 } else { max_absolute / largest };
    let classes = expected.shape().last().copied().unwrap_or(1).max(1);
    let same_top = found_values
        .chunks(classes)
        .zip(expected_values.chunks(classes))
        .all(|(found, expected)| top_class(found) == top_class(expected));
    Ok(OutputDifference { output, max_absolute, max_relative, largest, same_top })
}

fn top_class(sample: &[f64]) -> Option<usize> {
    (0..sample.len()).max_by(|&a, &b| sample[a].total_cmp(&sample[b]).then(b.cmp(&a)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nan_on_one_side_is_an_infinite_difference() {
        let nan = Tensor::from_f32(&[2], &[f32::NAN, 1.0]).unwrap();
        let one = Tensor::from_f32(&[2], &[1.0, 1.0]).unwrap();
        assert_eq!(compare_output("y", &nan, &one).unwrap().max_relative, f64::INFINITY);
        assert_eq!(compare_output("y", &nan, &nan).unwrap().max_relative, 0.0);
    }

    #[test]
    fn the_top_class_is_compared_per_sample() {
        let a = Tensor::from_f32(&[2, 2], &[1.0, 0.0, 0.0, 1.0]).unwrap();
        let b = Tensor::from_f32(&[2, 2], &[1.0, 0.0, 1.0, 0.0]).unwrap();
        assert!(!compare_output("y", &a, &b).unwrap().same_top);
        assert!(compare_output("y", &a, &a).unwrap().same_top);
    }
}
