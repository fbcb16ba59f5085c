//! Tensors with made-up contents, for models that are tried out or put under load.

use crate::{DType, Error, Random, Result, Tensor, display_shape, element_count};

/// The most elements of a random tensor; a model that declares more is not one to try out.
const MAX_RANDOM_ELEMENTS: usize = 1 << 28;

/// What elements at random are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomElements {
    /// Integers of a range, or zero and one; its upper end is not in it. Real numbers are about
    /// normal whatever the range is, and strings are an `s` with an integer.
    Integers(Option<(i64, i64)>),
    /// Numbers of a range, real ones too. Without a range integers are zero and one, real numbers
    /// about normal, and strings are words. Flags are either, whatever the range is.
    Numbers(Option<(i64, i64)>),
}

impl RandomElements {
    // Zero and one are valid nearly everywhere: as indices, masks and flags.
    fn next_integer(self, random: &mut Random) -> i64 {
        let (Self::Integers(range) | Self::Numbers(range)) = self;
        let (low, high) = range.unwrap_or((0, 2));
        let span = high.wrapping_sub(low) as u64;
        low.wrapping_add(random.next_below(span) as i64)
    }

    fn next_flag(self, random: &mut Random) -> u8 {
        match self {
            Self::Integers(_) => self.next_integer(random) as u8,
            Self::Numbers(_) => (random.next() & 1) as u8,
        }
    }

    fn next_real(self, random: &mut Random) -> f64 {
        match self {
            Self::Integers(_) | Self::Numbers(None) => random.next_normal(),
            Self::Numbers(Some((low, high))) => {
                let span = high.wrapping_sub(low) as u64;
                low as f64 + (1.0 - random.next_fraction()) * span as f64
            }
        }
    }

    fn next_text(self, random: &mut Random) -> String {
        match self {
            Self::Integers(_) => format!("s{}", self.next_integer(random)),
            Self::Numbers(Some(_)) => self.next_integer(random).to_string(),
            Self::Numbers(None) => random_word(random),
        }
    }
}

/// A tensor of this shape with elements at random; the same numbers make the same one.
///
/// A range must not be empty.
pub fn random_tensor(
    random: &mut Random,
    dtype: DType,
    shape: &[usize],
    elements: RandomElements,
) -> Result<Tensor> {
    let too_large = || Error::usage(format!("{} is too large", display_shape(dtype, shape)));
    let count =
        element_count(shape).filter(|&count| count <= MAX_RANDOM_ELEMENTS).ok_or_else(too_large)?;
    if dtype == DType::String {
        let strings = (0..count).map(|_| elements.next_text(random).into_bytes()).collect();
        return Tensor::from_strings(shape, strings);
    }
    let mut bytes = Vec::with_capacity(dtype.byte_len(count).unwrap_or(0));
    // One element after the other, each as these bytes.
    macro_rules! fill {
        ($element:expr) => {
            for _ in 0..count {
                bytes.extend($element.to_le_bytes());
            }
        };
    }
    match dtype {
        DType::Bool => fill!(elements.next_flag(random)),
        DType::I8 | DType::U8 => fill!((elements.next_integer(random) as u8)),
        DType::I16 | DType::U16 => fill!((elements.next_integer(random) as u16)),
        DType::I32 | DType::U32 => fill!((elements.next_integer(random) as u32)),
        DType::I64 | DType::U64 => fill!(elements.next_integer(random)),
        DType::F32 => fill!((elements.next_real(random) as f32)),
        DType::F64 => fill!(elements.next_real(random)),
        DType::F16 => fill!(half::f16::from_f64(elements.next_real(random))),
        DType::BF16 => fill!(half::bf16::from_f64(elements.next_real(random))),
        // Small numbers in every 8-bit format, and anything at all in the smaller ones.
        small => {
            let length = small.byte_len(count).unwrap_or(0);
            bytes.extend((0..length).map(|_| (random.next() & 0x3f) as u8));
        }
    }
    Tensor::copy_from_bytes(dtype, shape, &bytes)
}

/// Three to eight small letters.
fn random_word(random: &mut Random) -> String {
    let length = 3 + random.next_below(6);
    (0..length).map(|_| char::from(b'a' + random.next_below(26) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(dtype: DType, elements: RandomElements) -> Tensor {
        random_tensor(&mut Random::new(7), dtype, &[2, 3], elements).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_tensor() {
        for elements in [RandomElements::Integers(None), RandomElements::Numbers(Some((-3, 7)))] {
            let one = drawn(DType::F32, elements);
            assert_eq!(one.bytes(), drawn(DType::F32, elements).bytes());
            assert_eq!(one.shape(), [2, 3]);
        }
    }

    #[test]
    fn a_range_is_for_integers_or_for_all_numbers() {
        let range = Some((100, 110));
        for elements in [RandomElements::Integers(range), RandomElements::Numbers(range)] {
            let integers = drawn(DType::I64, elements).to_f64().unwrap();
            assert!(integers.iter().all(|number| (100.0..110.0).contains(number)));
        }
        let real = |elements| drawn(DType::F64, elements).to_f64().unwrap();
        assert!(real(RandomElements::Integers(range)).iter().all(|number| number.abs() < 7.0));
        let real = real(RandomElements::Numbers(range));
        assert!(real.iter().all(|number| (100.0..110.0).contains(number)));
    }

    #[test]
    fn strings_are_words_or_have_a_number() {
        let texts = |elements| -> Vec<String> {
            let tensor = drawn(DType::String, elements);
            let texts = tensor.strings().unwrap().iter();
            texts.map(|text| String::from_utf8(text.clone()).unwrap()).collect()
        };
        let numbered = texts(RandomElements::Integers(None));
        assert!(numbered.iter().all(|text| text == "s0" || text == "s1"), "{numbered:?}");
        let words = texts(RandomElements::Numbers(None));
        assert!(words.iter().all(|text| (3..=8).contains(&text.len())), "{words:?}");
        let numbers = texts(RandomElements::Numbers(Some((5, 6))));
        assert!(numbers.iter().all(|text| text == "5"), "{numbers:?}");
    }

    #[test]
    fn a_tensor_that_nobody_means_is_refused() {
        let elements = RandomElements::Integers(None);
        let error = random_tensor(&mut Random::new(0), DType::U8, &[1 << 29], elements);
        assert!(error.unwrap_err().to_string().contains("too large"));
    }
}
