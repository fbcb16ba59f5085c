//! Deterministic weights: the same seed, layer and index give the same bytes, whatever else
//! changes.
//!
//! Values are uniform rather than normal: with the same deviation they do the same to
//! activations, and cost a multiplication each. VGG-13 has 133 million of them.

use bytes::Bytes;

/// The step of the splitmix64 generator.
const SPLITMIX_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// How values are drawn: uniformly from a range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UniformRange {
    center: f32,
    /// Greatest distance from the centre.
    spread: f32,
    /// The length of rows that are moved to a mean of zero, if they are.
    row: Option<usize>,
}

impl UniformRange {
    /// Around zero, with this standard deviation.
    pub(crate) fn with_deviation(deviation: f32) -> Self {
        Self { center: 0.0, spread: deviation * 3f32.sqrt(), row: None }
    }

    /// Between `low` and `high`.
    pub(crate) fn between(low: f32, high: f32) -> Self {
        Self { center: (low + high) / 2.0, spread: (high - low) / 2.0, row: None }
    }

    /// The same, with every row of `length` values moved to a mean of zero.
    ///
    /// After a ReLU all inputs of a layer are positive, whatever the image. Rows that sum to zero
    /// pass on what differs between inputs instead of what they have in common; without them, a
    /// deep network gives every image the same answer.
    pub(crate) fn with_centered_rows(self, length: usize) -> Self {
        Self { row: Some(length), ..self }
    }

    fn value_from_bits(self, bits: u32) -> f32 {
        // Reinterpreted as signed, the bits are uniform in ±2³¹.
        bits.cast_signed() as f32 * (self.spread / 2_147_483_648.0) + self.center
    }
}

/// The little-endian bytes of `count` f32 values: tensor `index` of `layer`, from `seed`.
pub(crate) fn generate_weights(
    seed: u64,
    layer: &str,
    index: u64,
    count: usize,
    range: UniformRange,
) -> Bytes {
    let mut state = initial_state(seed, layer, index);
    let mut next = || {
        state = state.wrapping_add(SPLITMIX_STEP);
        splitmix_output(state)
    };
    let mut data = vec![0u8; count * 4];
    let mut pairs = data.chunks_exact_mut(8);
    for pair in pairs.by_ref() {
        let bits = next();
        let low = range.value_from_bits(bits as u32).to_bits();
        let high = range.value_from_bits((bits >> 32) as u32).to_bits();
        pair.copy_from_slice(&((u64::from(high) << 32) | u64::from(low)).to_le_bytes());
    }
    let last = pairs.into_remainder();
    if !last.is_empty() {
        last.copy_from_slice(&range.value_from_bits(next() as u32).to_le_bytes());
    }
    if let Some(length) = range.row {
        center_rows(&mut data, length);
    }
    data.into()
}

fn center_rows(data: &mut [u8], length: usize) {
    for row in data.chunks_exact_mut(length * 4) {
        let (values, _) = row.as_chunks_mut::<4>();
        let sum: f32 = values.iter().map(|value| f32::from_le_bytes(*value)).sum();
        let mean = sum / length as f32;
        for value in values {
            *value = (f32::from_le_bytes(*value) - mean).to_le_bytes();
        }
    }
}

/// Where the generator starts for one tensor.
fn initial_state(seed: u64, layer: &str, index: u64) -> u64 {
    // FNV-1a over the name; `splitmix_output` spreads what FNV leaves close together.
    let name = layer.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    splitmix_output(
        splitmix_output(splitmix_output(seed.wrapping_add(SPLITMIX_STEP)) ^ name)
            .wrapping_add(index),
    )
}

/// The output function of splitmix64.
fn splitmix_output(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(data: &[u8]) -> Vec<f32> {
        data.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect()
    }

    #[test]
    fn seed_layer_and_index_decide_and_nothing_else() {
        let range = UniformRange::with_deviation(1.0);
        let first = generate_weights(1, "conv1", 0, 9, range);
        assert_eq!(first.len(), 36);
        assert_eq!(first, generate_weights(1, "conv1", 0, 9, range));
        assert_ne!(first, generate_weights(2, "conv1", 0, 9, range));
        assert_ne!(first, generate_weights(1, "conv2", 0, 9, range));
        assert_ne!(first, generate_weights(1, "conv1", 1, 9, range));
    }

    #[test]
    fn values_have_the_deviation_that_was_asked_for() {
        let values =
            values(&generate_weights(7, "layer", 0, 100_000, UniformRange::with_deviation(0.5)));
        let count = values.len() as f32;
        let mean = values.iter().sum::<f32>() / count;
        let deviation = (values.iter().map(|value| value * value).sum::<f32>() / count).sqrt();
        assert!(mean.abs() < 0.01, "mean {mean}");
        assert!((deviation - 0.5).abs() < 0.01, "deviation {deviation}");
    }

    #[test]
    fn centered_rows_sum_to_zero() {
        let range = UniformRange::with_deviation(1.0).with_centered_rows(27);
        let values = values(&generate_weights(7, "layer", 0, 10 * 27, range));
        for row in values.chunks(27) {
            assert!(row.iter().sum::<f32>().abs() < 1e-4);
            assert!(row.iter().any(|value| value.abs() > 0.5));
        }
    }

    #[test]
    fn values_stay_between_the_bounds() {
        let values =
            values(&generate_weights(7, "layer", 0, 1001, UniformRange::between(0.8, 1.2)));
        assert_eq!(values.len(), 1001);
        assert!(values.iter().all(|value| (0.8..=1.2).contains(value)));
    }
}
