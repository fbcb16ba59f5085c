//! What is known of a value while types are inferred.

use tessera_core::{DType, Dim, TensorType};

use super::element::{self, Element};
use crate::model::Weight;
use crate::onnx::{TensorProto, tensors};

/// Ranks above this are taken for unknown, so that no rule loops for long.
pub(crate) const HIGHEST_RANK: usize = 64;

/// Dimensions, where at least the rank is known.
pub(crate) type Dims = Option<Vec<Dim>>;

/// What is known of a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fact {
    /// Its type, where its dtype is known.
    pub(crate) tensor: Option<TensorType>,
    /// Its elements, row-major, where it is small and its shape is fixed.
    pub(crate) elements: Option<Vec<Element>>,
    /// Whether it is known to be no tensor.
    pub(crate) non_tensor: bool,
}

impl Fact {
    /// A tensor of this type.
    pub(crate) fn of_type(mut tensor: TensorType) -> Self {
        tensor.dims = tensor.dims.filter(|dims| dims.len() <= HIGHEST_RANK);
        Self { tensor: Some(tensor), ..Self::default() }
    }

    /// A tensor of one element.
    pub(crate) fn of_scalar(dtype: DType) -> Self {
        Self::of_type(TensorType::new(dtype, Vec::new()))
    }

    /// Something that is no tensor.
    pub(crate) fn of_non_tensor() -> Self {
        Self { non_tensor: true, ..Self::default() }
    }

    /// All that a constant tells.
    pub(crate) fn of_weight(weight: &Weight) -> Self {
        let mut fact = weight.tensor_type().map(Self::of_type).unwrap_or_default();
        let count = fact.small_count();
        fact.elements =
            element::elements_of_weight(weight).filter(|elements| Some(elements.len()) == count);
        fact
    }

    /// All that a tensor of a body tells.
    pub(crate) fn of_tensor(tensor: &TensorProto) -> Self {
        let Ok((dtype, shape)) = tensors::dtype_and_shape(tensor) else {
            return Self::default();
        };
        let dims = shape.into_iter().map(Dim::Fixed).collect();
        let fact = Self::of_type(TensorType::new(dtype, dims));
        if fact.small_count().is_some()
            && let Ok(weight) = tensors::weight_from_tensor(tensor.clone())
        {
            return Self::of_weight(&weight);
        }
        fact
    }

    /// Its dimensions.
    pub(crate) fn dims(&self) -> Option<&[Dim]> {
        self.tensor.as_ref()?.dims.as_deref()
    }

    /// The number of its elements, where that is fixed and small enough to follow them.
    pub(crate) fn small_count(&self) -> Option<usize> {
        let mut sizes = self.dims()?.iter().map(Dim::fixed_size);
        let count = sizes.try_fold(1usize, |count, size| count.checked_mul(size?))?;
        Some(count).filter(|&count| count <= element::MOST_ELEMENTS)
    }

    /// About how much memory it takes beside its own place.
    pub(crate) fn heap_bytes(&self) -> usize {
        let dims = self.dims().unwrap_or_default();
        let of_dim = |dim: &Dim| match dim {
            Dim::Symbol(name) => size_of::<Dim>() + name.len(),
            _ => size_of::<Dim>(),
        };
        let of_element = |element: &Element| match element {
            Element::Symbol(name) => size_of::<Element>() + name.len(),
            _ => size_of::<Element>(),
        };
        dims.iter().map(of_dim).chain(self.elements.iter().flatten().map(of_element)).sum()
    }

    /// The same without its elements.
    pub(crate) fn without_elements(mut self) -> Self {
        self.elements = None;
        self
    }

    /// The same, but of any shape.
    pub(crate) fn of_any_shape(mut self) -> Self {
        if let Some(tensor) = &mut self.tensor {
            tensor.dims = None;
        }
        self.without_elements()
    }

    /// Forgets names of sizes, and elements, which may be such sizes.
    pub(crate) fn forget_names(&mut self) {
        self.elements = None;
        let dims = self.tensor.as_mut().and_then(|tensor| tensor.dims.as_mut());
        for dim in dims.into_iter().flatten() {
            if let Dim::Symbol(_) = dim {
                *dim = Dim::Unknown;
            }
        }
    }

    /// What holds whether the value is this or `second`.
    pub(crate) fn join_with(self, second: &Self) -> Self {
        let tensor = match (self.tensor, &second.tensor) {
            (Some(first), Some(second)) if first.dtype == second.dtype => {
                let dims = match (first.dims, &second.dims) {
                    (Some(first), Some(second)) if first.len() == second.len() => {
                        let common = |(first, second): (Dim, &Dim)| {
                            if first == *second { first } else { Dim::Unknown }
                        };
                        Some(first.into_iter().zip(second).map(common).collect())
                    }
                    _ => None,
                };
                Some(TensorType { dtype: second.dtype, dims })
            }
            _ => None,
        };
        let elements = self.elements.filter(|elements| Some(elements) == second.elements.as_ref());
        Self { tensor, elements, non_tensor: self.non_tensor && second.non_tensor }
    }

    /// The same, its gaps filled with what the file declares.
    pub(crate) fn or_declared(mut self, declared: Option<&TensorType>) -> Self {
        let Some(declared) = declared.filter(|_| !self.non_tensor) else {
            return self;
        };
        let Some(tensor) = &mut self.tensor else {
            return Self::of_type(declared.clone());
        };
        let Some(declared) = declared.dims.as_ref().filter(|dims| dims.len() <= HIGHEST_RANK)
        else {
            return self;
        };
        match tensor.dims.take() {
            None => tensor.dims = Some(declared.clone()),
            Some(mut dims) => {
                if dims.len() == declared.len() {
                    for (dim, declared) in dims.iter_mut().zip(declared) {
                        if *dim == Dim::Unknown {
                            dim.clone_from(declared);
                        }
                    }
                }
                tensor.dims = Some(dims);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(dims: Vec<Dim>) -> Fact {
        Fact::of_type(TensorType::new(DType::F32, dims))
    }

    #[test]
    fn what_holds_for_either_value_is_what_both_have() {
        let first = fact(vec![Dim::Fixed(1), Dim::Fixed(2)]);
        let second = fact(vec![Dim::Fixed(1), Dim::Fixed(3)]);
        let both = first.clone().join_with(&second);
        assert_eq!(both, fact(vec![Dim::Fixed(1), Dim::Unknown]));
        let ranks = first.clone().join_with(&fact(vec![]));
        assert_eq!(ranks, Fact::of_type(TensorType::of_any_shape(DType::F32)));
        assert_eq!(first.join_with(&Fact::of_scalar(DType::I64)), Fact::default());
    }

    #[test]
    fn a_rank_that_is_absurd_is_unknown() {
        let absurd = fact(vec![Dim::Fixed(1); HIGHEST_RANK + 1]);
        assert_eq!(absurd.dims(), None);
        let declared = TensorType::new(DType::F32, vec![Dim::Fixed(1); HIGHEST_RANK + 1]);
        assert_eq!(absurd.or_declared(Some(&declared)).dims(), None);
    }
}
