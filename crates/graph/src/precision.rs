//! How precisely a model computes.

use tessera_core::DType;

use crate::infer::InferredTypes;
use crate::model::Graph;

/// The least precise arithmetic that a model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// 64 bits, or no floating-point numbers at all.
    Double,
    /// 32 bits.
    Single,
    /// 16 bits with 11 of precision.
    Half,
    /// 8 bits of precision, whatever their range.
    Eighth,
}

impl Precision {
    /// The least precise arithmetic of a model.
    pub fn of_graph(graph: &Graph, types: &InferredTypes) -> Self {
        let quantised = graph.nodes().iter().any(|node| {
            let name = node.op_type.as_str();
            ["Quantize", "QLinear", "Integer", "NBits"].iter().any(|part| name.contains(part))
        });
        let of_dtype = |dtype: DType| match dtype {
            DType::F32 => Self::Single,
            DType::F16 => Self::Half,
            DType::BF16 => Self::Eighth,
            _ => Self::Double,
        };
        let values = graph.value_ids().filter_map(|id| Some(of_dtype(types.get(id)?.dtype)));
        let lowest = values.max().unwrap_or(Self::Double);
        if quantised { Self::Eighth } else { lowest }
    }

    /// How far two ways to compute the same may be apart, relative to the largest element, after one
    /// layer or a few.
    pub fn usual_difference(self) -> f64 {
        match self {
            Self::Double => 1e-12,
            Self::Single => 2e-5,
            Self::Half => 4e-3,
            Self::Eighth => 2e-2,
        }
    }
}
