//! The elements of small tensors, followed through the arithmetic that models do on shapes.

use std::cmp::Ordering;

use tessera_core::{DType, Dim};

use super::element::{Element, MOST_ELEMENTS, elements_of_weight};
use super::fact::Fact;
use super::indexing;
use super::operator::{Operator, resolve_axis};
use crate::onnx::tensors;

/// Fills in the elements of an operator's outputs where they follow from its inputs.
pub(crate) fn propagate_elements(operator: &Operator<'_>, outputs: &mut [Fact]) {
    let mut offset = 0usize;
    for output in outputs {
        let Some(count) = output.small_count() else {
            return;
        };
        let Some(dtype) = output.tensor.as_ref().map(|tensor| tensor.dtype) else {
            return;
        };
        let rank = output.dims().map_or(0, <[Dim]>::len);
        let target = ElementTarget { count, rank, dtype, offset };
        output.elements = target
            .infer_elements(operator)
            .filter(|elements| elements.len() == count)
            .map(|elements| {
                elements.into_iter().map(|element| cast_element(element, dtype)).collect()
            });
        offset = offset.saturating_add(count);
        // Of the operators that are followed, `Split` alone has more outputs.
        if operator.op_type != "Split" {
            return;
        }
    }
}

/// The output whose elements are looked for.
struct ElementTarget {
    count: usize,
    rank: usize,
    dtype: DType,
    /// Elements in the outputs before it.
    offset: usize,
}

impl ElementTarget {
    fn infer_elements(&self, operator: &Operator<'_>) -> Option<Vec<Element>> {
        if !matches!(operator.domain, "" | "com.microsoft") {
            return None;
        }
        let name = operator.op_type;
        match name {
            "Identity" | "Reshape" | "Squeeze" | "Unsqueeze" | "ExpandDims" | "Flatten"
            | "Cast" | "CastLike" => operator.input_elements(0).map(<[Element]>::to_vec),
            "Shape" => {
                let dims = indexing::shape_range(operator, operator.input_dims(0)?)?;
                Some(dims.iter().map(Element::of_dim).collect())
            }
            "Size" => {
                let sizes = operator.input_dims(0)?.iter().map(Element::of_dim);
                Some(vec![self.fold_elements("Mul", sizes)?])
            }
            "Concat" => self.concat_elements(operator),
            "Gather" => self.gather_elements(operator),
            "Slice" => self.slice_elements(operator),
            "Transpose" => self.transpose_elements(operator),
            "Split" => {
                let elements = operator.input_elements(0).filter(|_| self.rank == 1)?;
                let end = self.offset.checked_add(self.count)?;
                elements.get(self.offset..end).map(<[Element]>::to_vec)
            }
            "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Min" | "Max" => {
                let name = match (name, operator.integer_attribute("fmod", 0)) {
                    ("Mod", 1) => "Remainder",
                    _ => name,
                };
                self.combine_pairs(operator, |a, b| self.apply_arithmetic(name, a, b))
            }
            "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" => {
                self.combine_pairs(operator, |a, b| truth_element(compare_elements(name, a, b)))
            }
            "And" | "Or" => {
                self.combine_pairs(operator, |a, b| match (name, a.as_integer(), b.as_integer()) {
                    ("And", Some(a), Some(b)) => truth_element(Some(a != 0 && b != 0)),
                    (_, Some(a), Some(b)) => truth_element(Some(a != 0 || b != 0)),
                    _ => Element::Unknown,
                })
            }
            "Not" | "Neg" | "Abs" | "Floor" | "Ceil" | "Sqrt" => {
                let elements = operator.input_elements(0)?.iter();
                Some(elements.map(|element| self.apply_unary(name, element)).collect())
            }
            "Where" => self.where_elements(operator),
            "ConstantOfShape" => {
                let value = operator.attribute("value").and_then(|attribute| attribute.t.as_ref());
                let element = match value {
                    None => Element::Real(0.0),
                    Some(tensor) => {
                        let value =
                            elements_of_weight(&tensors::weight_from_tensor(tensor.clone()).ok()?)?;
                        value.into_iter().next()?
                    }
                };
                Some(vec![element; self.count])
            }
            "Expand" => match operator.input_elements(0)? {
                [element] => Some(vec![element.clone(); self.count]),
                elements => Some(elements.to_vec()),
            },
            "Range" => self.range_elements(operator),
            "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" if self.count == 1 => {
                let name = match name {
                    "ReduceProd" => "Mul",
                    "ReduceSum" => "Add",
                    "ReduceMax" => "Max",
                    _ => "Min",
                };
                let elements = operator.input_elements(0)?.iter().cloned();
                Some(vec![self.fold_elements(name, elements)?])
            }
            _ => None,
        }
    }

    fn concat_elements(&self, operator: &Operator<'_>) -> Option<Vec<Element>> {
        if self.rank != 1 {
            return None;
        }
        let mut joined = Vec::with_capacity(self.count);
        for input in &operator.inputs {
            let fact = (*input)?;
            match &fact.elements {
                Some(elements) => joined.extend_from_slice(elements),
                None => joined.extend(vec![Element::Unknown; fact.small_count()?]),
            }
        }
        Some(joined)
    }

    fn gather_elements(&self, operator: &Operator<'_>) -> Option<Vec<Element>> {
        let [_] = operator.input_dims(0)? else {
            return None;
        };
        let elements = operator.input_elements(0)?;
        let pick = |index: &Element| {
            let index = index.as_integer().and_then(|index| resolve_axis(index, elements.len()));
            index.and_then(|index| elements.get(index)).cloned().unwrap_or(Element::Unknown)
        };
        Some(operator.input_elements(1)?.iter().map(pick).collect())
    }

    fn slice_elements(&self, operator: &Operator<'_>) -> Option<Vec<Element>> {
        let elements = operator.input_elements(0)?;
        let sizes = fixed_sizes(operator)?;
        let cuts = indexing::axis_slices(operator, sizes.len())?;
        // The places that are taken, axis by axis.
        let mut places = vec![0];
        for (axis, &size) in sizes.iter().enumerate() {
            let (start, count, step) = match cuts.iter().find(|cut| cut.axis == axis) {
                Some(cut) => {
                    let (start, count) = cut.start_and_count(size)?;
                    (start, count, cut.step.as_integer()?)
                }
                None => (0, size, 1),
            };
            let mut next = Vec::new();
            for place in places {
                let mut position = start;
                for _ in 0..count.min(MOST_ELEMENTS) {
                    next.push(usize::try_from(position).ok()?.checked_add(place * size)?);
                    position = position.checked_add(step.into())?;
                }
            }
            places = next;
        }
        places.into_iter().map(|place| elements.get(place).cloned()).collect()
    }

    fn transpose_elements(&self, operator: &Operator<'_>) -> Option<Vec<Element>> {
        let elements = operator.input_elements(0)?;
        let sizes = fixed_sizes(operator)?;
        let order: Vec<usize> = match operator.integers_attribute("perm") {
            None => (0..sizes.len()).rev().collect(),
            Some(order) => {
                order.iter().map(|&axis| resolve_axis(axis, sizes.len())).collect::<Option<_>>()?
            }
        };
        let strides: Vec<usize> =
            (0..sizes.len()).map(|axis| sizes[axis + 1..].iter().product()).collect();
        let mut places = vec![0];
        for axis in order {
            let (size, stride) = (*sizes.get(axis)?, *strides.get(axis)?);
            places = places
                .iter()
                .flat_map(|place| (0..size).map(move |index| place + index * stride))
                .collect();
        }
        places.into_iter().map(|place| elements.get(place).cloned()).collect()
    }

    fn range_elements(&self, operator: &Operator<'_>) -> Option<Vec<Element>> {
        let mut next = operator.input_scalar(0)?.clone();
        let step = operator.input_scalar(2)?;
        let mut elements = Vec::with_capacity(self.count);
        for _ in 0..self.count {
            let following = self.apply_arithmetic("Add", &next, step);
            elements.push(std::mem::replace(&mut next, following));
        }
        Some(elements)
    }

    fn where_elements(&self, operator: &Operator<'_>) -> Option<Vec<Element>> {
        let (conditions, yes, no) =
            (operator.input_elements(0)?, operator.input_elements(1)?, operator.input_elements(2)?);
        let element = |index: usize| {
            let (yes, no) = (self.broadcast_at(yes, index)?, self.broadcast_at(no, index)?);
            Some(match self.broadcast_at(conditions, index)?.as_integer() {
                Some(0) => no.clone(),
                Some(_) => yes.clone(),
                None if yes == no => yes.clone(),
                None => Element::Unknown,
            })
        };
        (0..self.count).map(element).collect()
    }

    /// Combines the elements of two inputs, of which one may be a single one.
    fn combine_pairs(
        &self,
        operator: &Operator<'_>,
        combine: impl Fn(&Element, &Element) -> Element,
    ) -> Option<Vec<Element>> {
        if operator.inputs.len() != 2 {
            return None;
        }
        let (first, second) = (operator.input_elements(0)?, operator.input_elements(1)?);
        let pair = |index| {
            Some(combine(self.broadcast_at(first, index)?, self.broadcast_at(second, index)?))
        };
        (0..self.count).map(pair).collect()
    }

    /// The element that broadcasting puts at `index`; `None` where that takes more than one axis.
    fn broadcast_at<'e>(&self, elements: &'e [Element], index: usize) -> Option<&'e Element> {
        match elements {
            [element] => Some(element),
            _ if elements.len() == self.count => elements.get(index),
            _ => None,
        }
    }

    fn fold_elements(
        &self,
        name: &str,
        mut elements: impl Iterator<Item = Element>,
    ) -> Option<Element> {
        let Some(first) = elements.next() else {
            return (name == "Mul").then_some(Element::Fixed(1));
        };
        Some(elements.fold(first, |total, element| self.apply_arithmetic(name, &total, &element)))
    }

    fn apply_unary(&self, name: &str, element: &Element) -> Element {
        let real = |value: f64| Element::Real(round_to_dtype(value, self.dtype));
        match (name, element) {
            ("Not", Element::Fixed(value)) => truth_element(Some(*value == 0)),
            ("Neg", Element::Fixed(value)) => {
                value.checked_neg().map_or(Element::Unknown, Element::Fixed)
            }
            ("Abs", Element::Fixed(value)) => {
                value.checked_abs().map_or(Element::Unknown, Element::Fixed)
            }
            ("Abs", Element::Symbol(_)) => element.clone(),
            ("Neg", Element::Real(value)) => real(-value),
            ("Abs", Element::Real(value)) => real(value.abs()),
            ("Floor", Element::Real(value)) => real(value.floor()),
            ("Ceil", Element::Real(value)) => real(value.ceil()),
            ("Sqrt", Element::Real(value)) => real(value.sqrt()),
            ("Floor" | "Ceil", Element::Symbol(_)) => element.clone(),
            _ => Element::Unknown,
        }
    }

    fn apply_arithmetic(&self, name: &str, a: &Element, b: &Element) -> Element {
        use Element::{Fixed, Real, Symbol, Unknown};
        match (name, a, b) {
            (_, Fixed(a), Fixed(b)) => integer_arithmetic(name, *a, *b).map_or(Unknown, Fixed),
            (_, Real(a), Real(b)) => real_arithmetic(name, *a, *b)
                .map_or(Unknown, |value| Real(round_to_dtype(value, self.dtype))),
            ("Add" | "Sub", Symbol(_), Fixed(0)) | ("Mul" | "Div", Symbol(_), Fixed(1)) => {
                a.clone()
            }
            ("Add", Fixed(0), Symbol(_)) | ("Mul", Fixed(1), Symbol(_)) => b.clone(),
            ("Mul" | "Div", Symbol(_), Real(one)) if *one == 1.0 => a.clone(),
            ("Mul", Real(one), Symbol(_)) if *one == 1.0 => b.clone(),
            ("Sub", Symbol(a), Symbol(b)) if a == b => Fixed(0),
            ("Min" | "Max", Symbol(first), Symbol(second)) if first == second => a.clone(),
            _ => Unknown,
        }
    }
}

fn integer_arithmetic(name: &str, a: i64, b: i64) -> Option<i64> {
    match name {
        "Add" => a.checked_add(b),
        "Sub" => a.checked_sub(b),
        "Mul" => a.checked_mul(b),
        "Div" => a.checked_div(b),
        "Remainder" => a.checked_rem(b),
        // ONNX's `Mod` has the sign of the divisor, as Python's.
        "Mod" => match a.checked_rem(b)? {
            rest if rest != 0 && (rest < 0) != (b < 0) => rest.checked_add(b),
            rest => Some(rest),
        },
        "Min" => Some(a.min(b)),
        "Max" => Some(a.max(b)),
        _ => None,
    }
}

fn real_arithmetic(name: &str, a: f64, b: f64) -> Option<f64> {
    match name {
        "Add" => Some(a + b),
        "Sub" => Some(a - b),
        "Mul" => Some(a * b),
        "Div" => Some(a / b),
        "Min" => Some(a.min(b)),
        "Max" => Some(a.max(b)),
        _ => None,
    }
}

/// The value as its dtype holds it: sizes multiplied in f32 depend on its rounding.
fn round_to_dtype(value: f64, dtype: DType) -> f64 {
    if dtype == DType::F32 { f64::from(value as f32) } else { value }
}

fn compare_elements(name: &str, a: &Element, b: &Element) -> Option<bool> {
    let order = match (a, b) {
        (Element::Fixed(a), Element::Fixed(b)) => a.cmp(b),
        (Element::Real(a), Element::Real(b)) => a.partial_cmp(b)?,
        (Element::Symbol(a), Element::Symbol(b)) if a == b => Ordering::Equal,
        // A size is never negative: models compare shapes with -1.
        (Element::Symbol(_), Element::Fixed(..0)) => Ordering::Greater,
        (Element::Fixed(..0), Element::Symbol(_)) => Ordering::Less,
        _ => return None,
    };
    match name {
        "Equal" => Some(order.is_eq()),
        "Less" => Some(order.is_lt()),
        "LessOrEqual" => Some(order.is_le()),
        "Greater" => Some(order.is_gt()),
        "GreaterOrEqual" => Some(order.is_ge()),
        _ => None,
    }
}

/// The sizes of the first input, where all are fixed.
fn fixed_sizes(operator: &Operator<'_>) -> Option<Vec<usize>> {
    operator.input_dims(0)?.iter().map(Dim::fixed_size).collect()
}

fn truth_element(value: Option<bool>) -> Element {
    value.map_or(Element::Unknown, |value| Element::Fixed(value.into()))
}

/// The element as `dtype` holds it.
fn cast_element(element: Element, dtype: DType) -> Element {
    use Element::{Fixed, Real, Symbol, Unknown};
    // Beyond this, an f64 is no longer sure to be the integer that was meant.
    let exact = |value: f64| value.is_finite() && value.abs() < 9.0e15;
    match (dtype, element) {
        (DType::F32 | DType::F64, Fixed(value)) => Real(round_to_dtype(value as f64, dtype)),
        (DType::F32 | DType::F64, Real(value)) => Real(round_to_dtype(value, dtype)),
        (DType::I64, Real(value)) if exact(value) => Fixed(value.trunc() as i64),
        (DType::I32, Real(value)) if value.abs() < f64::from(i32::MAX) => {
            Fixed(value.trunc() as i64)
        }
        (DType::I64, Fixed(value)) => Fixed(value),
        (DType::I32, Fixed(value)) if i32::try_from(value).is_ok() => Fixed(value),
        (DType::Bool, Fixed(value)) => Fixed(i64::from(value != 0)),
        (DType::Bool, Real(value)) => Fixed(i64::from(value != 0.0)),
        (DType::I64 | DType::I32 | DType::F32 | DType::F64, Symbol(name)) => Symbol(name),
        _ => Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{symbol, type_of};
    use super::*;
    use crate::builder::{GraphBuilder, int_attribute, ints_attribute};

    #[test]
    fn a_computed_shape_with_a_symbolic_batch_reaches_reshape() {
        let shown = type_of(17, |builder: &mut GraphBuilder| {
            let dims = [symbol("batch"), Dim::Fixed(8), Dim::Fixed(4), Dim::Fixed(4)];
            let x = builder.add_input("x", DType::F32, dims);
            let zero = builder.add_i64_weight("zero", &[], vec![0]);
            let axes = builder.add_i64_weight("axes", &[1], vec![0]);
            let rest = builder.add_i64_weight("rest", &[1], vec![-1]);
            let shape = builder.add_node("Shape", &[&x], []);
            let batch = builder.add_node("Gather", &[&shape, &zero], [int_attribute("axis", 0)]);
            let batch = builder.add_node("Unsqueeze", &[&batch, &axes], []);
            let wanted = builder.add_node("Concat", &[&batch, &rest], [int_attribute("axis", 0)]);
            builder.add_node("Reshape", &[&x, &wanted], [])
        });
        assert_eq!(shown, "f32[batch,128]");
    }

    #[test]
    fn sizes_are_followed_through_slices_and_arithmetic() {
        let shown = type_of(17, |builder: &mut GraphBuilder| {
            let x = builder.add_input("x", DType::F32, [2, 12, 5]);
            let [start, end, axis, four] = [1, 2, 0, 4]
                .map(|value| builder.add_i64_weight(&format!("c{value}"), &[1], vec![value]));
            let shape = builder.add_node("Shape", &[&x], []);
            let middle = builder.add_node("Slice", &[&shape, &start, &end, &axis], []);
            let heads = builder.add_node("Div", &[&middle, &four], []);
            let product = builder.add_node("ReduceProd", &[&shape], [int_attribute("keepdims", 1)]);
            let rest = builder.add_node("Div", &[&product, &heads], []);
            let wanted = builder.add_node("Concat", &[&heads, &rest], [int_attribute("axis", 0)]);
            builder.add_node("ConstantOfShape", &[&wanted], [])
        });
        assert_eq!(shown, "f32[3,40]");
    }

    #[test]
    fn minus_one_in_an_expanded_shape_is_told_from_a_size() {
        let shown = type_of(17, |builder: &mut GraphBuilder| {
            let x = builder.add_input("x", DType::F32, [symbol("n"), Dim::Fixed(1)]);
            let wanted = builder.add_i64_weight("wanted", &[2], vec![-1, 7]);
            let minus = builder.add_i64_weight("minus", &[1], vec![-1]);
            let shape = builder.add_node("Shape", &[&x], []);
            let asked = builder.add_node("Equal", &[&wanted, &minus], []);
            let sizes = builder.add_node("Where", &[&asked, &shape, &wanted], []);
            builder.add_node("Expand", &[&x, &sizes], [])
        });
        assert_eq!(shown, "f32[n,7]");
    }

    #[test]
    fn sizes_scaled_in_floating_point_come_back_as_integers() {
        let shown = type_of(17, |builder: &mut GraphBuilder| {
            let x = builder.add_input("x", DType::F32, [10, 3]);
            let scale = builder.add_weight("scale", &[], vec![0.7]);
            let shape = builder.add_node("Shape", &[&x], []);
            let real = builder.add_node("Cast", &[&shape], [int_attribute("to", 1)]);
            let scaled = builder.add_node("Mul", &[&real, &scale], []);
            let floor = builder.add_node("Floor", &[&scaled], []);
            let sizes = builder.add_node("Cast", &[&floor], [int_attribute("to", 7)]);
            builder.add_node("ConstantOfShape", &[&sizes], [])
        });
        assert_eq!(shown, "f32[7,2]");
    }

    #[test]
    fn a_split_shape_gives_each_part_its_elements() {
        let shown = type_of(11, |builder: &mut GraphBuilder| {
            let x = builder.add_input("x", DType::F32, [2, 3, 4]);
            let shape = builder.add_node("Shape", &[&x], []);
            let parts = builder.add_node_with_outputs(
                "Split",
                &[&shape],
                2,
                [ints_attribute("split", &[1, 2])],
            );
            builder.add_node("ConstantOfShape", &[&parts[1]], [])
        });
        assert_eq!(shown, "f32[3,4]");
    }

    #[test]
    fn arithmetic_that_overflows_is_unknown() {
        assert_eq!(integer_arithmetic("Mul", i64::MAX, 2), None);
        assert_eq!(integer_arithmetic("Div", i64::MIN, -1), None);
        assert_eq!(integer_arithmetic("Mod", 5, 0), None);
        assert_eq!(integer_arithmetic("Mod", -7, 3), Some(2));
    }
}
