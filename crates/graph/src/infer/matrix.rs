//! Products of matrices.

use std::collections::BTreeMap;

use tessera_core::Dim;

use super::elementwise::{broadcast_dim, broadcast_shapes};
use super::fact::Dims;
use super::operator::Operator;

/// The dimensions of the product of the first input and the one at `place`.
pub(crate) fn infer_matmul(operator: &Operator<'_>, place: usize) -> Dims {
    matmul_dims(operator.input_dims(0)?, operator.input_dims(place)?)
}

/// The dimensions of a product of matrices, or of stacks of them, or with a vector.
pub(crate) fn matmul_dims(first: &[Dim], second: &[Dim]) -> Dims {
    match (first, second) {
        ([], _) | (_, []) => None,
        ([_], [_]) => Some(vec![]),
        ([_], [stack @ .., _, columns]) => Some([stack, std::slice::from_ref(columns)].concat()),
        ([stack @ .., rows, _], [_]) => Some([stack, std::slice::from_ref(rows)].concat()),
        ([first @ .., rows, _], [second @ .., _, columns]) => {
            let mut dims = broadcast_shapes(&[first, second]);
            dims.push(rows.clone());
            dims.push(columns.clone());
            Some(dims)
        }
    }
}

/// The dimensions that `Gemm` gives, whose second matrix is the input at `place`.
pub(crate) fn infer_gemm(operator: &Operator<'_>, place: usize) -> Dims {
    let side = |input: usize, transposed: &str, axis: usize| {
        let axis = if operator.integer_attribute(transposed, 0) != 0 { 1 - axis } else { axis };
        match operator.input_dims(input) {
            Some([rows, columns]) => {
                if axis == 0 {
                    rows.clone()
                } else {
                    columns.clone()
                }
            }
            _ => Dim::Unknown,
        }
    };
    Some(vec![side(0, "transA", 0), side(place, "transB", 1)])
}

/// The dimensions that ONNX Runtime's `FusedMatMul` gives: either side may be transposed.
pub(crate) fn infer_fused_matmul(operator: &Operator<'_>) -> Dims {
    if operator.integer_attribute("transBatchA", 0) != 0
        || operator.integer_attribute("transBatchB", 0) != 0
    {
        return None;
    }
    let side = |input: usize, name: &str| {
        let mut dims = operator.copied_dims(input)?;
        if operator.integer_attribute(name, 0) != 0
            && let [.., rows, columns] = dims.as_mut_slice()
        {
            std::mem::swap(rows, columns);
        }
        Some(dims)
    };
    matmul_dims(&side(0, "transA")?, &side(1, "transB")?)
}

/// The dimensions of a product with weights of packed bits, whose columns are the attribute `N`.
pub(crate) fn infer_packed_matmul(operator: &Operator<'_>) -> Dims {
    let mut dims = operator.copied_dims(0)?;
    let columns =
        usize::try_from(operator.integer_attribute("N", -1)).map_or(Dim::Unknown, Dim::Fixed);
    *dims.last_mut()? = columns;
    Some(dims)
}

/// The dimensions that `Einsum` gives; `None` for an equation with an ellipsis.
pub(crate) fn infer_einsum(operator: &Operator<'_>) -> Dims {
    let (letters, output) = einsum_letters(operator)?;
    let dim = |letter: char| letters.get(&letter).cloned().unwrap_or(Dim::Unknown);
    Some(output.chars().map(dim).collect())
}

/// The size behind each letter of an `Einsum`, and the letters of its output.
pub(crate) fn einsum_letters(operator: &Operator<'_>) -> Option<(BTreeMap<char, Dim>, String)> {
    let equation: String =
        operator.text_attribute("equation").chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (equation.as_str(), None),
    };
    if equation.contains('.') {
        return None;
    }
    let mut letters: BTreeMap<char, Dim> = BTreeMap::new();
    let mut uses: BTreeMap<char, usize> = BTreeMap::new();
    for (place, term) in inputs.split(',').enumerate() {
        let dims = operator.input_dims(place).filter(|dims| dims.len() == term.chars().count());
        for (axis, letter) in term.chars().enumerate() {
            let dim = dims.and_then(|dims| dims.get(axis)).unwrap_or(&Dim::Unknown);
            let known = letters.entry(letter).or_insert_with(|| Dim::Fixed(1));
            *known = broadcast_dim(known, dim);
            let count = uses.entry(letter).or_insert(0);
            *count = count.saturating_add(1);
        }
    }
    let output = match output {
        Some(output) => output.to_owned(),
        // Without an arrow: the letters that occur once, in alphabetical order.
        None => uses.iter().filter(|(_, count)| **count == 1).map(|(letter, _)| *letter).collect(),
    };
    Some((letters, output))
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::super::testing::{symbol, type_of};
    use super::*;
    use crate::builder::{GraphBuilder, int_attribute, string_attribute};

    fn shapes(first: &[usize], second: &[usize]) -> Dims {
        let dims = |sizes: &[usize]| sizes.iter().copied().map(Dim::Fixed).collect::<Vec<_>>();
        matmul_dims(&dims(first), &dims(second))
    }

    fn fixed(sizes: &[usize]) -> Dims {
        Some(sizes.iter().copied().map(Dim::Fixed).collect())
    }

    #[test]
    fn products_broadcast_their_stacks_and_drop_the_axis_of_a_vector() {
        assert_eq!(shapes(&[2, 3], &[3, 4]), fixed(&[2, 4]));
        assert_eq!(shapes(&[5, 1, 2, 3], &[7, 3, 4]), fixed(&[5, 7, 2, 4]));
        assert_eq!(shapes(&[3], &[3]), fixed(&[]));
        assert_eq!(shapes(&[3], &[7, 3, 4]), fixed(&[7, 4]));
        assert_eq!(shapes(&[7, 2, 3], &[3]), fixed(&[7, 2]));
        assert_eq!(shapes(&[], &[3]), None);
    }

    #[test]
    fn gemm_may_transpose_either_side() {
        let shown = type_of(13, |builder: &mut GraphBuilder| {
            let x = builder.add_input("x", DType::F32, [symbol("n"), Dim::Fixed(3)]);
            let w = builder.add_input("w", DType::F32, [10, 3]);
            builder.add_node("Gemm", &[&x, &w], [int_attribute("transB", 1)])
        });
        assert_eq!(shown, "f32[n,10]");
    }

    #[test]
    fn einsum_follows_its_letters() {
        let summed = |equation: &str| {
            type_of(13, |builder: &mut GraphBuilder| {
                let x =
                    builder.add_input("x", DType::F32, [symbol("n"), Dim::Fixed(3), Dim::Fixed(5)]);
                let y = builder.add_input("y", DType::F32, [5, 7]);
                builder.add_node("Einsum", &[&x, &y], [string_attribute("equation", equation)])
            })
        };
        assert_eq!(summed("bij, jk -> bik"), "f32[n,3,7]");
        assert_eq!(summed("bij,jk"), "f32[n,3,7]");
        assert_eq!(summed("...ij,jk->...ik"), "f32[…]");
        assert_eq!(summed("bij,jk->z"), "f32[?]");
    }
}
