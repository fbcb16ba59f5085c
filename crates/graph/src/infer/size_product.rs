//! A product of sizes, some of which are known by name alone.

use tessera_core::Dim;

/// Products of more named sizes than this are taken for unknown: a few nodes can square a size again
/// and again.
const MOST_SYMBOLS: usize = 64;

/// A product of sizes: a fixed factor, and factors that have names, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SizeProduct {
    pub(crate) fixed: usize,
    pub(crate) symbols: Vec<String>,
}

impl SizeProduct {
    pub(crate) fn one() -> Self {
        Self::of_size(1)
    }

    pub(crate) fn of_size(size: usize) -> Self {
        Self { fixed: size, symbols: Vec::new() }
    }

    /// The elements of a tensor of these dimensions; `None` where one is unknown.
    pub(crate) fn of_dims<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> Option<Self> {
        dims.into_iter().try_fold(Self::one(), |product, dim| match dim {
            Dim::Fixed(size) => product.times(&Self::of_size(*size)),
            Dim::Symbol(name) => product.times(&Self { fixed: 1, symbols: vec![name.clone()] }),
            Dim::Unknown => None,
        })
    }

    pub(crate) fn times(&self, other: &Self) -> Option<Self> {
        let fixed = self.fixed.checked_mul(other.fixed)?;
        if self.symbols.len().saturating_add(other.symbols.len()) > MOST_SYMBOLS {
            return None;
        }
        let mut symbols = self.symbols.clone();
        symbols.extend(other.symbols.iter().cloned());
        symbols.sort_unstable();
        Some(Self { fixed, symbols })
    }

    /// What, times `other`, makes this; `None` where that is no product of sizes for sure.
    pub(crate) fn divided_by(&self, other: &Self) -> Option<Self> {
        let mut symbols = self.symbols.clone();
        for symbol in &other.symbols {
            let place = symbols.iter().position(|known| known == symbol)?;
            symbols.remove(place);
        }
        let divides = other.fixed > 0 && self.fixed.is_multiple_of(other.fixed);
        divides.then(|| Self { fixed: self.fixed / other.fixed, symbols })
    }

    /// The dimension of this size; unknown where it is a product of several.
    pub(crate) fn to_dim(&self) -> Dim {
        match (self.fixed, self.symbols.as_slice()) {
            (fixed, []) => Dim::Fixed(fixed),
            (1, [symbol]) => Dim::Symbol(symbol.clone()),
            _ => Dim::Unknown,
        }
    }
}
