//! Operators that work element by element, and broadcasting.

use tessera_core::Dim;

use super::fact::Dims;
use super::operator::Operator;

/// Whether an operator goes element by element over its first input, and keeps its dtype.
pub(crate) fn is_elementwise(name: &str) -> bool {
    matches!(
        name,
        "Abs"
            | "Acos"
            | "Acosh"
            | "Asin"
            | "Asinh"
            | "Atan"
            | "Atanh"
            | "BitwiseNot"
            | "Ceil"
            | "Celu"
            | "Clip"
            | "Cos"
            | "Cosh"
            | "Elu"
            | "Erf"
            | "Exp"
            | "Floor"
            | "Gelu"
            | "HardSigmoid"
            | "HardSwish"
            | "Identity"
            | "LeakyRelu"
            | "Log"
            | "Mish"
            | "Neg"
            | "Reciprocal"
            | "Relu"
            | "Round"
            | "Selu"
            | "Shrink"
            | "Sigmoid"
            | "Sign"
            | "Sin"
            | "Sinh"
            | "Softplus"
            | "Softsign"
            | "Sqrt"
            | "Swish"
            | "Tan"
            | "Tanh"
            | "ThresholdedRelu"
    )
}

/// Whether an operator's first output has the dtype and the dimensions of its first input.
pub(crate) fn is_type_preserving(name: &str) -> bool {
    is_elementwise(name)
        || matches!(
            name,
            "BatchNormalization"
                | "CumProd"
                | "CumSum"
                | "Dropout"
                | "GroupNormalization"
                | "Hardmax"
                | "InstanceNormalization"
                | "LRN"
                | "LayerNormalization"
                | "LogSoftmax"
                | "LpNormalization"
                | "MeanVarianceNormalization"
                | "PRelu"
                | "RMSNormalization"
                | "ReverseSequence"
                | "RotaryEmbedding"
                | "Scatter"
                | "ScatterElements"
                | "ScatterND"
                | "SimplifiedLayerNormalization"
                | "Softmax"
                | "TensorScatter"
                | "Trilu"
        )
}

/// Whether an operator broadcasts all its inputs and keeps their common dtype.
pub(crate) fn is_broadcast_arithmetic(name: &str) -> bool {
    matches!(
        name,
        "Add"
            | "BitShift"
            | "BitwiseAnd"
            | "BitwiseOr"
            | "BitwiseXor"
            | "Div"
            | "Max"
            | "Mean"
            | "Min"
            | "Mod"
            | "Mul"
            | "Pow"
            | "StringConcat"
            | "Sub"
            | "Sum"
    )
}

/// Whether an operator broadcasts its inputs and gives truth values.
pub(crate) fn is_comparison(name: &str) -> bool {
    matches!(
        name,
        "And" | "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "Or" | "Xor"
    )
}

/// The dimensions of all inputs, broadcast.
pub(crate) fn broadcast_all(operator: &Operator<'_>) -> Dims {
    // Before opset 7, what is broadcast is the second input, and only when asked for.
    if operator.integer_attribute("broadcast", 0) != 0 {
        return operator.copied_dims(0);
    }
    let shapes: Option<Vec<&[Dim]>> =
        operator.inputs.iter().map(|input| input.and_then(|fact| fact.dims())).collect();
    shapes.filter(|shapes| !shapes.is_empty()).map(|shapes| broadcast_shapes(&shapes))
}

/// The dimensions of the inputs at these places, broadcast.
pub(crate) fn broadcast_some(operator: &Operator<'_>, places: &[usize]) -> Dims {
    let shapes: Option<Vec<&[Dim]>> =
        places.iter().map(|&place| operator.input_dims(place)).collect();
    shapes.map(|shapes| broadcast_shapes(&shapes))
}

/// The dimensions that these have in common once broadcast.
pub(crate) fn broadcast_shapes(shapes: &[&[Dim]]) -> Vec<Dim> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut result = vec![Dim::Fixed(1); rank];
    for shape in shapes {
        let missing = rank.saturating_sub(shape.len());
        for (dim, other) in result.iter_mut().skip(missing).zip(*shape) {
            *dim = broadcast_dim(dim, other);
        }
    }
    result
}

/// The dimension that two have in common once broadcast; unknown where they contradict.
pub(crate) fn broadcast_dim(first: &Dim, second: &Dim) -> Dim {
    match (first, second) {
        (Dim::Fixed(1), other) | (other, Dim::Fixed(1)) => other.clone(),
        (Dim::Fixed(first), Dim::Fixed(second)) if first != second => Dim::Unknown,
        // One that is not fixed is either this size or 1.
        (Dim::Fixed(size), _) | (_, Dim::Fixed(size)) => Dim::Fixed(*size),
        (first, second) if first == second => first.clone(),
        _ => Dim::Unknown,
    }
}

/// The dimension that two are known to be equal to: the one that says more.
pub(crate) fn unify_dims(first: &Dim, second: &Dim) -> Dim {
    match (first, second) {
        (Dim::Fixed(first), Dim::Fixed(second)) if first != second => Dim::Unknown,
        (Dim::Fixed(size), _) | (_, Dim::Fixed(size)) => Dim::Fixed(*size),
        (Dim::Symbol(name), _) | (_, Dim::Symbol(name)) => Dim::Symbol(name.clone()),
        _ => Dim::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use tessera_core::DType;

    use super::super::testing::{symbol, type_of};
    use super::*;
    use crate::builder::GraphBuilder;

    #[test]
    fn dimensions_broadcast_from_the_end() {
        let (one, three, n) = (Dim::Fixed(1), Dim::Fixed(3), symbol("n"));
        let first = [n.clone(), one.clone(), three.clone()];
        let second = [Dim::Fixed(5), one];
        assert_eq!(broadcast_shapes(&[&first, &second]), [n.clone(), Dim::Fixed(5), three.clone()]);
        assert_eq!(broadcast_dim(&n, &three), three);
        assert_eq!(broadcast_dim(&n, &n), n);
        assert_eq!(broadcast_dim(&n, &symbol("m")), Dim::Unknown);
        assert_eq!(broadcast_dim(&Dim::Fixed(2), &three), Dim::Unknown);
        assert!(broadcast_shapes(&[]).is_empty());
    }

    #[test]
    fn comparisons_give_truth_values_of_the_broadcast_shape() {
        let shown = type_of(17, |builder: &mut GraphBuilder| {
            let x = builder.add_input("x", DType::F32, [symbol("n"), Dim::Fixed(1)]);
            let y = builder.add_input("y", DType::F32, [4]);
            let less = builder.add_node("Less", &[&x, &y], []);
            builder.add_node("Where", &[&less, &x, &y], [])
        });
        assert_eq!(shown, "f32[n,4]");
        let shown = type_of(17, |builder: &mut GraphBuilder| {
            let x = builder.add_input("x", DType::F32, [2, 3]);
            builder.add_node("Less", &[&x, &x], [])
        });
        assert_eq!(shown, "bool[2,3]");
    }
}
