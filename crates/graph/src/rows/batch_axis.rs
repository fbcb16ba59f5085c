//! Which dimension of a tensor has the rows of a batch, and how they lie in it.

use tessera_core::Dim;

use crate::infer::{Element, SizeProduct};

/// The name of the number of rows.
pub(super) const BATCH_SYMBOL: &str = "batch";

/// How names of sizes begin that may follow from the rows.
pub(super) const DEPENDENT: &str = "rows";

/// How names of products begin, of which the number of rows is a factor.
const PRODUCT: &str = "rows ";

impl SizeProduct {
    fn of_dim(dim: &Dim) -> Option<Self> {
        match dim {
            Dim::Fixed(size) => Some(Self::of_size(*size)),
            Dim::Symbol(name) => Some(Self::of_name(name)),
            Dim::Unknown => None,
        }
    }

    /// The size of this name: names of products are those that [`Self::name`] gives.
    fn of_name(name: &str) -> Self {
        let product = || {
            let mut factors = name.strip_prefix(PRODUCT)?.split('*');
            let fixed = factors.next()?.parse().ok()?;
            Some(Self { fixed, symbols: factors.map(str::to_owned).collect() })
        };
        product().unwrap_or_else(|| Self { fixed: 1, symbols: vec![name.to_owned()] })
    }

    /// A name for the size, the same for the same product.
    fn name(&self) -> String {
        match (self.fixed, self.symbols.as_slice()) {
            (1, [symbol]) => symbol.clone(),
            (fixed, symbols) => format!("{PRODUCT}{fixed}*{}", symbols.join("*")),
        }
    }

    /// The size that an element says, where it is one.
    pub(super) fn of_element(element: &Element) -> Option<Self> {
        Self::of_dim(&element.to_dim()).filter(|size| size.fixed > 0 && !size.has_batch())
    }

    /// The size, where it is fixed.
    pub(super) fn as_fixed(&self) -> Option<usize> {
        self.symbols.is_empty().then_some(self.fixed)
    }

    /// Whether it is never more than the other.
    pub(super) fn is_at_most(&self, other: &Self) -> bool {
        self == other
            || self.as_fixed().zip(other.as_fixed()).is_some_and(|(this, other)| this <= other)
    }

    fn has_batch(&self) -> bool {
        self.symbols.iter().any(|symbol| symbol == BATCH_SYMBOL)
    }
}

/// The dimension with the rows. It may have been joined with others: its size is then `outer` times
/// the number of rows times `inner`, and the entry `(a * rows + r) * inner + b` belongs to row `r`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BatchAxis {
    pub(super) axis: usize,
    outer: SizeProduct,
    inner: SizeProduct,
}

impl BatchAxis {
    /// The first dimension, with a row after the other.
    pub(super) fn leading() -> Self {
        Self::at(0)
    }

    /// This dimension, with a row after the other.
    pub(super) fn at(axis: usize) -> Self {
        Self { axis, outer: SizeProduct::one(), inner: SizeProduct::one() }
    }

    /// The same rows in another dimension.
    pub(super) fn moved_to(&self, axis: usize) -> Self {
        Self { axis, ..self.clone() }
    }

    /// Whether it is the first dimension, with a row after the other.
    pub(super) fn is_leading(&self) -> bool {
        *self == Self::leading()
    }

    /// Whether both have the rows in the same order within their dimension.
    pub(super) fn is_alike(&self, other: &Self) -> bool {
        self.outer == other.outer && self.inner == other.inner
    }

    /// Whether each row has so many entries, one row after the other.
    pub(super) fn is_row_of(&self, entries: &SizeProduct) -> bool {
        self.outer == SizeProduct::one() && self.inner == *entries
    }

    /// Whether there is one entry for each row.
    pub(super) fn is_plain(&self) -> bool {
        self.is_row_of(&SizeProduct::one())
    }

    /// The dimension of this size, by its name.
    pub(super) fn dim(&self) -> Option<Dim> {
        self.size().map(|size| Dim::Symbol(size.name()))
    }

    /// The size of the dimension.
    fn size(&self) -> Option<SizeProduct> {
        let rows = SizeProduct { fixed: 1, symbols: vec![BATCH_SYMBOL.to_owned()] };
        self.outer.times(&rows)?.times(&self.inner)
    }

    /// The sizes of a tensor of these dimensions that has its rows here.
    fn sizes(&self, dims: &[Dim]) -> Option<Vec<SizeProduct>> {
        let size = |(axis, dim): (usize, &Dim)| {
            if axis == self.axis {
                return self.size();
            }
            // The number of rows a second time is something else.
            SizeProduct::of_dim(dim).filter(|size| !size.has_batch())
        };
        dims.iter().enumerate().map(size).collect()
    }

    /// Where the rows are when the elements of a tensor of these dimensions, in their order, are
    /// given the dimensions that `wanted` says: as those of `Reshape`.
    pub(super) fn reshaped(
        &self,
        dims: &[Dim],
        wanted: &[Element],
        keeps_zero: bool,
    ) -> Option<Self> {
        let sizes = self.sizes(dims)?;
        let wanted = wanted.iter().enumerate().map(|(axis, element)| match element {
            Element::Fixed(0) if !keeps_zero => sizes.get(axis).cloned(),
            element => SizeProduct::of_dim(&element.to_dim()),
        });
        self.reshaped_to(&sizes, wanted.collect())
    }

    /// Where the rows are when all dimensions before this one are made one, and all others too.
    pub(super) fn flattened(&self, dims: &[Dim], axis: usize) -> Option<Self> {
        let sizes = self.sizes(dims)?;
        let (front, back) = sizes.split_at_checked(axis)?;
        self.reshaped_to(&sizes, vec![product_of(front), product_of(back)])
    }

    /// `wanted` has `None` where a size is not known.
    fn reshaped_to(
        &self,
        sizes: &[SizeProduct],
        mut wanted: Vec<Option<SizeProduct>>,
    ) -> Option<Self> {
        let mut unknown = wanted.iter().enumerate().filter(|(_, size)| size.is_none());
        if let (Some((place, _)), None) = (unknown.next(), unknown.next()) {
            // The elements stay as many, so that one size follows from the others.
            let others = wanted
                .iter()
                .flatten()
                .try_fold(SizeProduct::one(), |product, size| product.times(size))?;
            wanted[place] = product_of(sizes)?.divided_by(&others);
        }
        let before = product_of(sizes.get(..self.axis)?)?.times(&self.outer)?;
        let mut passed = SizeProduct::one();
        for (axis, size) in wanted.into_iter().enumerate() {
            let size = size?;
            if size.has_batch() {
                // What comes after follows, as the elements stay as many.
                let outer = before.divided_by(&passed)?;
                let rows = Self { axis, outer, inner: SizeProduct::one() };
                let inner = size.divided_by(&rows.size()?)?;
                let is_once = !inner.has_batch() && inner.fixed > 0;
                return is_once.then_some(Self { inner, ..rows });
            }
            passed = passed.times(&size)?;
        }
        None
    }
}

fn product_of(sizes: &[SizeProduct]) -> Option<SizeProduct> {
    sizes.iter().try_fold(SizeProduct::one(), |product, size| product.times(size))
}
