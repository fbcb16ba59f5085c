//! The open sizes of a path: which symbols of its steps are the same, and which are fixed.
//!
//! A symbol is a name and the step that uses it. Where one step takes what another gives, their
//! types are unified: symbols become the same, or a size. When all steps are joined, each symbol
//! that is still open gets a name that no other has.

use std::collections::{HashMap, HashSet};

use tessera_core::{DType, Dim, TensorType};

/// A tensor type whose symbols are told apart by step.
#[derive(Clone)]
pub(crate) struct SymbolicType {
    dtype: DType,
    sizes: Option<Vec<SymbolicSize>>,
}

#[derive(Clone, Copy)]
enum SymbolicSize {
    Fixed(usize),
    /// A symbol, by its number in [`SymbolTable`].
    Open(usize),
    Unknown,
}

/// What is known of a symbol.
#[derive(Clone, Copy)]
enum SymbolBinding {
    Open,
    /// It is the same as an earlier symbol.
    Same(usize),
    Fixed(usize),
}

/// The symbols of all steps.
#[derive(Default)]
pub(crate) struct SymbolTable {
    numbers: HashMap<(usize, String), usize>,
    /// Per symbol, its name in its step.
    names: Vec<String>,
    bindings: Vec<SymbolBinding>,
    /// The names that symbols have in the path.
    chosen: HashMap<usize, String>,
    taken: HashSet<String>,
}

impl SymbolTable {
    /// A type of a step, with its symbols as numbers of this table.
    pub(crate) fn symbolic_type(&mut self, part: usize, known: &TensorType) -> SymbolicType {
        let TensorType { dtype, dims } = known;
        let sizes = dims.as_ref().map(|dims| {
            let sizes = dims.iter().map(|dim| match dim {
                Dim::Fixed(size) => SymbolicSize::Fixed(*size),
                Dim::Symbol(name) => SymbolicSize::Open(self.symbol_number(part, name)),
                Dim::Unknown => SymbolicSize::Unknown,
            });
            sizes.collect()
        });
        SymbolicType { dtype: *dtype, sizes }
    }

    fn symbol_number(&mut self, part: usize, name: &str) -> usize {
        *self.numbers.entry((part, name.to_owned())).or_insert_with(|| {
            self.names.push(name.to_owned());
            self.bindings.push(SymbolBinding::Open);
            self.names.len() - 1
        })
    }

    fn resolve_size(&self, size: SymbolicSize) -> SymbolicSize {
        let SymbolicSize::Open(mut symbol) = size else { return size };
        loop {
            match self.bindings[symbol] {
                SymbolBinding::Open => return SymbolicSize::Open(symbol),
                SymbolBinding::Same(earlier) => symbol = earlier,
                SymbolBinding::Fixed(size) => return SymbolicSize::Fixed(size),
            }
        }
    }

    /// Makes two types the same, where they can be; `left` then knows what `right` knows.
    pub(crate) fn unify_types(&mut self, left: &mut SymbolicType, right: &SymbolicType) -> bool {
        if left.dtype != right.dtype {
            return false;
        }
        if left.sizes.is_none() {
            left.sizes.clone_from(&right.sizes);
        }
        match (&mut left.sizes, &right.sizes) {
            (Some(left), Some(right)) => {
                left.len() == right.len()
                    && left
                        .iter_mut()
                        .zip(right)
                        .all(|(left, right)| self.unify_sizes(left, *right))
            }
            _ => true,
        }
    }

    fn unify_sizes(&mut self, left: &mut SymbolicSize, right: SymbolicSize) -> bool {
        match (self.resolve_size(*left), self.resolve_size(right)) {
            (_, SymbolicSize::Unknown) => true,
            (SymbolicSize::Unknown, known) => {
                *left = known;
                true
            }
            (SymbolicSize::Fixed(left), SymbolicSize::Fixed(right)) => left == right,
            (SymbolicSize::Open(symbol), SymbolicSize::Fixed(size))
            | (SymbolicSize::Fixed(size), SymbolicSize::Open(symbol)) => {
                self.bindings[symbol] = SymbolBinding::Fixed(size);
                true
            }
            (SymbolicSize::Open(left), SymbolicSize::Open(right)) => {
                if left != right {
                    self.bindings[left.max(right)] = SymbolBinding::Same(left.min(right));
                }
                true
            }
        }
    }

    /// The type with the names that its step gave to symbols.
    pub(crate) fn type_in_part(&self, known: &SymbolicType) -> TensorType {
        let dim = |size: &SymbolicSize| match (self.resolve_size(*size), size) {
            (SymbolicSize::Fixed(size), _) => Dim::Fixed(size),
            (SymbolicSize::Open(_), SymbolicSize::Open(symbol)) => {
                Dim::Symbol(self.names[*symbol].clone())
            }
            _ => Dim::Unknown,
        };
        let dims = known.sizes.as_ref().map(|sizes| sizes.iter().map(dim).collect());
        TensorType { dtype: known.dtype, dims }
    }

    /// The type with the names that symbols have in the path.
    pub(crate) fn type_in_path(&mut self, known: &SymbolicType) -> TensorType {
        let dims = known.sizes.as_ref().map(|sizes| {
            let dims = sizes.iter().map(|size| match self.resolve_size(*size) {
                SymbolicSize::Fixed(size) => Dim::Fixed(size),
                SymbolicSize::Open(symbol) => Dim::Symbol(self.symbol_name(symbol)),
                SymbolicSize::Unknown => Dim::Unknown,
            });
            dims.collect()
        });
        TensorType { dtype: known.dtype, dims }
    }

    fn symbol_name(&mut self, symbol: usize) -> String {
        let chosen = self.chosen.entry(symbol);
        chosen.or_insert_with(|| unique_name(&self.names[symbol], &mut self.taken)).clone()
    }
}

/// `name`, or `name_2` and so on where it is taken.
pub(crate) fn unique_name(name: &str, taken: &mut HashSet<String>) -> String {
    let mut candidate = name.to_owned();
    let mut number = 2;
    while !taken.insert(candidate.clone()) {
        candidate = format!("{name}_{number}");
        number += 1;
    }
    candidate
}
