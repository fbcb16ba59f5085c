//! The classification extension: the largest values of an output and where they are, as text.

use tessera_core::{DType, Error, Result, Tensor};

/// The `count` largest values of each row as strings `value:index`, largest first, and after that
/// `:label` where the class has one.
///
/// `batched` says whether the first dimension counts rows; otherwise the tensor is one row.
pub(crate) fn classify_rows(
    tensor: &Tensor,
    count: usize,
    batched: bool,
    labels: &[String],
) -> Result<Tensor> {
    let values = tensor.to_f64().filter(|_| tensor.dtype() != DType::Bool).ok_or_else(|| {
        Error::invalid(format!("{tensor:?} can't be classified: it holds no numbers"))
    })?;
    let rows = match (batched, tensor.shape().first()) {
        (true, Some(&rows)) => Some(rows),
        _ => None,
    };
    let width = values.len().checked_div(rows.unwrap_or(1)).unwrap_or(0);
    let count = count.min(width);
    let mut strings = Vec::with_capacity(count * rows.unwrap_or(1));
    if width > 0 {
        for row in values.chunks(width) {
            strings.extend(
                largest_indices(row, count)
                    .map(|index| class_text(tensor.dtype(), row[index], index, labels)),
            );
        }
    }
    let shape: Vec<usize> = rows.into_iter().chain([count]).collect();
    Tensor::from_strings(&shape, strings)
}

/// Where the `count` largest values are, largest first and of equal ones the first first.
fn largest_indices(row: &[f64], count: usize) -> impl Iterator<Item = usize> + use<> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    // What is not a number goes last, whatever its sign.
    let key = |index: usize| if row[index].is_nan() { f64::NEG_INFINITY } else { row[index] };
    order.sort_by(|&a, &b| key(b).total_cmp(&key(a)));
    order.into_iter().take(count)
}

/// A value and its index, as Triton writes them: floats with six decimals.
fn class_text(dtype: DType, value: f64, index: usize, labels: &[String]) -> Vec<u8> {
    let mut text = if dtype.is_float() {
        format!("{value:.6}:{index}")
    } else {
        format!("{value:.0}:{index}")
    };
    if let Some(label) = labels.get(index) {
        text.push(':');
        text.push_str(label);
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(tensor: &Tensor) -> Vec<String> {
        let strings = tensor.strings().unwrap();
        strings.iter().map(|string| String::from_utf8(string.clone()).unwrap()).collect()
    }

    #[test]
    fn each_row_of_a_batch_is_classified() {
        let scores = Tensor::from_f32(&[2, 3], &[0.1, 0.7, 0.2, 5.0, f32::NAN, 5.0]).unwrap();
        let classes = classify_rows(&scores, 2, true, &[]).unwrap();
        assert_eq!(classes.shape(), [2, 2]);
        assert_eq!(texts(&classes), ["0.700000:1", "0.200000:2", "5.000000:0", "5.000000:2"]);
        let labels = ["cat", "dog"].map(str::to_owned);
        let classes = classify_rows(&scores, 2, true, &labels).unwrap();
        assert_eq!(texts(&classes)[..2], ["0.700000:1:dog", "0.200000:2"]);
    }

    #[test]
    fn without_a_batch_the_tensor_is_one_row_and_the_count_is_limited() {
        let scores = Tensor::from_i64(&[2, 2], &[-3, 4, 9, 0]).unwrap();
        let classes = classify_rows(&scores, 10, false, &[]).unwrap();
        assert_eq!(classes.shape(), [4]);
        assert_eq!(texts(&classes), ["9:2", "4:1", "0:3", "-3:0"]);
    }

    #[test]
    fn nothing_and_strings_are_no_panic() {
        let empty = Tensor::from_f32(&[0, 3], &[]).unwrap();
        assert_eq!(classify_rows(&empty, 1, true, &[]).unwrap().element_count(), 0);
        let strings = Tensor::from_strings(&[1], vec![b"a".to_vec()]).unwrap();
        assert!(classify_rows(&strings, 1, true, &[]).is_err());
    }
}
